package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// echoInParts replies with its input, in as many parts.
func echoInParts(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	reply := func(s interact.Status, data []byte) *interact.Message {
		r := m.Reply(interact.ActionStatus, m.ContentType, data)
		r.Status = s
		if m.Timing != nil {
			r.Timing = &interact.Timing{Path: "mesh quic-v1", Total: 3 * time.Millisecond, Agent: time.Millisecond}
		}
		return r
	}
	if m.Chunks == nil {
		yield(reply(interact.StatusCompleted, m.Data), nil)
		return
	}
	for chunk, err := range m.Chunks {
		if err != nil || !yield(reply(interact.StatusRunning, chunk), nil) {
			yield(nil, err)
			return
		}
	}
	yield(reply(interact.StatusCompleted, nil), nil)
}

const inTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestInvoke(t *testing.T) {
	t.Parallel()
	received := make(chan *interact.Message, 100)
	r := start(t, serving(stationNode(t, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		received <- m
		echoInParts(ctx, m, yield)
	}), Options{}))
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "inside": r.InProcess()} {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		got, err := c.Invoke(ctx, "urn:x:station", "scan", api.CallOptions{Body: []byte(`{"a":1}`), Key: "k", Via: "mesh", Timing: true,
			Accept: "application/cbor", TraceParent: inTrace})
		cancel()
		want := &api.CallResult{Output: []byte("\xa1\x61a\x01"), Media: "application/cbor",
			Timing: &interact.Timing{Path: "mesh quic-v1", Total: 3 * time.Millisecond, Agent: time.Millisecond}}
		m := <-received
		want.ID = m.ID // the name of the call in /v1/calls
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
		if m.Key != "k" || m.Via != "mesh" || m.TraceParent != inTrace || time.Until(m.Deadline) < 80*time.Second {
			t.Errorf("%s: request %+v", name, m)
		}
		if got, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{}); err != nil || len(got.Output) > 0 ||
			got.Media != "" || got.Timing != nil || got.Task != nil {
			t.Errorf("%s: without input: %+v, %v", name, got, err)
		}
		if m := <-received; m.ContentType != "" || len(m.Data) > 0 || m.TraceParent != "" {
			t.Errorf("%s: request %+v", name, m)
		}
		// If an agent cannot run an action in the background, an asynchronous call is synchronous.
		if got, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Body: []byte("1"), Async: true}); err != nil ||
			got.Task != nil || string(got.Output) != "1" {
			t.Errorf("%s: asynchronous: %+v, %v", name, got, err)
		}
		if m := <-received; !m.Detach {
			t.Errorf("%s: request %+v", name, m)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scam", api.CallOptions{}); interact.AsError(err).Code != interact.NoAffordance {
			t.Errorf("%s: unknown action: %v", name, err)
		}
	}
}

// The client does not send a traceparent that a node would replace.
func TestInvokeRejectsInvalidTraces(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{"x", inTrace[:54], inTrace + "-x", " " + inTrace, inTrace + "\n", strings.ToUpper(inTrace),
		"01" + inTrace[2:], "00-" + strings.Repeat("0", 32) + inTrace[35:],
		inTrace[:36] + strings.Repeat("0", 16) + "-01", strings.ReplaceAll(inTrace, "-", "_")} {
		_, err := dial(t, "http://127.0.0.1:1", "").Invoke(t.Context(), "x", "y", api.CallOptions{TraceParent: parent})
		if e := interact.AsError(err); e == nil || e.Code != interact.Usage || e.Hint == "" && e.Next == nil {
			t.Errorf("%q: %v", parent, err)
		}
	}
}

// A streamed output has its type before its first byte, and is not requested as JSON lines.
func TestInvokeReportsTheTypeBeforeOutput(t *testing.T) {
	t.Parallel()
	accepts := make(chan string, 100)
	r := start(t, serving(stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		accepts <- m.Accept
		media, part := "text/plain", "one"
		if string(m.Data) == `"json"` {
			media, part = "application/json", `{"a": 1}`
		}
		reply := m.Reply(interact.ActionStatus, media, []byte(part))
		if reply.Status = interact.StatusRunning; string(m.Data) != `"none"` && !yield(reply, nil) {
			return
		}
		end := m.Reply(interact.ActionStatus, "", nil)
		end.Status = interact.StatusCompleted
		yield(end, nil)
	}), Options{}))
	for _, tt := range []struct{ input, accept, requested, want string }{
		{`"text"`, "", "", "text/plain one"},
		{`"json"`, "", "", "application/x-ndjson {\"a\":1}\n"},
		{`"json"`, "application/json", "application/json", "application/x-ndjson {\"a\":1}\n"},
		{`"json"`, "audio/ogg", "audio/ogg", `application/json {"a": 1}`},
		{`"none"`, "", "", ""},
	} {
		for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "inside": r.InProcess()} {
			var got strings.Builder
			_, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Body: []byte(tt.input), Accept: tt.accept, Output: &got,
				Began: func(media string) { got.WriteString(media + " ") }})
			if requested := <-accepts; err != nil || got.String() != tt.want || requested != tt.requested {
				t.Errorf("%s: %+v: got %q, requested %q, %v", name, tt, got.String(), requested, err)
			}
		}
	}
}

// pattern returns size bytes.
func pattern(size int) io.Reader { return io.LimitReader(&repeating{}, int64(size)) }

type repeating struct{ n byte }

func (r *repeating) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.n
		r.n = r.n*5 + 1
	}
	return len(p), nil
}

