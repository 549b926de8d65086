package backend_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// The state of a suspended request is valid only in its process, and for the node that sent the request. Another process returns an error,
// because it cannot continue the request.
func TestStatesOfAnotherProcess(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Legacy)
	host := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	other := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	// Nodes that relay; each is one caller of the host.
	b := open(t, backend.Options{Relay: true, Name: "relay", Dial: tunnelFrom(t, host, "did:key:zB")})
	c := open(t, backend.Options{Relay: true, Name: "relay", Dial: tunnelFrom(t, host, "did:key:zC")})
	word, requests := state(t, b, "ada")
	retry := askTool("2", map[string]any{"requestState": word, "inputResponses": answers(requests)})
	for _, one := range []struct {
		name, caller string
		at           protocol.Server
		want         string
	}{
		{"another process", "", other, "another node"},
		{"through another node", "ada", c, "does not belong to this request"},
		{"of another caller of the node", "eve", b, "does not belong to this request"},
		{"through the node that asked", "ada", b, `"result"`}, // or a new request for input
		{"again", "ada", b, "already used"},
	} {
		r, err := one.at.Call(protocol.WithCaller(t.Context(), one.caller), retry, ignoreMessage)
		if err != nil || !strings.Contains(string(r.Bytes()), one.want) {
			t.Errorf("%s: got %s, %v", one.name, r.Bytes(), err)
		}
	}
}

// tunnelFrom is tunnelTo with a node as the caller.
func tunnelFrom(t *testing.T, host protocol.Server, node string) func(context.Context) (protocol.Conn, error) {
	var served sync.WaitGroup
	t.Cleanup(served.Wait)
	return func(context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		ctx := protocol.WithCaller(context.Background(), node)
		served.Go(func() { _ = backend.Serve(ctx, host, protocol.Lines(there), nil) })
		return protocol.Lines(here), nil
	}
}

// One caller cannot occupy all processes of a server by suspended calls.
func TestSuspendedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Legacy)
	b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	for range 16 {
		state(t, b, "eve")
	}
	_, err := b.Call(protocol.WithCaller(t.Context(), "eve"), askTool("1", nil), ignoreMessage)
	if interact.AsError(err).Code != interact.Overloaded {
		t.Errorf("one more: got %v", err)
	}
	state(t, b, "ada")
}

// A token that a server issues to several callers is valid for each of them, and for no others.
func TestTokensIssuedTwice(t *testing.T) {
	t.Parallel()
	b := open(t, backend.Options{Name: "new", Dial: scripted(func(m *protocol.Message) []string {
		switch {
		case m.Method() == protocol.Discover:
			return []string{discovery}
		case m.Text("requestState") != "":
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete"}}`}
		}
		return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","requestState":"step 2"}}`}
	})})
	call := func(caller string, more map[string]any) string {
		r, err := b.Call(protocol.WithCaller(t.Context(), caller), askTool("1", more), ignoreMessage)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Bytes())
	}
	for _, caller := range []string{"ada", "bob", "ada"} {
		call(caller, nil)
	}
	for caller, want := range map[string]string{"ada": `"complete"`, "bob": `"complete"`, "eve": "-32602"} {
		if got := call(caller, map[string]any{"requestState": "step 2"}); !strings.Contains(got, want) {
			t.Errorf("%s got %s", caller, got)
		}
	}
}

// Many tasks of one caller do not evict those of others.
func TestManyTasksOfOneCaller(t *testing.T) {
	t.Parallel()
	n := 0
	b := open(t, backend.Options{Name: "tasks", Dial: scripted(func(m *protocol.Message) []string {
		switch m.Method() {
		case protocol.Discover:
			return []string{discovery}
		case protocol.CallTool:
			n++
			return []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"task","taskId":"T%d","status":"working"}}`, n)}
		}
		return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete"}}`}
	})})
	begin := func(caller string) {
		if _, err := b.Call(protocol.WithCaller(t.Context(), caller), request("1", protocol.CallTool, "{}", map[string]any{"name": "x"}), ignoreMessage); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(caller, id string) bool {
		r, err := b.Call(protocol.WithCaller(t.Context(), caller), request("2", "tasks/get", "{}", map[string]any{"taskId": id}), ignoreMessage)
		return err == nil && r.Error() != nil
	}
	begin("ada")
	for range 5000 {
		begin("eve")
	}
	if !refused("eve", "T1") || refused("ada", "T1") || !refused("ada", "T5001") {
		t.Error("the owner of a task was forgotten")
	}
}

