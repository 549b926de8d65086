package policy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

const (
	alice = did.DID("did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH")
	bob   = did.DID("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp")
	local = did.DID("")
)

// answering is a Thing that replies to all messages.
var answering = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return answer
})

func answer(yield func(*interact.Message, error) bool) { yield(&reply, nil) }

var reply = interact.Message{Type: interact.ActionStatus, Status: interact.StatusCompleted}

// friend is a node of a partner.
const friend = did.DID("did:key:z6MkjchhfUsD6mmvni8mCdXHw216Xrm9bQe2mBH1P5RDjVJG")

// who returns the principal of a node, or of this host.
func who(node did.DID) *did.Principal {
	if node == local {
		return did.Consumer(did.Loopback, "")
	}
	return partners(friend)(node)
}

func ask(ctx context.Context, t interact.Thing, from did.DID) error {
	_, err := interact.Call(ctx, t, &interact.Message{Type: interact.InvokeAction, From: who(from)})
	return err
}

// code returns the code of err's *interact.Error, or 0.
func code(err error) interact.Code {
	var e *interact.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// with returns rules with access rules: each is like `deny: anyone, to: "*"`.
func with(t testing.TB, r Rules, rules ...string) Rules {
	t.Helper()
	r.More = append(r.More, func(b *access.Builder) error {
		return b.AddYAML("policy.yaml", []byte("apiVersion: lmosd/v1\nrules:\n- {"+strings.Join(rules, "}\n- {")+"}\n"))
	})
	return r
}

// loaded returns a policy with its access rules in force.
func loaded(t testing.TB, r Rules) *Policy {
	t.Helper()
	p := New(r)
	if err := p.Load(); err != nil {
		t.Fatal(err)
	}
	return p
}

// partners returns the principals of nodes, of which some are of a partner.
func partners(ids ...did.DID) func(did.DID) *did.Principal {
	return func(node did.DID) *did.Principal {
		p := did.NodePrincipal(node, "")
		if slices.Contains(ids, node) {
			p.Relation = did.Partner
		}
		return p
	}
}

func denied(id did.DID) string { return fmt.Sprintf("deny: %q, to: '*'", id) }

func TestTrust(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		want  float64
		why   string
	}{
		"no rules":      {Rules{}, 0.5, "untrusted"},
		"this node":     {with(t, Rules{Self: alice}, denied(alice)), 1, "this node"},
		"a partner":     {Rules{Options: rules.Options{Principal: partners(alice)}}, 1, "partner"},
		"another":       {Rules{Options: rules.Options{Principal: partners(bob)}}, 0.5, "untrusted"},
		"denied":        {with(t, Rules{}, denied(alice)), 0, "denied"},
		"both":          {with(t, Rules{Options: rules.Options{Principal: partners(alice)}}, denied(alice)), 0, "denied"},
		"not permitted": {Rules{Options: rules.Options{Untrusted: access.UntrustedNone}}, 0, "denied"},
		"members only":  {Rules{Options: rules.Options{Connect: access.ConnectMembers, Principal: partners(alice)}}, 0, "denied"},
	} {
		if got, why := loaded(t, c.rules).Trust(alice); got != c.want || why != c.why {
			t.Errorf("%s: got %g for %q, want %g for %q", name, got, why, c.want, c.why)
		}
	}
}

