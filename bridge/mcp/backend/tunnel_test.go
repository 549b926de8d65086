package backend_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A client is the far end of a tunnel, line by line.
type client struct {
	t *testing.T
	net.Conn
	c     protocol.Conn
	ended chan error
}

func tunnel(t *testing.T, s protocol.Server, authorizer backend.Authorizer) *client {
	t.Helper()
	here, there := net.Pipe()
	c := &client{t, here, protocol.Lines(here), make(chan error, 1)}
	go func() { c.ended <- backend.Serve(context.Background(), s, protocol.Lines(there), authorizer) }()
	t.Cleanup(func() {
		c.c.Close()
		select {
		case <-c.ended:
		default:
			<-c.ended
		}
	})
	return c
}

// ask writes a line and returns the next one.
func (c *client) ask(line string) string {
	c.t.Helper()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		c.t.Fatal(err)
	}
	return c.next()
}

func (c *client) next() string {
	c.t.Helper()
	m, err := c.c.Read(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return string(m.Bytes())
}

// over waits for the end of the tunnel.
func (c *client) over() error {
	c.t.Helper()
	err := wait(c.t, "the end", c.ended)
	c.ended <- err
	return err
}

func modern(id protocol.ID, method string) string {
	return string(request(id, method, "{}", nil).Bytes())
}

func want(t *testing.T, got string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(got, w) {
			t.Errorf("%s has no %s", got, w)
		}
	}
}

// The host's end of the tunnel responds to all kinds of input.
func TestServe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, backend.Options{Name: "server", Dial: scripted(func(m *protocol.Message) []string {
			switch m.Method() {
			case protocol.Discover:
				return []string{discovery}
			case "hang", protocol.Cancelled:
				return nil
			}
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"method":"` + m.Method() + `"}}`}
		})})
		c := tunnel(t, b, func(_ context.Context, m *protocol.Message) error {
			switch m.Method() {
			case "forbidden":
				return interact.Errorf(interact.Forbidden, "ask its owner", "a rule forbids it")
			case "refused":
				return protocol.Errorf(protocol.MissingCapability, "not like this")
			}
			return nil
		})
		want(t, c.ask("Hello"), `"id":null`, "-32700")
		want(t, c.ask(`{"jsonrpc":"2.0","id":4}`), `"id":4`, "-32600")
		want(t, c.ask(`{"jsonrpc":"2.0","id":3,"method":"x"}`), `"id":3`, "-32602", "protocolVersion")
		want(t, c.ask(`[`+modern("3", "x")+`]`), `"id":null`, "-32600", "batches")
		want(t, c.ask(modern("5", "x")), `"id":5`, `"method":"x"`)
		want(t, c.ask(modern("6", "forbidden")), `"id":6`, "a rule forbids it", "LMOS-1403", "ask its owner")
		want(t, c.ask(modern("7", "refused")), `"id":7`, "-32021")
		if _, err := c.Write([]byte(modern("8", "hang") + "\n")); err != nil {
			t.Fatal(err)
		}
		want(t, c.ask(modern("8", "x")), `"id":8`, "is already in use")
		cancel := string(protocol.Request("", protocol.Cancelled, map[string]int{"requestId": 8}).Bytes())
		want(t, c.ask(cancel+"\n"+modern("9", "x")), `"id":9`) // no response to the cancelled one
		synctest.Wait()                                        // the canceled request no longer counts
		for i := range 256 {
			if _, err := c.Write([]byte(modern(protocol.ID(strconv.Itoa(1000+i)), "hang") + "\n")); err != nil {
				t.Fatal(err)
			}
		}
		want(t, c.ask(modern("77", "x")), `"id":77`, "256 requests are pending")
		c.c.Close()
		if err := c.over(); err != nil {
			t.Errorf("the tunnel ended with %v", err)
		}
	})
}

// A session is forwarded unchanged until either side ends it; the end has its cause.
func TestSessionsOfLegacyServers(t *testing.T) {
	t.Parallel()
	broken := interact.Errorf(interact.AgentFailed, "", "it exited with 3")
	answer := func(m *protocol.Message) []string {
		switch {
		case m.Method() == protocol.Initialize:
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}, "odd":1e0}}`}
		case m.Method() == protocol.Discover:
			return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no"}}`}
		case m.Method() == "spoilt":
			return []string{"what?", `{"jsonrpc":"2.0","id":$ID}`}
		}
		return []string{string(m.Bytes())}
	}
	dial := scripted(answer)
	ends := false
	b := open(t, backend.Options{Name: "server", Dial: func(ctx context.Context) (protocol.Conn, error) {
		c, err := dial(ctx)
		if ends {
			return broke{c, broken}, err
		}
		return c, err
	}})
	begin := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	c := tunnel(t, b, func(_ context.Context, m *protocol.Message) error {
		if m.Method() == "forbidden" {
			return interact.Errorf(interact.Forbidden, "", "a rule forbids it")
		}
		return nil
	})
	want(t, c.ask(begin), `"id":1`, `"odd":1e0`)
	want(t, c.ask(`{"jsonrpc":"2.0","id":"a","method":"echo","params":{"x" : 1.0}}`), `{"jsonrpc":"2.0","id":"a","method":"echo","params":{"x" : 1.0}}`)
	want(t, c.ask(`{"jsonrpc":"2.0","id":2,"method":"forbidden"}`), `"id":2`, "a rule forbids it")
	want(t, c.ask(`{"jsonrpc":"2.0","id":3,"method":"spoilt"}`), `"id":3`, "-32603")
	want(t, c.ask(`{"jsonrpc":"2.0","id":4}`), `"id":4`, "-32600")
	c.c.Close()
	if err := c.over(); err != nil {
		t.Errorf("the session after the client closed: %v", err)
	}
	ends = true
	c = tunnel(t, b, nil)
	want(t, c.ask(begin), `"id":1`)
	if err := c.over(); !errors.Is(err, broken) {
		t.Errorf("the session after the server closed: %v", err)
	}
}

