package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/p2p/relay"
)

// A Link is how a node is connected.
type Link struct {
	Transport string  // "quic-v1", "tcp"; "relay" without a direct connection
	Relay     did.DID // that relays the connection; empty for a direct one
	// Upgrade is how long a relayed connection preceded the direct one, while it is open beside that; 0: none did.
	Upgrade time.Duration
}

// linkOf returns the link of the connections to one node: the last direct one is used, if there is one.
func linkOf(conns []network.Conn) (l Link) {
	var relayed, direct time.Time
	for _, c := range conns {
		if relay.IsCircuit(c.RemoteMultiaddr()) {
			relayed = c.Stat().Opened
			if l.Transport == "" {
				l.Transport = "relay"
				l.Relay = did.OfPeer(relay.Of(c.RemoteMultiaddr()))
			}
			continue
		}
		l.Transport, l.Relay, direct = transportOf(c), "", c.Stat().Opened
	}
	if !relayed.IsZero() && direct.After(relayed) {
		l.Upgrade = direct.Sub(relayed)
	}
	return l
}
