package backend_test

import (
	"context"
	"encoding/json"
	"errors"
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

// request returns a request of 2026-07-28, of a client with the capabilities caps.
func request(id protocol.ID, method, caps string, params map[string]any) *protocol.Message {
	if params == nil {
		params = map[string]any{}
	}
	params["_meta"] = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: json.RawMessage(caps)}
	return protocol.Request(id, method, params)
}

const all = `{"elicitation":{},"sampling":{},"roots":{}}`

func askTool(id protocol.ID, more map[string]any) *protocol.Message {
	params := map[string]any{"name": "ask"}
	for k, v := range more {
		params[k] = v
	}
	return request(id, protocol.CallTool, all, params)
}

func ignoreMessage(*protocol.Message) error { return nil }

// state starts the tool ask, and returns its state while it waits.
func state(t *testing.T, b *backend.Backend, caller string) (string, map[string]struct{ Method string }) {
	t.Helper()
	r, err := b.Call(protocol.WithCaller(t.Context(), caller), askTool("1", nil), ignoreMessage)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Type     string                             `json:"resultType"`
		State    string                             `json:"requestState"`
		Requests map[string]struct{ Method string } `json:"inputRequests"`
		TTL      *int                               `json:"ttlMs"`
	}
	if err := json.Unmarshal(r.Result(), &got); err != nil || got.Type != "input_required" || got.State == "" || got.TTL != nil {
		t.Fatalf("got %s", r.Bytes())
	}
	return got.State, got.Requests
}

// answers returns the responses of a client to each request for input.
func answers(requests map[string]struct{ Method string }) map[string]any {
	all := map[string]any{"unknown": map[string]any{}}
	for key, r := range requests {
		all[key] = map[string]any{
			"elicitation/create":     map[string]any{"action": "accept", "content": map[string]any{"name": "Ada"}},
			"sampling/createMessage": map[string]any{"model": "m", "role": "assistant", "content": map[string]any{"type": "text", "text": "!"}},
			"roots/list":             map[string]any{"roots": []any{map[string]any{"uri": "file:///work"}}},
		}[r.Method]
	}
	return all
}

// A state is valid once, for the same request of the same caller; an invented state is rejected.
func TestStatesOfSuspendedRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the time in which the server sends its three requests is that of the bubble
		f := newFixture(t, protocol.Legacy)
		b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
		resume := func(caller string, m *protocol.Message) string {
			r, err := b.Call(protocol.WithCaller(t.Context(), caller), m, ignoreMessage)
			if err != nil {
				return err.Error()
			}
			return string(r.Bytes())
		}
		for name, c := range map[string]struct {
			caller string
			change func(params map[string]any)
			want   string
		}{
			"as it should be": {"ada", func(map[string]any) {}, "accept Ada m file:///work"},
			"another's":       {"eve", func(map[string]any) {}, "-32602"},
			"made up":         {"ada", func(p map[string]any) { p["requestState"] = "AAAA" }, "-32602"},
			"changed":         {"ada", func(p map[string]any) { p["requestState"] = p["requestState"].(string) + "A" }, "-32602"},
			"another request": {"ada", func(p map[string]any) { p["arguments"] = map[string]any{"x": 1} }, "-32602"},
			"no answers":      {"ada", func(p map[string]any) { p["inputResponses"] = []any{} }, "-32602"},
			"half of them":    {"ada", func(p map[string]any) { delete(p["inputResponses"].(map[string]any), "r1") }, "input_required"},
		} {
			word, requests := state(t, b, "ada")
			params := map[string]any{"requestState": word, "inputResponses": answers(requests)}
			c.change(params)
			if got := resume(c.caller, askTool("2", params)); !strings.Contains(got, c.want) {
				t.Errorf("%s: got %s", name, got)
			}
		}
		word, requests := state(t, b, "ada")
		m := askTool("3", map[string]any{"requestState": word, "inputResponses": answers(requests)})
		if got := resume("ada", m); !strings.Contains(got, "Ada") {
			t.Errorf("got %s", got)
		}
		if got := resume("ada", m); !strings.Contains(got, "-32602") {
			t.Errorf("used twice: got %s", got)
		}
	})
}