func TestConnects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		why   string // of the refusal; "" means admitted
	}{
		"no rules":                  {Rules{}, ""},
		"find":                      {Rules{Options: rules.Options{Untrusted: access.UntrustedFind}}, ""},
		"none":                      {Rules{Options: rules.Options{Untrusted: access.UntrustedNone}}, "no rule lets untrusted callers connect"},
		"none, but a rule":          {with(t, Rules{Options: rules.Options{Untrusted: access.UntrustedNone}}, fmt.Sprintf("allow: %q, to: connect", alice)), ""},
		"none, itself":              {Rules{Options: rules.Options{Untrusted: access.UntrustedNone}, Self: alice}, ""},
		"none, a partner":           {Rules{Options: rules.Options{Untrusted: access.UntrustedNone, Principal: partners(alice)}}, ""},
		"partners":                  {Rules{Options: rules.Options{Connect: access.ConnectPartners}}, "no rule lets untrusted callers connect"},
		"partners, a partner":       {Rules{Options: rules.Options{Connect: access.ConnectPartners, Principal: partners(alice)}}, ""},
		"members, a partner":        {Rules{Options: rules.Options{Connect: access.ConnectMembers, Principal: partners(alice)}}, "no rule lets partner callers connect"},
		"denied":                    {with(t, Rules{}, denied(alice)), "a rule denies connect to the caller"},
		"another denied":            {with(t, Rules{}, denied(bob)), ""},
		"denied after being let in": {with(t, Rules{}, fmt.Sprintf("allow: %q, to: connect", alice), denied(alice)), "a rule denies connect"},
	} {
		p := loaded(t, c.rules)
		err := p.Connects(alice)
		if byRule := strings.Contains(c.why, "denies"); (p.Denies(alice) != nil) != byRule {
			t.Errorf("%s: denied by a rule: %v", name, !byRule)
		}
		if c.why == "" {
			if err != nil {
				t.Errorf("%s: refused: %v", name, err)
			}
			continue
		}
		if e := interact.AsError(err); e == nil || e.Code != interact.Forbidden || e.Hint == "" || !strings.Contains(e.Title, c.why) ||
			!strings.Contains(e.Title, alice.Short()) {
			t.Errorf("%s: got %v, want Forbidden that names %s and the node", name, err, c.why)
		}
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := interact.Chain(answering, New(Rules{PerPeer: 10, Burst: 3}).Limit())
		passed := func(from did.DID, n int) (ok int) {
			for range n {
				switch err := ask(t.Context(), thing, from); {
				case err == nil:
					ok++
				case code(err) != interact.RateLimited || !interact.RateLimited.Retryable():
					t.Errorf("got %v, want RateLimited", err)
				}
			}
			return ok
		}
		if n := passed(alice, 10); n != 3 {
			t.Errorf("%d of 10 at once passed, want the burst of 3", n)
		}
		if n := passed(bob, 2); n != 2 {
			t.Errorf("%d of 2 of another caller passed, want both", n)
		}
		if n := passed(local, 100); n != 100 {
			t.Errorf("%d of 100 on this machine passed, want all", n)
		}
		time.Sleep(200 * time.Millisecond)
		if n := passed(alice, 10); n != 2 {
			t.Errorf("%d of 10 passed after 200 ms at 10 a second, want 2", n)
		}
		time.Sleep(time.Hour)
		if n := passed(alice, 10); n != 3 {
			t.Errorf("%d of 10 passed after an hour, want the burst of 3", n)
		}
	})
}

func TestZeroRateIsNone(t *testing.T) {
	t.Parallel()
	thing := interact.Chain(answering, New(Rules{Burst: 1}).Limit())
	for range 1000 {
		if err := ask(t.Context(), thing, alice); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBurstIsAtLeastOne(t *testing.T) {
	t.Parallel()
	thing := interact.Chain(answering, New(Rules{PerPeer: 0.001}).Limit())
	if err := ask(t.Context(), thing, alice); err != nil {
		t.Errorf("the first call: %v", err)
	}
	if err := ask(t.Context(), thing, alice); code(err) != interact.RateLimited {
		t.Errorf("the second call: %v", err)
	}
}

// The accounts stay limited with many callers over a long time, and no caller gains by it.
func TestCallersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{PerPeer: 0.01, Burst: 2}) // a bucket is full again after 200 s
		thing := interact.Chain(answering, p.Limit())
		if err := ask(t.Context(), thing, alice); err != nil {
			t.Fatal(err)
		}
		limited := 0
		for i := range maxCallers + 100 {
			if err := ask(t.Context(), thing, did.DID(fmt.Sprint("did:key:z", i))); err != nil {
				limited++
			}
		}
		if n := len(p.callers.all); n > maxCallers+1 {
			t.Errorf("%d callers are remembered, want at most %d", n, maxCallers+1)
		}
		if limited < 90 {
			t.Errorf("%d of about 100 latecomers were refused, want all but the burst that they share", limited)
		}
		time.Sleep(90 * time.Second) // alice's bucket is not full yet
		if err := ask(t.Context(), thing, bob); err != nil {
			t.Log("bob shares an account:", err)
		}
		if p.callers.all[alice] == nil {
			t.Error("a caller was forgotten whose bucket is not full")
		}
		time.Sleep(time.Hour)
		if err := ask(t.Context(), thing, bob); err != nil {
			t.Errorf("after an hour: %v", err)
		}
		if n := len(p.callers.all); n > 2 {
			t.Errorf("%d callers are remembered after an hour", n)
		}
	})
}

