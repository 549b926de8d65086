package gateway

import (
	"context"
	"errors"
	"testing"

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
	c := g.Inside()
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("status: %v", err)
	}
	if _, err := c.Find(t.Context(), td.Query{}, 0); err != nil {
		t.Errorf("find: %v", err)
	}
	if _, err := c.Agent(t.Context(), "nobody-of-that-name"); interact.AsError(err) == nil || interact.AsError(err).Code != interact.NotFound {
		t.Errorf("an unknown agent gave %v, want %v", err, interact.NotFound)
	}
	if _, err := c.Unpublish(t.Context(), "nobody-of-that-name"); interact.AsError(err) == nil || interact.AsError(err).Code == interact.Unauthenticated {
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
		_, _, err := g.Inside().Call(t.Context(), "urn:x:weather", "ask", interact.JSON, []byte(`{"held":1}`))
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