// After the timeout of a suspended call, a retry fails, and the process of the server is released.
func TestSuspendedRequestsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, protocol.Legacy)
		b := backend.New(backend.Options{Dial: f.dial, Name: "fixture"})
		word, requests := state(t, b, "")
		time.Sleep(11 * time.Minute)
		r, err := b.Call(t.Context(), askTool("2", map[string]any{"requestState": word, "inputResponses": answers(requests)}), ignoreMessage)
		if err != nil || r.Error() == nil || r.Error().Code != protocol.InvalidParams {
			t.Errorf("got %v, %v", r, err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if f.each(nil); len(f.running) != 0 {
			t.Errorf("%d unused processes run", len(f.running))
		}
		b.Close()
	})
}

// A caller without capabilities gets no requests for input; messages for legacy servers are complete.
func TestResponsesOfLegacyServers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Legacy)
	b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	for name, c := range map[string]struct {
		m    *protocol.Message
		want []string
	}{
		"input":              {request("1", protocol.CallTool, "{}", map[string]any{"name": "elicit"}), []string{"does not support elicitation"}},
		"discover":           {request("1", protocol.Discover, "{}", nil), []string{protocol.Modern, protocol.Legacy, `"tools"`, "ttlMs", "fixture"}},
		"list":               {request("1", "tools/list", "{}", nil), []string{`"complete"`, `"ttlMs":0`, `"cacheScope"`}},
		"read":               {request("1", protocol.ReadResource, "{}", map[string]any{"uri": watched}), []string{`"complete"`, `"ttlMs":0`}},
		"read nothing":       {request("1", protocol.ReadResource, "{}", map[string]any{"uri": "no:"}), []string{"-32602", `"uri":"no:"`}},
		"tasks":              {request("1", "tasks/get", "{}", map[string]any{"taskId": "x"}), []string{"-32601"}},
		"listen to nonsense": {request("1", protocol.Listen, "{}", map[string]any{"notifications": 7}), []string{"-32602"}},
	} {
		r, err := b.Call(t.Context(), c.m, ignoreMessage)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(string(r.Bytes()), want) {
				t.Errorf("%s: %s has no %s", name, r.Bytes(), want)
			}
		}
	}
}

// A server that ends is restarted, and its capabilities are requested again.
func TestServersThatEndAreRestarted(t *testing.T) {
	t.Parallel()
	for name, versions := range map[string][]string{"stateless": {protocol.Modern}, "session": {protocol.Legacy}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, versions...)
			b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
			echo := request("1", protocol.CallTool, "{}", map[string]any{"name": "echo"})
			if _, err := b.Call(t.Context(), echo, ignoreMessage); err != nil {
				t.Fatal(err)
			}
			_, err := b.Call(t.Context(), request("2", protocol.CallTool, "{}", map[string]any{"name": "crash"}), ignoreMessage)
			e := new(interact.Error)
			if !errors.As(err, &e) || e.Code != interact.AgentFailed || !e.Started {
				t.Errorf("got %v", err)
			}
			f.mu.Lock()
			f.versions = []string{protocol.Modern} // the server was upgraded
			f.mu.Unlock()
			if r, err := b.Call(t.Context(), echo, ignoreMessage); err != nil || r.Error() != nil {
				t.Errorf("got %v, %v", r, err)
			}
			if info, err := b.Info(t.Context()); err != nil || !info.Modern || info.Legacy != "" || f.started != 2 {
				t.Errorf("got %+v, %v after %d starts", info, err, f.started)
			}
		})
	}
}

// A server that ends repeatedly is started after growing pauses; callers get an error at once.
func TestServersThatEndAtOnceAreRestartedWithBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var started int
		b := backend.New(backend.Options{Name: "broken", Dial: func(context.Context) (protocol.Conn, error) {
			started++
			here, there := net.Pipe()
			there.Close()
			return protocol.Lines(here), nil
		}})
		defer b.Close()
		for range 1000 {
			if _, err := b.Call(t.Context(), request("1", "tools/list", "{}", nil), ignoreMessage); err == nil {
				t.Fatal("a call of a crashing server succeeded")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if started < 6 || started > 12 {
			t.Errorf("the server was started %d times in 100 s", started)
		}
	})
	b := backend.New(backend.Options{Name: "hasty", Dial: func(context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Read(make([]byte, 4096))
			there.Close()
		}()
		return protocol.Lines(here), nil
	}})
	defer b.Close()
	if _, err := b.Info(t.Context()); interact.AsError(err).Code != interact.AgentFailed || !strings.Contains(fmt.Sprint(interact.AsError(err).Err), "the server ended before the response") {
		t.Errorf("a server that ends during the probe: %v", err)
	}
}

