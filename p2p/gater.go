package p2p

import (
	"maps"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/did"
)

// A gater decides which peers may be connected. It refuses every key that cannot be a did:key: other types than Ed25519,
// points of small order and non-canonical spellings, which libp2p itself would accept; whom admits refuses; and who is banned.
type gater struct {
	admits   func(did.DID) error // nil admits all
	loopback bool                // loopback addresses may be dialled
	public   bool                // private addresses may not: in a network of strangers they lead to somebody else's neighbours

	mu     sync.Mutex
	banned map[peer.ID]time.Time // until when; at most maxBanned; owned by mu
}

// maxBanned is how many banned peers are remembered, about 150 bytes each. Who is forgotten may come back early, and is banned
// again for what it does then.
const maxBanned = 4096

// ban refuses a peer for a while. It does not outlive the process: a key that is banned is as easily replaced.
func (g *gater) ban(id peer.ID, how time.Duration, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.banned == nil {
		g.banned = map[peer.ID]time.Time{}
	}
	if len(g.banned) >= maxBanned {
		maps.DeleteFunc(g.banned, func(_ peer.ID, until time.Time) bool { return !until.After(now) })
	}
	for other := range g.banned {
		if len(g.banned) < maxBanned {
			break
		}
		delete(g.banned, other)
	}
	g.banned[id] = now.Add(how)
}

func (g *gater) isBanned(id peer.ID, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Before(g.banned[id])
}

// InterceptPeerDial refuses to dial a key that no node can have.
func (g *gater) InterceptPeerDial(p peer.ID) bool { return g.admit(p) }

// InterceptAddrDial refuses addresses that only a hostile record would name: loopback (unless the profile lives there),
// link-local (cloud metadata servers are there), unspecified, and all machines at once.
func (g *gater) InterceptAddrDial(_ peer.ID, a ma.Multiaddr) bool {
	ip, err := manet.ToIP(a)
	if err != nil {
		return true // A name or a relay: what it leads to is seen when it is dialled.
	}
	switch {
	case ip.IsLoopback():
		return g.loopback
	case ip.IsLinkLocalUnicast(), ip.IsUnspecified(), ip.IsMulticast(), ip.Equal(net.IPv4bcast):
		return false
	case g.public:
		return manet.IsPublicAddr(a)
	}
	return true
}

// InterceptAccept lets every address knock; per-address limits are the resource manager's.
func (g *gater) InterceptAccept(network.ConnMultiaddrs) bool { return true }

// InterceptSecured sees the proven key, in both directions, before anything else happens on the connection. Whom the policy refuses is
// told so, which takes one step more.
func (g *gater) InterceptSecured(dir network.Direction, p peer.ID, _ network.ConnMultiaddrs) bool {
	if dir == network.DirOutbound {
		return g.admit(p)
	}
	_, err := did.FromPeer([]byte(p))
	return err == nil && !g.isBanned(p, time.Now())
}

// InterceptUpgraded refuses whom the policy refuses. The connection is closed with the code network.ConnGated, before a stream is
// accepted: a connection that is not encrypted and multiplexed yet has no way to say why it ends. See refusals.
func (g *gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	return g.admit(c.RemotePeer()), 0
}

func (g *gater) admit(p peer.ID) bool {
	id, err := did.FromPeer([]byte(p))
	if err != nil || g.isBanned(p, time.Now()) {
		return false
	}
	return g.admits == nil || g.admits(id) == nil
}
