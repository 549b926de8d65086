package p2p

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/p2p/relay"
)

// A gater decides which peers may connect. It rejects keys that are not valid for did:key but accepted by libp2p: other types than
// Ed25519, points of small order and non-canonical encodings; peers that admits rejects; and banned peers.
type gater struct {
	self     peer.ID             // a connection to this node itself only proves that a relay works
	admits   func(did.DID) error // nil admits all
	refused  func(did.DID)       // receives the peers whose connections admits ended; nil ignores them
	sent     func(netip.Addr)    // receives the addresses that are dialed; nil ignores them
	loopback bool                // loopback addresses may be dialled
	filter   []netip.Prefix      // addresses that may not be dialled
	public   bool                // private addresses may not: those of untrusted peers lead to hosts of other networks
	avoids   atomic.Pointer[relay.Circuits]
	closing  atomic.Bool // the host ends: it dials no peer any more

	mu     sync.Mutex
	banned map[peer.ID]time.Time // end of the ban; at most maxBanned; owned by mu
	others map[place]elsewhere   // at most maxBanned; owned by mu
}

// A place is an address at which a peer was expected.
type place struct {
	id   peer.ID
	addr string // the bytes of the multiaddr
}

// An elsewhere is the error of a dial to an address at which another node answered.
type elsewhere struct {
	err   sec.ErrPeerIDMismatch
	until time.Time
}

// othersFor is how long an address is not dialed again after another node has answered there. A record may name the address of a victim.
const othersFor = 5 * time.Minute

// dialed notes the addresses of a failed dial at which other nodes answered. It returns err, or the error of the earlier dial if this one was not
// made because of it.
func (g *gater) dialed(id peer.ID, err error, now time.Time) error {
	var dial *swarm.DialError
	if !errors.As(err, &dial) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range dial.DialErrors {
		var other sec.ErrPeerIDMismatch
		at := place{id, string(d.Address.Bytes())}
		switch known := g.others[at]; {
		case errors.As(d.Cause, &other):
			boundedmap.Put(&g.others, at, elsewhere{other, now.Add(othersFor)}, maxBanned, func(e elsewhere) bool { return !e.until.After(now) })
		case now.Before(known.until):
			err = fmt.Errorf("%w: %w", err, known.err)
		}
	}
	return err
}

// isOthers reports whether another node has answered at an address of a peer.
func (g *gater) isOthers(id peer.ID, a ma.Multiaddr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.others) > 0 && now.Before(g.others[place{id, string(a.Bytes())}].until)
}

// maxBanned limits the banned peers, about 150 bytes each. A peer that is dropped from the list can return before the end of its
// ban.
const maxBanned = 4096

// ban rejects a peer for a while. Bans end with the process, because keys are easily replaced.
func (g *gater) ban(id peer.ID, how time.Duration, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	boundedmap.Put(&g.banned, id, now.Add(how), maxBanned, func(until time.Time) bool { return !until.After(now) })
}

func (g *gater) isBanned(id peer.ID, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Before(g.banned[id])
}

// InterceptPeerDial rejects keys that a node cannot have, and all dials of a host that ends: a direct dial that begins while the network closes its
// transports ends the process (swarm.nonProxyAddr of go-libp2p 0.51).
func (g *gater) InterceptPeerDial(p peer.ID) bool { return !g.closing.Load() && g.admit(p) }

// InterceptAddrDial rejects addresses that only a hostile record contains: loopback (unless the profile allows it), link-local
// (metadata servers of clouds), unspecified and multicast addresses; one at which another node has answered; and, for a while, relays whose limits
// do not suffice for a peer.
func (g *gater) InterceptAddrDial(id peer.ID, a ma.Multiaddr) bool {
	if g.isOthers(id, a, time.Now()) || g.avoids.Load().Avoids(id, a) {
		return false
	}
	ip, err := manet.ToIP(a)
	if err != nil {
		return true // a name or a relay: its target is checked when dialed
	}
	if to, ok := ipOf(a); ok && g.sent != nil {
		g.sent(to)
	}
	switch {
	case isFiltered(a, g.filter):
		return false
	case ip.IsLoopback():
		return g.loopback
	case ip.IsLinkLocalUnicast(), ip.IsUnspecified(), ip.IsMulticast(), ip.Equal(net.IPv4bcast):
		return false
	case g.public:
		return manet.IsPublicAddr(a)
	}
	return true
}

// InterceptAccept accepts connections from every address; the resource manager has the limits per address.
func (g *gater) InterceptAccept(network.ConnMultiaddrs) bool { return true }

// InterceptSecured checks the authenticated key, in both directions, before the connection is used. A peer that the policy rejects
// passes here, so that InterceptUpgraded can send the reason.
func (g *gater) InterceptSecured(dir network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	if dir == network.DirOutbound {
		return g.admit(p)
	}
	_, err := did.FromPeer([]byte(p))
	return err == nil && p != g.self && !g.isBanned(p, time.Now())
}

// InterceptUpgraded rejects peers by policy. The connection is closed with the code network.ConnGated before a stream is accepted:
// only an encrypted and multiplexed connection can carry a reason. See refusals.
func (g *gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	admitted := g.admit(c.RemotePeer())
	if !admitted && g.refused != nil && c.Stat().Direction == network.DirInbound {
		if id, err := did.FromPeer([]byte(c.RemotePeer())); err == nil {
			g.refused(id)
		}
	}
	return admitted, 0
}

func (g *gater) admit(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	if err != nil || g.isBanned(p, time.Now()) {
		return false
	}
	return g.admits == nil || g.admits(id) == nil
}
