package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/cbor"
)

var noon = time.Date(1999, 11, 20, 12, 0, 0, 0, time.UTC) // before the beginning of a bubble of synctest

// id returns the DID of node n.
func id(n int) did.DID { return didtest.Key(n).DID() }

// A fake has the parts of a node that a Map reads.
type fake struct {
	*Map
	answers map[did.DID]func(ctx context.Context) ([]byte, error) // of members, which are all of its keys
	dialed  atomic.Int64
	asked   atomic.Int64
	hosts   map[did.DID]int
}

// newFake returns the map of node 1, which is connected with the nodes.
func newFake(forWhom string, connected ...int) *fake {
	f := &fake{answers: map[did.DID]func(context.Context) ([]byte, error){}, hosts: map[did.DID]int{}}
	f.Map = &Map{self: id(1), name: "one", version: "1.2.0", forWhom: forWhom, log: slog.New(slog.DiscardHandler), asked: map[did.DID]*answer{},
		roles: func() []string { return rolesOf(true, true) }, peers: func() []api.Peer { return peersOf(connected...) },
		members: func() (all []did.DID) {
			for node := range f.answers {
				all = append(all, node)
			}
			slices.Sort(all)
			return all
		},
		organizationOf: func(node did.DID) (string, bool) {
			if f.answers[node] != nil || node == f.self {
				return "acme.example", true
			}
			return "", false
		},
		counts: func(context.Context) map[did.DID]int { return f.hosts },
		presence: func(did.DID) reachability.Presence {
			return reachability.Presence{State: reachability.Unreachable, LastSeen: noon}
		},
		ask: func(ctx context.Context, node did.DID) ([]byte, error) {
			f.asked.Add(1)
			if f.answers[node] == nil {
				return nil, &interact.Error{Code: interact.Forbidden, Remote: true}
			}
			return f.answers[node](ctx)
		},
		dial:       func(context.Context, did.DID) error { f.dialed.Add(1); return errors.New("no route") },
		background: func(work func(context.Context)) bool { go work(context.Background()); return true }}
	return f
}

func peersOf(numbers ...int) (all []api.Peer) {
	for _, n := range numbers {
		all = append(all, api.Peer{DID: id(n), Transport: "quic-v1", Agent: "lmosd/1.1.0", RTT: 1.5, Opened: noon.Add(time.Duration(n) * time.Second)})
	}
	slices.SortFunc(all, func(a, b api.Peer) int { return strings.Compare(string(a.DID), string(b.DID)) })
	return all
}

// reports makes a member report connections with nodes.
func (f *fake) reports(member int, with ...int) {
	f.answers[id(member)] = func(context.Context) ([]byte, error) {
		return encodeReport(fmt.Sprintf("node-%d", member), "1.3.0", []string{"relay", "unknown"}, peersOf(with...))
	}
}