// A scripted server sends fixed messages.
func scripted(lines func(m *protocol.Message) []string) func(context.Context) (protocol.Conn, error) {
	return func(context.Context) (protocol.Conn, error) {
		here, there := net.Pipe()
		go func() {
			c := protocol.Lines(there)
			defer c.Close()
			for {
				m, err := c.Read(context.Background())
				if err != nil {
					return
				}
				for _, line := range lines(m) {
					if _, err := there.Write([]byte(strings.ReplaceAll(line, "$ID", string(m.ID())) + "\n")); err != nil {
						return
					}
				}
			}
		}()
		return protocol.Lines(here), nil
	}
}

const discovery = `{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}}`

// Invalid messages, floods and broken responses fail the call that they belong to, and not the next.
func TestServersThatMisbehave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		big := strings.Repeat("x", protocol.MaxMessage+1<<17)
		b := open(t, backend.Options{Name: "bad", Dial: scripted(func(m *protocol.Message) []string {
			switch m.Method() {
			case protocol.Discover:
				return []string{"Welcome!", "{}", discovery}
			case "rubbish":
				return []string{"half a li", `{"jsonrpc":"2.0","method":"x"}`, `{"jsonrpc":"2.0","id":99,"result":{}}`, `{"jsonrpc":"2.0","id":$ID,"result":{"a":1}}`}
			case "flood":
				flood := []string{}
				for range 5000 {
					flood = append(flood, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$ID,"progress":1}}`)
				}
				return append(flood, `{"jsonrpc":"2.0","id":$ID,"result":{"a":2}}`)
			case "broken":
				return []string{`{"jsonrpc":"2.0","id":$ID}`}
			case "giant":
				return []string{`{"jsonrpc":"2.0","id":$ID,"result":"` + big + `"}`}
			case "spoilt":
				return []string{"{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"a\":\"\xff\"}}", `[{"jsonrpc":"2.0","id":$ID,"result":{"a":4}}]`,
					`{"jsonrpc":"2.0","id":$ID,"result":{"a":5},"result":{"a":6}}`, `{"jsonrpc":"2.0","id":[$ID],"result":{"a":7}}`,
					`{"jsonrpc":"2.0","id":"$ID","result":{"a":8}}`, `{"jsonrpc":"2.0","id":-1,"result":{"a":9}}`,
					`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12345}}`,
					`{"jsonrpc":"2.0","id":"of its own","method":"sampling/createMessage"}`, `{"jsonrpc":"2.0","id":$ID,"result":{"a":3}}`,
					`{"jsonrpc":"2.0","id":$ID,"result":{"a":10}}`}
			}
			return nil
		})})
		for method, want := range map[string]string{"rubbish": `"a":1`, "flood": `"a":2`, "broken": "-32603", "giant": "-32603", "spoilt": `"a":3`} {
			slow := true
			m := request(`"z"`, method, "{}", nil).WithParam(json.RawMessage(`"token"`), "_meta", "progressToken")
			r, err := b.Call(t.Context(), m, func(n *protocol.Message) error {
				if slow {
					time.Sleep(50 * time.Millisecond) // the server continues
					slow = false
				}
				if raw := n.ProgressToken(); string(raw) != `"token"` {
					t.Errorf("the token is %s", raw)
				}
				return nil
			})
			if err != nil || !strings.Contains(string(r.Bytes()), want) || r.ID() != `"z"` {
				t.Errorf("%s: got %.200v, %v", method, r, err)
			}
		}
	})
}

// A connection with endless invalid messages is closed.
func TestServerThatPrintsText(t *testing.T) {
	t.Parallel()
	b := open(t, backend.Options{Name: "bad", Dial: scripted(func(*protocol.Message) []string {
		return []string{strings.Repeat("Hello\n", 2000)}
	})})
	if _, err := b.Info(t.Context()); err == nil || !strings.Contains(err.Error(), "not MCP") {
		t.Errorf("got %v", err)
	}
}

// Callers of a silent server wait, and can cancel.
func TestUnresponsiveServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := backend.New(backend.Options{Name: "silent", Start: 10 * time.Second, Dial: scripted(func(*protocol.Message) []string { return nil })})
		defer b.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := b.Call(ctx, request("1", "tools/list", "{}", nil), ignoreMessage); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		callers.Wait()
		if _, err := b.Info(t.Context()); interact.AsError(err).Code != interact.Timeout {
			t.Errorf("got %v", err)
		}
	})
}

// Requests with log messages run one after the other on a connection.
func TestLogsReachTheirRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var mu sync.Mutex
		levels := map[string]bool{}
		b := open(t, backend.Options{Name: "logs", Dial: scripted(func(m *protocol.Message) []string {
			if m.Method() == protocol.Discover {
				return []string{discovery}
			}
			mu.Lock()
			levels[m.Method()] = m.Text("_meta", protocol.MetaLogLevel) != ""
			mu.Unlock()
			if m.Method() == "first" {
				close(release)
				return nil
			}
			return []string{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`, `{"jsonrpc":"2.0","id":$ID,"result":{}}`}
		})})
		ctx, cancel := context.WithCancel(t.Context())
		logs := make(chan string, 8)
		ask := func(ctx context.Context, method string) error {
			m := request("1", method, "{}", nil).WithParam(json.RawMessage(`"info"`), "_meta", protocol.MetaLogLevel)
			_, err := b.Call(ctx, m, func(*protocol.Message) error { logs <- method; return nil })
			return err
		}
		first := make(chan error, 1)
		go func() { first <- ask(ctx, "first") }()
		<-release
		if err := ask(t.Context(), "second"); err != nil {
			t.Error(err)
		}
		if got := wait(t, "a log message", logs); got != "first" {
			t.Errorf("%s got the log message", got)
		}
		cancel()
		<-first
		if err := ask(t.Context(), "third"); err != nil {
			t.Error(err)
		}
		if got := wait(t, "a log message", logs); got != "third" {
			t.Errorf("%s got the log message", got)
		}
		mu.Lock()
		defer mu.Unlock()
		if !levels["first"] || levels["second"] || !levels["third"] {
			t.Errorf("requested log levels: %v", levels)
		}
	})
}