// An interaction waits some time for a place of the node; untrusted callers have half of the places, this host has its own.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{Concurrency: 4})
		thing := interact.Chain(lasting, p.Limit())
		end := begin(t, thing, alice, invoke)
		endBob := begin(t, thing, bob, invoke)
		refused(t, thing, alice, invoke, interact.Overloaded, "interact.concurrency")
		endOwn := begin(t, thing, local, invoke, invoke, invoke, invoke)
		refused(t, thing, local, invoke, interact.Overloaded, "interact.concurrency")
		begun := time.Now()
		if err := ask(t.Context(), thing, bob); code(err) != interact.Overloaded || time.Since(begun) != queueFor {
			t.Errorf("without a deadline: %v after %v", err, time.Since(begun))
		}
		answered := make(chan error)
		go func() { answered <- ask(t.Context(), interact.Chain(answering, p.Limit()), "did:key:zCarol") }()
		synctest.Wait()
		end()
		if err := <-answered; err != nil {
			t.Errorf("a call that waited for a place: %v", err)
		}
		endBob()
		endOwn()
	})
}

// An interaction counts while its loop runs, and does not count after a panic.
func TestRunningInteractionsCount(t *testing.T) {
	t.Parallel()
	p := New(Rules{Concurrency: 1})
	m := &interact.Message{Type: interact.InvokeAction, From: who(local)}
	thing := interact.Chain(answering, p.Limit())
	for range 10 {
		_ = thing.Do(t.Context(), m) // never started
	}
	for range thing.Do(t.Context(), m) {
		break // ended early
	}
	func() {
		defer func() { _ = recover() }()
		broken := interact.Chain(interact.Unary(func(context.Context, *interact.Message) (*interact.Message, error) { panic("x") }), p.Limit())
		_ = ask(t.Context(), broken, alice)
	}()
	if !p.peers.unused() || !p.own.unused() {
		t.Errorf("%v and %v run, want none", p.peers.used, p.own.used)
	}
	if err := ask(t.Context(), thing, alice); err != nil {
		t.Error(err)
	}
}

func TestManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	p := New(Rules{PerPeer: 1, Burst: 5, Concurrency: 100})
	thing := interact.Chain(answering, p.Limit())
	var wg sync.WaitGroup
	var mu sync.Mutex
	passed := 0
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				if ask(t.Context(), thing, did.DID(fmt.Sprint("did:key:z", i%4))) == nil {
					mu.Lock()
					passed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if passed < 20 || passed > 40 {
		t.Errorf("%d passed, want 4 callers' bursts of 5 and what a second brings", passed)
	}
}

// through returns a chain like that of a node.
func through(r Rules) interact.Thing {
	p := New(r)
	return interact.Chain(answering, p.Limit())
}

var busy = Rules{PerPeer: 1e12, Burst: 1 << 30}

// An admitted call allocates nothing, or a closure if running interactions are counted.
func TestAdmissionAllocates(t *testing.T) {
	m := &interact.Message{Type: interact.InvokeAction, From: who(friend)}
	counted := busy
	counted.Concurrency = 1 << 20
	for name, c := range map[string]struct {
		rules Rules
		want  float64
	}{"no rules": {Rules{}, 0}, "all rules": {busy, 0}, "all rules and counted": {counted, 1}} {
		thing := through(c.rules)
		n := testing.AllocsPerRun(100, func() {
			thing.Do(t.Context(), m)(func(*interact.Message, error) bool { return true })
		})
		if n > c.want {
			t.Errorf("%s: %v allocations, want %v", name, n, c.want)
		}
	}
}

