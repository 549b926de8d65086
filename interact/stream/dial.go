package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/td"
)

// stream opens a libp2p stream. Calls may use a relayed connection, which has limits of time and data. Others wait a moment for a direct one, which
// the two ends are making, and then use a relayed one only if its limits are high.
func (r *remote) stream(ctx context.Context, h td.Host, cl class) (network.Stream, error) {
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
	dial, cancel := context.WithTimeout(network.WithDialPeerTimeout(ctx, timeout), timeout)
	defer cancel()
	relayedToo := network.WithAllowLimitedConn(dial, Service)
	if cl == short {
		return r.b.host.NewStream(relayedToo, r.id, r.b.protocol)
	}
	if err := r.b.host.Connect(relayedToo, peer.AddrInfo{ID: r.id}); err != nil {
		return nil, err
	}
	if _, relayed := r.limit(); !relayed {
		return r.b.host.NewStream(dial, r.id, r.b.protocol)
	}
	soon, stop := context.WithTimeout(ctx, directWait)
	defer stop()
	s, err := r.b.host.NewStream(soon, r.id, r.b.protocol)
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	if limit, _ := r.limit(); limit != nil {
		return nil, limit
	}
	last, end := context.WithTimeout(network.WithAllowLimitedConn(ctx, Service), timeout)
	defer end()
	return r.b.host.NewStream(last, r.id, r.b.protocol)
}

// directWait is how long a stream waits for a direct connection beside a relayed one.
const directWait = 2 * time.Second

// leastData is the limit of data of a relayed connection that may carry streams and subscriptions, in bytes.
const leastData = 16 << 20

// A limitError is the reason why a relayed connection, the only one to a host, does not carry a stream.
type limitError struct {
	data   uint64
	length time.Duration
}

func (e *limitError) Error() string {
	return fmt.Sprintf("only a relayed connection, whose limits of %s and %d KiB are too low for a stream or a subscription; no direct one within %s",
		e.length, e.data>>10, directWait)
}

// limit reports whether all connections to the node are relayed, and returns nil if one of them has no limit or a high one.
func (r *remote) limit() (low *limitError, relayed bool) {
	if r.b.host.Network().Connectedness(r.id) == network.Connected {
		return nil, false
	}
	for _, c := range r.b.host.Network().ConnsToPeer(r.id) {
		data, length, limited := relay.LimitOf(c)
		if !limited || data == 0 || data >= leastData {
			return nil, true
		}
		low = &limitError{data, length}
	}
	return low, low != nil
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
