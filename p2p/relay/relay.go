// Package relay lets nodes be reached through other nodes, by circuit relay v2 of libp2p.
//
// [Service] relays connections between other nodes. [Reservations] keeps the places of this node at relays of its choice. The two ends encrypt
// what they exchange: a relay learns who connects to whom, when, and how much they exchange.
package relay

import (
	"time"

	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Terms are the limits of the circuits to a node that has a reservation.
type Terms uint8

// The terms, lowest first.
const (
	Refused Terms = iota // no reservation
	Short                // 2 minutes, and 128 KiB in each direction: the limits of the library
	Long                 // 30 minutes, and 64 MiB in each direction
)

// Limits of a circuit by its terms.
var limits = map[Terms]struct {
	duration time.Duration
	data     int64
}{
	Short: {2 * time.Minute, 128 << 10},
	Long:  {30 * time.Minute, 64 << 20},
}

// DialTimeout limits a connection through one relay. Those of a node are tried one after the other.
const DialTimeout = time.Second

// init shortens the times of the library, which gives each relay one minute, one after the other, although a dead one looks alive for half of that.
func init() {
	client.DialTimeout, client.DialRelayTimeout, client.ReserveTimeout = DialTimeout, DialTimeout, attemptFor
}

// String returns "refused", "short" or "long".
func (t Terms) String() string { return [...]string{"refused", "short", "long"}[t] }

// IsCircuit reports whether an address leads through a relay.
func IsCircuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}

// group returns the range of addresses that one operator is likely to have, as a text: /16 of IPv4, /32 of IPv6.
func group(a ma.Multiaddr) string {
	ip, err := manet.ToIP(a)
	switch {
	case err != nil:
		return ""
	case ip.To4() != nil:
		return string(ip.To4()[:2])
	}
	return string(ip.To16()[:4])
}