// Notifications of a server are merged: a change is notified soon, and later ones once more.
func TestFloodsOfChanges(t *testing.T) {
	t.Parallel()
	for name, flood := range map[string]func(id string) string{
		"lists": func(string) string {
			return `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":$SUB}`
		},
		"resources": func(i string) string {
			return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:` + i + `"}}`
		},
		"giants": func(string) string {
			return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1","x":"` + strings.Repeat("x", 100<<10) + `"}}`
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := backend.New(backend.Options{Name: "flood", Dial: scripted(func(m *protocol.Message) []string {
				switch m.Method() {
				case protocol.Discover:
					return []string{discovery}
				case protocol.Listen:
					wants, _ := m.Param("notifications")
					sub := `"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(m.ID()) + `}`
					lines := []string{`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` + string(wants) + `,` + sub + `}}`}
					for i := range 120 {
						line := strings.ReplaceAll(flood(fmt.Sprint(i%4)), "$SUB", "{"+sub+"}")
						lines = append(lines, strings.Replace(line, `"uri":`, sub+`,"uri":`, 1))
					}
					return lines
				}
				return nil
			})})
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			heard := 0
			uris := []string{"x:0", "x:1", "x:2", "x:3"}
			_, _ = b.Call(ctx, request("1", protocol.Listen, "{}", map[string]any{"notifications": map[string]any{"toolsListChanged": true,
				"resourceSubscriptions": uris}}), func(*protocol.Message) error {
				heard++
				time.Sleep(time.Second) // a slow caller
				return nil
			})
			if heard < 1 || heard > 12 || name == "giants" && heard != 1 {
				t.Errorf("%s: a slow caller received %d", name, heard)
			}
		})
	}
}

// The number of subscriptions is limited.
func TestListensAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Modern)
	b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	ctx, cancel := context.WithCancel(protocol.WithCaller(t.Context(), "eve"))
	begun := make(chan struct{}, 1024)
	var work sync.WaitGroup
	listen := func() error {
		_, err := b.Call(ctx, request("1", protocol.Listen, "{}", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}),
			func(*protocol.Message) error { begun <- struct{}{}; return nil })
		return err
	}
	for range 512 {
		work.Go(func() { _ = listen() })
	}
	for range 512 {
		wait(t, "an acknowledgement", begun)
	}
	if err := listen(); interact.AsError(err).Code != interact.Overloaded {
		t.Errorf("one more: got %v", err)
	}
	cancel()
	work.Wait()
}

// A legacy server that requires input endlessly, and reads no response, affects only its own call.
func TestEndlessInputRequests(t *testing.T) {
	t.Parallel()
	answer := func(m *protocol.Message) []string {
		switch m.Method() {
		case protocol.Discover:
			return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
		case protocol.Initialize:
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`}
		case protocol.CallTool:
			var lines []string
			for i := range 400 {
				lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{"message":"?"}}`, i))
			}
			return lines
		}
		return nil
	}
	b := open(t, backend.Options{Name: "nosy", Dial: scripted(answer)})
	r, err := b.Call(t.Context(), askTool("1", nil), ignoreMessage)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := r.InResult("inputRequests")
	var asks map[string]json.RawMessage
	if json.Unmarshal(raw, &asks) != nil || len(asks) == 0 || len(asks) > 32 {
		t.Errorf("the server requests %d inputs", len(asks))
	}
}

// Log messages of a legacy session are limited; other messages are not.
func TestFloodsInSession(t *testing.T) {
	t.Parallel()
	for _, method := range []string{protocol.Progress, protocol.LogMessage} {
		s := tunnel(t, open(t, backend.Options{Name: "flood", Dial: scripted(func(m *protocol.Message) []string {
			switch m.Method() {
			case protocol.Discover:
				return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
			case protocol.Initialize:
				return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`}
			case protocol.CallTool:
				return append(strings.Split(strings.Repeat(`{"jsonrpc":"2.0","method":"`+method+`"}`+"\n", 4999), "\n")[:4999],
					`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","id":$ID,"result":{}}`)
			}
			return nil
		})}), nil)
		want(t, s.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`), "2025-11-25")
		got := s.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`)
		delivered := 0
		for ; strings.Contains(got, method); got = s.next() {
			delivered++
		}
		if delivered == 0 || delivered > 4000 { // 256, and 100 per second
			t.Errorf("%s: %d messages", method, delivered)
		}
		want(t, got, "list_changed")
		want(t, s.next(), `"id":2`)
	}
}

// Errors that leave the host contain the problem and the remedy. The cause is omitted, because it may contain URLs with keys.
func TestErrorsOverTheTunnelKeepSecrets(t *testing.T) {
	t.Parallel()
	b := open(t, backend.Options{Name: "site", Dial: func(context.Context) (protocol.Conn, error) {
		return nil, &interact.Error{Code: interact.Unreachable, Title: "the server cannot be reached", Hint: "is it running?",
			Err: fmt.Errorf("Post %q: refused", "https://mcp.example/?key=SECRET")}
	}})
	s := tunnel(t, b, nil)
	got := s.ask(modern("1", "tools/list"))
	if strings.Contains(got, "SECRET") {
		t.Errorf("got %s", got)
	}
	want(t, got, "the server cannot be reached", "is it running?")
}

// A server requires input and responds without it: its result is forwarded, the input is dropped, and no other caller gets its session.
func TestInputRequestsAfterTheResponse(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sessions, heard := 0, []string{}
	b := open(t, backend.Options{Name: "hasty", Dial: scripted(func(m *protocol.Message) []string {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.IsResponse():
			heard = append(heard, string(m.Result()))
		case m.Method() == protocol.Discover:
			return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
		case m.Method() == protocol.Initialize:
			sessions++
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`}
		case m.Method() == protocol.CallTool:
			return []string{`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`, `{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}`}
		}
		return nil
	})})
	for _, caller := range []string{"ada", "bob"} {
		r, err := b.Call(protocol.WithCaller(t.Context(), caller), askTool("1", nil), ignoreMessage)
		if err != nil {
			t.Fatal(err)
		}
		var state string
		if raw, _ := r.InResult("requestState"); raw != nil && json.Unmarshal(raw, &state) == nil { // the response arrived after gatherDelay
			r, err = b.Call(protocol.WithCaller(t.Context(), caller), askTool("2", map[string]any{"requestState": state,
				"inputResponses": map[string]any{"r1": map[string]any{"action": "accept"}}}), ignoreMessage)
		}
		if err != nil || !strings.Contains(string(r.Bytes()), `"content":[]`) {
			t.Errorf("%s: got %s, %v", caller, r.Bytes(), err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if sessions != 2 || len(heard) > 2 {
		t.Errorf("%d sessions, and %q to ended calls", sessions, heard)
	}
}
