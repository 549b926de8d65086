package trust

import (
	"slices"
	"testing"
	"time"

	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/invitation"
)

// accepts lets nodes of the local network ask this one.
func (m *member) accepts() *member {
	m.Trust.o.Joins = func() bool { return true }
	return m
}

func codeOf(err error) interact.Code {
	if err == nil {
		return 0
	}
	return interact.AsError(err).Code
}

// A node finds the organization of a peer, asks to join, and joins after both operators have compared the words, and not before.
func TestJoinByRequest(t *testing.T) {
	t.Parallel()
	issuer, node := newMember(t).accepts(), newMember(t)
	org := issuer.founds("acme.example")
	node.connect(issuer)
	offers := node.Offers(t.Context())
	if len(offers) != 1 || offers[0] != (api.Offer{Node: issuer.did(), Organization: org.DID, SCID: org.SCID, Name: "acme"}) {
		t.Fatalf("offers: %+v", offers)
	}
	asked := must(node.RequestJoin(t.Context(), api.JoinQuery{Node: issuer.did()}))(t)
	at := must(issuer.JoinRequests())(t)
	if len(at) != 1 || at[0].Node != node.did() || !slices.Equal(at[0].Words, asked.Words) || len(asked.Words) != 6 || asked.SCID != org.SCID {
		t.Fatalf("asked %+v, the issuer has %+v", asked, at)
	}
	confirmed := api.JoinQuery{Node: issuer.did(), SCID: org.SCID}
	if r := must(node.RequestJoin(t.Context(), confirmed))(t); r.Joined {
		t.Error("it joined before it was admitted")
	}
	if err := issuer.SetRoles(t.Context(), node.did(), []string{"ops"}); err != nil {
		t.Fatal(err)
	}
	if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: issuer.did(), SCID: "QmOther"}); codeOf(err) != interact.InvalidInvite {
		t.Errorf("with the SCID of another organization: %v", err)
	}
	if r := must(node.RequestJoin(t.Context(), confirmed))(t); !r.Joined {
		t.Error("it is not a member after it was admitted")
	}
	if o := must(node.Organization())(t); o.SCID != org.SCID || !slices.Contains(o.Roles, "ops") || o.Issuer {
		t.Errorf("the organization of the node: %+v", o)
	}
	issuer.becomes(node, did.Own, "ops")
	node.becomes(issuer, did.Own, "")
	if at := must(issuer.JoinRequests())(t); len(at) != 0 {
		t.Errorf("the request is kept: %+v", at)
	}
	if offers := node.Offers(t.Context()); len(offers) != 0 {
		t.Errorf("the own organization is offered: %+v", offers)
	}
}

// Without a comparison of words the node does not join, whatever the issuer does: an attacker who offers an organization of the same name admits
// at once.
func TestAnImpostorAdmits(t *testing.T) {
	t.Parallel()
	issuer, impostor, node := newMember(t).accepts(), newMember(t).accepts(), newMember(t)
	real, fake := issuer.founds("acme.example"), impostor.founds("acme.example")
	node.connect(issuer)
	node.connect(impostor)
	impostor.connect(issuer)
	if offers := node.Offers(t.Context()); len(offers) != 2 || offers[0].Name != offers[1].Name {
		t.Fatalf("offers: %+v", offers)
	}
	shown := must(node.RequestJoin(t.Context(), api.JoinQuery{Node: impostor.did()}))(t)
	if err := impostor.SetRoles(t.Context(), node.did(), nil); err != nil {
		t.Fatal(err)
	}
	if r := must(node.RequestJoin(t.Context(), api.JoinQuery{Node: impostor.did()}))(t); r.Joined {
		t.Error("it joined without a comparison")
	}
	if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: impostor.did(), SCID: real.SCID}); codeOf(err) != interact.InvalidInvite {
		t.Errorf("the organization was exchanged after the comparison: %v", err)
	}
	// The impostor asks the issuer in its own name: its words differ from those on the screen of the node.
	must(impostor.net.Ask(t.Context(), issuer.did(), &exchange.Request{Op: exchange.OpJoin, SCID: real.SCID}))(t)
	if at := must(issuer.JoinRequests())(t); len(at) != 1 || at[0].Node != impostor.did() || slices.Equal(at[0].Words, shown.Words) || shown.SCID != fake.SCID {
		t.Errorf("the issuer shows %+v, the node %v", at, shown.Words)
	}
	if _, err := node.Organization(); codeOf(err) != interact.NotFound {
		t.Errorf("the node has an organization: %v", err)
	}
}