// A task belongs to its caller.
func TestTasksOfOtherPrincipals(t *testing.T) {
	t.Parallel()
	b := open(t, backend.Options{Name: "tasks", Dial: scripted(func(m *protocol.Message) []string {
		switch m.Method() {
		case protocol.Discover:
			return []string{discovery}
		case protocol.CallTool:
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"task","taskId":"T","status":"working","ttlMs":1000}}`}
		}
		notifications, _ := m.Param("notifications")
		return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","saw":` + string(append([]byte("0"), notifications...))[min(len(notifications), 1):] + `}}`}
	})})
	ada, eve := protocol.WithCaller(t.Context(), "ada"), protocol.WithCaller(t.Context(), "eve")
	if _, err := b.Call(ada, request("1", protocol.CallTool, "{}", map[string]any{"name": "x"}), ignoreMessage); err != nil {
		t.Fatal(err)
	}
	get := request("2", "tasks/get", "{}", map[string]any{"taskId": "T"})
	if r, err := b.Call(ada, get, ignoreMessage); err != nil || r.Error() != nil {
		t.Errorf("its own task: got %v, %v", r, err)
	}
	if r, err := b.Call(eve, get, ignoreMessage); err != nil || r.Error() == nil || r.Error().Code != protocol.InvalidParams {
		t.Errorf("a task of another caller: got %v, %v", r, err)
	}
	listen := request("3", protocol.Listen, "{}", map[string]any{"notifications": map[string]any{"taskIds": []string{"T", "U"}}})
	if r, err := b.Call(eve, listen, ignoreMessage); err != nil || !strings.Contains(string(r.Bytes()), `["U"]`) {
		t.Errorf("a subscription to a task of another caller: got %s, %v", r.Bytes(), err)
	}
}

// The number of connections is limited, and idle ones are closed.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		b := backend.New(backend.Options{Dial: f.dial, Name: "fixture", MaxConns: 2})
		defer b.Close()
		first, err := b.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Session(t.Context()); interact.AsError(err).Code != interact.Overloaded {
			t.Errorf("got %v for one too many", err)
		}
		first.Close()
		time.Sleep(6 * time.Minute) // the probed process was idle
		for range 2 {
			c, err := b.Session(t.Context())
			if err != nil {
				break
			}
			defer c.Close()
		}
		if f.each(nil); len(f.running) != 2 {
			t.Errorf("%d processes run", len(f.running))
		}
	})
}

