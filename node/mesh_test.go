package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

var byCapability = td.Query{Capability: []string{"urn:example:tool"}}

// found returns the search results of a node for a capability.
func found(t testing.TB, n *running) []api.Agent {
	t.Helper()
	list, err := n.Client().Find(t.Context(), byCapability, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// hosted returns the description of a Thing at hosts.
func hosted(hosts []td.Host) *td.Description {
	return &td.Description{Thing: &td.Thing{}, Record: &td.Record{Hosts: hosts}}
}

func TestFromPublishToWithdrawal(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	host, caller := nodes[0], nodes[1].Client()
	ref := publish(t, host, toolAt("Echo", "", newAgent(t).url))
	knows(t, nodes[1], ref)
	list := found(t, nodes[1])
	if len(list) != 1 || list[0].Ref != ref || list[0].Local || list[0].State != api.StateReachable || list[0].Hosts[0] != host.DID() {
		t.Errorf("found %+v, want the thing on the other node", list)
	}
	if list := found(t, host); len(list) != 1 || !list[0].Local || list[0].State != api.StateReachable {
		t.Errorf("the host finds %+v, want its own thing", list)
	}
	out, media, err := caller.Call(t.Context(), "echo", "echo", interact.JSON, []byte(`"hello"`))
	if err != nil || string(out) != `"hello"` || media != interact.JSON {
		t.Errorf("the call gives %s (%s), %v; want the same text", out, media, err)
	}
	if err := caller.Write(t.Context(), ref, "state", "", []byte(`"written"`)); err != nil {
		t.Error(err)
	}
	if out, _, err := caller.Read(t.Context(), ref, "state"); err != nil || string(out) != `"written"` {
		t.Errorf("the property is %s, %v; want what was written", out, err)
	}
	if out, _, err := caller.Read(t.Context(), ref, ""); err != nil || !jsonEqual(out, `{"state":"written","version":"1"}`) {
		t.Errorf("all properties are %s, %v", out, err)
	}
	meshed(t, host)
	p, err := host.Client().Unpublish(t.Context(), "echo")
	if err != nil || !p.Withdrawn || p.Ref != ref || p.GossipPeers != 1 {
		t.Errorf("got %+v, %v; want it withdrawn and told", p, err)
	}
	until(t, "the thing is gone", func() bool { return len(found(t, nodes[1])) == 0 })
	_, _, err = caller.Call(t.Context(), ref, "echo", interact.JSON, []byte(`"hello"`))
	wantCode(t, err, interact.Withdrawn)
	_, err = host.Client().Unpublish(t.Context(), ref)
	wantCode(t, err, interact.Withdrawn)
}

func jsonEqual(a []byte, b string) bool {
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal([]byte(b), &y) != nil || len(x) != len(y) {
		return false
	}
	for k, v := range x {
		if y[k] != v {
			return false
		}
	}
	return true
}

// who is an in-process agent that returns its caller.
var who = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
	from, err := json.Marshal(m.From.ID())
	r := m.Reply(interact.ActionStatus, interact.JSON, from)
	r.Status = interact.StatusCompleted
	return r, err
})

func TestAgentReceivesThePrincipal(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	p, err := nodes[0].Offer(t.Context(), tool("Who", ""), who)
	if err != nil {
		t.Fatal(err)
	}
	knows(t, nodes[1], p.Ref)
	for i, want := range map[int]did.DID{1: nodes[1].DID(), 0: "local"} {
		out, _, err := nodes[i].Client().Call(t.Context(), p.Ref, "echo", interact.JSON, []byte(`"x"`))
		if err != nil || string(out) != `"`+string(want)+`"` {
			t.Errorf("called by node %d the agent receives %s, %v; want %q", i, out, err, want)
		}
	}
	_, _, err = nodes[1].Client().Call(t.Context(), p.Ref, "echo", interact.JSON, []byte(`7`))
	if e := wantCode(t, err, interact.Invalid); len(e.Issues) == 0 || e.Remote {
		t.Errorf("input outside of the schema: %+v; want the issue, found by the caller's own node", e)
	}
	forged := &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: []byte(`"x"`), From: did.NodePrincipal("did:key:zForged", "")}
	r, err := interact.Call(t.Context(), nodes[1].mesh.streams.Thing(hosted(nodes[0].network.records())), forged)
	if err != nil || string(r.Data) != `"`+string(nodes[1].DID())+`"` {
		t.Errorf("with a forged sender the agent receives %+v, %v; want the authenticated peer", r, err)
	}
}

