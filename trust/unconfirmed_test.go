package trust

import "testing"

func TestUnconfirmedPartners(t *testing.T) {
	t.Parallel()
	a, b := newMember(t), newMember(t)
	a.founds("acme.example")
	scid := b.founds("globex.example").SCID
	check := func(when, want string) {
		t.Helper()
		if one, any := a.Unconfirmed(scid), a.Unconfirmed("*"); one != want || any != want || a.Unconfirmed("other") != "" {
			t.Errorf("%s: %q, of any %q", when, one, any)
		}
	}
	check("without partners", "")
	a.federates(b)
	name := a.Partners()[0].Name
	check("after the invitation", name)
	must(a.Confirm(t.Context(), name, ""))(t)
	check("after the confirmation", "")
	if none := (*Trust)(nil); none.Unconfirmed(scid) != "" {
		t.Error("a node without a trust store has partners")
	}
}
