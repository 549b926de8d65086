package trust

import (
	"slices"
	"testing"

	"github.com/lmosd/lmosd/did"
)

// OnChange receives the standing before and after a change.
func TestOnChangeHasBothPrincipals(t *testing.T) {
	t.Parallel()
	a, b := newMember(t), newMember(t)
	a.founds("acme.example")
	a.admits(b, false, "clerk")
	a.connect(b)
	a.becomes(b, did.Own, "clerk")
	if err := a.Distrust(t.Context(), b.did(), true); err != nil {
		t.Fatal(err)
	}
	a.bars(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.last[b.did()]
	if c[0] == nil || c[0].Relation != did.Own || !slices.Contains(c[0].Roles, "clerk") || c[1].Barred == "" || !c[1].Lost(c[0]) {
		t.Errorf("a distrusted member changed from %+v to %+v", c[0], c[1])
	}
}
