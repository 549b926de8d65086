package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestInprocessWithoutListeners(t *testing.T) {
	t.Parallel()
	node := newFake()
	g, err := New(serving(node, Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c := g.InProcess()
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("status: %v", err)
	}
	if _, err := c.Find(t.Context(), td.Query{}, 0); err != nil {
		t.Errorf("find: %v", err)
	}
	_, err = c.Agent(t.Context(), "unknown-agent")
	if e := interact.AsError(err); e == nil || e.Code != interact.NotFound {
		t.Errorf("an unknown agent: %v, want %v", err, interact.NotFound)
	}
	_, err = c.Unpublish(t.Context(), "unknown-agent")
	if e := interact.AsError(err); e == nil || e.Code == interact.Unauthenticated {
		t.Errorf("Unpublish: %v, want the rights of an administrator", err)
	}
}

func TestInprocessEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	mesh, node := newBlockingMesh(), newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = mesh.Do
	g, err := New(serving(node, Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := g.InProcess().Call(t.Context(), "urn:x:weather", "ask", interact.JSON, []byte(`{"held":1}`))
		done <- err
	}()
	<-mesh.started
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := <-mesh.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v for the mesh, want it cancelled", err)
	}
	if err := <-done; interact.AsError(err).Code != interact.Cancelled {
		t.Errorf("the caller got %v, want %v", err, interact.Cancelled)
	}
}

// A call whose input stream is silent ends with its response.
func TestInprocessSilentStream(t *testing.T) {
	t.Parallel()
	g, err := New(serving(stationNode(t, func(_ context.Context, _ *interact.Message, yield func(*interact.Message, error) bool) {
		yield(nil, interact.Errorf(interact.AgentFailed, "see its log", "it broke"))
	}), Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	silent, in := io.Pipe()
	defer in.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = g.InProcess().Invoke(ctx, "urn:x:station", "listen", api.CallOptions{ContentType: "audio/wav", Stream: silent})
	if interact.AsError(err).Code != interact.AgentFailed || ctx.Err() != nil {
		t.Errorf("got %v, want %v; the context: %v", err, interact.AgentFailed, ctx.Err())
	}
}

// A closeRecorder is a body that records whether it was closed.
type closeRecorder struct {
	io.Reader
	closed bool
}

func (b *closeRecorder) Close() error {
	b.closed = true
	return nil
}

// RoundTrip closes the body also if it returns an error, as http.RoundTripper requires.
func TestInprocessClosesTheBody(t *testing.T) {
	t.Parallel()
	g, err := New(serving(newFake(), Options{Listen: None}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	body := &closeRecorder{Reader: strings.NewReader("{}")}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1/publish", body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (inProcess{g}).RoundTrip(req); !errors.Is(err, context.Canceled) || !body.closed {
		t.Errorf("got %v, want %v; closed: %v", err, context.Canceled, body.closed)
	}
}
