package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// share returns a shared connection and the server's end of it. Both end with the test.
func share(t *testing.T, asked func(*Message)) (*Multiplexer, Conn, <-chan error) {
	t.Helper()
	here, there := net.Pipe()
	s, server, ended := Multiplex(Lines(here), asked), Lines(there), make(chan error, 1)
	var run sync.WaitGroup
	run.Go(func() { ended <- s.Run(context.Background()) })
	t.Cleanup(func() {
		server.Close()
		s.Close()
		run.Wait()
	})
	return s, server, ended
}

func read(t *testing.T, c Conn) *Message {
	t.Helper()
	m, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t *testing.T, c Conn, text string) {
	t.Helper()
	m, err := Parse([]byte(text))
	if err == nil {
		err = c.Write(t.Context(), m)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Callers with equal ids and tokens get their own responses, with the ids that they chose.
func TestCallersShareAConnection(t *testing.T) {
	t.Parallel()
	stray := make(chan *Message, 8)
	s, server, _ := share(t, func(m *Message) { stray <- m })
	type answer struct {
		said []string
		err  error
	}
	answers := map[string]chan answer{"a": make(chan answer, 1), "b": make(chan answer, 1)}
	for name, out := range answers {
		go func() {
			m, _ := Parse([]byte(`{"jsonrpc":"2.0","id":"same","method":"` + name + `","params":{"_meta":{"progressToken":"mine"}}}`))
			var a answer
			r, err := s.Call(t.Context(), m, func(n *Message) error { a.said = append(a.said, string(n.Bytes())); return nil })
			if a.err = err; err == nil {
				a.said = append(a.said, string(r.Bytes()))
			}
			out <- a
		}()
	}
	ids := map[string]string{}
	for range answers {
		m := read(t, server)
		if token := string(m.ProgressToken()); token != string(m.ID()) {
			t.Errorf("the token is %s", token)
		}
		ids[m.Method()] = string(m.ID())
	}
	if ids["a"] == ids["b"] {
		t.Error("both requests have the same id")
	}
	write(t, server, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+ids["b"]+`,"progress":1}}`)
	write(t, server, `{"jsonrpc":"2.0","method":"x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":`+ids["b"]+`}}}`)
	write(t, server, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+ids["b"]+`}}`)
	write(t, server, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	write(t, server, `{"jsonrpc":"2.0","id":`+ids["a"]+`,"method":"ping"}`) // a request is not a response, whatever its id
	write(t, server, `{"jsonrpc":"2.0","id":12345,"result":{}}`)
	write(t, server, `{"jsonrpc":"2.0","id":`+ids["b"]+`,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":`+ids["b"]+`}}}`)
	write(t, server, `{"jsonrpc":"2.0","id":`+ids["a"]+`,"error":{"code":1,"message":"no"}}`)
	b := <-answers["b"]
	want := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1}}
{"jsonrpc":"2.0","method":"x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"same"}}}
{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"same"}}
{"jsonrpc":"2.0","id":"same","result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"same"}}}`
	if got := strings.Join(b.said, "\n"); got != want || b.err != nil {
		t.Errorf("got %s, %v", got, b.err)
	}
	if a := <-answers["a"]; a.err != nil || len(a.said) != 1 || !strings.Contains(a.said[0], `"id":"same"`) {
		t.Errorf("got %v", a)
	}
	if got := (<-stray).Method() + (<-stray).Method(); got != "notifications/tools/list_changedping" || len(stray) > 0 {
		t.Errorf("the messages without a request are %s, and %d more", got, len(stray))
	}
}

// A caller that cancels notifies the server, also if it is the reader; the end of the connection affects all.
func TestCallsThatEndEarly(t *testing.T) {
	t.Parallel()
	s, server, ended := share(t, nil)
	left := errors.New("the client is gone")
	calls := make(chan error, 3)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, err := s.Call(ctx, Request("1", "a", nil), nil); calls <- err }()
	first := read(t, server)
	cancel()
	if m := read(t, server); m.Method() != Cancelled || !errors.Is(<-calls, context.Canceled) {
		t.Errorf("the server received %s", m.Bytes())
	} else if raw, _ := m.Param("requestId"); ID(raw) != first.ID() {
		t.Errorf("%s was cancelled", raw)
	}
	go func() {
		m, _ := Parse([]byte(`{"jsonrpc":"2.0","id":2,"method":"b","params":{"_meta":{"progressToken":1}}}`))
		_, err := s.Call(t.Context(), m, func(*Message) error { return left })
		calls <- err
	}()
	second := read(t, server)
	write(t, server, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+string(second.ID())+`}}`)
	if m := read(t, server); m.Method() != Cancelled || !errors.Is(<-calls, left) {
		t.Errorf("the server received %s", m.Bytes())
	}
	go func() { _, err := s.Call(t.Context(), Request("3", "c", nil), nil); calls <- err }()
	third := read(t, server)
	write(t, server, `{"jsonrpc":"2.0","id":`+string(third.ID())+`,"result":{}}`) // and ends at once
	server.Close()
	if err := <-calls; err != nil {
		t.Errorf("the response was lost: %v", err)
	}
	if err := <-ended; err != io.ErrUnexpectedEOF && !errors.Is(err, io.ErrClosedPipe) || !s.Ended() {
		t.Errorf("the connection ended with %v", err)
	}
	<-s.Done()
	if _, err := s.Call(t.Context(), Request("4", "d", nil), nil); err == nil {
		t.Error("a call on an ended connection succeeded")
	}
}

// A slow caller loses progress, and then its call if it must not lose messages; it still gets the response.
func TestSlowCaller(t *testing.T) {
	t.Parallel()
	p := newPending("1", nil)
	progress := Request("", Progress, map[string]string{"x": strings.Repeat("x", 1<<20)})
	for range 100 {
		p.add(progress)
	}
	if p.size > maxQueuedBytes+2<<20 {
		t.Errorf("%d bytes are queued", p.size)
	}
	p.add(Respond("1", struct{}{}))
	p.add(Request("", ToolsChanged, nil))
	p.add(Request("", ToolsChanged, nil))
	n := 0
	for ; ; n++ {
		m, err := p.next(t.Context())
		if err != nil {
			if !errors.Is(err, errSlow) {
				t.Error(err)
			}
			break
		}
		if m.IsResponse() && n != 32 {
			t.Errorf("the response is number %d", n)
		}
	}
	if n != 33 {
		t.Errorf("%d messages", n)
	}
}

// A request with log messages waits for the previous one, or is canceled.
func TestLogMessagesOfOneRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, server, _ := share(t, nil)
		logs := func(id ID, method string) *Message {
			return Request(id, method, map[string]any{"_meta": map[string]string{MetaLogLevel: "info"}})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = s.Call(ctx, logs("1", "first"), nil) }()
		if m := read(t, server); m.Text("_meta", MetaLogLevel) != "info" || !s.Logging() {
			t.Errorf("the server received %s", m.Bytes())
		}
		for method, waits := range map[string]time.Duration{Listen: 0, "second": logTimeout} {
			begun := time.Now()
			go func() { _, _ = s.Call(ctx, logs("2", method), nil) }()
			if m := read(t, server); m.Text("_meta", MetaLogLevel) != "" || time.Since(begun) != waits {
				t.Errorf("the server received %s after %v", m.Bytes(), time.Since(begun))
			}
		}
	})
}