func (f *fake) draw(t *testing.T, scope api.TopologyScope) *api.Topology {
	t.Helper()
	m, err := f.Topology(did.WithPrincipal(t.Context(), did.Consumer(did.Socket, "")), scope, 2000)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// shown returns the numbers of the nodes and of the connections of a map, up to node 40.
func shown(m *api.Topology) string {
	number := map[did.DID]int{}
	for n := range 41 {
		number[id(n)] = n
	}
	var nodes, links []string
	for _, n := range m.Nodes {
		nodes = append(nodes, fmt.Sprintf("%02d", number[n.DID]))
	}
	for _, l := range m.Links {
		links = append(links, fmt.Sprintf("%d-%d", number[l.From], number[l.To]))
	}
	slices.Sort(nodes)
	slices.Sort(links)
	return strings.Join(nodes, " ") + ": " + strings.Join(links, " ")
}

func nodeOf(m *api.Topology, n int) api.TopologyNode {
	for _, one := range m.Nodes {
		if one.DID == id(n) {
			return one
		}
	}
	return api.TopologyNode{}
}

// The scopes have the own connections, those of members, and what records name.
func TestScopes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization, 2, 3, 9)
		f.reports(2, 1, 3, 4, 9)
		f.reports(3, 2, 1)
		f.answers[id(5)] = func(context.Context) ([]byte, error) { return nil, nil } // not connected, and down
		f.hosts = map[did.DID]int{id(1): 2, id(7): 4}
		if got, want := shown(f.draw(t, api.TopologyMine)), "01 02 03 09: 1-2 1-3 1-9"; got != want {
			t.Errorf("mine: got %s, want %s", got, want)
		}
		if f.asked.Load() > 0 {
			t.Error("the own connections needed a request")
		}
		m := f.draw(t, api.TopologyMesh)
		if got, want := shown(m), "01 02 03 04 05 07 09: 1-2 1-3 1-9 2-3 2-4 2-9"; got != want && got != strings.Replace(want, "2-3", "3-2", 1) {
			t.Errorf("mesh: got %s, want %s", got, want)
		}
		if c := m.Coverage; c != (api.TopologyCoverage{Asked: 3, Answered: 2, Unreachable: 1}) {
			t.Errorf("coverage %+v", c)
		}
		for n, want := range map[int]api.TopologyNode{
			1: {DID: id(1), Name: "one", Organization: "acme.example", Roles: []string{"index", "relay"}, Version: "1.2.0", Agents: 2, Reachable: true, Self: true, Source: "self"},
			2: {DID: id(2), Name: "node-2", Organization: "acme.example", Roles: []string{"relay"}, Version: "1.3.0", Reachable: true, Source: "connection"},
			4: {DID: id(4), Reachable: true, Source: "report"},
			5: {DID: id(5), Organization: "acme.example", Source: "record", Seen: noon},
			7: {DID: id(7), Agents: 4, Source: "record", Seen: noon},
			9: {DID: id(9), Version: "1.1.0", Reachable: true, Source: "connection"},
		} {
			got, _ := json.Marshal(nodeOf(m, n))
			if wanted, _ := json.Marshal(want); string(got) != string(wanted) {
				t.Errorf("node %d: got %s, want %s", n, got, wanted)
			}
		}
		if l := m.Links[slices.IndexFunc(m.Links, func(l api.TopologyLink) bool { return l.To == id(4) })]; l != (api.TopologyLink{From: id(2), To: id(4),
			Transport: "quic-v1", RTT: 1.5, Since: noon.Add(4 * time.Second), SeenBy: id(2)}) {
			t.Errorf("the link with node 4 is %+v", l)
		}
		if got, want := shown(f.draw(t, api.TopologyOrganization)), "01 02 03 05: 1-2 1-3 2-3"; got != want && got != strings.Replace(want, "2-3", "3-2", 1) {
			t.Errorf("organization: got %s, want %s", got, want)
		}
	})
}

// A caller that is neither a consumer of this node nor a member gets the own connections, and makes the node ask no other.
func TestOthersSeeOwnConnections(t *testing.T) {
	t.Parallel()
	f := newFake(ForOrganization, 2)
	f.reports(2, 3)
	f.hosts[id(2)] = 1
	for name, p := range map[string]*did.Principal{"none": nil, "unproven": did.Consumer(did.Unproven, ""), "another node": did.NodePrincipal(id(8), "")} {
		m, err := f.Topology(did.WithPrincipal(t.Context(), p), api.TopologyMesh, 10)
		if err != nil || p != nil && p.Relation >= did.Own {
			t.Fatalf("%s: %v, %+v", name, err, p)
		}
		if got := shown(m); got != "01 02: 1-2" || nodeOf(m, 2).Organization != "" || nodeOf(m, 2).Name != "" || m.Coverage != (api.TopologyCoverage{}) {
			t.Errorf("%s sees %s, %+v", name, got, m)
		}
	}
	if f.asked.Load() > 0 {
		t.Error("a member was asked")
	}
}

