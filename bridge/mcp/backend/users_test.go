package backend_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
)

// A log message does not name its request: it is dropped while it may belong to another caller, or another user of a relay.
func TestLogMessagesReachOnlyTheirCaller(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		caller, user string
		heard        int
	}{"the same user": {"relay", "ada", 1}, "another user": {"relay", "eve", 0}, "another caller": {"other", "ada", 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, protocol.Legacy)
			b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
			ctx, cancel := context.WithCancel(protocol.WithUser(protocol.WithCaller(t.Context(), c.caller), c.user))
			var others sync.WaitGroup
			defer others.Wait()
			defer cancel()
			others.Go(func() {
				_, _ = b.Call(ctx, request("1", protocol.CallTool, "{}", map[string]any{"name": "hang"}), ignoreMessage)
			})
			<-f.hangEvents
			heard := 0
			m := request("2", protocol.CallTool, "{}", map[string]any{"name": "log"}).WithParam(json.RawMessage(`"info"`), "_meta", protocol.MetaLogLevel)
			_, err := b.Call(protocol.WithUser(protocol.WithCaller(t.Context(), "relay"), "ada"), m, func(*protocol.Message) error { heard++; return nil })
			if err != nil || heard != c.heard {
				t.Errorf("received %d log messages, %v; want %d", heard, err, c.heard)
			}
		})
	}
}

// A host records the caller that the relay reports.
type host struct{ callers chan [2]string }

func (h host) Call(ctx context.Context, m *protocol.Message, _ func(*protocol.Message) error) (*protocol.Message, error) {
	raw, _ := m.Param("_meta", protocol.MetaUser)
	h.callers <- [2]string{protocol.UserOf(ctx), string(raw)}
	return protocol.Respond(m.ID(), struct{}{}), nil
}

func (host) Session(context.Context) (protocol.Conn, error) { panic("there are none") }