func TestInProcessAgentIsValidated(t *testing.T) {
	t.Parallel()
	n := opened(t, Options{})
	if _, err := n.Offer(t.Context(), []byte(`{"title":"a"}`), who); codeOf(err) != interact.BadTD {
		t.Errorf("a bad TD gives %v, want %v", err, interact.BadTD)
	}
	p, err := n.Offer(t.Context(), tool("Who", ""), who)
	if err != nil {
		t.Fatal(err)
	}
	_, err = interact.Call(t.Context(), asConsumer(n), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: []byte(`7`)})
	wantCode(t, err, interact.Invalid)
}

func TestNodeDoesNotRelay(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	ref := publish(t, nodes[2], toolAt("Echo", "", newAgent(t).url))
	knows(t, nodes[1], ref)
	if err := ask(t, nodes[1], ref); err != nil {
		t.Fatalf("the node in the middle cannot ask itself: %v", err)
	}
	for _, name := range []string{ref, "echo"} {
		m := &interact.Message{Type: interact.InvokeAction, Thing: name, Name: "echo", Data: []byte(`"x"`)}
		_, err := interact.Call(t.Context(), nodes[0].mesh.streams.Thing(hosted(nodes[1].Node.network.records())), m)
		if e := wantCode(t, err, interact.NotFound); !e.Remote {
			t.Errorf("%v was inferred here, want the answer of the node in the middle", e)
		}
	}
}

// TestForeignRecordWithThisNodeAsHostCallsNothing: a stranger signs a TD whose forms refer to a network that only this node reaches, with
// this node as host.
func TestForeignRecordWithThisNodeAsHostCallsNothing(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer secret.Close()
	nodes := connected(t, 2)
	untrusted := didtest.NewKey()
	ref := td.ExactRef("urn:x:trap", untrusted.DID())
	for _, n := range nodes {
		n.mesh.directory.Enqueue(signed(t, untrusted, toolAt("Trap", "urn:x:trap", secret.URL), td.Lease{Hosts: nodes[0].network.records()}))
		knows(t, n, ref)
	}
	err := ask(t, nodes[0], ref)
	wantCode(t, err, interact.Unreachable)
	err = ask(t, nodes[1], ref)
	if e := wantCode(t, err, interact.NotFound); !e.Remote {
		t.Errorf("%v, want the answer of the node that is said to be the host", e)
	}
	if found(t, nodes[0])[0].Local {
		t.Error("the stranger's thing counts as this node's")
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("the address inside was asked %d times", n)
	}
	_, err = nodes[0].Client().Unpublish(t.Context(), "trap")
	wantCode(t, err, interact.Forbidden)
}

func TestOnlyTheHostWithdraws(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 2)
	ref := publish(t, nodes[0], tool("Echo", ""))
	knows(t, nodes[1], ref)
	_, err := nodes[1].Client().Unpublish(t.Context(), "echo")
	if e := wantCode(t, err, interact.Forbidden); !strings.Contains(e.Hint, string(nodes[0].DID())) {
		t.Errorf("the hint %q does not say where it can be done", e.Hint)
	}
	homeless := didtest.NewKey()
	nodes[1].mesh.directory.Enqueue(signed(t, homeless, tool("Cloud", "urn:x:cloud"), td.Lease{}))
	knows(t, nodes[1], "urn:x:cloud")
	_, err = nodes[1].Client().Unpublish(t.Context(), "cloud")
	if e := wantCode(t, err, interact.Forbidden); !strings.Contains(e.Hint, string(homeless.DID())) {
		t.Errorf("the hint %q does not say whose it is", e.Hint)
	}
	_, err = nodes[1].Client().Unpublish(t.Context(), "nothing")
	wantCode(t, err, interact.NotFound)
}

// TestThingOfAnEndedProcessCanBeWithdrawn: an agent in a process ends with it, and the mesh remembers it for a day.
func TestThingOfAnEndedProcessCanBeWithdrawn(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir = t.TempDir()
	n := start(t, o)
	p, err := n.Offer(t.Context(), tool("Who", ""), who)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, o)
	if list := found(t, again); len(list) != 1 || list[0].Local {
		t.Errorf("found %+v, want the thing, which is not offered any more", list)
	}
	wantCode(t, ask(t, again, p.Ref), interact.Unreachable)
	if _, err := again.Client().Unpublish(t.Context(), p.Ref); err != nil {
		t.Fatal(err)
	}
	if list := found(t, again); len(list) != 0 {
		t.Errorf("found %+v after it was withdrawn", list)
	}
}