// The gateway passes a stream that is larger than any body may be, in both directions.
func TestInvokeWithAStream(t *testing.T) {
	t.Parallel()
	const size = 12 << 20
	r := start(t, serving(stationNode(t, echoInParts), Options{}))
	want, err := io.ReadAll(pattern(size))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "socket": dial(t, r.o.Socket, ""), "inside": r.InProcess()} {
		var out bytes.Buffer
		got, err := c.Invoke(t.Context(), "urn:x:station", "listen", api.CallOptions{ContentType: "audio/wav", Stream: pattern(size), Output: &out})
		if err != nil || got.Media != "audio/wav" || len(got.Output) > 0 || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s: %d bytes, %v", name, out.Len(), err)
		}
	}
}

// fullDisk accepts left bytes.
type fullDisk struct{ left int }

var errFull = errors.New("the disk is full")

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestInvokeWithABrokenOutput(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(interact.ActionStatus, "text/plain", []byte("half"))
		r.Status = interact.StatusRunning
		_ = yield(r, nil) && yield(nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke"))
	}), Options{}))
	for name, c := range map[string]*api.Client{"url": dial(t, r.url, ""), "inside": r.InProcess()} {
		var out bytes.Buffer
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Output: &out}); interact.AsError(err).Code != interact.NodeLost ||
			out.String() != "half" {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{}); interact.AsError(err).Code != interact.NodeLost {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Output: &fullDisk{left: 2}}); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The server may be another program.
func TestInvokeOfAnotherServer(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"not JSON": "<html>", "no state": `{"href":"/x"}`, "no id": `{"status":"odd","href":"/%zz"}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, body)
		}))
		c := dial(t, server.URL, "")
		if _, err := c.Invoke(t.Context(), "x", "y", api.CallOptions{Async: true}); interact.AsError(err).Code != interact.NodeLost {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

// The response of an in-process client begins when the handler begins it, and ends with it.
func TestInprocessStreams(t *testing.T) {
	t.Parallel()
	next := make(chan string)
	node := stationNode(t, nil)
	left := make(chan struct{})
	node.mesh = func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(yield func(*interact.Message, error) bool) {
			defer close(left)
			for part := range next {
				r := m.Reply(interact.ActionStatus, "text/plain", []byte(part))
				if r.Status = interact.StatusRunning; !yield(r, nil) {
					return
				}
			}
			<-ctx.Done()
		}
	}
	g, err := New(serving(node, Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	go func() { next <- "one" }()
	resp, err := inProcess{g}.RoundTrip(httptest.NewRequestWithContext(t.Context(), "POST", "/things/urn:x:station/actions/scan", nil))
	if err != nil || resp.StatusCode != 200 || resp.Status != "200 OK" || resp.ContentLength != -1 {
		t.Fatalf("got %+v, %v", resp, err)
	}
	buf := make([]byte, 3)
	if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "one" {
		t.Errorf("got %q, %v", buf, err)
	}
	next <- "two"
	if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "two" {
		t.Errorf("got %q, %v", buf, err)
	}
	close(next)
	resp.Body.Close() // this cancels the handler and waits for it
	<-left
	head, err := inProcess{g}.RoundTrip(httptest.NewRequestWithContext(t.Context(), "HEAD", "/things/urn:x:station", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer head.Body.Close()
	if body, err := io.ReadAll(head.Body); err != nil || len(body) > 0 || head.ContentLength <= 0 {
		t.Errorf("HEAD: %q, %v, length %d", body, err, head.ContentLength)
	}
}

// An action that requires input becomes a task, which receives the input.
func TestInvokeWithRequiredInput(t *testing.T) {
	t.Parallel()
	received := make(chan string, 1)
	r := start(t, serving(stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		s := m.Reply(interact.ActionStatus, interact.JSON, []byte(`{"q":{"kind":"form","message":"Who?"}}`))
		s.ActionID, s.Status = "run", interact.StatusInputRequired
		switch {
		case m.Type == interact.ContinueAction:
			received <- m.ActionID + string(m.Data)
			yield(m.Reply(interact.Acknowledgement, "", nil), nil)
		case m.Type == interact.QueryAction && len(received) > 0:
			s.Status, s.Data = interact.StatusCompleted, []byte(`"done"`)
			yield(s, nil)
		case m.Type == interact.InvokeAction && m.Key == "":
			t.Error("a detached invocation has no key")
		default:
			yield(s, nil)
		}
	}), Options{}))
	c := dial(t, r.url, "")
	got, err := c.Invoke(t.Context(), "urn:x:station", "scan", api.CallOptions{Interactive: true})
	if err != nil || got.Task == nil || got.Task.Status != "input-required" || got.Task.Inputs["q"].Message != "Who?" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if now, err := c.WaitTask(t.Context(), got.Task); err != nil || now.Inputs["q"].Kind != interact.InputForm {
		t.Errorf("before: got %+v, %v", now, err)
	}
	if err := c.AnswerTask(t.Context(), got.Task, interact.Answers{"q": {Action: interact.Accept, Content: []byte(`{"a":1}`)}}); err != nil {
		t.Error(err)
	}
	if now, err := c.WaitTask(t.Context(), got.Task); err != nil || now.Status != "completed" || string(now.Output) != `"done"` {
		t.Errorf("after: got %+v, %v", now, err)
	}
	if got := <-received; got != `run{"q":{"action":"accept","content":{"a":1}}}` {
		t.Errorf("the action received %s", got)
	}
}
