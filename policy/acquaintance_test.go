package policy

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// A peer is known some time after its first success, as long as it calls; a flood of keys does not evict it.
func TestAcquaintance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{Concurrency: 8})
		class := func(id did.DID) class { return p.claim(&interact.Message{From: who(id)}).class }
		failing := interact.Chain(interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
			return interact.Fail(interact.Errorf(interact.AgentFailed, "", "no"))
		}), p.Limit())
		_ = ask(t.Context(), failing, "did:key:zFailed")
		thing := interact.Chain(answering, p.Limit())
		if err := ask(t.Context(), thing, alice); err != nil {
			t.Fatal(err)
		}
		if class(alice) != untrusted || class(friend) != allowed || class(local) != owner {
			t.Errorf("at first: %d, a partner: %d, this machine: %d", class(alice), class(friend), class(local))
		}
		time.Sleep(probation)
		if class(alice) != known || class("did:key:zFailed") != untrusted {
			t.Errorf("after a success: %d, after a failure: %d", class(alice), class("did:key:zFailed"))
		}
		for i := range maxAcquaintances + 10 {
			_ = ask(t.Context(), thing, did.DID(fmt.Sprint("did:key:z", i)))
		}
		if n := len(p.met.all); n != maxAcquaintances || class(alice) != known {
			t.Errorf("after a flood %d peers are remembered, and the first is of class %d", n, class(alice))
		}
		time.Sleep(forgetAfter + 1)
		_ = ask(t.Context(), thing, "did:key:zLate")
		if n := len(p.met.all); n != 1 || class(alice) != untrusted {
			t.Errorf("after a quiet time %d peers are remembered, and the first is of class %d", n, class(alice))
		}
	})
}

// The calls of consumers count for their node, by name; unproven callers get none of the places of this host.
func TestClaims(t *testing.T) {
	t.Parallel()
	p := New(Rules{})
	for _, c := range []struct {
		from *did.Principal
		want claim
	}{
		{&did.Principal{DID: alice, Node: alice, Name: "crm", Via: did.Peer}, claim{untrusted, string(alice), "crm"}},
		{&did.Principal{DID: bob, Node: bob, Via: did.Peer, Relation: did.Own}, claim{allowed, string(bob), ""}},
		{did.Consumer(did.Socket, "uid:1000"), claim{owner, "", "uid:1000"}},
		{did.Consumer(did.Token, ""), claim{owner, "", ""}},
		{did.Consumer(did.Unproven, ""), claim{untrusted, "unproven", ""}},
		{did.Consumer(did.Unproven, "").InSession(time.Time{}), claim{untrusted, "unproven", ""}},
		{did.Consumer(did.Socket, "").InSession(time.Time{}), claim{owner, "", ""}},
	} {
		if got := p.claim(&interact.Message{From: c.from}); got != c.want {
			t.Errorf("%+v claims as %+v, want %+v", c.from, got, c.want)
		}
	}
}

// Deadlines of untrusted callers are shortened, and the error names the key; those of others are not.
func TestUntrustedDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(Rules{UntrustedDeadline: time.Second, UntrustedRun: time.Minute})
		var deadline time.Time
		thing := interact.Chain(interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			deadline = m.Deadline
			return lasting.Do(ctx, m)
		}), p.Limit())
		chunks := func(func([]byte, error) bool) {}
		for name, c := range map[string]struct {
			m    interact.Message
			left time.Duration // 0: no deadline
			want time.Duration
			key  string
		}{
			"longer":         {interact.Message{From: who(alice)}, time.Hour, time.Second, "interact.untrusted_deadline"},
			"none":           {interact.Message{From: who(alice)}, 0, time.Second, "interact.untrusted_deadline"},
			"shorter":        {interact.Message{From: who(alice)}, time.Millisecond, time.Millisecond, ""},
			"request stream": {interact.Message{From: who(alice), Chunks: chunks}, 0, time.Minute, "interact.tasks.untrusted_max_duration"},
			"unproven":       {interact.Message{From: did.Consumer(did.Unproven, "")}, time.Hour, time.Second, "interact.untrusted_deadline"},
			"a partner":      {interact.Message{From: who(friend)}, time.Hour, time.Hour, ""},
			"this machine":   {interact.Message{From: who(local)}, time.Hour, time.Hour, ""},
		} {
			now := time.Now()
			if c.m.Type = invoke; c.left > 0 {
				c.m.Deadline = now.Add(c.left)
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.want)
			if c.key != "" {
				ctx, cancel = context.WithTimeout(t.Context(), 2*time.Hour)
			}
			_, err := interact.Call(ctx, thing, &c.m)
			cancel()
			e := interact.AsError(err)
			if deadline.Sub(now) > c.want || c.key != "" && (time.Since(now) != c.want || e.Code != interact.Timeout || !strings.Contains(e.Hint, c.key)) {
				t.Errorf("%s: the agent has %v, and the caller hears after %v: %v (%s)", name, deadline.Sub(now), time.Since(now), e, e.Hint)
			}
		}
		if most, key := p.Bound(&interact.Message{From: who(alice)}); most != time.Minute || key != "interact.tasks.untrusted_max_duration" {
			t.Errorf("a long action may run %v, by %s", most, key)
		}
		if most, _ := p.Bound(&interact.Message{From: who(friend)}); most != 0 {
			t.Errorf("a long action of a partner may run %v", most)
		}
	})
}