// Members are asked once in ten seconds, those that are down less often, and only for a caller.
func TestMembersAreAskedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization, 2)
		f.reports(2, 3)
		f.reports(5, 3) // down
		for range 20 {
			f.draw(t, api.TopologyMesh)
		}
		if a, d := f.asked.Load(), f.dialed.Load(); a != 1 || d != 1 {
			t.Errorf("%d requests and %d dials at once, want 1 and 1", a, d)
		}
		time.Sleep(9 * time.Second)
		f.draw(t, api.TopologyMesh)
		time.Sleep(2 * time.Second)
		f.draw(t, api.TopologyMesh)
		if a, d := f.asked.Load(), f.dialed.Load(); a != 2 || d != 1 {
			t.Errorf("%d requests and %d dials after 11 s, want 2 and 1", a, d)
		}
		time.Sleep(10 * time.Minute)
		if a := f.asked.Load(); a != 2 {
			t.Errorf("%d requests while no caller looked", a)
		}
		f.answers[id(2)] = func(context.Context) ([]byte, error) { return nil, errors.New("it stopped") }
		if m := f.draw(t, api.TopologyMesh); m.Coverage != (api.TopologyCoverage{Asked: 2, Unreachable: 2}) || len(m.Links) != 1 {
			t.Errorf("the old report of a member that stopped is shown: %+v", m)
		}
		delete(f.answers, id(5))
		f.draw(t, api.TopologyMesh)
		time.Sleep(time.Minute)
		if f.draw(t, api.TopologyMesh); len(f.Map.asked) != 1 {
			t.Errorf("answers of %d nodes are kept", len(f.Map.asked))
		}
	})
}

// A member that answers slowly, with garbage, or with too much costs only itself.
func TestHostileMembers(t *testing.T) {
	t.Parallel()
	many := wireReport{Version: reportVersion}
	for n := range MaxLinks + 1 {
		many.Links = append(many.Links, wireLink{To: string(id(100 + n)), Transport: "tcp"})
	}
	one := func(l ...wireLink) []byte { return must(cbor.Marshal(wireReport{Version: reportVersion, Links: l})) }
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization, 2, 3)
		f.reports(2, 4)
		for name, raw := range map[string][]byte{
			"too many":          must(cbor.Marshal(many)),
			"too large":         make([]byte, maxReport+1),
			"garbage":           []byte("garbage"),
			"nothing":           nil,
			"another version":   must(cbor.Marshal(wireReport{Version: 2})),
			"no DID":            one(wireLink{To: "x", Transport: "tcp"}),
			"a DID of no node":  one(wireLink{To: "did:web:acme.example", Transport: "tcp"}),
			"a second spelling": one(wireLink{To: string(id(4)) + "#" + id(4).Multibase(), Transport: "tcp"}),
			"a relay of no DID": one(wireLink{To: string(id(4)), Transport: "tcp", Relay: "x"}),
			"itself":            one(wireLink{To: string(id(3)), Transport: "tcp"}),
			"twice":             one(wireLink{To: string(id(4)), Transport: "tcp"}, wireLink{To: string(id(4)), Transport: "quic-v1"}),
			"markup":            one(wireLink{To: string(id(4)), Transport: "<b>"}),
			"no transport":      one(wireLink{To: string(id(4))}),
			"a long round trip": one(wireLink{To: string(id(4)), Transport: "tcp", RTT: 1 << 60}),
			"a long name":       must(cbor.Marshal(wireReport{Version: reportVersion, Name: strings.Repeat("x", maxText+1)})),
			"many roles":        must(cbor.Marshal(wireReport{Version: reportVersion, Roles: make([]string, maxRoles+1)})),
		} {
			f.answers[id(3)] = func(context.Context) ([]byte, error) { return raw, nil }
			time.Sleep(askEvery)
			if m := f.draw(t, api.TopologyMesh); m.Coverage != (api.TopologyCoverage{Asked: 2, Answered: 1}) || shown(m) != "01 02 03 04: 1-2 1-3 2-4" {
				t.Errorf("%s: %+v, %s", name, m.Coverage, shown(m))
			}
		}
		f.answers[id(3)] = func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
		time.Sleep(askEvery)
		start := time.Now()
		m := f.draw(t, api.TopologyMesh)
		if took := time.Since(start); took > roundTime || m.Coverage != (api.TopologyCoverage{Asked: 2, Answered: 1, Unreachable: 1}) {
			t.Errorf("with a slow member: %+v after %v", m.Coverage, took)
		}
	})
}

