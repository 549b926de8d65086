// Package topology maps the mesh as a node knows it: its own connections, those that the other members of its organization report, and the
// nodes that records name.
//
// report.go is the answer of one node and its parser, ask.go asks the members while a caller waits for a map, and this file puts the map together.
// A node reports only connections of its own, so a hostile member can invent some of itself, at most [MaxLinks], and those of no other node.
package topology

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node/status"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/trust"
)

// Who receives the connections of a node (mesh.topology).
const (
	ForMesh         = "mesh"         // every node; such nodes also ask every connected node
	ForOrganization = "organization" // members of the own organization
	ForNone         = "none"
)

// Options configure a [Map]. All but Trust, For and Log are required.
type Options struct {
	// Reporter has the peers and the directory of the node.
	Reporter *status.Reporter
	// Trust asks other nodes; nil: none is asked, and none gets an answer.
	Trust *trust.Trust
	// For states who receives the connections of this node; empty means [ForOrganization].
	For string
	// Index is the role of that name, and Relays reports whether the node relays for others.
	Index  bool
	Relays func() bool
	// Dial connects to a node, and Go runs work until the node closes (false: it does).
	Dial func(ctx context.Context, node did.DID) error
	Go   func(work func(ctx context.Context)) bool
	Log  *slog.Logger
}

// A Map maps the mesh as a node knows it. It is safe for concurrent use.
type Map struct {
	self           did.DID
	name, version  string
	roles          func() []string
	forWhom        string
	log            *slog.Logger
	peers          func() []api.Peer
	members        func() []did.DID
	organizationOf func(did.DID) (name string, own bool)
	counts         func(ctx context.Context) map[did.DID]int
	presence       func(did.DID) reachability.Presence
	ask            func(ctx context.Context, node did.DID) ([]byte, error)
	dial           func(ctx context.Context, node did.DID) error
	background     func(work func(ctx context.Context)) bool

	mu      sync.Mutex // owns what follows
	asked   map[did.DID]*answer
	running chan struct{} // closed when the members have been asked; nil: none is being asked
	encoded []byte        // the report of this node
	madeAt  time.Time     // of encoded
}

// New returns the map of a node, and answers the requests of others from now on.
func New(o Options) *Map {
	r := o.Reporter
	m := &Map{self: r.DID, name: r.Name, version: r.Version, forWhom: cmp.Or(o.For, ForOrganization), log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), peers: r.Peers.List,
		members: o.Trust.OwnMembers, organizationOf: o.Trust.OrganizationOf, counts: r.Directory.CountByHost, dial: o.Dial, background: o.Go, asked: map[did.DID]*answer{},
		roles: func() []string { return rolesOf(o.Index, o.Relays()) }, presence: func(node did.DID) reachability.Presence { return presenceAt(r.Directory, node) }}
	if o.Trust != nil {
		m.ask = o.Trust.AskLinks
		o.Trust.ServeLinks(m.Serve)
	}
	return m
}

// The roles of nodes.
const (
	roleIndex = "index"
	roleRelay = "relay"
)

func rolesOf(index, relays bool) (roles []string) {
	if index {
		roles = append(roles, roleIndex)
	}
	if relays {
		roles = append(roles, roleRelay)
	}
	return roles
}

// presenceAt returns what the directory knows of a host.
func presenceAt(d *directory.Directory, node did.DID) reachability.Presence {
	return d.Presence(&td.Description{Record: &td.Record{Hosts: []td.Host{{Node: node}}}})
}

// Topology returns the nodes and connections of a scope as the caller of ctx may see them, at most limit of each. Consumers of the node and members of
// its organization get the names, the organizations, and what members report; others only what the list of peers has. It asks members, and waits for them
// 2.5 s at most.
func (m *Map) Topology(ctx context.Context, scope api.TopologyScope, limit int) (*api.Topology, error) {
	t := &api.Topology{APIVersion: api.APIVersion, Kind: "Topology", At: time.Now().UTC(), Scope: scope, Nodes: []api.TopologyNode{}, Links: []api.TopologyLink{}}
	p := did.PrincipalOf(ctx)
	d := &drawing{self: m.self, nodes: map[did.DID]*node{}, links: map[[2]did.DID]api.TopologyLink{}, isInsider: p != nil && p.Relation >= did.Own}
	peers := m.peers()
	m.drawOwn(d, peers)
	if scope != api.TopologyMine && d.isInsider {
		members, truncated := m.candidates(peers)
		reports, coverage := m.reports(ctx, members, peers)
		t.Coverage = coverage
		t.Coverage.Truncated = t.Coverage.Truncated || truncated
		for _, id := range members {
			d.drawReport(id, reports[id])
		}
	}
	counts := m.counts(ctx)
	if scope == api.TopologyMesh {
		for host := range counts {
			d.add(host, api.SourceRecord)
		}
	}
	m.describe(d, counts)
	if scope == api.TopologyOrganization && m.forWhom != ForMesh {
		d.keep(func(n *node) bool { return n.own || n.Self })
	}
	t.Coverage.Truncated = d.cut(limit, t) || t.Coverage.Truncated
	return t, ctx.Err()
}

// namesTime limits how long [Map.Names] waits for answers.
const namesTime = 500 * time.Millisecond

