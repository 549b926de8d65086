package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// quicLater is the head start of TCP on a private address.
const quicLater = 30 * time.Millisecond

// rankDials dials TCP before QUIC on private and loopback addresses, which no NAT translates: calls and bulk transfers are faster
// there, and the kernel reports the end of a process at once, where QUIC times out. For other addresses the default order holds,
// QUIC first.
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
