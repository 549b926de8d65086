package node

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	core "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/testnet/simnet"
)

// Whole nodes behind routers find relays by the DHT. After the end of a relay without power, each node that used it has two again within ten seconds, and announces
// at most two records of itself, one without the relay and one with the next; its Things are not announced, however many they are.
func TestThingsAreSilentWhenARelayGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := simnet.New(func(a, b peer.ID) time.Duration { return 10 * time.Millisecond })
		const public, all, things = 4, 10, 20
		var nodes []*running
		var ports []*simnet.Port
		for i := range all {
			n, port := simulatedAt(t, net, i, i < public)
			nodes, ports = append(nodes, run(t, n)), append(ports, port())
			if i > 0 {
				connect(t, nodes[i], nodes[0])
			}
			for k := range things {
				publish(t, nodes[i], tool(fmt.Sprintf("Tool %d of %d", k, i), fmt.Sprintf("urn:x:tool-%d-%d", i, k)))
			}
		}
		relays := func(n *running) (names []string) {
			info, err := n.Client().Net(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range info.Relays {
				names = append(names, string(r.DID))
			}
			return names
		}
		dead := nodes[1]
		living := slices.Delete(slices.Clone(nodes), 1, 2)
		twoEach := func(limit time.Duration) {
			t.Helper()
			lacks := func(n *running) bool {
				r := relays(n)
				return len(r) != 2 || ports[1] == nil && slices.Contains(r, string(dead.DID()))
			}
			for began := time.Now(); slices.ContainsFunc(living, lacks); time.Sleep(100 * time.Millisecond) {
				if time.Since(began) > limit {
					t.Fatalf("a node has not two relays after %v", limit)
				}
			}
		}
		twoEach(10 * time.Second)
		time.Sleep(3 * time.Minute)
		before, used := map[*running]uint64{}, map[*running]bool{}
		for _, n := range living {
			before[n], used[n] = n.mesh.gossip.Stats().Published, slices.Contains(relays(n), string(dead.DID()))
		}
		ports[1].Silence()
		ports[1] = nil
		twoEach(10 * time.Second)
		time.Sleep(20 * time.Second)
		users := 0
		for i, n := range living {
			least, most := uint64(0), uint64(0)
			if used[n] {
				least, most = 1, 2
				users++
			}
			if got := n.mesh.gossip.Stats().Published - before[n]; got < least || got > most {
				t.Errorf("node %d with %d things has announced %d records, want %d to %d", i, things, got, least, most)
			}
		}
		if users == 0 {
			t.Error("no node used the relay")
		}
	})
}

// simulatedAt opens a node with the host of a node in a simulated network, public or behind a router. port returns its port.
func simulatedAt(t *testing.T, net *simnet.Net, i int, public bool) (*Node, func() *simnet.Port) {
	t.Helper()
	key := didtest.NewKey()
	priv, err := crypto.UnmarshalPrivateKey(key.Libp2p())
	if err != nil {
		t.Fatal(err)
	}
	outside := fmt.Sprintf("/ip4/11.%d.0.1/tcp/4667", i+1)
	var port *simnet.Port
	o := Options{Key: key, Network: "sim", Profile: "test", Lifetime: time.Hour, Policy: anyoneCalls(policy.Rules{}), PublicOnly: true,
		Listen: []string{"/ip4/192.168.1.2/tcp/4667"}, ListenExplicit: true, NAT: p2p.NAT{Relay: true, Serve: true},
		Transport: func(scopes core.ResourceManager) (_ transport.Transport, err error) {
			port, err = net.Open(priv.GetPublic(), addrs(t, outside)[0], !public, scopes)
			return port, err
		}}
	if public {
		o.Listen, o.Announce = []string{outside}, []string{outside}
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return n, func() *simnet.Port { return port }
}
