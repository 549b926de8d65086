package p2p

import (
	"maps"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/p2p/relay"
)

// Net returns how others reach this node, and what it relays for them. A host that is not a [Host] has only connections.
func (p *Peers) Net() *api.Net {
	n := &api.Net{Reachability: api.ReachableUnknown, Addrs: []api.NetAddr{},
		PortMapping: api.PortMapping{State: api.MappingOff, Mappings: []api.Mapping{}}, Relays: []api.NetRelay{}, RelayFailures: []api.RelayFailure{}}
	n.NAT.UDP, n.NAT.TCP, n.Punches.Last = api.NATUnknown, api.NATUnknown, []api.Punch{}
	n.Peers.Total, n.Peers.Direct, n.Peers.Relayed = p.Count()
	n.Bootstrap = p.o.Bootstrap.State()
	if p.own == nil {
		return n
	}
	p.own.reach.describe(n)
	n.Punches.PunchCounts, n.Punches.Last = p.own.punches.state()
	places, failures := p.own.places.Load().State()
	for _, at := range places {
		n.Relays = append(n.Relays, api.NetRelay{DID: at.Relay, Addr: at.Addr.String(), RTT: milliseconds(at.RTT), Since: at.Since.UTC(),
			Until: at.Until.UTC(), Seconds: at.Length.Seconds(), Bytes: at.Data})
	}
	for _, f := range failures {
		n.RelayFailures = append(n.RelayFailures, api.RelayFailure{DID: f.Relay, Reason: oneLine(f.Why), At: f.At.UTC(), Until: f.Until.UTC()})
	}
	n.Serving = serving(p.own.service.Load().Stats())
	return n
}

// serving returns the state of a relay; nil if there is none.
func serving(st *relay.Stats) *api.Serving {
	if st == nil {
		return nil
	}
	s := &api.Serving{Reservations: []api.Reservation{}, Circuits: []api.Circuit{}, Bytes: st.Total, Today: st.Today, Limit: st.Daily,
		Refused: st.Refused}
	for _, id := range slices.Sorted(maps.Keys(st.Reservations)) {
		s.Reservations = append(s.Reservations, api.Reservation{DID: id, Terms: st.Reservations[id].String()})
	}
	for _, c := range st.Circuits {
		s.Circuits = append(s.Circuits, api.Circuit{From: c.From, To: c.To, Terms: c.Terms.String(), Since: c.Since.UTC(), Bytes: c.Bytes()})
	}
	return s
}

// describe adds the addresses, the kind of NAT and the port mappings.
func (r *reachability) describe(n *api.Net) {
	n.Addrs = append(n.Addrs, r.addrs()...)
	n.NAT.UDP, n.NAT.TCP = r.natKind(true), r.natKind(false)
	n.Reachability = reachabilityOf(n.Addrs)
	r.mu.Lock()
	defer r.mu.Unlock()
	n.Since = r.since.UTC()
	if n.Reachability == api.ReachableUnknown && r.state == network.ReachabilityPrivate {
		n.Reachability = api.ReachablePrivate
	}
	if r.mapper != nil {
		n.PortMapping.State = api.MappingNone
	}
	for _, m := range r.mapped {
		n.PortMapping.State = api.MappingMapped
		n.PortMapping.Mappings = append(n.PortMapping.Mappings, api.Mapping{Local: m.local.String(), External: m.external.String()})
	}
}

// reachabilityOf returns the reachability by addresses that others can dial.
func reachabilityOf(own []api.NetAddr) string {
	state := api.ReachableUnknown
	for _, a := range own {
		m, err := ma.NewMultiaddr(a.Addr)
		switch {
		case err != nil || !a.Usable:
		case manet.IsPublicAddr(m):
			return api.ReachablePublic
		default:
			state = api.ReachableLocal
		}
	}
	return state
}

// Reachability returns how others reach this node (api.Net), and the number of its reservations at relays.
func (p *Peers) Reachability() (state string, relays int) {
	if p.own == nil {
		return "", 0
	}
	var n api.Net
	p.own.reach.describe(&n)
	return n.Reachability, len(p.own.places.Load().Addrs())
}

// relayOf returns the relay of a connection; empty if the connection is direct.
func relayOf(c network.Conn) did.DID {
	before, circuit := ma.SplitFunc(c.RemoteMultiaddr(), func(part ma.Component) bool { return part.Protocol().Code == ma.P_CIRCUIT })
	if circuit == nil {
		return ""
	}
	_, id := peer.SplitAddr(before)
	return did.OfPeer(id)
}

// maxReason limits the text of a failure, in bytes.
const maxReason = 300

// oneLine returns the text of a failure on one line.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
