// Package bridgetest is the conformance suite for implementations of [bridge.Bridge], with an in-memory [Mesh]. Each bridge runs it
// with a [Kit]. Only tests import it.
//
// A kit provides both far ends, built with a third-party library where one exists: an agent, which does the acts of a [Script], and
// a client. The suite calls through the bridge: an imported agent as a consumer of the mesh, an exported Thing as the client, and
// an imported agent as the client (round trip).
package bridgetest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
)

// A Kit adapts the suite to a protocol. A field is required unless its comment says otherwise.
type Kit struct {
	// Bridge returns the bridge as its host configures it, with short intervals for periodic work.
	Bridge func(t testing.TB) bridge.Bridge
	// Start starts an agent that follows the script until the test ends.
	Start func(t testing.TB, s *Script) *Foreign
	// Target converts the URL of a web server, "http://127.0.0.1:7", to an import target. Nil: agents are not reached over HTTP.
	Target func(url string) string
	// Nonsense are invalid targets.
	Nonsense []string
	// Bad are targets that are not agents, by description, in addition to the web servers of the suite. Silent is a program that
	// reads its input and never answers. Both are optional.
	Bad    map[string]string
	Silent string
	// AgentOnly skips the export rules, which another kit of the same bridge covers.
	AgentOnly bool
	// Connect returns a client of the Thing name; url is the server that serves the bridge's handler.
	Connect func(t testing.TB, url, name string) Client
	// Kinds are the [Failure.Kind] of each error code for a client of the protocol.
	Kinds map[interact.Code]string
	// Limit is the largest message that the bridge accepts, in bytes: 1/8 more is an error. 0 skips the slow rules, which another
	// kit of the same bridge covers.
	Limit int
	// Detached reports that a run continues after its client disconnects, and is canceled by a separate operation (Call.OnStart).
	Detached bool
	// Lacks are the parts that the protocol does not have, each with the reason.
	Lacks map[Part]string
}

// A Part is an optional part of a protocol.
type Part string

// Optional parts.
const (
	Schemas       Part = "schemas"       // agents declare input schemas
	Streams       Part = "streams"       // partial outputs or progress are sent before the end
	Backpressure  Part = "backpressure"  // backpressure reaches the agent
	Inputs        Part = "inputs"        // actions require input while they run
	Changes       Part = "changes"       // agents report, or show, changes of their definition
	Notifications Part = "notifications" // clients are notified of changes
	InputErrors   Part = "input-errors"  // a client that cannot provide input gets an error
)

// large is needed by rules that move many bytes.
const large Part = "large"

// A Foreign is an agent of the protocol.
type Foreign struct {
	// Target is its address, and As are the options of its import.
	Target string
	As     bridge.Import
	// Change adds the act [Extra], and reports the change if the protocol can. Nil without [Changes].
	Change func()
	// Stop makes the agent unreachable.
	Stop func()
}

// A Client calls one Thing. It is safe for concurrent use.
type Client interface {
	// Names are those of the actions that the client sees.
	Names(ctx context.Context) ([]string, error)
	// Call invokes an action, and returns its output as text. The error is a [*Failure] if the far end reported it.
	Call(ctx context.Context, c Call) (string, error)
	// Changed receives a value when the client is notified of a change. Nil without [Notifications].
	Changed() <-chan struct{}
}

// A Call is one call of a client.
type Call struct {
	Name  string
	Input json.RawMessage // an object
	// OnProgress receives partial outputs and progress in order; it may be nil. It may be called shortly after Call has returned.
	OnProgress func(text string)
	// Answer returns the input that an action requires, an object; nil: the client cannot provide input.
	Answer func(question string) json.RawMessage
	// OnStart receives the function that cancels the run, as soon as the client has its id; only if runs survive their client.
	OnStart func(cancel func(context.Context) error)
}

// A Failure is the error that a client receives instead of an output.
type Failure struct {
	// Kind is the protocol's own code.
	Kind string
	// Text is the whole text for the user.
	Text string
}

// Error returns the kind and the text.
func (f *Failure) Error() string { return f.Kind + ": " + f.Text }

// ruleTimeout limits each rule. A conforming bridge needs far less.
const ruleTimeout = time.Minute

// A rule is one requirement of the suite.
type rule struct {
	name  string
	needs []Part
	check func(b *fixture)
}

// Run checks all rules, one after the other, and after each one that no goroutine is left. The test must not be parallel, because
// goroutines of other tests would be counted.
func Run(t *testing.T, k Kit) {
	for _, r := range rules() {
		if k.AgentOnly && strings.HasPrefix(r.name, "export") {
			continue
		}
		if why := k.lacks(r); why != "" {
			t.Logf("%s: not checked: %s", r.name, why)
			continue
		}
		t.Run(r.name, func(t *testing.T) { r.run(t, &k, ruleTimeout) })
	}
}

func rules() (all []rule) {
	for _, part := range [][]rule{importRules, exportRules, roundtripRules} {
		all = append(all, part...)
	}
	return all
}

func (k *Kit) lacks(r rule) string {
	for _, p := range r.needs {
		if p == large && k.Limit == 0 {
			return "another kit covers it"
		}
		if why, ok := k.Lacks[p]; ok {
			return why
		}
	}
	return ""
}

// over is more than the limit, with room for the framing of a message.
func (k *Kit) over() int { return k.Limit + k.Limit/8 }

// run checks a rule within a time limit.
func (r rule) run(t testing.TB, k *Kit, within time.Duration) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { // runs last, because it is registered first
		if err := goleak.Find(before); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	b := &fixture{TB: t, kit: k, ctx: ctx, bridge: k.Bridge(t)}
	b.mesh = NewMesh(t, b.policy)
	if g, ok := b.bridge.(bridge.TunnelGuard); ok {
		b.mesh.Guard(g)
	}
	r.check(b)
}
