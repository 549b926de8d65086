package testnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// InProcess starts n nodes in this process, which listen on loopback.
func InProcess(ctx context.Context, n int, o Options) (*Net, error) {
	o = o.withDefaults()
	return startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Listen, no.ListenExplicit = []string{"/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"}, true
		return func() error { return nil }, nil
	})
}

// startInside starts n nodes in this process; prepare completes the options of each and returns how to cut its network.
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
	if err := t.connect(ctx, o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Net) join(i int, key *keystore.Key, o Options, prepare func(int, *node.Options) (func() error, error)) error {
	no := node.Options{Key: key, Name: fmt.Sprintf("node-%d", i+1), Network: o.Network, Profile: "test", Loopback: true,
		Lifetime: o.Lifetime, Policy: policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}}, Log: o.Log}
	cut, err := prepare(i, &no)
	if err != nil {
		return err
	}
	nd, err := node.New(no)
	if err != nil {
		return err
	}
	m := &Member{Client: nd.Client(), N: i + 1, DID: nd.DID(), Addrs: nd.Addrs()}
	m.node, m.cut, m.stop = nd, cut, run(nd)
	m.kill = func() error { return errors.Join(m.cut(), m.stop()) }
	t.Members = append(t.Members, m)
	t.close = append(t.close, m.stop)
	return nil
}

// run runs a node; stop ends it and may be called again.
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
