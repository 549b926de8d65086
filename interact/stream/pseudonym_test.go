package stream

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
)

// Other nodes receive names, and pseudonyms of the users of this machine: a node keeps them over restarts, and each node has its own.
func TestPseudonyms(t *testing.T) {
	t.Parallel()
	key := didtest.NewKey()
	another := didtest.NewKey()
	one, again, other := NewPseudonyms(key), NewPseudonyms(key), NewPseudonyms(another)
	for p, want := range map[*did.Principal]string{
		did.Consumer(did.Token, "operator"): "operator", did.Consumer(did.Loopback, ""): "", did.Consumer(did.Process, ""): "",
		did.Consumer(did.Unproven, ""): "unproven", did.Consumer(did.Unproven, "operator"): "unproven",
	} {
		if got := one.Of(p); got != want {
			t.Errorf("%+v is %q to others, want %q", p, got, want)
		}
	}
	ada, eve := did.Consumer(did.Socket, "uid:1000"), did.Consumer(did.Socket, "uid:1001")
	name := one.Of(ada)
	switch {
	case !did.ValidPrincipalName(name), strings.Contains(name, "1000"), strings.Contains(name, "uid"):
		t.Errorf("a user has the pseudonym %q", name)
	case name != one.Of(ada), name != again.Of(ada):
		t.Error("a user has two pseudonyms")
	case name == one.Of(eve), name == other.Of(ada):
		t.Error("two users, or those of two nodes, have one pseudonym")
	}
	for i := range 2 * maxPseudonyms {
		one.Of(did.Consumer(did.Socket, "uid:"+strings.Repeat("1", i+1)))
	}
	if len(one.all) > maxPseudonyms {
		t.Errorf("%d names are kept", len(one.all))
	}
}