// BenchmarkAdmitted measures the overhead of an admitted call.
func BenchmarkAdmitted(b *testing.B) {
	m := &interact.Message{Type: interact.InvokeAction, From: who(friend)}
	counted := busy
	counted.Concurrency = 1 << 20
	for name, rules := range map[string]Rules{"none": {}, "rules": busy, "counted": counted} {
		b.Run(name, func(b *testing.B) {
			thing := through(rules)
			b.ReportAllocs()
			for b.Loop() {
				thing.Do(b.Context(), m)(func(*interact.Message, error) bool { return true })
			}
		})
	}
}

func TestMessagesWithoutACallerAreRejected(t *testing.T) {
	t.Parallel()
	p := New(Rules{})
	for name, chain := range map[string]interact.Middleware{"limit": p.Limit(), "authorize": p.Authorize(&td.Thing{}, &access.Target{}, nil)} {
		_, err := interact.Call(t.Context(), interact.Chain(answering, chain), &interact.Message{Type: interact.InvokeAction})
		if e := interact.AsError(err); e == nil || e.Code != interact.Forbidden || e.Title == "" || e.Hint == "" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The consumers behind a node share its limits: invented names gain nothing.
func TestForgedNamesAreIgnored(t *testing.T) {
	t.Parallel()
	thing := interact.Chain(answering, New(Rules{PerPeer: 1e-6, Burst: 2}).Limit())
	for i, name := range []string{"a", "b", "c", ""} {
		_, err := interact.Call(t.Context(), thing, &interact.Message{Type: interact.InvokeAction, From: did.NodePrincipal(alice, name)})
		if got := interact.AsError(err); (got == nil) != (i < 2) {
			t.Errorf("message %d, of %q: %v", i, name, err)
		}
	}
}

// A policy after Change decides and limits as a new one with the same rules, and accounts that exist have the new rates.
func TestChange(t *testing.T) {
	t.Parallel()
	loads := 0
	p := loaded(t, Rules{PerPeer: 1, Burst: 1, Concurrency: 2, Subscriptions: 3, Options: rules.Options{OnLoad: func(string) { loads++ }}})
	loads = 0
	p.account(alice)
	p.things.get(p.thing("urn:x", 0), time.Now())
	next := Rules{PerPeer: 50, Burst: 5, ReadsPerPeer: 7, PerThing: 9, ThingBurst: 2, CallerConcurrency: 4, ThingConcurrency: 6,
		UntrustedDeadline: time.Minute, UntrustedRun: time.Hour, Concurrency: 99, Options: rules.Options{Untrusted: access.UntrustedNone, Stale: access.StaleRead}}
	if err := p.Change(next, nil); err != nil {
		t.Fatal(err)
	}
	if loads != 1 {
		t.Errorf("callers that the settings permit no longer are checked %d times", loads)
	}
	got := p.rules.Load()
	if got.PerPeer != 50 || got.PerThing != 9 || got.CallerConcurrency != 4 || got.ThingConcurrency != 6 || got.UntrustedRun != time.Hour || got.Concurrency != 2 || got.Subscriptions != 3 {
		t.Errorf("got %+v", got)
	}
	if limit := p.account(alice).calls.Load().limit; limit.Rate != 50 || limit.Burst != 5 {
		t.Errorf("the account of a caller has %+v", limit)
	}
	if limit := p.things.get(p.thing("urn:x", 0), time.Now()).calls.Load().limit; limit.Rate != 9 {
		t.Errorf("the account of an agent has %+v", limit)
	}
	if untrusted, _, _ := p.Settings(); untrusted != access.UntrustedNone {
		t.Errorf("untrusted callers may %s", untrusted)
	}
	bad := next
	bad.PerPeer, bad.Untrusted, bad.File = 60, access.UntrustedOpen, filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(bad.File, []byte("rules: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Change(bad, nil); err == nil || p.rules.Load().PerPeer != 50 {
		t.Errorf("bad rules: %v, rate %v", err, p.rules.Load().PerPeer)
	}
	if untrusted, _, file := p.Settings(); untrusted != access.UntrustedNone || file != "" || p.FileError() != nil {
		t.Errorf("after bad rules: %s %s %v", untrusted, file, p.FileError())
	}
}
