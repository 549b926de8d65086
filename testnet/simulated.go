package testnet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/node"
)

// A simulation is the network under [Simulated] nodes.
type simulation struct {
	mocknet.Mocknet
	o     Options
	hosts []peer.ID // by number, from 0
	sent  []*traffic
}

// Simulated starts n nodes in a simulated network. Inside a testing/synctest bubble its time is the bubble's.
func Simulated(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	sim := &simulation{Mocknet: mocknet.New(), o: o}
	hosts := make([]host.Host, n)
	for i := range n {
		var err error
		if hosts[i], err = sim.add(); err != nil {
			return nil, errors.Join(err, sim.Close())
		}
	}
	t, err := startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Host = hosts[i]
		return func() error { return sim.vanish(hosts[i].ID()) }, nil
	})
	if err != nil {
		return nil, errors.Join(err, sim.Close())
	}
	t.sim = sim
	t.close = append([]func() error{sim.Close}, t.close...)
	return t, nil
}

// grow adds a node to a simulated net, connected to nobody.
func (t *Net) grow() (*Member, error) {
	h, err := t.sim.add()
	if err != nil {
		return nil, err
	}
	i := len(t.Members)
	key, err := Key(t.Seed, i+1)
	if err != nil {
		return nil, err
	}
	err = t.join(i, key, t.sim.o, func(_ int, no *node.Options) (func() error, error) {
		no.Host = h
		return func() error { return t.sim.vanish(h.ID()) }, nil
	})
	if err != nil {
		return nil, err
	}
	return t.Members[i], nil
}

// add makes one more host, which can reach all others.
func (s *simulation) add() (host.Host, error) {
	n := len(s.hosts)
	h, err := s.host(n + 1)
	if err != nil {
		return nil, err
	}
	for i, p := range s.hosts {
		s.SetLinkDefaults(mocknet.LinkOptions{Latency: s.o.delay(i, n)})
		if _, err := s.LinkPeers(p, h.ID()); err != nil {
			return nil, err
		}
	}
	s.hosts = append(s.hosts, h.ID())
	s.sent = append(s.sent, new(traffic))
	return counted{h, s.sent[n]}, nil
}

// delay is how long a message takes between two nodes: from Latency to Farthest, the same in every run with one seed.
func (o *Options) delay(i, j int) time.Duration {
	if o.Farthest <= o.Latency {
		return o.Latency
	}
	h := fnv.New64a()
	fmt.Fprint(h, o.Seed, i, j)
	return o.Latency + time.Duration(h.Sum64()%uint64(o.Farthest-o.Latency))
}

func (s *simulation) host(n int) (host.Host, error) {
	key, err := Key(s.o.Seed, n)
	if err != nil {
		return nil, err
	}
	priv, err := crypto.UnmarshalPrivateKey(key.Libp2p())
	if err != nil {
		return nil, err
	}
	addr, err := ma.NewMultiaddr(fmt.Sprintf("/ip4/10.%d.%d.%d/tcp/4667", n>>16&255, n>>8&255, n&255))
	if err != nil {
		return nil, err
	}
	return s.AddPeer(priv, addr)
}

// vanish takes a host off the network: closing it would leave its peers connected.
func (s *simulation) vanish(id peer.ID) error {
	var errs []error
	for _, p := range s.Peers() {
		if p != id {
			if len(s.LinksBetweenPeers(id, p)) > 0 {
				errs = append(errs, s.UnlinkPeers(id, p))
			}
			errs = append(errs, s.DisconnectPeers(id, p))
		}
	}
	return errors.Join(errs...)
}

// sentBy returns what a member has sent so far, by what it was for.
func (t *Net) sentBy(m *Member) sent { return t.sim.sent[slices.Index(t.Members, m)].now() }
