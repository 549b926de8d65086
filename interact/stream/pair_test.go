package stream

import (
	"context"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/td"
)

// transports are the addresses that hosts of tests listen on.
var transports = map[string]string{"quic": "/ip4/127.0.0.1/udp/0/quic-v1", "tcp": "/ip4/127.0.0.1/tcp/0"}

// newHost returns a libp2p host on loopback.
func newHost(t testing.TB, transport string, opts ...libp2p.Option) host.Host {
	t.Helper()
	if len(opts) == 0 {
		opts = []libp2p.Option{libp2p.ResourceManager(&network.NullResourceManager{})}
	}
	opts = append(opts, libp2p.ListenAddrStrings(transports[transport]), libp2p.DisableMetrics())
	h, err := libp2p.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// newBinding returns a binding of h that is closed with the test.
func newBinding(t testing.TB, h host.Host, o Options) *Binding {
	t.Helper()
	o.Network = "test"
	b := New(h, o)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// at returns h as the host of a thing.
func at(t testing.TB, h host.Host) td.Host {
	t.Helper()
	node, err := did.FromPeer([]byte(h.ID()))
	if err != nil {
		t.Fatal(err)
	}
	where := td.Host{Node: node}
	for _, a := range h.Addrs() {
		where.Addrs = append(where.Addrs, a.String())
	}
	return where
}

// at returns the Thing of a test at hosts.
func (b *Binding) at(hosts []td.Host) *Thing {
	return b.Thing(&td.Description{Thing: &td.Thing{Actions: map[string]*td.Action{"idempotent": {Idempotent: true}, "slow idempotent": {Idempotent: true}}}, Record: &td.Record{Hosts: hosts}})
}

// inOrder lets hosts that are equal have the order of the record.
func (b *Binding) inOrder() { b.meter.Intn = func(n int) int { return n - 1 } }

// A pair is a calling node and a serving one.
type pair struct {
	caller, server         *Binding
	callerHost, serverHost host.Host
	thing                  interact.Thing // as the caller sees what the server serves
}

// newPair connects two nodes, of which one serves local.
func newPair(t testing.TB, transport string, local interact.Thing, caller, server Options) *pair {
	t.Helper()
	p := &pair{callerHost: newHost(t, transport), serverHost: newHost(t, transport)}
	p.caller, p.server = newBinding(t, p.callerHost, caller), newBinding(t, p.serverHost, server)
	p.server.Serve(local)
	connect(t, p.callerHost, p.serverHost)
	p.thing = p.caller.at([]td.Host{at(t, p.serverHost)})
	return p
}

var until = poll.Until

func connect(t testing.TB, a, b host.Host) {
	t.Helper()
	if err := a.Connect(context.Background(), peer.AddrInfo{ID: b.ID(), Addrs: b.Addrs()}); err != nil {
		t.Fatal(err)
	}
}
