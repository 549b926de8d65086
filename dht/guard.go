package dht

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	pb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/x/rate"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/internal/streamserver"
)

// Limits of the inbound side.
const (
	maxStreams     = 512 // G2: at once, the inbound limit of the protocol in the resource manager
	maxPeerStreams = 8   // G5: at once from one peer
	// G7: requests of one peer. A starting node provides all its keys at once, so the burst is large.
	requestRate  = 100
	requestBurst = 2000
	maxMetered   = 65536 // peers with a rate of their own
)

// A guard is the host that the library uses. It applies these rules to every handler of the library, in this order:
//
//   - G1 new streams have a rate per address or subnet
//   - G2 streams at once are bounded; none waits for a slot
//   - G3 a frame with a too large prefix does not reach the reader: see frameLimiter
//   - G4 frames and idle streams time out
//   - G5 one peer has eight streams at most
//   - G6 a panic of the handler costs its stream
//   - G7 one peer's requests have a rate: see onRequest
//   - G8 the records that others store are limited: see quota
//   - G9 peers without the right store nothing: see onRequest
//
// It is safe for concurrent use.
type guard struct {
	host.Host
	stores   func(peer.ID) bool
	subnets  *rate.Limiter
	requests *ratelimit.Limiter[peer.ID]
	server   *streamserver.Server
	stats    *counters
	log      *slog.Logger

	// handlers are those set by the library; owned by mu.
	mu       sync.Mutex
	handlers map[protocol.ID]struct{}
}

func newGuard(h host.Host, stores func(peer.ID) bool, stats *counters, log *slog.Logger) *guard {
	g := &guard{
		Host: h, stores: stores, stats: stats, log: log,
		subnets:  newSubnets(),
		requests: ratelimit.NewLimiter[peer.ID](ratelimit.Limit{Rate: requestRate, Burst: requestBurst}, maxMetered),
		handlers: map[protocol.ID]struct{}{},
	}
	g.server = streamserver.New(streamserver.Options{Total: maxStreams, PerPeer: maxPeerStreams, Admit: g.admit, Done: g.done, Log: log})
	return g
}

// newSubnets returns G1, the rate of new streams by address. Loopback is exempt, for test networks.
func newSubnets() *rate.Limiter {
	each := rate.Limit{RPS: 20, Burst: 200}
	return &rate.Limiter{
		NetworkPrefixLimits: []rate.PrefixLimit{
			{Prefix: netip.MustParsePrefix("127.0.0.0/8")},
			{Prefix: netip.MustParsePrefix("::1/128")},
		},
		SubnetRateLimiter: rate.SubnetLimiter{
			IPv4SubnetLimits: []rate.SubnetLimit{{PrefixLength: 32, Limit: each}},
			IPv6SubnetLimits: []rate.SubnetLimit{{PrefixLength: 56, Limit: each}},
			GracePeriod:      time.Minute,
		},
	}
}

// SetStreamHandler sets h inside the guard.
func (g *guard) SetStreamHandler(id protocol.ID, h network.StreamHandler) {
	g.mu.Lock()
	g.handlers[id] = struct{}{}
	g.mu.Unlock()
	g.Host.SetStreamHandler(id, func(s network.Stream) { g.serve(s, h) })
}

// serve runs h on s if a slot is free.
func (g *guard) serve(s network.Stream, h network.StreamHandler) {
	g.server.Serve(s, func(s network.Stream) error {
		gate := newFrameLimiter(s, func(err error) { g.refuse(s, err) })
		defer gate.stop()
		h(gate)
		return nil
	})
}

// admit applies the rules that need no slot.
func (g *guard) admit(c network.Conn) network.StreamErrorCode {
	if !g.subnets.Allow(addrOf(c)) {
		return network.StreamRateLimited
	}
	return network.StreamNoError
}

func (g *guard) done(_ peer.ID, err error) {
	switch err {
	case streamserver.ErrRefused:
		g.stats.refusedStreams.Add(1)
	case streamserver.ErrPanic:
		g.stats.panics.Add(1)
	}
}

func (g *guard) refuse(s network.Stream, err error) {
	g.stats.refusedFrames.Add(1)
	g.log.Debug("DHT frame refused", "peer", did.ShortPeer(s.Conn().RemotePeer()), "err", err)
}

// onRequest is G7 and G9: the library calls it before it handles a request. A stream carries many requests, so a limit of streams is not
// enough. It cannot return an error, but the library rejects an emptied request at no cost.
func (g *guard) onRequest(_ context.Context, s network.Stream, m *pb.Message) {
	from, put := s.Conn().RemotePeer(), m.GetType() == pb.Message_PUT_VALUE
	limited := g.requests.Take(from, 1, time.Now()) != 0
	switch {
	case limited:
		g.stats.limitedRequests.Add(1)
	case (put || m.GetType() == pb.Message_ADD_PROVIDER) && !g.stores(from):
		g.stats.refusedWrites.Add(1)
	default:
		return
	}
	m.Record, m.Key, m.ProviderPeers = nil, nil, nil
	if limited && !put {
		_ = s.ResetWithError(network.StreamRateLimited)
	}
}

// close ends every stream, and returns after the last handler, so that the caller can close the datastores. The library does not
// remove its handlers.
func (g *guard) close() {
	g.mu.Lock()
	for id := range g.handlers {
		g.Host.RemoveStreamHandler(id)
	}
	g.mu.Unlock()
	g.server.Close()
}

// addrOf returns the remote IP address, or the zero address if there is none.
func addrOf(c network.Conn) netip.Addr {
	ip, err := manet.ToIP(c.RemoteMultiaddr())
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
