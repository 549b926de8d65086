package gateway

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// fakeDelegations has one delegation that was given away, "zdpuA", and one of this host, "zdpuB".
type fakeDelegations struct{ by []string }

func (f *fakeDelegations) Delegate(ctx context.Context, q api.DelegationRequest) (*api.Delegation, error) {
	f.by = append(f.by, did.PrincipalOf(ctx).ID())
	return &api.Delegation{ID: "zdpuC", By: "local#operator", To: q.To, Host: owner2, Agent: q.Agent, Thing: "urn:x:payout", Op: "invoke", Name: q.Name, Where: q.Where,
		Expires: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), Token: "Ctoken"}, nil
}

func (f *fakeDelegations) List() []api.Delegation   { return []api.Delegation{{ID: "zdpuA"}} }
func (f *fakeDelegations) Issued() []api.Delegation { return []api.Delegation{{ID: "zdpuB"}} }

func (f *fakeDelegations) Revoke(_ context.Context, id string) (*api.Delegation, error) {
	if id != "zdpuA" {
		return nil, interact.Errorf(interact.NotFound, "see the list of delegations", "no delegation of this node has the id %q", id)
	}
	return &api.Delegation{ID: id, Revoking: true}, nil
}

func TestDelegations(t *testing.T) {
	t.Parallel()
	lent, store := &fakeDelegations{}, memory(t)
	r := start(t, Options{Delegations: lent, Tokens: store})
	c := dial(t, r.url, token)
	if d, err := c.Delegate(t.Context(), api.DelegationRequest{Name: "pay", To: owner1}); err != nil || d.Kind != "Delegation" || d.Token != "Ctoken" || d.To != owner1 {
		t.Errorf("delegate: %+v, %v", d, err)
	}
	if l, err := c.Delegations(t.Context()); err != nil || l.Kind != "DelegationList" || len(l.Items) != 1 || l.Items[0].ID != "zdpuA" {
		t.Errorf("list: %+v, %v", l, err)
	}
	if l, err := c.IssuedDelegations(t.Context()); err != nil || len(l.Items) != 1 || l.Items[0].ID != "zdpuB" {
		t.Errorf("of the host: %+v, %v", l, err)
	}
	if d, err := c.RevokeDelegation(t.Context(), "zdpuA"); err != nil || d.Kind != "Delegation" || !d.Revoking {
		t.Errorf("revoke: %+v, %v", d, err)
	}
	scoped := grant(t, store, "ci", "call", "find")
	asJSON := func(h map[string]string) map[string]string { return merge(h, "Content-Type", interact.JSON) }
	const q = `{"agent":"payout","name":"pay","to":"did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH","life":"10m"}`
	for name, x := range map[string]exchange{
		"without a token":                 {method: http.MethodPost, path: "/v1/delegations", header: asJSON(nil), body: q, status: 401, code: "LMOS-1401"},
		"a token for calls":               {method: http.MethodPost, path: "/v1/delegations", header: asJSON(scoped), body: q, status: 403, code: "LMOS-1403"},
		"a token for calls lists":         {path: "/v1/delegations", header: scoped, status: 403, code: "LMOS-1403"},
		"one that does not exist":         {method: http.MethodDelete, path: "/v1/delegations/zdpuX", header: asAdmin, status: 404, code: "LMOS-1404"},
		"a request that is no JSON":       {method: http.MethodPost, path: "/v1/delegations", header: asJSON(asAdmin), body: `{`, status: 400, code: "LMOS-1400"},
		"one with an unknown member":      {method: http.MethodPost, path: "/v1/delegations", header: asJSON(asAdmin), body: `{"for":"10m"}`, status: 400, code: "LMOS-1400"},
		"a parameter that does not exist": {path: "/v1/delegations?to=x", header: asAdmin, status: 400, code: "LMOS-2000"},
		"a parameter of the list":         {method: http.MethodDelete, path: "/v1/delegations/zdpuA?issued=true", header: asAdmin, status: 400, code: "LMOS-2000"},
	} {
		x.name = name
		t.Run(name, func(t *testing.T) { r.check(t, x) })
	}
	if len(lent.by) != 1 || lent.by[0] != "local#operator" {
		t.Errorf("delegated by %q", lent.by)
	}
}

func TestGoldenGroupsAndDelegations(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Groups: &fakeGroups{}, Delegations: &fakeDelegations{}})
	for name, x := range map[string]exchange{
		"group":            {path: "/v1/groups/claims", header: asAdmin},
		"group-list":       {path: "/v1/groups", header: asAdmin},
		"group-invitation": {method: "POST", path: "/v1/groups/claims/invite", header: asJSON, body: `{}`},
		"group-delivery":   {method: "POST", path: "/v1/groups/claims/events", header: asJSON, body: `{"data":1}`},
		"delegation":       {method: "POST", path: "/v1/delegations", header: asJSON, body: `{"agent":"payout","name":"pay","to":"` + string(owner1) + `","life":"10m"}`},
		"delegation-list":  {path: "/v1/delegations", header: asAdmin},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := r.do(t, x)
			golden(t, name, []byte(body), r.url)
		})
	}
}
