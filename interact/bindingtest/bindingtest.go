// Package bindingtest is the conformance suite for protocol bindings. Each binding runs it with a [Kit]; only tests import it.
//
// A kit provides both ends: a client of the binding, and a server that serves the [Agent] of the suite. The suite calls the agent over
// the forms of its description and compares what arrived there with what came back.
package bindingtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// A Kit adapts the suite to a binding. A field is required unless its comment says otherwise.
type Kit struct {
	// Supports reports whether the binding can use a form.
	Supports func(f *td.Form) bool
	// Client returns a client, which the suite closes.
	Client func(o Options) Client
	// Serve serves an agent with its gate until the test ends, at a free port of 127.0.0.1. It returns host and port.
	Serve func(t testing.TB, a *Agent) (address string)
	// Form returns the members of a form for an operation on an affordance at address: `"href": "http://…"`. The suite adds "op".
	Form func(address, op, name string) string
	// Security is a security scheme that the binding supports, a JSON object, and Secret the members of its credential:
	// `"token": "…"`. SecureForm is Form for that scheme; nil means Form.
	Security, Secret string
	SecureForm       func(address, op, name string) string
	// TooLarge is the code of the error of a reply that exceeds the limit of the client; 0 means [interact.TooLarge].
	TooLarge interact.Code
	// Silence is how long a server may be silent before it shows that it has the request; it may be zero.
	Silence time.Duration
	// Lacks are the parts that the binding does not have, each with the reason.
	Lacks map[Part]string
}

// Options are the settings of a client that the suite changes.
type Options struct {
	Credentials credentials.Store
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error) // nil: a net.Dialer
	Limit       int                                                               // of a reply in bytes; 0: the default
}

// A Client is a client of a binding.
type Client interface {
	Thing(t *td.Thing) interact.Thing
	Close()
}

// A Part is an optional part of a protocol.
type Part string

// Optional parts.
const (
	Cancellation Part = "cancellation" // the agent learns that the consumer has left an action
	Conversion   Part = "conversion"   // a form has one media type
	Hops         Part = "hops"         // requests count the nodes that they passed
	Gate         Part = "gate"         // a drain of the server waits for its responses by an [interact.Gate]
)

// ruleTimeout limits each rule. A conforming binding needs far less.
const ruleTimeout = 30 * time.Second

// A rule is one requirement of the suite.
type rule struct {
	name  string
	needs Part // empty: nothing
	check func(b *fixture)
}

// Run checks all rules, one after the other, and after each one that no goroutine is left. The test must not be parallel, because
// goroutines of other tests would be counted.
func Run(t *testing.T, k Kit) {
	for _, r := range rules {
		if why, ok := k.Lacks[r.needs]; ok {
			t.Logf("%s: not checked: %s", r.name, why)
			continue
		}
		t.Run(r.name, func(t *testing.T) { r.run(t, &k, ruleTimeout) })
	}
}

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
	r.check(&fixture{TB: t, kit: k, ctx: ctx, agent: newAgent()})
}

// thingID is the id of the agent.
const thingID = "urn:example:lamp"

