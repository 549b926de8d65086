package node

import (
	"context"
	"iter"
	"path/filepath"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/ucan"
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

// A subscription and a run by delegations end with them: they are revoked, their end comes, or the delegator is locked out.
func TestDelegationsEndWhatRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		life string
		end  func(t *testing.T, host, lender *running)
	}{
		"revoked": {"10m", func(t *testing.T, _, lender *running) {
			l, err := lender.Client().Delegations(t.Context())
			if err != nil || len(l.Items) != 2 {
				t.Fatalf("%+v, %v", l, err)
			}
			for _, d := range l.Items {
				if r, err := lender.Client().RevokeDelegation(t.Context(), d.ID); err != nil || r.Revoking {
					t.Errorf("%+v, %v", r, err)
				}
			}
		}},
		"revoked by the host": {"10m", func(t *testing.T, host, lender *running) {
			l, err := host.Client().IssuedDelegations(t.Context())
			if err != nil || len(l.Items) != 2 || l.Items[0].By != string(lender.DID()) {
				t.Fatalf("%+v, %v", l, err)
			}
			for _, d := range l.Items {
				if _, err := host.Client().RevokeDelegation(t.Context(), d.ID); err != nil {
					t.Error(err)
				}
			}
		}},
		"the delegator is locked out": {"10m", func(t *testing.T, host, lender *running) {
			if _, err := host.Client().AddRule(t.Context(), api.RuleRequest{Deny: []string{string(lender.DID())}, To: []string{"*"}}); err != nil {
				t.Fatal(err)
			}
		}},
		"their end": {"3s", func(*testing.T, *running, *running) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := grouped(t)
			o.Policy.File = filepath.Join(o.Dir, "policy.yaml")
			host, lender, delegate := start(t, o), start(t, grouped(t)), start(t, grouped(t))
			for _, n := range []*running{lender, delegate} {
				connect(t, n, host)
			}
			draft := `{"title":"Payout","id":"urn:x:payout","actions":{"pay":{"synchronous":false}},"events":{"paid":{}}}`
			runEnds := make(chan bool, 1)
			ref, _, err := host.mesh.publisher.Attach(t.Context(), []byte(draft), interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				return func(yield func(*interact.Message, error) bool) {
					if m.From.Lent == nil || m.From.Lent.By != lender.DID() || m.With != nil {
						t.Errorf("the agent receives %+v, %v", m.From, m.With)
					}
					if m.Type == interact.SubscribeEvent {
						yield(m.Reply(interact.Event, interact.JSON, []byte("1")), nil)
					}
					<-ctx.Done()
					if m.Type == interact.InvokeAction { // the hub keeps a subscription of the agent for a while
						runEnds <- true
					}
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []*running{lender, delegate} {
				knows(t, n, ref)
			}
			if _, err := host.Client().AddRule(t.Context(), api.RuleRequest{Allow: []string{string(lender.DID())}, To: []string{"invoke", "subscribe", "delegate"}, On: []string{"payout"}}); err != nil {
				t.Fatal(err)
			}
			lend := func(op, name string) string {
				d, err := lender.Client().Delegate(t.Context(), api.DelegationRequest{Agent: ref, Op: op, Name: name, To: delegate.DID(), Life: c.life})
				if err != nil {
					t.Fatal(err)
				}
				return d.Token
			}
			pay, paid := lend("invoke", "pay"), lend("subscribe", "paid")
			run, err := delegate.Client().Invoke(t.Context(), ref, "pay", api.CallOptions{Async: true, With: pay})
			if err != nil || run.Task == nil {
				t.Fatalf("%+v, %v", run, err)
			}
			began, ended := make(chan bool, 9), make(chan error, 1)
			go func() {
				var last error
				for _, err := range asConsumer(delegate).Do(t.Context(), &interact.Message{Type: interact.SubscribeEvent, Thing: ref, Name: "paid", With: capabilityOf(t, paid, host.DID())}) {
					if last = err; err == nil {
						began <- true
					}
				}
				ended <- last
			}()
			<-began
			c.end(t, host, lender)
			if err := <-ended; err == nil {
				t.Error("the subscription ends without an error")
			}
			<-runEnds
			until(t, "the caller sees the end of the run", func() bool {
				got, err := delegate.Client().Task(t.Context(), run.Task.ID)
				return err == nil && got.Status == "cancelled"
			})
		})
	}
}

// capabilityOf returns a token as a message has it.
func capabilityOf(t *testing.T, token string, host did.DID) *interact.Capability {
	t.Helper()
	links, err := ucan.Unpack([]byte(token))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ucan.Pack(ucan.Raw, links...)
	if err != nil {
		t.Fatal(err)
	}
	return &interact.Capability{Host: host, Tokens: raw}
}
