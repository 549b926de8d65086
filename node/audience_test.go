package node

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A restricted Thing is not announced by the DHT, gossip, reconciliation or an index, nor returned for its exact reference. After it is public,
// it is announced.
func TestRestrictedThingIsNotAnnounced(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Index = true
	a, b := start(t, o), start(t, quiet())
	connect(t, b, a)
	hidden := []byte(strings.Replace(string(tool("Hidden", "urn:x:hidden")), "{", `{"lmosd:visibility":"private",`, 1))
	meshed(t, a)
	p, err := a.Publish(t.Context(), hidden)
	if err != nil || p.Pending || p.Replicas != 0 || p.GossipPeers != 0 {
		t.Fatalf("got %+v, %v", p, err)
	}
	plain := publish(t, a, tool("Plain", "urn:x:plain"))
	knows(t, b, plain)
	c := start(t, quiet()) // a late joiner reconciles
	connect(t, c, a)
	knows(t, c, plain)
	for name, n := range map[string]*running{"an earlier node": b, "a later node": c} {
		until(t, "they reconcile", func() bool { // its own, at joining, may be under way: there is room for one with a peer
			_, err := n.mesh.sync.Sync(t.Context(), a.network.ID())
			return err == nil
		})
		if has(n, p.Ref) {
			t.Errorf("%s knows it", name)
		}
		for _, q := range []td.Query{{}, {Text: "Hidden"}, {ID: "urn:x:hidden", Owner: a.DID()}} {
			for s, err := range n.mesh.dht.Query(t.Context(), a.network.ID(), q) {
				if err != nil {
					t.Fatal(err)
				}
				if d, err := s.Verify(t.Context(), n.mesh.verifier, time.Now()); err != nil || d.Visibility != td.Public {
					t.Errorf("%s knows it: %v", name, err)
				}
			}
		}
	}
	if _, err := a.mesh.directory.Get(did.AsProcess(t.Context()), "hidden"); err != nil {
		t.Errorf("its own node does not know it: %v", err)
	}
	if n := a.mesh.publisher.Pending(); n != 0 {
		t.Errorf("%d wait to be told", n)
	}
	if _, err := a.Publish(t.Context(), tool("Hidden", "urn:x:hidden")); err != nil {
		t.Fatal(err)
	}
	knows(t, b, p.Ref)
}
