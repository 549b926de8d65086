package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
)

// Status prints the state of a node: on a terminal as a summary, elsewhere with a name and a value on each line. The organization and the
// partners may be absent, and so may the name of the context of the node. hint returns the remedy of a warning.
func Status(s *terminal.Screen, st *api.Status, org *api.Organization, partners []api.Partner, context string, hint func(string, []interact.Step) string) {
	if !s.TTY {
		statusSheet(st).Write(s)
		return
	}
	color, ok := map[string]string{"ready": terminal.Green, "degraded": terminal.Yellow, "starting": terminal.Yellow}[st.State]
	if !ok {
		color = terminal.Red
	}
	state := "● " + terminal.OneLine(st.State)
	s.Item(s.Paint(color, state)+"  ", terminal.Columns(state)+2, Join(" · ", st.DID.Short(), st.Name,
		"up "+uptime(st), "lmosd "+st.Version, "profile "+st.Profile, "network "+st.Network))
	rows := &terminal.Sheet{}
	rows.Add("peers", fmt.Sprintf("%d: %d direct, %d relayed · dht %s, table %d · gossip with %s on %s", st.Peers.Total, st.Peers.Direct,
		st.Peers.Relayed, st.DHT.Mode, st.DHT.Table, terminal.Count(st.Gossip.Peers, "peer", "peers"),
		terminal.Count(st.Gossip.Topics, "topic", "topics")))
	rows.Add("reachable", netLine(st))
	rows.Add("agents", fmt.Sprintf("%d local, %d known", st.Agents.Local, st.Agents.Known))
	rows.Add("calls", fmt.Sprintf("%d · errors %d · p50 %s, p99 %s · queue %d", st.Calls.Total, st.Calls.Errors,
		terminal.Millis(st.Calls.P50), terminal.Millis(st.Calls.P99), st.Calls.Queue))
	rows.Add("callers", Callers(st.Callers))
	if org != nil {
		rows.Add("organization", organizationLine(org))
	}
	rows.Add("partners", partnersLine(partners))
	rows.Add("context", terminal.OneLine(context))
	rows.Add("api", st.API)
	rows.Add("data", st.DataDir)
	rows.Write(s)
	if len(st.Warnings) > 0 {
		s.Line("  " + s.Paint(terminal.Dim, terminal.Count(len(st.Warnings), "warning", "warnings")))
	}
	for _, w := range st.Warnings {
		s.Item("  "+s.Paint(terminal.Yellow, "!")+" ", 2*gap, Join(" · ", w.Code+" "+w.Title, w.Text))
		if remedy := hint(w.Hint, w.Next); remedy != "" {
			s.Item("    remedy: ", 6*gap, remedy)
		}
	}
}

// gap is the indentation of a row.
const gap = 2

func uptime(st *api.Status) string {
	return terminal.Span(time.Duration(st.Uptime * float64(time.Second)))
}

func statusSheet(st *api.Status) *terminal.Sheet {
	s := &terminal.Sheet{}
	for _, row := range [][2]any{
		{"state", st.State}, {"did", st.DID}, {"peer_id", st.PeerID}, {"name", st.Name}, {"version", st.Version}, {"uptime", uptime(st)},
		{"profile", st.Profile}, {"network", st.Network}, {"data_dir", st.DataDir}, {"api", st.API}, {"callers", st.Callers},
		{"peers", st.Peers.Total}, {"peers_direct", st.Peers.Direct}, {"peers_relayed", st.Peers.Relayed},
		{"reachability", st.Reachability}, {"relays", st.Relays}, {"dht_mode", st.DHT.Mode}, {"dht_table", st.DHT.Table}, {"gossip_topics", st.Gossip.Topics}, {"gossip_peers", st.Gossip.Peers},
		{"agents_local", st.Agents.Local}, {"agents_known", st.Agents.Known},
		{"calls", st.Calls.Total}, {"calls_errors", st.Calls.Errors}, {"calls_queue", st.Calls.Queue},
	} {
		s.Add(row[0].(string), fmt.Sprint(row[1]))
	}
	s.Add("p2p", Addresses(st.Addrs)...)
	for _, w := range st.Warnings {
		s.Add("warning", strings.TrimSpace(w.Code+" "+w.Title+" "+w.Text))
	}
	return s
}

