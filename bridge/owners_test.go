package bridge

import (
	"fmt"
	"testing"
)

// The first claim of a name holds until it is dropped; a flood of claims drops only claims of its own principal.
func TestClaims(t *testing.T) {
	t.Parallel()
	c := &Owners{limit: 8}
	claim := func(name, principal string, wantOwn, wantFresh bool) {
		t.Helper()
		if own, fresh := c.claim(name, principal); own != wantOwn || fresh != wantFresh {
			t.Errorf("%s claims %q: %t, %t", principal, name, own, fresh)
		}
	}
	if !c.allows("a", "ada") || c.owns("a", "ada") {
		t.Error("a name without a claim has an owner")
	}
	claim("", "ada", true, false)
	claim("", "eve", true, false)
	claim("a", "ada", true, true)
	claim("a", "ada", true, false)
	claim("a", "eve", false, false)
	if c.allows("a", "eve") || c.owns("a", "eve") || !c.allows("a", "ada") || !c.owns("a", "ada") {
		t.Error("a has another owner than ada")
	}
	c.release("a", "ada")
	claim("a", "eve", false, false) // ada claimed it twice
	claim("c", "ada", true, true)
	c.release("c", "eve")
	claim("c", "eve", false, false)
	c.release("c", "ada")
	claim("c", "eve", true, true)
	claim("b", "ada", true, true)
	for i := range 100 {
		claim(fmt.Sprint(i), "mallory", true, true)
	}
	if !c.owns("a", "ada") || !c.owns("c", "eve") || !c.owns("b", "ada") || !c.owns("99", "mallory") || c.owns("94", "mallory") || !c.owns("95", "mallory") {
		t.Error("a flood dropped claims of others, or not its oldest")
	}
	if len(c.owners) != 8 || len(c.order) != 3 {
		t.Errorf("%d names of %d principals are recorded", len(c.owners), len(c.order))
	}
}

// Equal names of two agents are claimed separately, within one limit.
func TestNames(t *testing.T) {
	t.Parallel()
	all := &Owners{limit: 3}
	a, b := all.OfAgent("a"), all.OfAgent("b")
	if own, fresh := a.Claim("x", "ada"); !own || !fresh {
		t.Error("ada cannot claim a free name")
	}
	if own, fresh := b.Claim("x", "eve"); !own || !fresh || a.Allows("x", "eve") || b.Allows("x", "ada") || !a.Owns("x", "ada") || !b.Owns("x", "eve") {
		t.Error("equal names of two agents share an owner")
	}
	if own, fresh := a.Claim("", "eve"); !own || fresh || !a.Allows("", "ada") {
		t.Error("an empty name has an owner")
	}
	b.Release("x", "eve")
	if !b.Allows("x", "ada") || a.Allows("x", "eve") {
		t.Error("Release removed the claim of another agent")
	}
	for _, name := range []string{"1", "2", "3", "4"} {
		b.Claim(name, "eve")
	}
	if !a.Owns("x", "ada") || len(all.owners) != 3 {
		t.Errorf("%d names are recorded; ada's is one of them: %v", len(all.owners), a.Owns("x", "ada"))
	}
}
