// Package bridgetest is the contract of bridges: what each of them keeps, whatever its protocol is, as a suite of tests that it
// runs with a [Kit]; and a [Mesh] to test bridges in. Only tests import it.
//
// A kit brings what stands at the two far ends, made with somebody else's library where there is one: an agent, which does the
// acts of a [Script], and a client. The suite stands in the middle, and asks through the bridge: as a consumer of the mesh what
// was imported, as the client what is exported, and as the client what was imported.
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

// A Kit is what the suite needs of a protocol. What says nothing of itself is needed.
type Kit struct {
	// Bridge makes the bridge, as its host would. Whatever it does by the clock is set to do so soon.
	Bridge func(t testing.TB) bridge.Bridge
	// Start starts an agent that does what the script says, until the test ends.
	Start func(t testing.TB, s *Script) *Foreign
	// Target makes a target of the address of a web server, "http://127.0.0.1:7". Nil: agents are not reached over HTTP.
	Target func(url string) string
	// Nonsense are targets that are none.
	Nonsense []string
	// Bad are targets that are no agents, beside the web servers that the suite has for Target, by what is there. Silent is one
	// that takes what is said, and never answers. Both may be left out.
	Bad    map[string]string
	Silent string
	// AgentOnly leaves the rules of export to another kit of the same bridge.
	AgentOnly bool
	// Connect returns a client of the thing name, in what a handler of the bridge serves at the address of a web server.
	Connect func(t testing.TB, url, name string) Client
	// Kinds are how a client of the protocol sees that its call has failed, by why: the [Failure.Kind].
	Kinds map[interact.Code]string
	// Limit is how many bytes the bridge takes at once, at most: an eighth more is an error. 0 leaves to another kit of the same
	// bridge what takes long.
	Limit int
	// Survives says that a run outlives its client, and is cancelled by an operation of its own (Call.Begun).
	Survives bool
	// Lacks are the parts that the protocol does not have, and why.
	Lacks map[Part]string
}

// A Part is something that not every protocol has.
type Part string

// What a protocol may lack.
const (
	Schemas Part = "schemas" // agents say what input they take
	Streams Part = "streams" // parts of an output, or how far it is, come before the end
	HoldUps Part = "holdups" // agents can be held up, and keep nothing of what they say
	Inputs  Part = "inputs"  // runs ask for more
	Changes Part = "changes" // agents say, or show, that they have changed
	Tells   Part = "tells"   // clients are told that what they use has changed
	Refuses Part = "refuses" // clients that cannot be asked are refused what asks
)

// large is what a rule needs that moves many bytes.
const large Part = "large"

// A Foreign is an agent of the protocol.
type Foreign struct {
	// Target is where it is, and As with what it is imported.
	Target string
	As     bridge.Import
	// Change has it do [Extra], too, and say so if its protocol has words for that. Nil where [Changes] are lacking.
	Change func()
	// Stop has it go away: nobody is there any more.
	Stop func()
}

// A Client asks one thing. It is safe for concurrent use.
type Client interface {
	// Names are those of the actions that it is offered.
	Names(ctx context.Context) ([]string, error)
	// Call asks for an action, and returns its output as text. The error is a [*Failure] if the far end said so.
	Call(ctx context.Context, c Call) (string, error)
	// Changed gets a value when the client is told that what it is offered has changed. Nil where it never is ([Tells]).
	Changed() <-chan struct{}
}

// A Call is what a client asks.
type Call struct {
	Name  string
	Input json.RawMessage // an object
	// Heard is told what comes on the way, in order; nil does not want to know. It may be called a little longer than the call
	// takes.
	Heard func(text string)
	// Answer is asked what the thing wants to know, and returns an object; nil cannot be asked.
	Answer func(question string) json.RawMessage
	// Begun is told how to cancel the run, once the client knows; only where it survives its client.
	Begun func(cancel func(context.Context) error)
}

// A Failure is what a client is told of why there is no output.
type Failure struct {
	// Kind is the protocol's own word or number for it.
	Kind string
	// Text is all that it says to its user.
	Text string
}

// Error returns the kind and the text.
func (f *Failure) Error() string { return f.Kind + ": " + f.Text }

// patience is how long the suite waits for what must happen. Nothing takes as long if all is well.
const patience = time.Minute

// A rule is one sentence of the contract.
type rule struct {
	says  string
	needs []Part
	check func(b *bed)
}

// Run checks all rules, one after the other, and after each that nothing of it is left. The test must not be parallel: what
// others leave behind meanwhile would be counted.
func Run(t *testing.T, k Kit) {
	for _, r := range rules() {
		if k.AgentOnly && strings.HasPrefix(r.says, "export") {
			continue
		}
		if why := k.lacks(r); why != "" {
			t.Logf("%s: not checked: %s", r.says, why)
			continue
		}
		t.Run(r.says, func(t *testing.T) { r.run(t, &k, patience) })
	}
}

func rules() (all []rule) {
	for _, part := range [][]rule{importRules, exportRules, throughRules} {
		all = append(all, part...)
	}
	return all
}

func (k *Kit) lacks(r rule) string {
	for _, p := range r.needs {
		if p == large && k.Limit == 0 {
			return "another kit is large enough"
		}
		if why, ok := k.Lacks[p]; ok {
			return why
		}
	}
	return ""
}

// over is more than the limit: what is put around messages on their way is not counted to the byte.
func (k *Kit) over() int { return k.Limit + k.Limit/8 }

// run checks a rule. Within the time all must happen that it waits for.
func (r rule) run(t testing.TB, k *Kit, within time.Duration) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { // the last, for it is registered first
		if err := goleak.Find(before); err != nil {
			t.Errorf("something is left: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	b := &bed{TB: t, kit: k, ctx: ctx, bridge: k.Bridge(t)}
	b.mesh = NewMesh(t, b.policy)
	if g, ok := b.bridge.(bridge.Guard); ok {
		b.mesh.Guard(g)
	}
	r.check(b)
}
