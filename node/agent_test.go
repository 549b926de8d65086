package node

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// An httpAgent is an HTTP agent without lmosd: it echoes its input and stores its state.
type httpAgent struct {
	close func()
	url   string

	mu      sync.Mutex
	state   []byte   // owned by mu
	callers []string // in the order of the headers of the readings
}

func newAgent(t testing.TB) *httpAgent {
	t.Helper()
	a := &httpAgent{state: []byte(`"new"`)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		answer(w, body, err)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.callers = append(a.callers, r.Header.Get("Lmos-Caller")+" "+r.Header.Get("Lmos-Caller-Via"))
		a.mu.Unlock()
		answer(w, []byte(`"1"`), nil)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		answer(w, a.state, nil)
	})
	mux.HandleFunc("PUT /state", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.state = body
		answer(w, nil, err)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	a.url, a.close = server.URL, server.Close
	return a
}

func answer(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the caller went away
}

// A failure is an agent that violates its description. remote tells whether the client of the host attributes the error to the agent; for a
// consumer on another node every error of the host is remote.
type failure struct {
	serve  http.HandlerFunc // nil: connections are refused
	want   interact.Code
	remote bool
	says   string
}

var failures = map[string]failure{
	"down": {want: interact.Unreachable, says: "connection refused"},
	"an error": {func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "out of coffee", http.StatusInternalServerError)
	},
		interact.AgentFailed, true, "out of coffee"},
	"a problem": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"title":"No such city","status":422}`)
	}, interact.AgentFailed, true, "No such city"},
	"not JSON": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html>welcome</html>")
	}, interact.AgentFailed, false, "unusable response"},
	"half an answer": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `"half`)
	}, interact.AgentFailed, false, "broke off"},
	"50 MB": {func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		chunk := []byte(`"` + strings.Repeat("x", 1<<20))
		for range 50 {
			if _, err := w.Write(chunk); err != nil {
				return // the node has seen enough
			}
		}
	}, interact.TooLarge, false, "larger than"},
	"a redirect": {func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
	},
		interact.AgentFailed, true, "redirect"},
	"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, "220 ready for mail\r\n")
			_ = c.Close()
		}
	}, interact.AgentFailed, false, "violates HTTP"},
	"hangs up": {func(w http.ResponseWriter, _ *http.Request) {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.Close()
		}
	}, interact.Unreachable, false, "connection was closed"},
}

func TestErrorsOfAgentsReachTheConsumer(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	good := publish(t, nodes[0], toolAt("Good", "", newAgent(t).url))
	knows(t, nodes[1], good)
	t.Run("failures", func(t *testing.T) {
		for name, f := range failures {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				base := "http://127.0.0.1:" + unused(t)
				if f.serve != nil {
					server := httptest.NewServer(f.serve)
					t.Cleanup(server.Close)
					base = server.URL
				}
				ref := publish(t, nodes[0], toolAt("Bad "+name, "", base))
				knows(t, nodes[1], ref)
				for i, n := range nodes {
					err := ask(t, n, ref)
					if e := wantCode(t, err, f.want); e.Remote != (f.remote || i == 1) || !strings.Contains(e.Error(), f.says) {
						t.Errorf("asked on node %d: %q, remote %v", i, e, e.Remote)
					}
				}
			})
		}
	})
	for _, n := range nodes {
		if out, _, err := n.Client().Call(t.Context(), good, "echo", interact.JSON, []byte(`"x"`)); err != nil || string(out) != `"x"` {
			t.Errorf("after all this a good agent gives %s, %v", out, err)
		}
	}
}

// unused returns a reserved port of 127.0.0.1 without a listener.
func unused(t testing.TB) string {
	t.Helper()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(s)
	t.Cleanup(func() { _ = syscall.Close(s) })
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(at.(*syscall.SockaddrInet4).Port)
}

// TestSlowAgentDelaysOnlyItsOwnCall: a timeout cancels the request to the agent; other calls are served before it.
func TestSlowAgentDelaysOnlyItsOwnCall(t *testing.T) {
	t.Parallel()
	asked, left := make(chan struct{}, 2), make(chan struct{}, 2)
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server sees that the caller leaves once the body is read
		asked <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	}))
	t.Cleanup(slow.Close)
	nodes := connected(t, 2)
	ref := publish(t, nodes[0], toolAt("Slow", "", slow.URL))
	good := publish(t, nodes[0], toolAt("Good", "", newAgent(t).url))
	knows(t, nodes[1], ref)
	knows(t, nodes[1], good)
	begin := func(ctx context.Context, deadline time.Time) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := interact.Call(ctx, asConsumer(nodes[1]), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo",
				Data: json.RawMessage(`"x"`), Deadline: deadline})
			done <- err
		}()
		return done
	}
	timed := begin(t.Context(), time.Now().Add(300*time.Millisecond))
	<-asked
	if err := ask(t, nodes[1], good); err != nil {
		t.Errorf("meanwhile another agent of the node gives %v", err)
	}
	wantCode(t, <-timed, interact.Timeout)
	<-left
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := begin(ctx, time.Now().Add(time.Minute))
	<-asked
	cancel()
	if err := <-cancelled; codeOf(err) != interact.Cancelled {
		t.Errorf("the caller that leaves gets %v, want %v", err, interact.Cancelled)
	}
	<-left
	until(t, "the host serves nothing", func() bool { return nodes[0].mesh.streams.Stats().ServingNow == 0 })
}
