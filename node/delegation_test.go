package node

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// callWith calls the action of a tool with a delegation.
func callWith(t *testing.T, n *running, ref, token, input string) error {
	t.Helper()
	_, err := n.Client().Invoke(t.Context(), ref, "echo", api.CallOptions{Body: []byte(input), With: token})
	return err
}

// A node with a right on an agent lets another node use it for a while. The delegation is for that node, and for one action. It ends when it is
// revoked, and when the delegator loses the right.
func TestDelegation(t *testing.T) {
	t.Parallel()
	o := grouped(t)
	o.Policy.File = filepath.Join(o.Dir, "policy.yaml")
	host, lender, delegate, other := start(t, o), start(t, grouped(t)), start(t, grouped(t)), start(t, grouped(t))
	for _, n := range []*running{lender, delegate, other} {
		connect(t, n, host)
	}
	agent := newAgent(t)
	ref := publish(t, host, toolAt("Payout", "urn:x:payout", agent.url))
	for _, n := range []*running{lender, delegate, other} {
		knows(t, n, ref)
	}
	allow := func(to ...string) {
		t.Helper()
		if _, err := host.Client().AddRule(t.Context(), api.RuleRequest{Allow: []string{string(lender.DID())}, To: to, On: []string{"payout"}}); err != nil {
			t.Fatal(err)
		}
	}
	q := api.DelegationRequest{Agent: ref, Name: "echo", To: delegate.DID(), Life: "10m"}
	allow("invoke")
	if _, err := lender.Client().Delegate(t.Context(), q); codeOf(err) != interact.Forbidden {
		t.Fatalf("a caller that may not delegate: %v", err)
	}
	allow("delegate")
	lend := func(q api.DelegationRequest) *api.Delegation {
		t.Helper()
		d, err := lender.Client().Delegate(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := lend(q)
	if d.Host != host.DID() || d.Token == "" || d.Kind != "Delegation" || time.Until(d.Expires) > 10*time.Minute {
		t.Errorf("%+v", d)
	}
	if err := callWith(t, delegate, ref, "", `"x"`); codeOf(err) != interact.Forbidden {
		t.Errorf("without the delegation: %v", err)
	}
	if err := callWith(t, delegate, ref, d.Token, `"x"`); err != nil {
		t.Errorf("with the delegation: %v", err)
	}
	if err := callWith(t, other, ref, d.Token, `"x"`); codeOf(err) != interact.DelegationInvalid {
		t.Errorf("another node with the delegation: %v", err)
	}
	q.Name = "other"
	if err := callWith(t, delegate, ref, lend(q).Token, `"x"`); codeOf(err) != interact.DelegationInvalid {
		t.Errorf("a delegation of another action: %v", err)
	}
	q.Name, q.Where = "echo", []string{"value==small"}
	limited := lend(q).Token
	if err := callWith(t, delegate, ref, limited, `"small"`); err != nil {
		t.Errorf("an input within the condition: %v", err)
	}
	if err := callWith(t, delegate, ref, limited, `"large"`); codeOf(err) != interact.DelegationInvalid {
		t.Errorf("an input beyond the condition: %v", err)
	}
	if l, err := lender.Client().Delegations(t.Context()); err != nil || len(l.Items) != 3 || l.Items[0].Token != "" {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := lender.Client().RevokeDelegation(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	if err := callWith(t, delegate, ref, d.Token, `"x"`); codeOf(err) != interact.Forbidden {
		t.Errorf("a revoked delegation: %v", err)
	}
	if _, err := host.Client().AddRule(t.Context(), api.RuleRequest{Deny: []string{string(lender.DID())}, To: []string{"invoke"}, On: []string{"payout"}}); err != nil {
		t.Fatal(err)
	}
	if err := callWith(t, delegate, ref, limited, `"small"`); codeOf(err) != interact.DelegationInvalid {
		t.Errorf("the delegator is locked out: %v", err)
	}
}
