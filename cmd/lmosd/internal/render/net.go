package render

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// Net prints how others reach a node, on a terminal after a summary of two lines. The status may be nil.
func Net(s *terminal.Screen, n *api.Net, st *api.Status) {
	if s.TTY {
		s.Item("  ", 2, Join(" · ", "UDP "+yesNo(carriesUDP(n)), "IPv4 "+seenAddr(n, "/ip4/"), "IPv6 "+seenAddr(n, "/ip6/"), "NAT "+natWord(n), "port map "+n.PortMapping.State,
			fmt.Sprintf("hole punch %d/%d", n.Punches.Won, n.Punches.Tried), terminal.Count(len(n.Relays), "relay", "relays")))
		if st != nil {
			s.Item("  ", 2, fmt.Sprintf("DHT %s, table %d · gossip with %s · %s", st.DHT.Mode, st.DHT.Table, terminal.Count(st.Gossip.Peers, "peer", "peers"),
				terminal.Count(n.Peers.Total, "connection", "connections")))
		}
		s.Line("")
	}
	netSheet(n, time.Now()).Write(s)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// carriesUDP reports whether the node has an address over UDP.
func carriesUDP(n *api.Net) bool {
	return slices.ContainsFunc(n.Addrs, func(a api.NetAddr) bool { return strings.Contains(a.Addr, "/udp/") })
}

// seenAddr returns the address of a family at which others may reach the node: one that works and is public before others; "no" without any.
func seenAddr(n *api.Net, family string) string {
	best, rank := "no", 0
	for _, a := range n.Addrs {
		rest, ok := strings.CutPrefix(a.Addr, family)
		if !ok {
			continue
		}
		host, _, _ := strings.Cut(rest, "/")
		ip, err := netip.ParseAddr(host)
		if err != nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		r := 1
		if !ip.IsPrivate() {
			r = 2
		}
		if a.Usable {
			r += 2
		}
		if r > rank {
			best, rank = ip.String(), r
		}
	}
	return best
}

// natWord returns the kind of NAT of UDP, or of TCP if that of UDP is unknown, in the words of routers.
func natWord(n *api.Net) string {
	kind := n.NAT.UDP
	if kind == api.NATUnknown || kind == "" {
		kind = n.NAT.TCP
	}
	switch kind {
	case api.NATIndependent:
		return "cone"
	case api.NATDependent:
		return "symmetric"
	case api.NATNone:
		return "none"
	}
	return "unknown"
}

func netSheet(n *api.Net, now time.Time) *terminal.Sheet {
	s := &terminal.Sheet{}
	s.Add("reachability", n.Reachability+": "+reachability(n))
	for _, a := range n.Addrs {
		s.Add("address", a.Addr+" · "+addressState(a))
	}
	s.Add("nat", "UDP "+natKind(n.NAT.UDP), "TCP "+natKind(n.NAT.TCP))
	s.Add("port mapping", mappingText(n.PortMapping))
	for _, m := range n.PortMapping.Mappings {
		s.Add("port mapping", m.External+" leads to "+m.Local)
	}
	for _, r := range n.Relays {
		s.Add("relay", relayText(r, now))
	}
	for _, f := range n.RelayFailures {
		s.Add("relay failed", f.DID.Short()+" · "+f.Reason+" · "+terminal.Ago(f.At, now)+" ago"+" · tried again in "+terminal.Span(f.Until.Sub(now)))
	}
	for _, b := range n.Bootstrap {
		s.Add("bootstrap", bootstrapText(b, now))
	}
	s.Add("punches", punchText(n))
	for _, p := range n.Punches.Last[:min(len(n.Punches.Last), shownPunches)] {
		s.Add("punch", Join(" · ", p.DID.Short(), p.Result, rounded(p.Took), p.Reason, terminal.Ago(p.At, now)+" ago"))
	}
	addServing(s, n.Serving, now)
	s.Add("connections", fmt.Sprintf("%d: %d direct, %d relayed", n.Peers.Total, n.Peers.Direct, n.Peers.Relayed))
	s.Add("advice", advice(n)...)
	return s
}

// shownPunches is the number of attempts that are shown.
const shownPunches = 4

func reachability(n *api.Net) string {
	switch n.Reachability {
	case api.ReachablePublic:
		return "others can dial this node"
	case api.ReachableLocal:
		return "others can dial this node in its own network; no public address is known"
	case api.ReachablePrivate:
		if len(n.Relays) > 0 {
			return "this node is behind a router; others reach it through its relays"
		}
		return "no address of this node is known to work from outside, and it has no relay"
	case api.ReachableUnknown:
		return "no other network is in sight yet"
	}
	return ""
}

// addressState describes an address, and why it is believed to work.
func addressState(a api.NetAddr) string {
	state, why := "not proven", map[string]string{
		api.SourceInterface:  "an interface of this machine has it",
		api.SourceMapping:    "the router has mapped it",
		api.SourceConfigured: "listen.announce names it",
		api.SourceObserved:   "peers see it, but may be the only ones that the router lets in",
		api.ProofInbound:     "a node connected that this one had not dialed",
	}[cmp.Or(a.Proof, a.Source)]
	switch {
	case a.Usable:
		state = "works"
	case a.Checked == api.CheckedUnreachable:
		state = "does not work"
	case a.Proof == "" && a.Source == api.SourceInterface:
		state = "for the own network"
	}
	checked := mark(a.Proof == api.SourceMapping, "not checked yet")
	if a.Checked != "" {
		checked = "peers found it " + a.Checked
	}
	return state + ": " + Join("; ", why, checked, mark(!a.Announced, "not announced"))
}

func natKind(kind string) string {
	switch kind {
	case api.NATNone:
		return kind + ": peers see the address of this machine"
	case api.NATIndependent:
		return kind + ": peers see the same address, so direct connections can be made (punched)"
	case api.NATDependent:
		return kind + ": each peer sees another port, so most connections stay relayed"
	}
	return kind + ": too few peers have seen an address"
}

func mappingText(m api.PortMapping) string {
	switch m.State {
	case api.MappingOff:
		return "off: this node does not ask the router"
	case api.MappingNone:
		return "none: no router has answered (UPnP, NAT-PMP)"
	}
	return ""
}

func relayText(r api.NetRelay, now time.Time) string {
	limits := "no limits"
	if r.Seconds > 0 || r.Bytes > 0 {
		limits = terminal.Span(time.Duration(r.Seconds*float64(time.Second))) + " and " + binary(int64(r.Bytes)) + " a connection"
	}
	return Join(" · ", r.DID.Short(), rounded(r.RTT), "since "+terminal.Ago(r.Since, now), "until in "+terminal.Span(r.Until.Sub(now)), limits, r.Addr)
}

func bootstrapText(b api.BootstrapState, now time.Time) string {
	next := ""
	if b.Next.After(now) {
		next = "tried again in " + terminal.Span(b.Next.Sub(now))
	}
	return Join(" · ", terminal.OneLine(b.Addr), b.State, terminal.OneLine(b.Reason), next)
}

func punchText(n *api.Net) string {
	p := n.Punches.PunchCounts
	return fmt.Sprintf("%d of %d worked", p.Won, p.Tried) + mark(p.Direct > 0, fmt.Sprintf(" · %d by a plain dial", p.Direct))
}

// addServing adds what a node relays for others.
func addServing(s *terminal.Sheet, v *api.Serving, now time.Time) {
	if v == nil {
		s.Add("serving", "this node does not relay")
		return
	}
	s.Add("serving", fmt.Sprintf("%s, %s · %s relayed, %s of %s today", terminal.Count(len(v.Reservations), "node", "nodes"),
		terminal.Count(len(v.Circuits), "connection", "connections"), binary(v.Bytes), binary(v.Today), binary(v.Limit)))
	for _, r := range v.Reservations {
		s.Add("serving", r.DID.Short()+" · limits "+r.Terms)
	}
	for _, c := range v.Circuits {
		s.Add("serving", c.From.Short()+" to "+c.To.Short()+" · "+binary(c.Bytes)+" · "+terminal.Ago(c.Since, now))
	}
	for _, reason := range slices.Sorted(maps.Keys(v.Refused)) {
		s.Add("refused", fmt.Sprintf("%d %s", v.Refused[reason], reason))
	}
}

// advice returns what can be done for a node that others cannot dial.
func advice(n *api.Net) (all []string) {
	if n.Reachability != api.ReachablePrivate && n.Reachability != api.ReachableUnknown {
		return nil
	}
	if len(n.Relays) == 0 {
		all = append(all, "connect this node to one that relays: a node of your organization that others can dial, or one at a public address")
	}
	if n.NAT.UDP == api.NATDependent || n.Reachability == api.ReachablePrivate {
		all = append(all, "for direct connections, turn on UPnP in the router, or forward the port of listen.p2p and name the public address in listen.announce")
	}
	return all
}

// rounded returns a number of milliseconds; empty if it is 0.
func rounded(ms float64) string {
	if ms == 0 {
		return ""
	}
	return terminal.Millis(ms)
}

// binary returns a number of bytes in the units of limits.
func binary(n int64) string {
	units, f := []string{"B", "KiB", "MiB", "GiB"}, float64(n)
	for f >= 1024 && len(units) > 1 {
		f, units = f/1024, units[1:]
	}
	return fmt.Sprintf("%.4g %s", f, units[0])
}

// netLine describes the reachability of a node on one line; empty if the node does not report it.
func netLine(st *api.Status) string {
	if st.Reachability == "" {
		return ""
	}
	return st.Reachability + " · " + terminal.Count(st.Relays, "relay", "relays") + mark(st.Reachability == api.ReachablePrivate && st.Relays == 0,
		": others cannot reach it (lmosd net)")
}
