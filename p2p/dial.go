package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// quicLater is how long TCP is tried alone on a private address.
const quicLater = 30 * time.Millisecond

// rankDials puts TCP before QUIC on private and loopback addresses, where no translator is in between: calls and bulk are faster
// there, and the kernel tells at once that a peer's process is gone, where QUIC waits. Elsewhere the library's order holds, QUIC
// first.
func rankDials(addrs []ma.Multiaddr) []network.AddrDelay {
	ranked := swarm.DefaultDialRanker(addrs)
	near := false
	for _, a := range addrs {
		near = near || !isQUIC(a) && manet.IsPrivateAddr(a)
	}
	if !near {
		return ranked
	}
	for i, r := range ranked {
		switch {
		case !manet.IsPrivateAddr(r.Addr):
		case isQUIC(r.Addr):
			ranked[i].Delay = quicLater
		default:
			ranked[i].Delay = 0
		}
	}
	return ranked
}

func isQUIC(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	return err == nil
}