// A member that answers and then ends the connection is asked early once, and not for each caller.
func TestMembersThatDisconnectAreAskedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization)
		f.reports(2, 3)
		f.Map.dial = func(context.Context, did.DID) error { f.dialed.Add(1); return nil }
		for range 20 {
			f.draw(t, api.TopologyMesh)
		}
		if a, d := f.asked.Load(), f.dialed.Load(); a != 2 || d != 2 {
			t.Errorf("%d requests and %d dials, want 2 and 2", a, d)
		}
		time.Sleep(askEvery)
		f.draw(t, api.TopologyMesh)
		f.draw(t, api.TopologyMesh)
		if a := f.asked.Load(); a != 3 {
			t.Errorf("%d requests after 10 s, want 3", a)
		}
	})
}

// Many members that cannot be reached do not make others look so: those that the round did not reach are asked in the next one.
func TestManyMembersThatAreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization)
		all := make([]int, 2*maxAtOnce+7)
		for i := range all {
			all[i] = 2 + i
		}
		slices.SortFunc(all, func(a, b int) int { return strings.Compare(string(id(a)), string(id(b))) })
		for _, n := range all {
			f.reports(n)
		}
		last := id(all[len(all)-1])
		f.Map.dial = func(ctx context.Context, node did.DID) error {
			if node != last {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		for _, want := range []api.TopologyCoverage{{Unreachable: maxAtOnce}, {Unreachable: 2 * maxAtOnce, Answered: 1}, {Unreachable: 2*maxAtOnce + 6, Answered: 1}} {
			want.Asked = len(all)
			if m := f.draw(t, api.TopologyMesh); m.Coverage != want {
				t.Errorf("got %+v, want %+v", m.Coverage, want)
			}
			time.Sleep(time.Second) // the round has ended
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The nodes that only one member names are the first to be left out.
func TestInventedNodesAreLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization, 2, 3, 4)
		f.reports(2, 9)
		f.reports(3, 9)
		invented := make([]int, 30)
		for i := range invented {
			invented[i] = 11 + i
		}
		f.reports(4, invented...)
		f.hosts[id(8)] = 1
		ctx := did.WithPrincipal(t.Context(), did.Consumer(did.Socket, ""))
		m, err := f.Topology(ctx, api.TopologyMesh, 6)
		if got := shown(m); err != nil || got != "01 02 03 04 08 09: 1-2 1-3 1-4 2-9 3-9" || !m.Coverage.Truncated {
			t.Errorf("got %s, %+v, %v", got, m.Coverage, err)
		}
		if m, _ = f.Topology(ctx, api.TopologyMesh, 3); shown(m) != "01 02 03: 1-2 1-3" && len(m.Links) != 2 {
			t.Errorf("got %s", shown(m))
		}
	})
}

// Equal states of the mesh give equal maps.
func TestMapsAreStable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForOrganization, 2, 3, 4, 5, 6, 7)
		for n := 2; n < 8; n++ {
			f.reports(n, 1, (n+1)%8+10, (n+2)%8+10)
		}
		text := func() string {
			m := f.draw(t, api.TopologyMesh)
			m.At = time.Time{}
			return string(must(json.Marshal(m)))
		}
		first := text()
		for range 10 {
			time.Sleep(7 * time.Second)
			if again := text(); again != first {
				t.Fatalf("%s\nbecame %s", first, again)
			}
		}
	})
}

