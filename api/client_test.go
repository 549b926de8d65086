package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func dial(t *testing.T, target, token string) *Client {
	t.Helper()
	c, err := Dial(target, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClientWithoutANode(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := l.Addr().String()
	l.Close()
	for _, target := range []string{"http://" + free, filepath.Join(t.TempDir(), "socket")} {
		_, err := dial(t, target, "").Status(t.Context())
		e := interact.AsError(err)
		if e == nil || e.Code != interact.NotRunning || !strings.Contains(e.Error(), target) || len(e.Next) != 1 ||
			e.Next[0].Kind != interact.StepRun {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{"", "127.0.0.1:4668", "ftp://x", "http://", "://", "lmosd.sock"} {
		if _, err := Dial(target, ""); interact.AsError(err) == nil || interact.AsError(err).Code != interact.Usage {
			t.Errorf("Dial(%q): %v", target, err)
		}
	}
}

// Another program may respond, or the response may break off.
func TestClientOfAnotherServer(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) })
	mux.HandleFunc("/v1/peers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/v1/status")
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/v1/id", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("{"))
	})
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxResponse+1)) })
	server := httptest.NewServer(mux)
	defer server.Close()
	c := dial(t, server.URL, "")
	calls := map[string]func() error{
		"not JSON":   func() error { _, err := c.Status(t.Context()); return err },
		"incomplete": func() error { _, err := c.Identity(t.Context()); return err },
		"endless":    func() error { _, err := c.Version(t.Context()); return err },
		"redirect":   func() error { _, err := c.Peers(t.Context()); return err },
		"not found":  func() error { _, err := c.Agent(t.Context(), "x"); return err },
	}
	for name, want := range map[string]interact.Code{"not JSON": interact.NodeLost, "incomplete": interact.NodeLost,
		"endless": interact.TooLarge, "redirect": interact.Internal, "not found": interact.NotFound} {
		if e := interact.AsError(calls[name]()); e == nil || e.Code != want || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: %v, want code %v", name, e, want)
		}
	}
}

// A client reconnects after a broken connection and resumes after the last event.
func TestWatchReconnects(t *testing.T) {
	t.Parallel()
	var times atomic.Int32
	var after []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after = append(after, r.Header.Get("Last-Event-Id"))
		w.Header().Set("Content-Type", "text/event-stream")
		n := times.Add(1)
		fmt.Fprintf(w, "event: storm\nid: %d\ndata: %d\n\n: \n\n", n, n)
		switch n {
		case 1:
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 2:
			fmt.Fprint(w, "event: lmosd:problem\ndata: {\"code\":\"LMOS-1529\",\"type\":\"x\",\"hint\":\"h\"}\n\n")
		}
	}))
	defer server.Close()
	var got []string
	for e, err := range dial(t, server.URL, "").Watch(t.Context(), "x", "events", "storm", "0") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.ID)
	}
	if !slices.Equal(got, []string{"1", "2", "3"}) || !slices.Equal(after, []string{"0", "1", "2"}) {
		t.Errorf("got %v, resumed after %v", got, after)
	}
}

// An invalid event ends a watch, and so does a response that a node would not send.
func TestWatchOfAnotherServer(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/things/nonsense/events", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "data: {\n\n") })
	mux.HandleFunc("/things/empty/events", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	mux.HandleFunc("/things/large/events", func(w http.ResponseWriter, _ *http.Request) {
		for range maxResponse>>10 + 2 {
			fmt.Fprintf(w, "data: %s\n", bytes.Repeat([]byte("x"), 1<<10))
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := dial(t, server.URL, "")
	c.http.Transport.(*http.Transport).DisableKeepAlives = true
	for thing, want := range map[string]interact.Code{"nonsense": interact.NodeLost, "empty": interact.NodeLost, "large": interact.TooLarge} {
		start := time.Now()
		for _, err := range c.Watch(t.Context(), thing, "events", "", "") {
			if e := interact.AsError(err); e == nil || e.Code != want || time.Since(start) > 30*time.Second {
				t.Errorf("%s: %v after %v, want %v", thing, err, time.Since(start), want)
			}
			break
		}
	}
}

// A client with a delegation sends it with each request, and the one that it was made from does not. A call may have another one.
func TestClientWithADelegation(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Lmos-Capability")
		w.WriteHeader(http.StatusNoContent)
	}))
	defer s.Close()
	plain := dial(t, s.URL, "")
	with := plain.With("Ctoken\n")
	for name, c := range map[string]struct {
		call func(c *Client) error
		want string // of with
	}{
		"call":   {func(c *Client) error { _, _, err := c.Call(t.Context(), "x", "y", "", nil); return err }, "Ctoken"},
		"invoke": {func(c *Client) error { _, err := c.Invoke(t.Context(), "x", "y", CallOptions{}); return err }, "Ctoken"},
		"read":   {func(c *Client) error { _, _, err := c.Read(t.Context(), "x", "y"); return err }, "Ctoken"},
		"write":  {func(c *Client) error { return c.Write(t.Context(), "x", "y", "", []byte("1")) }, "Ctoken"},
		"watch": {func(c *Client) error {
			for range c.Watch(t.Context(), "x", "events", "y", "") { // 204 is an error of the server
			}
			return nil
		}, "Ctoken"},
		"a call with another one": {func(c *Client) error {
			_, err := c.Invoke(t.Context(), "x", "y", CallOptions{With: "Cother"})
			return err
		}, "Cother"},
	} {
		if err := c.call(with); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if header := <-got; header != c.want {
			t.Errorf("%s: got %q, want %q", name, header, c.want)
		}
	}
	if err := plain.Write(t.Context(), "x", "y", "", []byte("1")); err != nil {
		t.Error(err)
	}
	if header := <-got; header != "" {
		t.Errorf("the client without a delegation sends %q", header)
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

// TestStreamToALostNode: a request whose body is silent ends when the node closes the connection.
func TestStreamToALostNode(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	}))
	defer s.Close()
	silent, in := io.Pipe()
	defer in.Close()
	_, err := dial(t, s.URL, "").Invoke(t.Context(), "voice", "talk", CallOptions{Stream: silent})
	if e := interact.AsError(err); e == nil || e.Code != interact.NodeLost {
		t.Errorf("got %v", err)
	}
}

// A countingContext does not end, and counts the functions that wait for its end.
type countingContext struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int32
}

func (c *countingContext) Done() <-chan struct{} { return c.done }

// AfterFunc implements the optional method of [context.AfterFunc].
func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return func() bool {
		c.waiting.Add(-1)
		return true
	}
}

// A request that has ended leaves nothing behind in a context that continues.
func TestStreamReleasesItsContext(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer s.Close()
	ctx := &countingContext{Context: t.Context(), done: make(chan struct{})}
	if _, err := dial(t, s.URL, "").Invoke(ctx, "voice", "talk", CallOptions{Stream: strings.NewReader("hello")}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the end of the request", func() bool { return ctx.waiting.Load() == 0 })
}
