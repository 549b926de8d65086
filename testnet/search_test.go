package testnet

import (
	"context"
	"testing"
	"time"

	"github.com/lmosd/lmosd/td"
)

// TestASearchAsksEachHostOnce is a search in a mesh that is too large for connections to all hosts: it connects to the hosts that it asks. The
// limit is that of trial.lookups.
func TestASearchAsksEachHostOnce(t *testing.T) {
	const nodes, hosts = 24, 10
	o := Options{Topology: "random:3", Latency: 5 * time.Millisecond, Farthest: 60 * time.Millisecond}
	simulate(t, nodes, o, func(t *testing.T, ctx context.Context, net *Net) {
		m := &trial{T: t, ctx: ctx, net: net, alive: net.Members[:hosts], agents: hosts, truth: map[string]*Member{}}
		m.publish()
		m.alive = net.Members
		m.converge()
		time.Sleep(2 * time.Minute) // no node counts as a late joiner
		for _, who := range net.Members[hosts:] {
			for _, h := range net.sim.hosts[:hosts] {
				if err := net.sim.hosts[who.N-1].Network().ClosePeer(h.ID()); err != nil {
					t.Fatal(err)
				}
			}
			before := net.sentBy(who)
			list, err := who.Find(ctx, td.Query{Capability: []string{group(0)}}, 0)
			if err != nil || len(list.Items) != hosts || !list.Coverage.Complete() {
				t.Fatalf("got %+v, %v; want all agents", list, err)
			}
			s := net.sentBy(who).since(before)
			if n := s[forQuestions].requests; n < hosts || n > 12 {
				t.Errorf("node %d sends %d questions to %d hosts, want %d to 12", who.N, n, hosts, hosts)
			}
			time.Sleep(15 * time.Second)
		}
	})
}
