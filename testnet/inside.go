package testnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	mocknet "github.com/libp2p/go-libp2p/p2p/net/mock"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/node"
)

// InProcess starts n nodes in this process, real hosts on loopback with ports of their own.
func InProcess(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	return startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Listen, no.ListenExplicit = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}, true
		return func() error { return nil }, nil
	})
}

// Simulated starts n nodes in a simulated network. Inside a testing/synctest bubble its time is the bubble's.
func Simulated(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	sim := mocknet.New()
	sim.SetLinkDefaults(mocknet.LinkOptions{Latency: o.Latency})
	hosts := make([]host.Host, n)
	for i := range n {
		h, err := simHost(sim, o.Seed, i+1)
		if err != nil {
			return nil, errors.Join(err, sim.Close())
		}
		hosts[i] = h
	}
	if err := sim.LinkAll(); err != nil {
		return nil, errors.Join(err, sim.Close())
	}
	t, err := startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Host = hosts[i]
		return func() error { return vanish(sim, hosts[i]) }, nil
	})
	if err != nil {
		return nil, errors.Join(err, sim.Close())
	}
	t.close = append([]func() error{sim.Close}, t.close...)
	return t, nil
}

func simHost(sim mocknet.Mocknet, seed int64, n int) (host.Host, error) {
	key, err := Key(seed, n)
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
	return sim.AddPeer(priv, addr)
}

// vanish takes a simulated host off the network: closing it would leave its peers connected.
func vanish(sim mocknet.Mocknet, h host.Host) error {
	var errs []error
	for _, p := range sim.Peers() {
		if p != h.ID() {
			errs = append(errs, sim.UnlinkPeers(h.ID(), p))
			errs = append(errs, sim.DisconnectPeers(h.ID(), p))
		}
	}
	return errors.Join(errs...)
}

// startInside makes and runs n nodes in this process; prepare finishes the options of each and says how its network is cut.
func startInside(ctx context.Context, n int, o Options, prepare func(i int, no *node.Options) (cut func() error, err error)) (*Net, error) {
	t := &Net{Network: o.Network, Seed: o.Seed}
	for i := range n {
		key, err := Key(o.Seed, i+1)
		if err != nil {
			return nil, errors.Join(err, t.Close())
		}
		if err := t.join(i, key, o, prepare); err != nil {
			return nil, errors.Join(fmt.Errorf("start node %d: %w", i+1, err), t.Close())
		}
	}
	if err := t.connect(ctx, o.Topology); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Net) join(i int, key *keystore.Key, o Options, prepare func(int, *node.Options) (func() error, error)) error {
	no := node.Options{Key: key, Name: fmt.Sprintf("node-%d", i+1), Network: o.Network, Profile: "test", Loopback: true,
		Lifetime: o.Lifetime, Log: o.Log}
	cut, err := prepare(i, &no)
	if err != nil {
		return err
	}
	nd, err := node.New(no)
	if err != nil {
		return err
	}
	m := &Member{Client: nd.Client(), N: i + 1, DID: nd.DID(), Addrs: nd.Addrs()}
	m.stop = run(nd)
	m.kill = func() error { return errors.Join(cut(), m.stop()) }
	t.Members = append(t.Members, m)
	t.close = append(t.close, m.stop)
	return nil
}

// run runs a node until the returned function, which may be called again, ends it.
func run(nd *node.Node) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nd.Run(ctx) }()
	var result error
	var ended bool
	return func() error {
		if ended {
			return result
		}
		ended = true
		cancel()
		result = errors.Join(<-done, nd.Close())
		return result
	}
}
