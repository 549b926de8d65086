package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/lmosd/lmosd/td"
)

// split cuts all links between two groups of nodes, and join makes them again.
func (s *sim) split(one, other []*running) {
	for _, a := range one {
		for _, b := range other {
			_ = s.UnlinkPeers(a.network.ID(), b.network.ID())
			_ = s.DisconnectPeers(a.network.ID(), b.network.ID())
		}
	}
}

func (s *sim) join(one, other []*running) {
	for _, a := range one {
		for _, b := range other {
			if _, err := s.LinkPeers(a.network.ID(), b.network.ID()); err != nil {
				s.T.Fatal(err)
			}
		}
	}
}

// offer publishes an agent in the process of its node.
func offer(t *testing.T, n *running, id string) string {
	t.Helper()
	draft, err := td.Draft([]byte(`{"id":"` + id + `","title":"Echo","actions":{"echo":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Offer(t.Context(), draft, clock{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Ref
}

// Two meshes that do not know each other become one after the first connection between them, with no common node.
func TestMeshesMerge(t *testing.T) {
	simulate(t, 6, func(t *testing.T, s *sim) {
		one, other := s.nodes[:3], s.nodes[3:]
		var refs []string
		for i, n := range s.nodes {
			if i%3 > 0 {
				connect(t, n, s.nodes[i-1])
			}
			refs = append(refs, offer(t, n, "urn:x:echo"))
		}
		s.split(one, other)
		time.Sleep(10 * time.Minute)
		if has(one[0], refs[3]) {
			t.Fatal("the meshes are one already")
		}
		s.join(one, other)
		connect(t, one[2], other[0])
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		for i, n := range s.nodes {
			for j, ref := range refs {
				if !has(n, ref) {
					t.Errorf("node %d does not know the Thing of node %d", i, j)
				}
			}
		}
		if err := ask(t, one[0], refs[5]); err != nil {
			t.Error(err)
		}
	})
}

// The halves of a mesh that splits go on: each publishes, finds and calls. After the cut they become one again, although nobody connects them.
func TestMeshSplits(t *testing.T) {
	simulate(t, 6, func(t *testing.T, s *sim) {
		one, other := s.nodes[:3], s.nodes[3:]
		for _, n := range s.nodes[1:] {
			connect(t, n, s.nodes[0])
		}
		before := offer(t, one[1], "urn:x:before")
		knows(t, other[1], before)
		time.Sleep(time.Minute)
		s.split(one, other)
		time.Sleep(time.Minute)
		within := map[string]*running{offer(t, one[2], "urn:x:one"): one[0], offer(t, other[2], "urn:x:other"): other[0]}
		for ref, n := range within {
			knows(t, n, ref)
			if err := ask(t, n, ref); err != nil {
				t.Errorf("in its half: %v", err)
			}
		}
		time.Sleep(30 * time.Minute)
		s.join(one, other)
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		for ref := range within {
			for i, n := range s.nodes {
				if !has(n, ref) {
					t.Errorf("node %d does not know %s", i, ref)
				}
			}
		}
		if err := ask(t, other[1], before); err != nil {
			t.Error(err)
		}
	})
}

// A mesh whose bootstrap node has gone for ever lives on: its nodes start again at the same time, with nothing but the peers that they have stored.
func TestBootstrapNodesGoneForEver(t *testing.T) {
	t.Parallel()
	seed := start(t, quiet())
	options := make([]Options, 3)
	nodes := make([]*running, len(options))
	for i := range options {
		options[i] = quiet()
		options[i].Dir, options[i].Bootstrap = t.TempDir(), seed.Addrs()
		nodes[i] = start(t, options[i])
	}
	ref := publish(t, nodes[0], toolAt("Echo", "urn:x:echo", newAgent(t).url))
	for _, n := range nodes {
		knows(t, n, ref)
		until(t, "it knows the others", func() bool { return len(n.network.peers.List()) >= len(nodes) })
	}
	listen := make([]string, len(nodes))
	for i, n := range nodes { // the ports stay, as those of nodes that are configured
		listen[i] = n.network.Addrs()[0].String()
	}
	for _, n := range append(nodes, seed) {
		if err := n.stop(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range options {
		options[i].Listen, options[i].Bootstrap = []string{listen[i]}, nil
		nodes[i] = start(t, options[i])
	}
	for i, n := range nodes {
		until(t, "the others are connected", func() bool {
			for j, other := range nodes {
				if i != j && !n.network.peers.IsConnected(other.DID()) {
					return false
				}
			}
			return true
		})
		until(t, "the Thing answers", func() bool { return ask(t, n, ref) == nil })
		if n.network.Network().Connectedness(peer.ID(seed.key.Peer())) != 0 {
			t.Error("the bootstrap node is back")
		}
	}
}