// The relay, not its users, reports which of its users calls; a server never sees it.
func TestUsersOfRelay(t *testing.T) {
	t.Parallel()
	h := host{make(chan [2]string, 1)}
	dial := tunnelTo(t, h)
	relay := open(t, backend.Options{Relay: true, Name: "relay", Dial: dial})
	hostile, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close()
	for name, c := range map[string]struct {
		caller, tag string
		bytes       int // of the user's name
		direct      bool
	}{
		"no user":         {"", `"forged"`, 0, false},
		"somebody":        {"ada", `"forged"`, 32, false},
		"nothing said":    {"ada", `null`, 32, false},
		"a long name":     {"", `"` + strings.Repeat("x", 999) + `"`, 64, true},
		"what is no name": {"", `{"a":1}`, 0, true},
	} {
		m := request("1", "tools/list", "{}", nil).WithParam(json.RawMessage(c.tag), "_meta", protocol.MetaUser)
		if c.direct {
			err = hostile.Write(t.Context(), m)
		} else {
			_, err = relay.Call(protocol.WithCaller(t.Context(), c.caller), m, ignoreMessage)
		}
		if got := wait(t, "the request", h.callers); err != nil || len(got[0]) != c.bytes || got[0] == "forged" || got[1] != "" {
			t.Errorf("%s: the host has %q, %v", name, got, err)
		}
		if c.direct {
			if _, err := hostile.Read(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// Callers with different rights at the host do not share a tunnel of a relay, so that each has no more than its own. A host in this process
// receives the principal of each request instead.
func TestTunnelsOfRelay(t *testing.T) {
	t.Parallel()
	for name, near := range map[string]bool{"far": false, "near": true} {
		var mu sync.Mutex
		opened := map[string]int{}
		h := host{make(chan [2]string, 99)}
		dial := tunnelTo(t, h)
		relay := open(t, backend.Options{Relay: true, Near: near, Name: "relay", Dial: func(ctx context.Context) (protocol.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			p := did.PrincipalOf(ctx)
			opened[p.ID()+" "+string(p.Via)]++
			return dial(ctx)
		}})
		for _, p := range []*did.Principal{nil, did.Consumer(did.Unproven, ""), did.Consumer(did.Loopback, ""), did.Consumer(did.Token, "a"),
			did.Consumer(did.Token, "b"), did.Consumer(did.Token, did.Operator), did.Consumer(did.Socket, "uid:1"), did.Consumer(did.Process, "")} {
			for range 2 {
				ctx := protocol.WithCaller(t.Context(), p.ID())
				if p != nil {
					ctx = did.WithPrincipal(ctx, p)
				}
				if _, err := relay.Call(ctx, request("1", "tools/list", "{}", nil), ignoreMessage); err != nil {
					t.Error(err)
				}
			}
		}
		want := map[string]int{"unproven unproven": 1, "local loopback": 1, "local token": 1, "local process": 1}
		if near {
			want = map[string]int{"local process": 1}
		}
		mu.Lock()
		if !maps.Equal(opened, want) {
			t.Errorf("%s: the relay opened %v, want %v", name, opened, want)
		}
		mu.Unlock()
	}
}

// A server that does not read the input of one caller does not block others.
func TestServerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blocked, over := make(chan struct{}), make(chan struct{})
		defer close(over)
		question := func(id string) string {
			return `{"jsonrpc":"2.0","id":"` + id + `","method":"elicitation/create","params":{"message":"?","requestedSchema":{}}}`
		}
		serve := func(there net.Conn) {
			c := protocol.Lines(there)
			defer c.Close()
			say := func(line string) { _, _ = there.Write([]byte(line + "\n")) }
			for {
				m, err := c.Read(context.Background())
				switch {
				case err != nil:
					return
				case !m.IsRequest():
				case m.Method() == protocol.Initialize:
					say(`{"jsonrpc":"2.0","id":` + string(m.ID()) + `,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
				case m.Text("name") == "ask":
					say(question("one"))
					_, _ = there.Read(make([]byte, 1)) // of the answer
					say(question("two"))
					close(blocked)
					<-over
					return
				case m.Method() == protocol.CallTool:
					say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
					say(`{"jsonrpc":"2.0","id":` + string(m.ID()) + `,"result":{}}`)
				default:
					say(`{"jsonrpc":"2.0","id":` + string(m.ID()) + `,"error":{"code":-32601,"message":"no"}}`)
				}
			}
		}
		b := open(t, backend.Options{Name: "stuck", Dial: func(context.Context) (protocol.Conn, error) {
			here, there := net.Pipe()
			go serve(there)
			return protocol.Lines(here), nil
		}})
		word, requests := state(t, b, "ada")
		ctx, cancel := context.WithCancel(protocol.WithCaller(t.Context(), "ada"))
		var ada sync.WaitGroup
		defer ada.Wait()
		defer cancel()
		ada.Go(func() {
			_, _ = b.Call(ctx, askTool("2", map[string]any{"requestState": word, "inputResponses": answers(requests)}), ignoreMessage)
		})
		<-blocked
		eve, done := context.WithTimeout(protocol.WithCaller(t.Context(), "eve"), stepTimeout)
		defer done()
		for range 10 {
			if _, err := b.Call(eve, request("3", protocol.CallTool, all, map[string]any{"name": "tell"}), ignoreMessage); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the second request for input is accepted
		}
	})
}

// A server that does not respond to subscriptions delays its callers for at most sendTimeout, and not those that disconnect. Changes before
// all responses are notified.
func TestServerWithoutSubscriptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, backend.Options{Name: "slow", Dial: scripted(func(m *protocol.Message) []string {
			switch {
			case m.Method() == protocol.Initialize:
				return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}}}}`}
			case m.Text("uri") == "test://0":
				return []string{`{"jsonrpc":"2.0","id":$ID,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://0"}}`}
			case !m.IsRequest() || m.Method() == "resources/subscribe":
				return nil
			}
			return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
		})})
		var uris []string
		for i := range 20 {
			uris = append(uris, fmt.Sprint("test://", i))
		}
		listen := request("1", protocol.Listen, "{}", map[string]any{"notifications": map[string]any{"resourceSubscriptions": uris}})
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan string, 9)
		var ada sync.WaitGroup
		defer ada.Wait()
		defer cancel()
		begun := time.Now()
		ada.Go(func() {
			_, _ = b.Call(ctx, listen, func(n *protocol.Message) error { answered <- n.Method(); return nil })
		})
		if first, second := <-answered, <-answered; first != protocol.Acknowledged || second != protocol.ResourceUpdated || time.Since(begun) > 15*time.Second {
			t.Fatalf("received %s and %s after %v", first, second, time.Since(begun))
		}
		var others sync.WaitGroup
		begun = time.Now()
		for range 9 {
			others.Go(func() {
				soon, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				_, _ = b.Call(soon, listen, ignoreMessage)
			})
		}
		others.Wait()
		if waited := time.Since(begun); waited > 2*time.Second {
			t.Errorf("the session of a disconnected user is kept for %v", waited)
		}
	})
}