// Names returns the names of nodes as they report them, for consumers of the node and members of its organization; none for others. With ask, connected
// members that were not asked yet are asked, and waited for shortly.
func (m *Map) Names(ctx context.Context, ask bool) map[did.DID]string {
	names := map[did.DID]string{}
	if p := did.PrincipalOf(ctx); p == nil || p.Relation < did.Own {
		return names
	}
	names[m.self] = m.name
	if ask && m.ask != nil {
		m.askNew(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, a := range m.asked {
		if a.last != nil && a.last.name != "" {
			names[id] = a.last.name
		}
	}
	return names
}

// A drawing is a map that is not complete.
type drawing struct {
	self      did.DID
	isInsider bool // the caller may know what members report
	nodes     map[did.DID]*node
	links     map[[2]did.DID]api.TopologyLink // by the two nodes, in order
}

// A node is a node of a drawing.
type node struct {
	api.TopologyNode
	own       bool // a member of the own organization
	answered  bool // it has reported its connections
	reporters int  // of connections with it
}

// add returns a node, which has the source unless it is there.
func (d *drawing) add(id did.DID, source string) *node {
	n := d.nodes[id]
	if n == nil {
		n = &node{TopologyNode: api.TopologyNode{DID: id, Source: source}}
		d.nodes[id] = n
	}
	return n
}

// link adds a connection, unless one of the two nodes is known. What this node sees itself comes first.
func (d *drawing) link(l api.TopologyLink) {
	pair := [2]did.DID{min(l.From, l.To), max(l.From, l.To)}
	if _, known := d.links[pair]; !known {
		d.links[pair] = l
	}
}

// drawOwn draws the node and its connections.
func (m *Map) drawOwn(d *drawing, peers []api.Peer) {
	self := d.add(m.self, api.SourceSelf)
	self.Self, self.Reachable, self.Name, self.Version, self.Roles = true, true, m.name, m.version, m.roles()
	for _, p := range peers {
		n := d.add(p.DID, api.SourceConnection)
		n.Reachable, n.Version = true, versionOf(p.Agent)
		d.link(api.TopologyLink{From: m.self, To: p.DID, Transport: p.Transport, Relay: p.Relay, RTT: p.RTT, Since: second(p.Opened), SeenBy: m.self})
	}
}

// versionOf returns the version in a user agent, "lmosd/1.2.0"; or "".
func versionOf(agent string) string {
	program, version, _ := strings.Cut(interact.Readable(agent), "/")
	if program != "lmosd" {
		return ""
	}
	return interact.Clip(version, maxText)
}

// second returns the time in whole seconds, so that the same connection has the same time in each map.
func second(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Second)
}

// drawReport draws a member with what it reports; nil: nothing.
func (d *drawing) drawReport(id did.DID, r *report) {
	member := d.add(id, api.SourceRecord)
	if r == nil {
		return
	}
	member.Name, member.Roles, member.Version = r.name, r.roles, cmp.Or(r.version, member.Version)
	if r.isOld {
		return
	}
	if member.Source == api.SourceRecord { // it has answered, so it was connected
		member.Source = api.SourceReport
	}
	member.answered, member.Reachable = true, true
	for _, l := range r.links {
		n := d.add(l.To, api.SourceReport)
		n.Reachable, n.reporters = true, n.reporters+1
		l.From, l.SeenBy = id, id
		d.link(l)
	}
}

// describe adds what the node knows of the nodes of a drawing.
func (m *Map) describe(d *drawing, counts map[did.DID]int) {
	for id, n := range d.nodes {
		n.Agents = counts[id]
		if d.isInsider {
			n.Organization, n.own = m.organizationOf(id)
		}
		if !n.Reachable {
			p := m.presence(id)
			n.Reachable = p.State == reachability.Reachable
			if !p.LastSeen.IsZero() {
				n.Seen = second(p.LastSeen)
			}
		}
	}
}

// keep removes the nodes for which want returns false, with their connections.
func (d *drawing) keep(want func(*node) bool) {
	for id, n := range d.nodes {
		if !want(n) {
			delete(d.nodes, id)
		}
	}
}

// rank orders nodes by how much this node knows about them, so that the inventions of a member are the first to be left out.
func (n *node) rank() int {
	switch {
	case n.Self:
		return 0
	case n.Source == api.SourceConnection:
		return 1
	case n.own || n.answered:
		return 2
	case n.Source == api.SourceRecord || n.Agents > 0:
		return 3
	}
	return 4
}

// cut puts at most limit nodes and connections into t, and reports whether there are more.
func (d *drawing) cut(limit int, t *api.Topology) (more bool) {
	all := make([]*node, 0, len(d.nodes))
	for _, n := range d.nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(b.reporters, a.reporters), cmp.Compare(a.DID, b.DID))
	})
	if more = len(all) > limit; more {
		all = all[:limit]
	}
	kept := make(map[did.DID]bool, len(all))
	for _, n := range all {
		kept[n.DID] = true
		t.Nodes = append(t.Nodes, n.TopologyNode)
	}
	slices.SortFunc(t.Nodes, func(a, b api.TopologyNode) int { return cmp.Compare(a.DID, b.DID) })
	isOwn := func(l api.TopologyLink) int { // before others
		if l.SeenBy == d.self {
			return 0
		}
		return 1
	}
	for pair, l := range d.links {
		if kept[pair[0]] && kept[pair[1]] {
			t.Links = append(t.Links, l)
		}
	}
	byEnds := func(a, b api.TopologyLink) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) }
	slices.SortFunc(t.Links, func(a, b api.TopologyLink) int { return cmp.Or(cmp.Compare(isOwn(a), isOwn(b)), byEnds(a, b)) })
	if len(t.Links) > limit {
		t.Links, more = t.Links[:limit], true
	}
	slices.SortFunc(t.Links, byEnds)
	return more
}
