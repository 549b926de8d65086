package gateway

import (
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestInsideAsksWithoutListening(t *testing.T) {
	t.Parallel()
	node := newFake()
	g, err := New(Options{Node: node, Listen: None})
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
		t.Errorf("withdrawing gave %v, want the rights of an administrator", err)
	}
}
