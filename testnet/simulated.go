package testnet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/testnet/simnet"
)

// A simulation is the network under [Simulated] nodes.
type simulation struct {
	net   *simnet.Net
	o     Options
	hosts []*simnet.Host // by number, from 0
	sent  []*traffic
}

// Simulated starts n nodes in a simulated network. Inside a testing/synctest bubble its time is the bubble's.
func Simulated(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	sim := newSimulation(o)
	for range n {
		if err := sim.add(); err != nil {
			return nil, errors.Join(err, sim.close())
		}
	}
	t, err := startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Host = counted{sim.hosts[i], sim.sent[i]}
		return sim.cut(i), nil
	})
	if err != nil {
		return nil, errors.Join(err, sim.close())
	}
	t.sim = sim
	return t, nil
}

func newSimulation(o Options) *simulation {
	sim := &simulation{o: o}
	sim.net = simnet.New(sim.o.delay)
	return sim
}

// grow adds an unconnected node to a simulated net.
func (t *Net) grow() (*Member, error) {
	if err := t.sim.add(); err != nil {
		return nil, err
	}
	i := len(t.Members)
	key, err := Key(t.Seed, i+1)
	if err != nil {
		return nil, err
	}
	err = t.join(i, key, t.sim.o, func(_ int, no *node.Options) (func() error, error) {
		no.Host = counted{t.sim.hosts[i], t.sim.sent[i]}
		return t.sim.cut(i), nil
	})
	if err != nil {
		return nil, err
	}
	return t.Members[i], nil
}

// add adds a host that can reach all others.
func (s *simulation) add() error {
	n := len(s.hosts)
	key, err := Key(s.o.Seed, n+1)
	if err != nil {
		return err
	}
	priv, err := crypto.UnmarshalPrivateKey(key.Libp2p())
	if err != nil {
		return err
	}
	addr, err := ma.NewMultiaddr(fmt.Sprintf("/ip4/10.%d.%d.%d/tcp/4667", (n+1)>>16&255, (n+1)>>8&255, (n+1)&255))
	if err != nil {
		return err
	}
	h, err := s.net.Add(priv, addr)
	if err != nil {
		return err
	}
	s.hosts, s.sent = append(s.hosts, h), append(s.sent, new(traffic))
	return nil
}

// cut returns a function that removes a host from the network, as if it had been killed.
func (s *simulation) cut(i int) func() error {
	return func() error { s.hosts[i].Cut(); return nil }
}

// close closes the hosts that are still open.
func (s *simulation) close() error {
	var errs []error
	for _, h := range s.hosts {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// delay returns the latency between two hosts: from Latency to Farthest, determined by the seed.
func (o *Options) delay(a, b peer.ID) time.Duration {
	if o.Farthest <= o.Latency {
		return o.Latency
	}
	if a > b {
		a, b = b, a
	}
	h := fnv.New64a()
	fmt.Fprint(h, o.Seed, a, b)
	return o.Latency + time.Duration(h.Sum64()%uint64(o.Farthest-o.Latency))
}

// sentBy returns the traffic of a member, by use.
func (t *Net) sentBy(m *Member) sent { return t.sim.sent[slices.Index(t.Members, m)].now() }