func TestNamesWithoutASingleMatch(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3)
	base := newAgent(t).url
	refs := []string{publish(t, nodes[0], toolAt("Clock", "", base)), publish(t, nodes[1], toolAt("Clock", "", base))}
	for _, ref := range refs {
		knows(t, nodes[1], ref)
		knows(t, nodes[2], ref)
	}
	e := wantCode(t, ask(t, nodes[2], "clock"), interact.Ambiguous)
	for _, ref := range refs {
		if !strings.Contains(fmt.Sprint(e.Next), ref) {
			t.Errorf("the steps %v do not list %s", e.Next, ref)
		}
	}
	if err := ask(t, nodes[1], "clock"); err != nil {
		t.Errorf("where one of the two is offered, its name fails: %v", err)
	}
	if e := wantCode(t, ask(t, nodes[2], "clok"), interact.NotFound); !strings.Contains(fmt.Sprint(e.Next), "show [clock") {
		t.Errorf("the hint %q does not say what may have been meant", e.Hint)
	}
}

func TestDeniedPeerIsNotConnected(t *testing.T) {
	t.Parallel()
	caller := start(t, quiet())
	for name, rules := range map[string]policy.Rules{
		"denied":            denying(caller.DID()),
		"not on the list":   withRules(access.UntrustedNone),
		"denied and listed": withRules(access.UntrustedNone, allowed(caller.DID()), denied(caller.DID())),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			o.Policy = rules
			host := start(t, o)
			addr := host.Addrs()[0]
			wantCode(t, caller.Client().Connect(t.Context(), addr), interact.Forbidden)
			until(t, "the host has cut the caller off", func() bool { return len(host.network.peers.List()) == 0 })
			wantCode(t, host.Client().Connect(t.Context(), caller.Addrs()[0]), interact.Forbidden)
			if len(host.network.peers.List()) != 0 {
				t.Errorf("the host is connected with %v", host.network.peers.List())
			}
		})
	}
	listed := quiet()
	listed.Policy = withRules(access.UntrustedNone, allowed(caller.DID()))
	connect(t, caller, start(t, listed))
}

// TestDeniedPeerIsRefusedByTheGater: the host of this node has no gater, as a connection may be older than a rule.
func TestDeniedPeerIsRefusedByTheGater(t *testing.T) {
	t.Parallel()
	caller := start(t, quiet())
	o := quiet()
	o.Key = didtest.NewKey()
	h, err := p2p.New(p2p.Options{Key: o.Key, Network: o.Network, Loopback: true, Listen: o.Listen})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	o.Host, o.Policy = h, denying(caller.DID())
	host := start(t, o)
	ref := publish(t, host, toolAt("Echo", "", newAgent(t).url))
	connect(t, caller, host)
	if _, err := caller.mesh.directory.Add(host.mesh.index.Find(ref).Description); err != nil {
		t.Fatal(err)
	}
	err = ask(t, caller, ref)
	if e := wantCode(t, err, interact.Forbidden); !e.Remote || !strings.Contains(e.Error(), "refuses this node by its policy") {
		t.Errorf("%v (remote %v) does not name the policy of the host", e, e.Remote)
	}
}

func TestLateJoinerReceivesThePublicationsOfItsPeer(t *testing.T) {
	t.Parallel()
	host := start(t, quiet())
	refs := []string{publish(t, host, tool("One", "")), publish(t, host, tool("Two", ""))}
	late := start(t, quiet())
	connect(t, late, host)
	for _, ref := range refs {
		knows(t, late, ref)
	}
	second := start(t, quiet())
	connect(t, host, second) // it is asked also when it was dialled
	for _, ref := range refs {
		knows(t, second, ref)
	}
}

func TestLostHostIsUnreachableUntilItReturns(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Key = didtest.NewKey()
	host, watcher := start(t, o), start(t, quiet())
	a := newAgent(t)
	ref := publish(t, host, toolAt("Echo", "urn:x:echo", a.url))
	connect(t, watcher, host)
	knows(t, watcher, ref)
	reachable := func(want bool) func() bool {
		return func() bool {
			list := found(t, watcher)
			return len(list) == 1 && (list[0].State == api.StateReachable) == want
		}
	}
	until(t, "the thing is reachable", reachable(true))
	if err := host.stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the thing is marked unreachable", reachable(false))
	err := ask(t, watcher, ref)
	if e := wantCode(t, err, interact.Unreachable); e.Remote {
		t.Errorf("%v is said to come from the far end", e)
	}
	again := start(t, o)
	publish(t, again, toolAt("Echo", "urn:x:echo", a.url))
	connect(t, again, watcher)
	until(t, "the thing is reachable again", reachable(true))
	until(t, "the thing can be called again", func() bool {
		err := ask(t, watcher, ref)
		return err == nil
	})
}

