package stream

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// stream opens a libp2p stream, on a direct connection if there is one, else on a relayed one with enough left of its limits.
func (r *remote) stream(ctx context.Context, h td.Host, n need) (network.Stream, error) {
	timeout := r.prepare(h)
	dial, cancel := r.dialing(ctx, timeout)
	defer cancel()
	if len(r.b.host.Network().ConnsToPeer(r.id)) == 0 {
		if err := r.connect(dial); err != nil {
			return nil, err
		}
	}
	if !r.fits(n) {
		if err := r.findRoom(ctx, n); err != nil {
			return nil, err
		}
		dial, cancel = r.dialing(ctx, timeout)
		defer cancel()
	}
	return r.b.host.NewStream(dial, r.id, r.b.protocol)
}

// prepare adds the addresses of a node that is not connected, and returns the time for a dial.
func (r *remote) prepare(h td.Host) time.Duration {
	if n := r.b.host.Network(); n.Connectedness(r.id) != network.Connected {
		addrs := r.b.o.Addrs(r.id, time.Now())
		if len(addrs) == 0 {
			addrs = multiaddrs(h.Addrs)
		}
		r.b.host.Peerstore().AddAddrs(r.id, addrs, peerstore.TempAddrTTL)
	}
	timeout := r.b.o.DialTimeout
	if slices.ContainsFunc(r.b.host.Peerstore().Addrs(r.id), relay.IsCircuit) {
		timeout += relay.Wanted * relay.DialTimeout // one of them may be dead
	}
	return timeout
}

// dialing returns a context for a dial, which may use relays.
func (r *remote) dialing(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(network.WithAllowLimitedConn(network.WithDialPeerTimeout(ctx, timeout), Service), timeout)
}

// multiaddrs parses addrs and skips those that are not valid.
func multiaddrs(addrs []string) []multiaddr.Multiaddr {
	ms := make([]multiaddr.Multiaddr, 0, len(addrs))
	for _, a := range addrs {
		if m, err := multiaddr.NewMultiaddr(a); err == nil {
			ms = append(ms, m)
		}
	}
	return ms
}

// findFor limits the search for addresses of a node.
const findFor = 2 * time.Second

// findAddrs looks for other addresses of a node that could not be dialed, after err: those of h may be older than its relays. It reports whether
// there are some. A node that was lost lately is not looked for again.
func (r *remote) findAddrs(ctx context.Context, h td.Host, err error) bool {
	if ctx.Err() != nil || isLocal(err) || r.b.o.Refused(r.node) != nil {
		return false
	}
	book, more := r.b.host.Peerstore(), multiaddrs(h.Addrs)
	before := book.Addrs(r.id)
	if r.b.o.Find != nil && !r.down(time.Now()) {
		ctx, cancel := context.WithTimeout(ctx, findFor)
		defer cancel()
		found, _ := r.b.o.Find(ctx, r.id) // it has none after an error
		more = append(more, found.Addrs...)
	}
	book.AddAddrs(r.id, more, peerstore.TempAddrTTL)
	return r.b.host.Network().Connectedness(r.id) != network.NotConnected ||
		slices.ContainsFunc(more, func(a multiaddr.Multiaddr) bool { return !slices.ContainsFunc(before, a.Equal) })
}