// Callers above the limit of a tunnel get another tunnel; a missing tunnel is the error of the mesh.
func TestTunnels(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Modern)
	host := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	var mu sync.Mutex
	tunnels := 0
	dial := tunnelTo(t, host)
	relay := open(t, backend.Options{Relay: true, Name: "relay", Dial: func(ctx context.Context) (protocol.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		tunnels++
		return dial(ctx)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	listens, acks := make(chan struct{}, 4000), make(chan struct{}, 400)
	for range 300 {
		callers.Go(func() {
			m := request("1", protocol.Listen, "{}", map[string]any{"notifications": map[string]any{"toolsListChanged": true}})
			_, _ = relay.Call(ctx, m, func(n *protocol.Message) error {
				if n.Method() == protocol.ToolsChanged {
					listens <- struct{}{}
				} else {
					acks <- struct{}{}
				}
				return nil
			})
		})
	}
	for range 300 {
		wait(t, "an acknowledgement", acks)
	}
	until(t, "a change", listens, func() {
		if _, err := relay.Call(t.Context(), request("2", protocol.CallTool, "{}", map[string]any{"name": "change"}), ignoreMessage); err != nil {
			t.Error(err)
		}
	})
	mu.Lock()
	if tunnels < 2 || f.started != 1 {
		t.Errorf("%d tunnels lead to %d processes", tunnels, f.started)
	}
	mu.Unlock()
	fresh := open(t, backend.Options{Relay: true, Name: "relay", Dial: func(context.Context) (protocol.Conn, error) {
		return nil, interact.Errorf(interact.Forbidden, "ask its owner", "a rule forbids it")
	}})
	for range 5 {
		if _, err := fresh.Call(t.Context(), request("3", "tools/list", "{}", nil), ignoreMessage); interact.AsError(err).Code != interact.Forbidden {
			t.Errorf("got %v", err)
		}
	}
}

// A server does not name the request for which it requires input: each caller, also each user of a relay, has its own process, so that
// input is requested from the right one.
func TestInputRequestsReachTheirCaller(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		caller, user, other, another string // the caller, and concurrent users of the server
		processes                    int
	}{
		"another caller":     {"ada", "", "eve", "", 2},
		"another user":       {"relay", "ada", "relay", "eve", 2},
		"the same caller":    {"ada", "", "ada", "", 1},
		"the same user":      {"relay", "ada", "relay", "ada", 1},
		"a user and a relay": {"relay", "", "relay", "eve", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, protocol.Legacy)
			b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
			ctx, cancel := context.WithCancel(protocol.WithUser(protocol.WithCaller(t.Context(), c.other), c.another))
			var others sync.WaitGroup
			others.Go(func() {
				_, _ = b.Call(ctx, request("1", protocol.CallTool, all, map[string]any{"name": "hang"}), ignoreMessage)
			})
			<-f.hangEvents
			defer others.Wait()
			defer cancel()
			r, err := b.Call(protocol.WithUser(protocol.WithCaller(t.Context(), c.caller), c.user), askTool("2", nil), ignoreMessage)
			if err != nil || !strings.Contains(string(r.Bytes()), "input_required") {
				t.Errorf("got %v, %v", r, err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.started != c.processes {
				t.Errorf("by %d processes, want %d", f.started, c.processes)
			}
		})
	}
}

// The number of processes of a legacy server is limited: a process for callers with other capabilities replaces an unused one.
func TestCallersWithOtherCapabilities(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Legacy)
	b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	for _, elicitation := range []string{``, `"elicitation":{},`, `"elicitation":{"url":{}},`, `"elicitation":{"form":{},"url":{}},`} {
		for _, sampling := range []string{``, `"sampling":{},`, `"sampling":{"tools":{}},`} {
			caps := "{" + elicitation + sampling + `"other":{}}`
			for range 2 {
				if r, err := b.Call(t.Context(), request("1", "tools/list", caps, nil), ignoreMessage); err != nil || r.Error() != nil {
					t.Errorf("%s: got %v, %v", caps, r, err)
				}
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.started != 12 || len(f.running) > 9 { // the last one may still be ending
		t.Errorf("%d were started, %d run", f.started, len(f.running))
	}
}