func TestNodeRejoinsWithoutBootstrap(t *testing.T) {
	t.Parallel()
	a := start(t, quiet())
	ref := publish(t, a, tool("Echo", ""))
	o := quiet()
	o.Dir, o.Bootstrap = t.TempDir(), a.Addrs()
	b := start(t, o)
	knows(t, b, ref)
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	o.Bootstrap = nil
	again := start(t, o)
	until(t, "the node has found its peer again", func() bool { return len(again.network.peers.List()) == 1 })
	if p := again.network.peers.List()[0]; p.DID != a.DID() {
		t.Errorf("connected with %s, want %s", p.DID, a.DID())
	}
	knows(t, again, ref)
}

// WoT Discovery: exploration-directory-description-type introduction-well-known-thing-description
func TestDescriptionOfTheNode(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Name, o.HTTP, o.Version = "Front desk", &HTTP{Listen: "127.0.0.1:0"}, "v1.2.3"
	served, alone := opened(t, o), opened(t, Options{})
	for _, n := range []*Node{served, alone} {
		parsed, err := td.Parse(n.gateway.Self())
		if err != nil {
			t.Fatal(err)
		}
		if parsed.ID != string(n.DID()) || parsed.Title != n.opts.Name || !parsed.HasType("agent") || !parsed.HasType("ThingDirectory") ||
			slices.ContainsFunc(parsed.Warnings, func(i td.Issue) bool { return !strings.HasPrefix(i.Pointer, "/events/") }) {
			t.Errorf("got %+v", parsed) // the events of a directory have the form that the standard gives them
		}
		var doc map[string]any
		if err := json.Unmarshal(n.gateway.Self(), &doc); err != nil {
			t.Fatal(err)
		}
		v, err := proof.Verify(t.Context(), doc, proof.Check{Resolver: did.Keys(), Now: time.Now()})
		if err != nil || v.Owner != n.DID() {
			t.Errorf("signed by %+v, %v; want the node", v, err)
		}
		things := parsed.Properties["things"]
		if (things != nil) != (n == served) || things != nil && things.Forms[0].Href != n.API()+"/things{?offset,limit,format}" {
			t.Errorf("with the API at %q the list is %+v", n.API(), things)
		}
	}
	if parsed, _ := td.Parse(served.gateway.Self()); parsed.Version != "v1.2.3" {
		t.Errorf("the version is %s", parsed.Version)
	}
}

func TestGivenKey(t *testing.T) {
	t.Parallel()
	key := didtest.Key(1)
	o := quiet()
	o.Key = key
	n := opened(t, o)
	if n.DID() != key.DID() || !strings.HasSuffix(n.Addrs()[0], "/p2p/"+n.network.ID().String()) {
		t.Errorf("the node is %s at %v", n.DID(), n.Addrs())
	}
}

func TestCancelledCallGetsAnError(t *testing.T) {
	t.Parallel()
	n, err := New(quiet())
	if err != nil {
		t.Fatal(err)
	}
	n.opts.Drain = 20 * time.Millisecond
	host, caller, agent := run(t, n), start(t, quiet()), newGated()
	connect(t, caller, host)
	p, err := host.Offer(t.Context(), tool("Echo", ""), agent.thing())
	if err != nil {
		t.Fatal(err)
	}
	knows(t, caller, p.Ref)
	done := calling(t, caller, p.Ref)
	<-agent.asked
	if err := host.stop(); err != nil {
		t.Error(err)
	}
	// The connection may end before the reason arrives: then the host was lost.
	if r := <-done; codeOf(r.err) != interact.ShuttingDown && codeOf(r.err) != interact.Unreachable {
		t.Errorf("the call gives %v, want %v or %v", r.err, interact.ShuttingDown, interact.Unreachable)
	}
}

func TestOverQUIC(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Listen = []string{"/ip4/127.0.0.1/udp/0/quic-v1"}
	host, caller := start(t, o), start(t, o)
	connect(t, caller, host)
	ref := publish(t, host, toolAt("Echo", "", newAgent(t).url))
	knows(t, caller, ref)
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	m := &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(large)}
	if r, err := interact.Call(t.Context(), asConsumer(caller), m); err != nil || string(r.Data) != large {
		t.Errorf("a call of a megabyte gives %+v, %v", r, err)
	}
	if p := caller.network.peers.List(); len(p) != 1 || p[0].Transport != "quic-v1" {
		t.Errorf("the peers are %+v", p)
	}
}

// asConsumer returns the Things of n as a program in its process calls them.
func asConsumer(n interface{ Mesh() bridge.Mesh }) interact.Thing {
	return interact.Chain(n.Mesh(), interact.As(did.Consumer(did.Process, "")))
}
