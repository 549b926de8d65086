package gateway

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
)

// A blockingMesh replies when the test releases it.
type blockingMesh struct {
	started chan struct{} // receives once for each call
	release chan struct{} // closed: calls end
	ended   chan error    // receives the error of each call
}

func newBlockingMesh() *blockingMesh {
	return &blockingMesh{started: make(chan struct{}, 10), release: make(chan struct{}), ended: make(chan error, 10)}
}

func (h *blockingMesh) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		h.started <- struct{}{}
		select {
		case <-h.release:
			h.ended <- nil
			interact.Unary(echo).Do(ctx, m)(yield)
		case <-ctx.Done():
			h.ended <- ctx.Err()
			yield(nil, ctx.Err())
		}
	}
}

var blockedCall = exchange{method: "POST", path: "/things/urn:x:weather/actions/ask",
	header: map[string]string{"Content-Type": "application/json"},
	body:   `{"held":1}`, status: 200, contain: `{"held":1}`}

func startBlocking(t *testing.T, o Options) (*running, *blockingMesh) {
	t.Helper()
	mesh := newBlockingMesh()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = mesh.Do
	return start(t, serving(node, o)), mesh
}

// asynchronously runs x and closes the channel when its response was checked.
func (r *running) asynchronously(t *testing.T, x exchange) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.check(t, x)
	}()
	return done
}

func TestDrainCompletesCalls(t *testing.T) {
	t.Parallel()
	r, mesh := startBlocking(t, Options{})
	call := r.asynchronously(t, blockedCall)
	<-mesh.started
	r.stop()
	poll.Until(t, "the drain", r.gate.Closed)

	r.check(t, exchange{path: "/healthz", status: 503, code: "LMOS-3030"})
	r.check(t, exchange{path: "/readyz", status: 503})
	r.check(t, exchange{path: "/v1/status", status: 200, contain: `"state":"draining"`})
	r.check(t, exchange{path: "/things", status: 200})
	r.check(t, exchange{path: "/metrics", status: 200, contain: "lmosd_ready 0"})
	r.check(t, exchange{method: "POST", path: "/v1/publish", header: tdBody, status: 503, code: "LMOS-3030"})
	r.check(t, exchange{path: "/things/urn:x:weather/properties/unit", status: 503, code: "LMOS-3030"})
	refused := blockedCall
	refused.status, refused.code, refused.contain = 503, "LMOS-3030", "shutting down"
	r.check(t, refused)

	close(mesh.release)
	<-call
	r.end()
	if err := <-mesh.ended; err != nil {
		t.Errorf("the call ended with %v", err)
	}
	if _, err := r.http.Get(r.url + "/healthz"); err == nil {
		t.Error("the gateway responds after the end")
	}
}

func TestDrainCancelsCalls(t *testing.T) {
	t.Parallel()
	quick := defaultTimeouts
	quick.drain = 30 * time.Millisecond
	r, mesh := startBlocking(t, Options{timeouts: quick})
	x := blockedCall
	x.status, x.contain, x.code = 499, "", "LMOS-1499"
	call := r.asynchronously(t, x)
	<-mesh.started
	r.end()
	<-call
	if err := <-mesh.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
}

// A call is cancelled when its consumer disconnects.
func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	r, mesh := startBlocking(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, blockedCall.method, r.url+blockedCall.path, strings.NewReader(blockedCall.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	done := make(chan error, 1)
	go func() {
		_, err := r.http.Do(req)
		done <- err
	}()
	<-mesh.started
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	if err := <-mesh.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
}

func TestRunReturnsAtOnceWhenIdle(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	// An idle connection does not delay the end.
	r.check(t, exchange{path: "/healthz", status: 200})
	begin := time.Now()
	r.end()
	if took := time.Since(begin); took > defaultTimeouts.drain {
		t.Errorf("the end took %v", took)
	}
}

// Run ends with an error if a listener fails.
func TestRunWithABrokenListener(t *testing.T) {
	t.Parallel()
	g, err := New(serving(newFake(), Options{Listen: "127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(t.Context()) }()
	g.tcp.Close()
	if err := <-done; interact.AsError(err).Code != interact.Internal {
		t.Errorf("Run: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
