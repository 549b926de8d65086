package stream

import (
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// Other nodes receive names, and pseudonyms of the users of this machine and of the subjects of identity providers: a node keeps them over restarts, and each node has its own.
func TestPseudonyms(t *testing.T) {
	t.Parallel()
	key := didtest.NewKey()
	another := didtest.NewKey()
	one, again, other := NewPseudonyms(key), NewPseudonyms(key), NewPseudonyms(another)
	agent := did.Consumer(did.Socket, "uid:1000").WithAgent(another.DID(), nil, time.Time{})
	ci := &did.Principal{Name: "ci", Via: did.Token, Relation: did.Local, Roles: []string{"ops", "support"}}
	for p, want := range map[*did.Principal]frame.As{
		did.Consumer(did.Token, "operator"):    {IsConsumer: true, Name: "operator", Roles: frame.AllRoles, Relation: did.Own},
		ci:                                     {IsConsumer: true, Name: "ci", Relation: did.Own},
		did.Consumer(did.Loopback, ""):         {IsConsumer: true, Relation: did.Own},
		did.Consumer(did.Process, ""):          {},
		did.Consumer(did.Socket, "ada"):        {IsConsumer: true, Name: "ada", Roles: frame.AllRoles, Relation: did.Own},
		agent:                                  {IsConsumer: true, Agent: agent.DID, Roles: frame.AllRoles, Relation: did.Own},
		did.Consumer(did.Unproven, ""):         {IsConsumer: true, Name: "unproven"},
		did.Consumer(did.OIDC, ""):             {IsConsumer: true, Relation: did.Own},
		did.Consumer(did.Unproven, "operator"): {IsConsumer: true, Name: "unproven"},
	} {
		if got := one.Of(p); got != want {
			t.Errorf("%+v is %+v to others, want %+v", p, got, want)
		}
	}
	ada, eve := did.Consumer(did.Socket, "uid:1000"), did.Consumer(did.Socket, "uid:1001")
	name := one.Of(ada).Name
	switch {
	case !did.ValidPrincipalName(name), strings.Contains(name, "1000"), strings.Contains(name, "uid"):
		t.Errorf("a user has the pseudonym %q", name)
	case name != one.Of(ada).Name, name != again.Of(ada).Name:
		t.Error("a user has two pseudonyms")
	case name == one.Of(eve).Name, name == other.Of(ada).Name:
		t.Error("two users, or those of two nodes, have one pseudonym")
	}
	subject := &did.Principal{Name: "oidc:acme:ada@acme.example", Via: did.OIDC, Relation: did.Local, Roles: []string{"adjuster"}, Scopes: []string{"*"}}
	as := one.Of(subject)
	if !did.ValidPrincipalName(as.Name) || strings.Contains(as.Name, "ada") || as.Roles != "" || as.Relation != did.Own || as == one.Of(did.Consumer(did.OIDC, "oidc:globex:ada@acme.example")) {
		t.Errorf("the subject of an identity provider is %+v to others", as)
	}
	for i := range 2 * maxPseudonyms {
		one.Of(did.Consumer(did.Socket, "uid:"+strings.Repeat("1", i+1)))
	}
	if len(one.all) > maxPseudonyms {
		t.Errorf("%d names are kept", len(one.all))
	}
}