// Warning returns a warning on one line.
func Warning(s *terminal.Screen, w api.Warning) string {
	return s.Paint(terminal.Yellow, "!") + " " + terminal.OneLine(Join(" · ", w.Code+" "+w.Title, w.Text))
}

// measured returns a duration in milliseconds, or "-" if it was not measured.
func measured(ms float64) string {
	if ms > 0 {
		return terminal.Millis(ms)
	}
	return "-"
}

// Peers returns the table of connected nodes.
func Peers(items []api.Peer, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[api.Peer]{
		{Name: "PEER", Keep: true, Cell: func(p api.Peer) terminal.Cell { return terminal.Short(PeerName(p.Name, p.DID), string(p.DID)) }},
		{Name: "RTT", Keep: true, Cell: terminal.TextOf(func(p api.Peer) string { return measured(p.RTT) })},
		{Name: "DIRECTION", Keep: true, Cell: terminal.TextOf(func(p api.Peer) string { return p.Direction })},
		{Name: "PATH", Keep: true, Cell: func(p api.Peer) terminal.Cell {
			if p.Relay == "" {
				return terminal.Text("direct")
			}
			return terminal.Short("via "+p.Relay.Short(), "via "+string(p.Relay))
		}},
		{Name: "TRANSPORT", Cell: terminal.TextOf(func(p api.Peer) string { return p.Transport })},
		{Name: "AGE", Keep: true, Cell: terminal.TextOf(func(p api.Peer) string {
			return terminal.Span(time.Duration(p.Since * float64(time.Second)))
		})},
		{Name: "ADDRESS", Cell: terminal.TextOf(func(p api.Peer) string { return p.Addr })},
		{Name: "PEER ID", Wide: true, Cell: terminal.TextOf(func(p api.Peer) string { return p.PeerID })},
		{Name: "PROGRAM", Wide: true, Cell: terminal.TextOf(func(p api.Peer) string { return p.Agent })},
	})
}

// Callers describes the peers that may call the agents of a node; empty if the node does not report them.
func Callers(callers string) string {
	switch callers {
	case policy.Anyone:
		return "any peer that reaches this node may call its agents (trust.untrusted)"
	case policy.Permitted:
		return "nodes of the own organization, and those that access rules permit"
	}
	return terminal.OneLine(callers)
}

// Addresses returns multiaddrs in the order in which another host should try them: public addresses, addresses of the local network,
// addresses of this machine; QUIC before TCP.
func Addresses(addrs []string) []string {
	list := slices.Clone(addrs)
	slices.SortStableFunc(list, func(x, y string) int { return scope(x) - scope(y) })
	return list
}

// Outside returns the addresses that another host can use, or all if there are none.
func Outside(addrs []string) []string {
	if outside := slices.DeleteFunc(slices.Clone(addrs), func(addr string) bool { return scope(addr) >= loopback }); len(outside) > 0 {
		return outside
	}
	return addrs
}

const loopback = 4 // the scope of addresses of this machine

func scope(addr string) int {
	part := strings.Split(addr, "/") // "", "ip4", "192.0.2.7", "udp", …
	n := 0
	if len(part) > 2 {
		switch ip, err := netip.ParseAddr(part[2]); {
		case err != nil: // a name
		case ip.IsLoopback():
			n = loopback
		case ip.IsPrivate() || ip.IsLinkLocalUnicast():
			n = 2
		}
	}
	if !strings.Contains(addr, "/quic-v1") {
		n++
	}
	return n
}
