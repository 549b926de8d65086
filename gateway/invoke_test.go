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

	"github.com/lmosd/lmosd/interact"
)

// parrot answers with what it was told, part by part if it comes so.
func parrot(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
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

func TestInvoke(t *testing.T) {
	t.Parallel()
	asked := make(chan *interact.Message, 100)
	r := start(t, Options{Node: stationNode(t, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		asked <- m
		parrot(ctx, m, yield)
	})})
	for name, c := range map[string]*Client{"url": dial(t, r.url, ""), "inside": r.Inside()} {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		got, err := c.Invoke(ctx, "urn:x:station", "scan", CallOptions{Body: []byte(`{"a":1}`), Key: "k", Via: "mesh", Timing: true,
			Accept: "application/cbor"})
		cancel()
		want := &CallResult{Output: []byte("\xa1\x61a\x01"), Media: "application/cbor",
			Timing: &interact.Timing{Path: "mesh quic-v1", Total: 3 * time.Millisecond, Agent: time.Millisecond}}
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v %s", name, err, d)
		}
		if m := <-asked; m.Key != "k" || m.Via != "mesh" || time.Until(m.Deadline) < 80*time.Second {
			t.Errorf("%s: asked %+v", name, m)
		}
		if got, err := c.Invoke(t.Context(), "urn:x:station", "scan", CallOptions{}); err != nil || len(got.Output) > 0 ||
			got.Media != "" || got.Timing != nil || got.Task != nil {
			t.Errorf("%s: without anything: %+v, %v", name, got, err)
		}
		if m := <-asked; m.ContentType != "" || len(m.Data) > 0 {
			t.Errorf("%s: asked %+v", name, m)
		}
		// To an agent that cannot let it go on, an asynchronous call is one like others.
		if got, err := c.Invoke(t.Context(), "urn:x:station", "scan", CallOptions{Body: []byte("1"), Async: true}); err != nil ||
			got.Task != nil || string(got.Output) != "1" {
			t.Errorf("%s: asynchronous: %+v, %v", name, got, err)
		}
		if m := <-asked; !m.Detach {
			t.Errorf("%s: asked %+v", name, m)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scam", CallOptions{}); interact.AsError(err).Code != interact.NoAffordance {
			t.Errorf("%s: unknown action: %v", name, err)
		}
	}
}

// pattern is size bytes without end in sight.
func pattern(size int) io.Reader { return io.LimitReader(&repeating{}, int64(size)) }

type repeating struct{ n byte }

func (r *repeating) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.n
		r.n = r.n*5 + 1
	}
	return len(p), nil
}

// A stream of more than any body may have goes through the gateway and back.
func TestInvokeWithAStream(t *testing.T) {
	t.Parallel()
	const size = 12 << 20
	r := start(t, Options{Node: stationNode(t, parrot)})
	want, err := io.ReadAll(pattern(size))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Client{"url": dial(t, r.url, ""), "socket": dial(t, r.o.Socket, ""), "inside": r.Inside()} {
		var out bytes.Buffer
		got, err := c.Invoke(t.Context(), "urn:x:station", "listen", CallOptions{ContentType: "audio/wav", Stream: pattern(size), Output: &out})
		if err != nil || got.Media != "audio/wav" || len(got.Output) > 0 || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s: %d bytes, %v", name, out.Len(), err)
		}
	}
}

// fullDisk takes some bytes and no more.
type fullDisk struct{ left int }

var errFull = errors.New("the disk is full")

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestInvokeThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Node: stationNode(t, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := m.Reply(interact.ActionStatus, "text/plain", []byte("half"))
		r.Status = interact.StatusRunning
		_ = yield(r, nil) && yield(nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke"))
	})})
	for name, c := range map[string]*Client{"url": dial(t, r.url, ""), "inside": r.Inside()} {
		var out bytes.Buffer
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", CallOptions{Output: &out}); interact.AsError(err).Code != interact.NodeLost ||
			out.String() != "half" {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", CallOptions{}); interact.AsError(err).Code != interact.NodeLost {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.Invoke(t.Context(), "urn:x:station", "scan", CallOptions{Output: &fullDisk{left: 2}}); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What answers may be another program.
func TestInvokeOfAnotherServer(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"no JSON": "<html>", "no state": `{"href":"/x"}`, "no id": `{"status":"odd","href":"/%zz"}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, body)
		}))
		c := dial(t, server.URL, "")
		if _, err := c.Invoke(t.Context(), "x", "y", CallOptions{Async: true}); interact.AsError(err).Code != interact.NodeLost {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

func TestReadTiming(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]interact.Timing{
		"": {},
		`resolve;dur=1.5, host;dur=20, agent;dur=15, total;dur=25.25, path;desc="mesh quic-v1"`: {Path: "mesh quic-v1",
			Resolve: 1500 * time.Microsecond, Host: 20 * time.Millisecond, Agent: 15 * time.Millisecond, Total: 25250 * time.Microsecond},
		`total;dur=-1, host;dur=1e300, agent;dur=x, cache;dur=5, path, ;;, total`: {},
	} {
		if got := readTiming(header); *got != want {
			t.Errorf("%q: %+v, want %+v", header, *got, want)
		}
	}
}

// The answer of a client inside of the process begins when the handler's does, and ends with it.
func TestInsideStreams(t *testing.T) {
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
	g, err := New(Options{Node: node, Listen: None})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	go func() { next <- "one" }()
	resp, err := g.Inside().send(t.Context(), "POST", "/things/urn:x:station/actions/scan", http.Header{}, nil)
	if err != nil || resp.StatusCode != 200 || resp.ContentLength != -1 {
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
	resp.Body.Close() // the handler is cancelled, and has returned
	<-left
	head, err := g.Inside().send(t.Context(), "HEAD", "/things/urn:x:station", http.Header{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer head.Body.Close()
	if body, err := io.ReadAll(head.Body); err != nil || len(body) > 0 || head.ContentLength <= 0 {
		t.Errorf("HEAD: %q, %v, length %d", body, err, head.ContentLength)
	}
}

// A peer that takes nothing loses its connection; one that takes a little at a time does not.
func TestPeerThatTakesNothing(t *testing.T) {
	t.Parallel()
	quick := defaultPatience
	quick.write = 100 * time.Millisecond
	broken := make(chan error, 1)
	r := start(t, Options{patience: quick}, func(g *Gateway) {
		g.routes = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			part := []byte(strings.Repeat("x", 32<<20))
			_, err := w.Write(part)
			broken <- err
		})
	})
	resp, err := r.http.Get(r.url + "/x") // and nothing is read
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := <-broken; err == nil {
		t.Error("32 MB were taken by a peer that reads nothing")
	}
	again, err := r.unix.Get("http://localhost/x")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	n, err := io.Copy(io.Discard, again.Body)
	if err != nil || n != 32<<20 {
		t.Errorf("a peer that reads got %d bytes, %v", n, err)
	}
	if err := <-broken; err != nil {
		t.Errorf("and the write failed: %v", err)
	}
}