// Nodes that may not ask get the answer for an organization that does not exist.
func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	issuer, node, open := newMember(t), newMember(t), newMember(t).accepts()
	issuer.founds("acme.example")
	node.connect(issuer)
	node.connect(open)
	for name, m := range map[string]*member{"an issuer that accepts none": issuer, "a node without an organization": open} {
		if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: m.did()}); codeOf(err) != interact.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(node.Offers(t.Context())) != 0 {
		t.Error("an organization is offered")
	}
	if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: didtest.NewKey().DID()}); codeOf(err) != interact.NoPeer {
		t.Errorf("a node that is not connected: %v", err)
	}
	issuer.accepts()
	if err := issuer.Distrust(t.Context(), node.did(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: issuer.did()}); codeOf(err) != interact.NotFound {
		t.Errorf("a distrusted node: %v", err)
	}
	if err := issuer.Distrust(t.Context(), node.did(), false); err != nil {
		t.Fatal(err)
	}
	node.founds("globex.example")
	if _, err := node.RequestJoin(t.Context(), api.JoinQuery{Node: issuer.did()}); codeOf(err) != interact.Usage {
		t.Errorf("a member of another organization: %v", err)
	}
	if at := must(issuer.JoinRequests())(t); len(at) != 0 {
		t.Errorf("the issuer has %+v", at)
	}
}

// An admission counts for a request that is open. Requests expire, and their number is limited.
func TestRequestsExpire(t *testing.T) {
	t.Parallel()
	issuer, node := newMember(t).accepts(), newMember(t)
	scid := issuer.founds("acme.example").SCID
	node.connect(issuer)
	if err := issuer.SetRoles(t.Context(), node.did(), nil); err != nil {
		t.Fatal(err)
	}
	advances(2*time.Second, issuer, node)
	q := api.JoinQuery{Node: issuer.did(), SCID: scid}
	if r := must(node.RequestJoin(t.Context(), q))(t); r.Joined {
		t.Error("an admission before the request counts")
	}
	advances(joinLife, issuer, node)
	if at := must(issuer.JoinRequests())(t); len(at) != 0 {
		t.Errorf("an expired request is shown: %+v", at)
	}
	for range maxJoins {
		if _, isNew, ok := issuer.Trust.joins.add(didtest.NewKey().DID(), scid, issuer.now()); !isNew || !ok {
			t.Error("a request within the limit is refused")
		}
	}
	if _, err := node.RequestJoin(t.Context(), q); codeOf(err) != interact.Overloaded {
		t.Errorf("a request beyond the limit: %v", err)
	}
	advances(joinLife, issuer, node)
	if r := must(node.RequestJoin(t.Context(), q))(t); r.Joined || len(must(issuer.JoinRequests())(t)) != 1 {
		t.Errorf("after the others expired: %+v", r)
	}
}

// The words stand for the organization and the node.
func TestWordsOfARequest(t *testing.T) {
	t.Parallel()
	var j joins
	a, b := didtest.NewKey().DID(), didtest.NewKey().DID()
	now := time.Now()
	one, _, _ := j.add(a, "QmOne", now)
	again, isNew, ok := j.add(a, "QmOne", now.Add(joinLife-time.Second))
	if isNew || !ok || !again.at.Equal(now) {
		t.Errorf("asking again extends the request: %+v", again)
	}
	if _, isNew, _ := j.add(a, "QmOne", now.Add(-joinLife)); !isNew {
		t.Error("a clock that was set back extends the request")
	}
	other, _, _ := j.add(b, "QmOne", now.Add(-joinLife))
	want := invitation.CheckWords(string(a), "QmOne")
	if !slices.Equal(one.words, want[:]) || slices.Equal(one.words, other.words) {
		t.Errorf("%v, %v", one.words, other.words)
	}
}

// A peer is local by its own address, and not by that of a relay.
func TestIsLocalAddr(t *testing.T) {
	t.Parallel()
	const id = "/p2p/12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"
	for text, want := range map[string]bool{"/ip4/192.168.1.5/udp/1/quic-v1": true, "/ip4/127.0.0.1/tcp/1": true, "/ip6/fe80::1/tcp/1": true,
		"/ip4/203.0.114.7/tcp/1": false, "/dns4/printer.local/tcp/1": false, "/ip4/192.168.1.5/tcp/1" + id + "/p2p-circuit": false} {
		if got := isLocalAddr(multiaddr.StringCast(text)); got != want {
			t.Errorf("%s is local: %t", text, got)
		}
	}
}
