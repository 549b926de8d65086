package bridge

import (
	"fmt"
	"testing"
)

// A name is of who claims it first, as long as it is remembered; who claims many makes only itself forgotten.
func TestClaims(t *testing.T) {
	t.Parallel()
	c := &Claims{limit: 8}
	claim := func(name, principal string, wantOwn, wantFresh bool) {
		t.Helper()
		if own, fresh := c.Claim(name, principal); own != wantOwn || fresh != wantFresh {
			t.Errorf("%s claims %q: %t, %t", principal, name, own, fresh)
		}
	}
	if !c.Allows("a", "ada") || c.Owns("a", "ada") {
		t.Error("what nobody has claimed is somebody's")
	}
	claim("", "ada", true, false)
	claim("", "eve", true, false)
	claim("a", "ada", true, true)
	claim("a", "ada", true, false)
	claim("a", "eve", false, false)
	if c.Allows("a", "eve") || c.Owns("a", "eve") || !c.Allows("a", "ada") || !c.Owns("a", "ada") {
		t.Error("a is not ada's alone")
	}
	c.Release("a", "ada")
	claim("a", "eve", false, false) // ada claimed it twice: the second may have come to something
	claim("c", "ada", true, true)
	c.Release("c", "eve")
	claim("c", "eve", false, false)
	c.Release("c", "ada")
	claim("c", "eve", true, true)
	claim("b", "ada", true, true)
	for i := range 100 {
		claim(fmt.Sprint(i), "mallory", true, true)
	}
	if !c.Owns("a", "ada") || !c.Owns("c", "eve") || !c.Owns("b", "ada") || !c.Owns("99", "mallory") || c.Owns("94", "mallory") || !c.Owns("95", "mallory") {
		t.Error("a flood has others forgotten, or not the oldest")
	}
	if len(c.whose) != 8 || len(c.order) != 3 {
		t.Errorf("%d names of %d are remembered", len(c.whose), len(c.order))
	}
}

// What two agents call alike is claimed apart, within the room of all.
func TestNames(t *testing.T) {
	t.Parallel()
	all := &Claims{limit: 3}
	a, b := all.Of("a"), all.Of("b")
	if own, fresh := a.Claim("x", "ada"); !own || !fresh {
		t.Error("ada cannot have what nobody has")
	}
	if own, fresh := b.Claim("x", "eve"); !own || !fresh || a.Allows("x", "eve") || b.Allows("x", "ada") || !a.Owns("x", "ada") || !b.Owns("x", "eve") {
		t.Error("the names of two agents are one")
	}
	if own, fresh := a.Claim("", "eve"); !own || fresh || !a.Allows("", "ada") {
		t.Error("no name is somebody's")
	}
	b.Release("x", "eve")
	if !b.Allows("x", "ada") || a.Allows("x", "eve") {
		t.Error("not the name of that agent was released")
	}
	for _, name := range []string{"1", "2", "3", "4"} {
		b.Claim(name, "eve")
	}
	if !a.Owns("x", "ada") || len(all.whose) != 3 {
		t.Errorf("%d names are remembered, and ada's among them: %v", len(all.whose), a.Owns("x", "ada"))
	}
}
