package policy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
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

// who returns the principal of a node, or of this host.
func who(node did.DID) *did.Principal {
	if node == local {
		return did.Consumer(did.Loopback, "")
	}
	return did.NodePrincipal(node, "")
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

func TestTrust(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		want  float64
		why   string
	}{
		"no rules":         {Rules{}, 0.5, "no rule"},
		"allowed":          {Rules{Allow: []did.DID{alice}}, 1, "trust.allow"},
		"another allowed":  {Rules{Allow: []did.DID{bob}}, 0.5, "no rule"},
		"denied":           {Rules{Deny: []did.DID{alice}}, 0, "trust.deny"},
		"both":             {Rules{Allow: []did.DID{alice}, Deny: []did.DID{alice}}, 0, "trust.deny"},
		"on the allowlist": {Rules{Mode: Allowlist, Allow: []did.DID{alice}}, 1, "trust.allow"},
		"not on it":        {Rules{Mode: Allowlist, Allow: []did.DID{bob}}, 0, "not in trust.allow"},
	} {
		if got, why := New(c.rules).Trust(alice); got != c.want || why != c.why {
			t.Errorf("%s: got %g for %q, want %g for %q", name, got, why, c.want, c.why)
		}
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules Rules
		from  did.DID
		rule  string // named by the refusal; "" means admitted
	}{
		"no rules":                         {Rules{}, alice, ""},
		"open":                             {Rules{Mode: Open}, alice, ""},
		"open to callers on this machine":  {Rules{Mode: Open}, local, ""},
		"open, denied":                     {Rules{Mode: Open, Deny: []did.DID{alice}}, alice, "trust.deny"},
		"open, another denied":             {Rules{Mode: Open, Deny: []did.DID{bob}}, alice, ""},
		"verified":                         {Rules{Mode: Verified}, alice, ""},
		"verified, denied":                 {Rules{Mode: Verified, Deny: []did.DID{alice}}, alice, "trust.deny"},
		"verified, on this machine":        {Rules{Mode: Verified}, local, ""},
		"listed":                           {Rules{Mode: Allowlist, Allow: []did.DID{bob, alice}}, alice, ""},
		"not listed":                       {Rules{Mode: Allowlist, Allow: []did.DID{bob}}, alice, "trust.allow"},
		"an empty list":                    {Rules{Mode: Allowlist}, alice, "trust.allow"},
		"listed and denied":                {Rules{Mode: Allowlist, Allow: []did.DID{alice}, Deny: []did.DID{alice}}, alice, "trust.deny"},
		"a list, on this machine":          {Rules{Mode: Allowlist}, local, ""},
		"a list does not matter when open": {Rules{Mode: Open, Allow: []did.DID{bob}}, alice, ""},
		"an unknown mode":                  {Rules{Mode: "opne"}, alice, `"opne"`},
		"an unknown mode, allowed":         {Rules{Mode: "opne", Allow: []did.DID{alice}}, alice, `"opne"`},
	} {
		err := ask(t.Context(), interact.Chain(answering, New(c.rules).Gate()), c.from)
		if c.rule == "" {
			if err != nil {
				t.Errorf("%s: refused: %v", name, err)
			}
			continue
		}
		e := interact.AsError(err)
		if e == nil || e.Code != interact.Forbidden || e.Hint == "" && e.Next == nil || !strings.Contains(e.Title, c.rule) ||
			!strings.Contains(e.Title, c.from.Short()) {
			t.Errorf("%s: got %v, want Forbidden that names %s and the caller", name, err, c.rule)
		}
	}
}

func TestRulesAreCopied(t *testing.T) {
	t.Parallel()
	deny := []did.DID{bob}
	p := New(Rules{Deny: deny})
	deny[0] = alice
	if p.Admits(alice) != nil || p.Admits(bob) == nil {
		t.Error("the policy shares the list of its rules")
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
		end := run(t, thing, alice, invoke)
		endBob := run(t, thing, bob, invoke)
		refused(t, thing, alice, invoke, interact.Overloaded, "interact.concurrency")
		endOwn := run(t, thing, local, invoke, invoke, invoke, invoke)
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
	thing := interact.Chain(answering, p.Gate(), p.Limit())
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
	return interact.Chain(answering, p.Gate(), p.Limit())
}

var busy = Rules{Mode: Allowlist, Allow: []did.DID{alice}, Deny: []did.DID{bob}, PerPeer: 1e12, Burst: 1 << 30}

// An admitted call allocates nothing, or a closure if running interactions are counted.
func TestAdmissionAllocates(t *testing.T) {
	m := &interact.Message{Type: interact.InvokeAction, From: who(alice)}
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
	m := &interact.Message{Type: interact.InvokeAction, From: who(alice)}
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

// A message without a caller is rejected in every mode.
func TestMessagesWithoutACallerAreRejected(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{Open, Verified, Allowlist} {
		gate := interact.Chain(answering, New(Rules{Mode: mode}).Gate())
		_, err := interact.Call(t.Context(), gate, &interact.Message{Type: interact.InvokeAction})
		if e := interact.AsError(err); e == nil || e.Code != interact.Forbidden || e.Title == "" || e.Hint == "" && e.Next == nil {
			t.Errorf("%s: got %v", mode, err)
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
