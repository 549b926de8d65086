package node

import (
	"slices"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/td"
)

// hosts is how this node is reached, for the records that it signs.
func (n *Node) hosts() []td.Host {
	return []td.Host{{Node: n.key.DID(), Addrs: useful(n.host.Addrs())}}
}

// useful returns the addresses that fit a record, those first that most peers can dial. A machine with several interfaces
// has more than a record holds, and the system lists loopback first.
func useful(as []ma.Multiaddr) []string {
	as = slices.Clone(as)
	slices.SortStableFunc(as, func(a, b ma.Multiaddr) int { return remoteness(a) - remoteness(b) })
	var addrs []string
	for _, a := range as {
		if s := a.String(); len(addrs) < td.MaxAddrs && len(s) <= td.MaxAddr {
			addrs = append(addrs, s)
		}
	}
	return addrs
}

// remoteness orders addresses by how many peers can use them, best first.
func remoteness(a ma.Multiaddr) int {
	ip, err := manet.ToIP(a)
	_, direct := a.ValueForProtocol(ma.P_CIRCUIT)
	switch {
	case err == nil && ip.IsLoopback():
		return 3
	case direct == nil:
		return 2 // through a relay
	case err == nil && !manet.IsPublicAddr(a):
		return 1
	}
	return 0
}

// onlyLoopback reports whether peers learn loopback addresses alone, though the node listens on more.
func onlyLoopback(announced, listening []ma.Multiaddr) bool {
	more := func(a ma.Multiaddr) bool { return !manet.IsIPLoopback(a) }
	return slices.ContainsFunc(listening, more) && !slices.ContainsFunc(announced, more)
}

// Addrs are the multiaddrs under which peers reach the node, with /p2p.
func (n *Node) Addrs() []string {
	var out []string
	for _, a := range n.host.Addrs() {
		out = append(out, a.String()+"/p2p/"+n.host.ID().String())
	}
	return out
}
