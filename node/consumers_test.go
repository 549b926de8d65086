package node

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// TestPseudonyms: other nodes hear names, and of users of this machine what nobody can turn into a user: the same from one node, after a
// restart too, and another from the next.
func TestPseudonyms(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	one, again, other := newPseudonyms(key), newPseudonyms(key), newPseudonyms(newKey(t))
	for p, want := range map[*did.Principal]string{
		did.Consumer(did.Token, "operator"): "operator", did.Consumer(did.Loopback, ""): "", did.Consumer(did.Process, ""): "",
		did.Consumer(did.Unproven, ""): "unproven", did.Consumer(did.Unproven, "operator"): "unproven",
	} {
		if got := one.as(p); got != want {
			t.Errorf("%+v is %q to others, want %q", p, got, want)
		}
	}
	ada, eve := did.Consumer(did.Socket, "uid:1000"), did.Consumer(did.Socket, "uid:1001")
	name := one.as(ada)
	switch {
	case !did.ValidPrincipalName(name), strings.Contains(name, "1000"), strings.Contains(name, "uid"):
		t.Errorf("a user is told as %q", name)
	case name != one.as(ada), name != again.as(ada):
		t.Error("a user is told by two names")
	case name == one.as(eve), name == other.as(ada):
		t.Error("two users, or those of two nodes, are told by one name")
	}
	for i := range 2 * maxPseudonyms {
		one.as(did.Consumer(did.Socket, "uid:"+strings.Repeat("1", i+1)))
	}
	if len(one.all) > maxPseudonyms {
		t.Errorf("%d names are kept", len(one.all))
	}
}
