package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

// TestPublishContinuesWithoutItsCaller: the TD is stored, and announced in the background.
func TestPublishContinuesWithoutItsCaller(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := nodes[0].Publish(ctx, tool("Echo", ""))
	if err != nil {
		t.Fatal(err)
	}
	if nodes[0].mesh.index.Find(p.Ref) == nil {
		t.Error("the thing is not offered")
	}
	knows(t, nodes[1], p.Ref)
}

func TestResultOfAPublication(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	meshed(t, nodes[0])
	p, err := nodes[0].Publish(t.Context(), tool("Echo", ""))
	if err != nil || p.Pending || p.Replicas != 1 || p.Wanted != 1 || p.GossipPeers != 1 || !p.Created || p.Withdrawn {
		t.Errorf("got %+v, %v; want it told to the other node in both ways", p, err)
	}
	if again, err := nodes[0].Publish(t.Context(), tool("Echo", "")); err != nil || again.Created || again.Seq <= p.Seq || again.Ref != p.Ref {
		t.Errorf("again: %+v, %v", again, err)
	}
	u, err := nodes[0].publications().Unpublish(t.Context(), "echo")
	if err != nil || !u.Withdrawn || u.Name != "echo" || u.ID != p.ID || u.Ref != p.Ref || u.TDSize != 0 || u.Pending {
		t.Errorf("withdrawn: %+v, %v", u, err)
	}
}

func TestWarningsOfAPublication(t *testing.T) {
	t.Parallel()
	n := opened(t, Options{})
	raw := strings.Replace(string(tool("Odd", "")), `"security":["nosec_sc"]`, `"security":"nosec_sc"`, 1)
	p, err := n.Client().Publish(t.Context(), []byte(raw))
	if err != nil || len(p.Warnings) != 1 || p.Warnings[0].Pointer != "/security" {
		t.Errorf("got %+v, %v; want the warning about security", p, err)
	}
	if p, err = n.Client().Publish(t.Context(), tool("Plain", "")); err != nil || len(p.Warnings) != 0 {
		t.Errorf("got %+v, %v; want no warning", p, err)
	}
}

func TestConcurrentPublications(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	// Publications before the nodes are meshed are repeated 15 seconds later, under a new number.
	meshed(t, nodes[0])
	var g sync.WaitGroup
	for w := range 4 {
		g.Go(func() {
			for i := range 6 {
				id := fmt.Sprintf("urn:x:%d", (w+i)%3)
				if (w+i)%4 == 3 {
					_, err := nodes[0].publications().Unpublish(t.Context(), id)
					if c := codeOf(err); c != 0 && c != interact.Withdrawn && c != interact.NotFound {
						t.Errorf("withdraw: %v", err)
					}
				} else if _, err := nodes[0].Publish(t.Context(), tool("Echo", id)); err != nil {
					t.Errorf("publish: %v", err)
				}
			}
		})
	}
	g.Wait()
	for i := range 3 {
		id := fmt.Sprintf("urn:x:%d", i)
		until(t, "both nodes agree on "+id, func() bool {
			d, err := nodes[1].view.Get(t.Context(), id)
			of := nodes[0].mesh.index.Get(id) // it may have been renewed since
			if of.Description == nil {
				return codeOf(err) == interact.Withdrawn
			}
			return err == nil && d.Record.Seq == of.Seq
		})
	}
}
