package did

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const someNode = DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")

const someAgent = DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")

// An agent at a node has at most the roles of the node, and ends with it; its membership may be unconfirmed as that of the node.
func TestAgentPrincipal(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	node := NodePrincipal(someNode, "")
	node.Relation, node.Roles, node.Expires, node.Pending = Untrusted, nil, end, "pending"
	node.Unconfirmed = NodePrincipal(someNode, "")
	node.Unconfirmed.Relation, node.Unconfirmed.Roles, node.Unconfirmed.Expires = Partner, []string{"clerk", "boss"}, end
	is := func(role string) bool { return role == "clerk" || role == "root" }
	p := node.WithAgent(someAgent, is, end.Add(time.Hour))
	if p.Agent() != someAgent || !p.Expires.Equal(end) || p.Relation != Untrusted || p.Unconfirmed.Agent() != someAgent || !slices.Equal(p.Unconfirmed.Roles, []string{"clerk"}) {
		t.Errorf("got %+v, %+v", p, p.Unconfirmed)
	}
	if p = node.WithAgent(someAgent, nil, end.Add(-time.Hour)); !p.Expires.Equal(end.Add(-time.Hour)) || len(p.Unconfirmed.Roles) != 2 {
		t.Errorf("got %+v, %+v", p, p.Unconfirmed)
	}
	if node.Agent() != "" || node.DID != someNode || (*Principal)(nil).Agent() != "" || Consumer(Socket, "").Agent() != "" {
		t.Error("a caller that is no agent has one")
	}
	if a := Consumer(Socket, "").WithAgent(someAgent, nil, time.Time{}); a.Class() == Consumer(Socket, "").Class() || !a.Expires.IsZero() {
		t.Errorf("an agent of this node shares the class %q", a.Class())
	}
}

func TestPrincipalNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p               *Principal
		id, base, short string
		local           bool
	}{
		{nil, "", "", "unknown", false},
		{Consumer(Loopback, ""), "local", "local", "local", true},
		{Consumer(Socket, "uid:1000"), "local#uid:1000", "local", "local#uid:1000", true},
		{Consumer(Token, "operator"), "local#operator", "local", "local#operator", true},
		{Consumer(Unproven, ""), "unproven", "unproven", "unproven", true},
		{NodePrincipal(someNode, ""), string(someNode), string(someNode), someNode.Short(), false},
		{NodePrincipal(someNode, "crm").WithAgent(someAgent, nil, time.Time{}), string(someAgent), string(someNode), someAgent.Short(), false},
		{Consumer(Socket, "uid:1000").WithAgent(someAgent, nil, time.Time{}), string(someAgent), string(someAgent), someAgent.Short(), true},
		{NodePrincipal(someNode, "crm"), string(someNode) + "#crm", string(someNode), someNode.Short() + "#crm", false},
	} {
		if c.p.ID() != c.id || c.p.Base() != c.base || c.p.Short() != c.short || c.p.Local() != c.local {
			t.Errorf("%+v: ID %q, Base %q, Short %q, Local %t", c.p, c.p.ID(), c.p.Base(), c.p.Short(), c.p.Local())
		}
	}
	for _, via := range []Via{Process, Socket, Loopback, Token, Unproven} {
		if p := Consumer(via, ""); p != Consumer(via, "") || p.Via != via {
			t.Errorf("%s: a consumer without a name is not shared: %+v", via, p)
		}
	}
}

func TestPrincipalOfContext(t *testing.T) {
	t.Parallel()
	p := Consumer(Token, "operator")
	if got := PrincipalOf(WithPrincipal(t.Context(), p)); got != p {
		t.Errorf("got %+v", got)
	}
	if got := PrincipalOf(context.Background()); got != nil {
		t.Errorf("the zero principal is %+v", got)
	}
}