// A broke connection ends after its first message.
type broke struct {
	protocol.Conn
	err error
}

func (b broke) Read(ctx context.Context) (*protocol.Message, error) {
	m, err := b.Conn.Read(ctx)
	if err == nil && m.IsResponse() && strings.Contains(string(m.Bytes()), "odd") {
		b.Close()
	}
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, io.EOF) {
		err = b.err
	}
	return m, err
}

// A legacy client gets from a 2026-07-28 server only features of its revision.
func TestSessionsOfStatelessServers(t *testing.T) {
	t.Parallel()
	listens := make(chan string, 64)
	b := open(t, backend.Options{Name: "server", Dial: scripted(func(m *protocol.Message) []string {
		raw, _ := m.Param("notifications")
		answers, _ := m.Param("inputResponses")
		switch m.Method() {
		case protocol.Discover:
			return []string{strings.Replace(discovery, `"capabilities":{}`, `"capabilities":{"tools":{}},"instructions":"Be kind."`, 1)}
		case protocol.Listen:
			listens <- string(raw)
			if strings.Contains(string(raw), "no:") {
				raw = json.RawMessage(`{}`)
			}
			return []string{`{"jsonrpc":"2.0","method":"` + protocol.Acknowledged + `","params":{"notifications":` + string(raw) +
				`,"_meta":{"` + protocol.MetaSubscription + `":$ID}}}`}
		case protocol.ReadResource:
			return []string{`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"no","data":{"uri":"x:"}}}`}
		case "level":
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","ttlMs":1,"cacheScope":"public","level":"` +
				m.Text("_meta", protocol.MetaLogLevel) + `"}}`}
		case protocol.CallTool:
			if answers == nil || m.Text("name") == "endless" {
				return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"input_required","requestState":"s","inputRequests":{"k":{"method":"` +
					m.Text("name") + `"}}}}`}
			}
			return []string{`{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","state":"` + m.Text("requestState") + `","answers":` + string(answers) + `}}`}
		}
		return nil
	})})
	c := tunnel(t, b, nil)
	want(t, c.ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"1999-01-01","capabilities":{"roots":{}},"clientInfo":{"name":"c"}}}`),
		`"protocolVersion":"2025-11-25"`, `"tools":{}`, "Be kind.", `"serverInfo"`)
	if _, err := c.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")); err != nil {
		t.Fatal(err)
	}
	want(t, wait(t, "a listen", listens), "toolsListChanged")
	ask := func(id, method, params string) string {
		return c.ask(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`)
	}
	want(t, ask("1", "ping", "{}"), `"result":{}`)
	want(t, ask("2", "logging/setLevel", `{"level":"loud"}`), "-32602")
	want(t, ask("3", "logging/setLevel", `{"level":"error"}`), `"result":{}`)
	if got := ask("4", "level", "{}"); got != `{"jsonrpc":"2.0","id":4,"result":{"level":"error"}}` {
		t.Errorf("got %s", got)
	}
	want(t, ask("5", protocol.ReadResource, `{"uri":"x:"}`), "-32002", `"uri":"x:"`)
	want(t, ask("6", protocol.Discover, `{}`), "-32601")
	want(t, ask("7", "resources/subscribe", `{"uri":"yes:"}`), `"result":{}`)
	want(t, wait(t, "a listen", listens), "yes:")
	want(t, ask("8", "resources/subscribe", `{"uri":"no:"}`), "-32602")
	want(t, wait(t, "a listen", listens), "no:")
	want(t, ask("9", "resources/unsubscribe", `{"uri":"yes:"}`), `"result":{}`)
	for name, answers := range map[string][2]string{
		"elicitation/create":     {`"error":{"code":-1,"message":"no"}`, `"answers":{"k":{"action":"cancel"}}`},
		"roots/list":             {`"result":{"roots":[]}`, `"state":"s","answers":{"k":{"roots":[]}}`},
		"sampling/createMessage": {`"error":{"code":-1,"message":"nobody here"}`, `nobody here`},
	} {
		asked, err := protocol.Parse([]byte(ask(`"q"`, protocol.CallTool, `{"name":"`+name+`"}`)))
		if err != nil || asked.Method() != name {
			t.Fatalf("the client is asked %s, %v", asked.Bytes(), err)
		}
		want(t, c.ask(`{"jsonrpc":"2.0","id":`+string(asked.ID())+`,`+answers[0]+`}`), `"id":"q"`, answers[1])
	}
	line := `{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{"name":"endless"}}`
	for range 64 {
		asked, err := protocol.Parse([]byte(c.ask(line)))
		if err != nil {
			t.Fatal(err)
		}
		line = `{"jsonrpc":"2.0","id":` + string(asked.ID()) + `,"result":{}}`
	}
	want(t, c.ask(line), `"id":"e"`, "more than 64 times")
}

// Requests before initialize belong to no session.
func TestSessionStartsWithInitialize(t *testing.T) {
	t.Parallel()
	f := newFixture(t, protocol.Modern)
	b := open(t, backend.Options{Dial: f.dial, Name: "fixture"})
	s, err := b.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, method := range []string{"tools/list", "tools/call"} {
		if err := s.Write(t.Context(), protocol.Request("1", method, nil)); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Read(t.Context()); err != nil || m.Error() == nil || m.Error().Code != protocol.InvalidRequest {
			t.Errorf("got %v, %v", m, err)
		}
	}
	hello := map[string]any{"protocolVersion": protocol.Legacy, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "a", "version": "1"}}
	for _, m := range []*protocol.Message{protocol.Request("2", protocol.Initialize, hello), protocol.Request("3", "tools/list", nil)} { // without waiting
		if err := s.Write(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if m, err := s.Read(t.Context()); err != nil || m.Error() != nil {
			t.Errorf("got %v, %v", m, err)
		}
	}
	s.Close()
	if err := s.Write(t.Context(), protocol.Request("1", "ping", nil)); err == nil {
		t.Error("a closed session accepts messages")
	}
	if _, err := s.Read(t.Context()); err != io.EOF {
		t.Errorf("got %v", err)
	}
}