// Invalid messages end a connection only if no valid one follows.
func TestInvalidLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		between string
		want    error
	}{"only": {"", errNotMCP}, "among messages": {`{"jsonrpc":"2.0","method":"x"}` + "\n", io.ErrUnexpectedEOF}} {
		in := strings.Repeat(strings.Repeat("Hello\n", maxInvalid)+c.between, 3)
		if err := Multiplex(Lines(reader{strings.NewReader(in)}), nil).Run(t.Context()); err != c.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestCallerOf(t *testing.T) {
	t.Parallel()
	if got := CallerOf(WithCaller(t.Context(), "ada")) + CallerOf(t.Context()); got != "ada" {
		t.Errorf("got %q", got)
	}
	m := Request("1", "x", map[string]any{"progressToken": nil})
	if m.ProgressToken() != nil || m.IsNotification() || !m.IsRequest() || m.Result() != nil || string(m.Params()) != `{"progressToken":null}` {
		t.Errorf("got %s", m.Bytes())
	}
	if raw, err := Respond("1", json.RawMessage(`{"a":{"b":1}}`)).InResult("a", "b"); err != nil || string(raw) != "1" {
		t.Errorf("got %s, %v", raw, err)
	}
}

// A broken connection ends while something is written to it.
type broken struct{ writing, ended chan struct{} }

var errAway = errors.New("it is away")

func (b broken) Read(context.Context) (*Message, error) { <-b.writing; return nil, errAway }

func (b broken) Write(context.Context, *Message) error {
	close(b.writing)
	<-b.ended
	return io.ErrClosedPipe
}

func (broken) Close() error { return nil }

// A call that could not be written gets the cause of the end of the connection.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	b := broken{make(chan struct{}), make(chan struct{})}
	s := Multiplex(b, nil)
	go func() {
		_ = s.Run(context.Background())
		close(b.ended)
	}()
	if _, err := s.Call(t.Context(), Request("1", "x", nil), nil); !errors.Is(err, errAway) {
		t.Errorf("got %v", err)
	}
}