func TestPrincipalNameRules(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"operator": true, "a.b_c-1": true, strings.Repeat("x", 64): true, "": false,
		strings.Repeat("x", 65): false, "uid:1000": false, "Ada": false, "a b": false, "é": false, "a#b": false, "a\n": false} {
		if ValidPrincipalName(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}

func TestPrincipalAllocatesNothing(t *testing.T) {
	p, node := Consumer(Loopback, ""), NodePrincipal(someNode, "")
	if n := testing.AllocsPerRun(100, func() { _, _, _ = p.ID(), node.ID(), Consumer(Socket, "") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// What a consumer of a node does not have, its principal does not have, also if the membership of the node is confirmed later.
func TestNarrowedUnconfirmed(t *testing.T) {
	t.Parallel()
	member := &Principal{Node: "did:key:z6Mk", Relation: Own, Roles: []string{"a", "b"}}
	pending := &Principal{Node: "did:key:z6Mk", Pending: "unknown", Unconfirmed: member}
	c := pending.Narrowed("crm", Partner, func(role string) bool { return role == "b" })
	if c.Name != "crm" || c.Relation != Untrusted || c.Unconfirmed.Name != "crm" || c.Unconfirmed.Relation != Partner || !slices.Equal(c.Unconfirmed.Roles, []string{"b"}) {
		t.Errorf("got %+v and %+v", c, c.Unconfirmed)
	}
	holder := &Principal{Node: "did:key:z6Mk", Attested: []Attestation{{"did:web:r.example", "a"}, {"did:web:r.example", "b"}}}
	if c := holder.Narrowed("crm", Untrusted, func(role string) bool { return role == "b" }); len(c.Attested) != 1 || c.Attested[0].Role != "b" || len(holder.Attested) != 2 {
		t.Errorf("attested %+v of %+v", c.Attested, holder.Attested)
	}
	if c := member.Narrowed("", Local, nil); c.Relation != Own || len(c.Roles) != 2 || len(member.Roles) != 2 {
		t.Errorf("got %+v", c)
	}
}

func TestLostStanding(t *testing.T) {
	t.Parallel()
	const acme, globex = DID("did:web:acme.example"), DID("did:web:globex.example")
	member := &Principal{Org: acme, Relation: Own, Roles: []string{"a", "b"}}
	for name, c := range map[string]struct {
		before, after *Principal
		want          bool
	}{
		"nothing":              {member, &Principal{Org: acme, Relation: Own, Roles: []string{"b", "a"}}, false},
		"a new member":         {&Principal{}, member, false},
		"a new role":           {&Principal{Org: acme, Relation: Own, Roles: []string{"a"}}, member, false},
		"a role":               {member, &Principal{Org: acme, Relation: Own, Roles: []string{"a", "c", "d"}}, true},
		"its relation":         {member, &Principal{Org: acme, Relation: Partner, Roles: []string{"a", "b"}}, true},
		"its organization":     {&Principal{Org: acme, Relation: Partner}, &Principal{Org: globex, Relation: Partner}, true},
		"everything":           {&Principal{}, &Principal{Barred: "revoked"}, true},
		"an attestation":       {&Principal{Attested: []Attestation{{acme, "a"}, {globex, "a"}}}, &Principal{Attested: []Attestation{{acme, "a"}}}, true},
		"no attestation":       {&Principal{Attested: []Attestation{{acme, "a"}}}, &Principal{Attested: []Attestation{{globex, "a"}, {acme, "a"}}}, false},
		"what it did not have": {&Principal{Barred: "revoked"}, &Principal{Barred: "distrusted"}, false},
	} {
		if got := c.after.Lost(c.before); got != c.want {
			t.Errorf("%s: lost %t", name, got)
		}
	}
}

func TestNarrowed(t *testing.T) {
	t.Parallel()
	node := &Principal{DID: someNode, Node: someNode, Via: Peer, Org: "did:web:acme.example", Roles: []string{"a", "b"}, Relation: Partner, Barred: "why", Pending: "yet"}
	for name, c := range map[string]struct {
		most  Relation
		roles []string
		want  Principal
	}{
		"all":               {Own, []string{"b", "a", "c"}, Principal{Relation: Partner, Roles: []string{"a", "b"}}},
		"one role":          {Partner, []string{"b", "c"}, Principal{Relation: Partner, Roles: []string{"b"}}},
		"less, and no role": {Untrusted, nil, Principal{Relation: Untrusted, Roles: []string{}}},
	} {
		want := *node
		want.Name, want.Relation, want.Roles = "crm", c.want.Relation, c.want.Roles
		if got := node.Narrowed("crm", c.most, func(role string) bool { return slices.Contains(c.roles, role) }); !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, want %+v", name, *got, want)
		}
	}
	if len(node.Roles) != 2 || node.Roles[0] != "a" || node.Name != "" {
		t.Errorf("the node is %+v now", node)
	}
}

// A session has the rights of its maker and no others, in this process and as agents and relays of the process receive it.
func TestSessionPrincipal(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ci := Consumer(Token, "ci")
	ci.Roles, ci.Expires = []string{"support"}, end.Add(-time.Hour)
	for name, maker := range map[string]*Principal{"a user": Consumer(Socket, "uid:1000"), "the operator": Consumer(Token, Operator), "a token": ci,
		"a subject": Consumer(OIDC, "oidc:acme:ada"), "a program": Consumer(Loopback, ""), "a program behind a proxy": Consumer(Unproven, "")} {
		p := maker.InSession(end)
		if p.Via != Session || p.ID() != maker.ID() || p.Scoped() != maker.Scoped() || p.Class() != maker.Class() || p.Proof() != maker.Via ||
			p.Base() != maker.Base() || p.Anonymous() != maker.Anonymous() || p.Relation != maker.Relation || !slices.Equal(p.Roles, maker.Roles) || p.InSession(end).Proof() != maker.Via {
			t.Errorf("%s: the session is %+v of %+v", name, p, maker)
		}
		if want := end; p.Expires.After(want) || maker == ci && !p.Expires.Equal(ci.Expires) {
			t.Errorf("%s: the session ends %s", name, p.Expires)
		}
		raw, err := p.MarshalJSON()
		read := &Principal{}
		if err := errors.Join(err, read.UnmarshalJSON(raw)); err != nil || read.Via != Session || read.Scoped() != p.Scoped() || read.Proof() != p.Proof() {
			t.Errorf("%s: read %s as %+v: %v", name, raw, read, err)
		}
		if maker.Via == Session || maker.Maker != "" {
			t.Errorf("%s: the maker was changed to %+v", name, maker)
		}
	}
}