// description is that of the agent; FORM(op name) is a form.
const description = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "id": "` + thingID + `", "title": "Lamp",
	"securityDefinitions": {"sc": SECURITY}, "security": ["sc"],
	"properties": {
		"level": {"type": "integer", "observable": true, "forms": [FORM(readproperty level), FORM(writeproperty level), FORM(observeproperty level)]},
		"power": {"type": "boolean", "forms": [FORM(readproperty power), FORM(writeproperty power)]},
		"big":   {"type": "string", "readOnly": true, "forms": [FORM(readproperty big)]}},
	"actions": {
		"echo":  {"synchronous": true, "output": {}, "forms": [FORM(invokeaction echo)]},
		"fail":  {"synchronous": true, "output": {}, "forms": [FORM(invokeaction fail)]},
		"late":  {"synchronous": true, "output": {}, "forms": [FORM(invokeaction late)]},
		"stuck": {"synchronous": true, "output": {}, "forms": [FORM(invokeaction stuck)]}},
	"events": {"alarm": {"data": {"type": "integer"}, "forms": [FORM(subscribeevent alarm)]}}}`

// A fixture is what a rule works with.
type fixture struct {
	testing.TB
	kit   *Kit
	ctx   context.Context
	agent *Agent
	dials dials
}

// describe returns the description of the agent with the forms that form returns.
func (b *fixture) describe(security string, form func(op, name string) string) *td.Thing {
	b.Helper()
	var text strings.Builder
	first, rest, _ := strings.Cut(strings.Replace(description, "SECURITY", security, 1), "FORM(")
	for text.WriteString(first); rest != ""; {
		var call string
		call, rest, _ = strings.Cut(rest, ")")
		op, name, _ := strings.Cut(call, " ")
		fmt.Fprintf(&text, `{%s, "op": %q}`, form(op, name), op)
		first, rest, _ = strings.Cut(rest, "FORM(")
		text.WriteString(first)
	}
	thing, err := td.Parse([]byte(text.String()))
	if err != nil {
		b.Fatalf("the description of the agent: %v\n%s", err, text.String())
	}
	return thing
}

// start serves the agent, and returns it as a client sees it.
func (b *fixture) start() interact.Thing {
	b.Helper()
	return b.client(Options{}).Thing(b.serve())
}

// serve serves the agent, and returns its description.
func (b *fixture) serve() *td.Thing {
	b.Helper()
	b.agent.About = b.described("127.0.0.1:1")
	return b.described(b.kit.Serve(b, b.agent))
}

// described returns the description of an agent at address, without security.
func (b *fixture) described(address string) *td.Thing {
	b.Helper()
	return b.describe(`{"scheme": "nosec"}`, func(op, name string) string { return b.kit.Form(address, op, name) })
}

// client returns a client that is closed before the servers.
func (b *fixture) client(o Options) Client {
	if o.Dial == nil {
		o.Dial = b.dials.dial
	}
	c := b.kit.Client(o)
	b.Cleanup(c.Close)
	return c
}

// credentials returns a store with the secret of the kit, for an origin.
func (b *fixture) credentials(origin string) credentials.Store {
	b.Helper()
	path := filepath.Join(b.TempDir(), "credentials.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{%q: {"sc": {"origin": %q, %s}}}`, thingID, origin, b.kit.Secret), 0o600); err != nil {
		b.Fatal(err)
	}
	store, err := credentials.Load(path)
	if err != nil {
		b.Fatal(err)
	}
	return store
}

// message returns a message of a type with JSON data.
func message(t interact.Type, name, data string) *interact.Message {
	return &interact.Message{Type: t, Thing: thingID, ID: interact.NewID(), Name: name, Data: []byte(data)}
}

// call sends a message and returns the last reply.
func (b *fixture) call(t interact.Thing, m *interact.Message) (*interact.Message, error) {
	return interact.Call(b.ctx, t, m)
}

// must is call without an error.
func (b *fixture) must(t interact.Thing, m *interact.Message) *interact.Message {
	b.Helper()
	r, err := b.call(t, m)
	if err != nil {
		b.Fatalf("%s %s: %v", m.Type.Op(), m.Name, err)
	}
	return r
}

// want checks that err is an error of the model with a code and a hint, and returns it.
func (b *fixture) want(what string, err error, code interact.Code) *interact.Error {
	b.Helper()
	var e *interact.Error
	switch {
	case !errors.As(err, &e):
		b.Fatalf("%s: got %v, want an *interact.Error of code %s", what, err, code)
	case e.Code != code:
		b.Fatalf("%s: got %s (%v), want %s", what, e.Code, e, code)
	case e.Hint == "" && code != interact.Cancelled:
		b.Errorf("%s: %v has no hint, want one", what, e)
	}
	return e
}

// untouched checks that nothing was sent.
func (b *fixture) untouched(what string) {
	b.Helper()
	if n := b.dials.count(); n > 0 {
		b.Errorf("%s: the client dialed %v, want no connection", what, b.dials.addresses)
	}
	if seen := b.agent.Seen(); len(seen) > 0 {
		b.Errorf("%s: the agent received %d messages, want none", what, len(seen))
	}
}

// dials records where a client connects to.
type dials struct {
	mu        sync.Mutex
	addresses []string
	fails     error // of the next dials
}

func (d *dials) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	d.addresses = append(d.addresses, addr)
	err := d.fails
	d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

func (d *dials) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.addresses)
}