// In a network whose nodes report to all, all connected nodes are asked, and every one of them gets an answer.
func TestForMesh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(ForMesh, 2, 3)
		f.members = func() []did.DID { return nil }
		f.organizationOf = func(did.DID) (string, bool) { return "", false }
		f.reports(2, 4, 1)
		if m := f.draw(t, api.TopologyOrganization); shown(m) != "01 02 03 04: 1-2 1-3 2-4" || m.Coverage != (api.TopologyCoverage{Asked: 2, Answered: 1}) {
			t.Errorf("got %s, %+v", shown(m), m.Coverage)
		}
	})
}

// Who gets the connections of a node is a setting.
func TestServe(t *testing.T) {
	t.Parallel()
	untrusted, own, barred := did.NodePrincipal(id(2), ""), did.NodePrincipal(id(2), ""), did.NodePrincipal(id(2), "")
	own.Relation, barred.Relation, barred.Barred = did.Own, did.Own, did.Distrusted
	partner := did.NodePrincipal(id(2), "")
	partner.Relation = did.Partner
	for _, c := range []struct {
		forWhom string
		p       *did.Principal
		want    bool
	}{{ForMesh, untrusted, true}, {ForMesh, own, true}, {ForMesh, barred, false}, {ForOrganization, untrusted, false}, {ForOrganization, partner, false},
		{ForOrganization, own, true}, {ForOrganization, barred, false}, {ForNone, own, false}, {ForNone, untrusted, false}} {
		raw, err := newFake(c.forWhom, 2, 3).Serve(t.Context(), c.p, nil)
		if (err == nil) != c.want || err != nil && interact.AsError(err).Code != interact.Forbidden {
			t.Errorf("%s, %s: %v", c.forWhom, c.p.Relation, err)
		}
		if err != nil {
			continue
		}
		r, err := parseReport(raw, id(1), noon.Add(time.Hour))
		if err != nil || len(r.links) != 2 || r.name != "one" || r.version != "1.2.0" || !slices.Equal(r.roles, []string{"index", "relay"}) || r.more {
			t.Errorf("%s: %+v, %v", c.forWhom, r, err)
		}
	}
}

// The report of a node with many connections has as many as receivers accept, with the longest texts.
func TestLargestReport(t *testing.T) {
	t.Parallel()
	var peers []api.Peer
	for n := range MaxLinks + 5 {
		peers = append(peers, api.Peer{DID: id(n + 2), Relay: id(n + 3), Transport: strings.Repeat("x", 2*maxWord), RTT: 9e9, Opened: noon})
	}
	for i := range peers {
		peers[i].Transport, peers[i].RTT = "webtransport", float64(maxRTT.Milliseconds())
	}
	raw, err := encodeReport(strings.Repeat("ü", 2*maxText), strings.Repeat("\x00", 9), nil, peers)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := parseReport(raw, id(1), noon); err != nil || len(r.links) != MaxLinks || !r.more || len(r.name) > maxText {
		t.Errorf("%d bytes: %+v, %v", len(raw), r, err)
	}
}

// FuzzReport: whatever a member answers is within the limits, and is shown as text.
func FuzzReport(f *testing.F) {
	f.Add(must(encodeReport("node-2", "1.2.0", []string{"index"}, peersOf(2, 3))))
	f.Add(must(cbor.Marshal(wireReport{Version: 1, Links: []wireLink{{To: string(id(4)), Transport: "tcp", Relay: string(id(5)), RTT: 7, Since: 1 << 40}}, More: true})))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseReport(raw, id(1), noon)
		if err != nil {
			return
		}
		if len(r.links) > MaxLinks || len(r.name) > maxText || len(r.version) > maxText || len(r.roles) > 2 || r.name != interact.Readable(r.name) {
			t.Errorf("beyond the limits: %+v", r)
		}
		for _, l := range r.links {
			if _, err := l.To.Peer(); err != nil || l.To == id(1) || l.RTT < 0 || l.Since.After(noon.Add(maxSkew)) || len(l.Transport) > maxWord {
				t.Errorf("accepted %+v", l)
			}
		}
	})
}
