package policy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A crowd calls an admission within a bubble.
type crowd struct {
	t  *testing.T
	a  *admission
	wg sync.WaitGroup

	mu    sync.Mutex
	held  map[string][]place // by caller
	order []string           // callers in the order of their places
	errs  []error
}

func newCrowd(t *testing.T, places int) *crowd {
	return &crowd{t: t, a: newAdmission(places), held: map[string][]place{}}
}

// from returns the claim of a caller "node" or "node#name".
func from(c class, text string) claim {
	node, name, _ := strings.Cut(text, "#")
	return claim{c, node, name}
}

// ask requests n places for a caller, in order, and returns how many it holds when all calls are blocked.
func (c *crowd) ask(ctx context.Context, cl class, who string, n int) int {
	for range n {
		c.wg.Go(func() {
			p, err := c.a.enter(ctx, time.Time{}, from(cl, who))
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.errs = append(c.errs, err)
				return
			}
			c.held[who] = append(c.held[who], p)
			c.order = append(c.order, who)
		})
		synctest.Wait()
	}
	return c.has(who)
}

func (c *crowd) has(who string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held[who])
}

// end ends n calls of who.
func (c *crowd) end(who string, n int) {
	for range n {
		c.mu.Lock()
		p := c.held[who][0]
		c.held[who] = c.held[who][1:]
		c.mu.Unlock()
		c.a.leave(p)
		synctest.Wait()
	}
}

// close ends all calls, also those that start because of it, and checks that none is left.
func (c *crowd) close() {
	for more := true; more; {
		more = false
		for who, held := range c.held {
			c.end(who, len(held))
			more = more || len(held) > 0
		}
	}
	c.wg.Wait()
	if !c.a.unused() || c.a.used != [classes]int{} || c.a.waiting != [classes]int{} {
		c.t.Errorf("afterwards %v are used and %v wait", c.a.used, c.a.waiting)
	}
}

// Of one key's 64 slow calls 16 run, of four keys' 28, and a new caller gets a place at once.
func TestCallsPerKeyAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 64)
		defer c.close()
		for i, want := range []int{16, 4, 4, 4} {
			who := fmt.Sprint("attacker", i)
			if n := c.ask(t.Context(), untrusted, who, 64); n != want {
				t.Errorf("%s has %d places, want %d", who, n, want)
			}
			if i == 0 || i == 3 {
				if n := c.ask(t.Context(), untrusted, "honest", 4); n != 4 {
					t.Errorf("with %d attackers a new caller has %d places of 4", i+1, n)
				}
				c.end("honest", 4)
			}
		}
		if n := c.a.used[untrusted]; n > 32 {
			t.Errorf("untrusted callers have %d places of 64", n)
		}
	})
}

// 64 unknown keys fill the untrusted half, 64 known ones a quarter more; the rest stays free.
func TestUnknownKeysLeavePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 64)
		defer c.close()
		flood := func(cl class) {
			for i := range 64 {
				c.ask(t.Context(), cl, fmt.Sprint(cl, "-", i), 2)
			}
		}
		flood(untrusted)
		if n := c.a.used[untrusted]; n != 32 {
			t.Errorf("64 fresh keys have %d places, want half", n)
		}
		if n := c.ask(t.Context(), known, "friend", 4); n != 4 {
			t.Errorf("a known peer has %d places of 4", n)
		}
		flood(known)
		if n := c.a.used[untrusted] + c.a.used[known]; n != 48 {
			t.Errorf("fresh and known keys have %d places, want three quarters", n)
		}
		if n := c.ask(t.Context(), allowed, "chosen", 1); n != 1 {
			t.Error("a partner has no place")
		}
		flood(allowed)
		if n := c.a.used[untrusted] + c.a.used[known] + c.a.used[allowed]; n != 56 {
			t.Errorf("others than the owner have %d places, want all but an eighth", n)
		}
		if n := c.ask(t.Context(), owner, "", 8); n != 8 {
			t.Errorf("the owner has %d places of 8", n)
		}
		// Known keys leave places to unknown ones.
		for i := range 64 {
			c.end(fmt.Sprint(untrusted, "-", i), c.has(fmt.Sprint(untrusted, "-", i)))
		}
		if n := c.a.used[known]; n > 32 {
			t.Errorf("known keys have %d places of 64", n)
		}
	})
}

// One consumer does not get all places of its node. Another one gets a place at once, and all together have no more than the node.
func TestConsumersOfANodeLeavePlaces(t *testing.T) {
	t.Parallel()
	for cl, all := range map[class]int{untrusted: 16, allowed: 42, owner: 64} {
		synctest.Test(t, func(t *testing.T) {
			c := newCrowd(t, 64)
			defer c.close()
			if n := c.ask(t.Context(), cl, "node#slow", 80); n != all-all/8 {
				t.Errorf("class %d: %d of the first consumer run, want %d", cl, n, all-all/8)
			}
			if n := c.ask(t.Context(), cl, "node#next", 1); n != 1 {
				t.Errorf("class %d: the second consumer waits", cl)
			}
			for i := range 20 {
				c.ask(t.Context(), cl, fmt.Sprint("node#invented", i), 10)
			}
			if used := c.a.used[cl]; used != all {
				t.Errorf("class %d: %d run of all, want %d", cl, used, all)
			}
		})
	}
}

// For every number of places each class can have one, the sums fit, and a fifth caller gets a place after four.
func TestShares(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 300; n++ {
		s := shares(n)
		for c := untrusted; c <= owner; c++ {
			if s[c].class < 1 || s[c].below < 1 || s[c].each < 1 || s[c].below > n || c > untrusted && s[c].below < s[c-1].below {
				t.Fatalf("%d places: class %d has %+v", n, c, s[c])
			}
		}
		if n > 1 && s[allowed].below >= n {
			t.Errorf("%d places: none is the owner's", n)
		}
		if u := s[untrusted]; n >= 16 && max(u.class-u.spare, u.each)+3*u.each >= u.class {
			t.Errorf("%d places: four keys fill %+v", n, u)
		}
	}
}

// Nodes take turns regardless of their queues, and so do the consumers of a node.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2)
		defer c.close()
		c.ask(t.Context(), untrusted, "first", 1) // the one place of untrusted callers
		for _, who := range []string{"a#x", "a#x", "a#x", "a#y", "b", "b", "a#z"} {
			c.ask(t.Context(), untrusted, who, 1)
		}
		for range 7 {
			c.end(c.order[len(c.order)-1], 1)
		}
		want := []string{"first", "a#x", "b", "a#y", "b", "a#z", "a#x", "a#x"}
		if !slices.Equal(c.order, want) {
			t.Errorf("places went to %v, want %v", c.order, want)
		}
	})
}

// Callers below their share are served before those above it.
func TestHigherClassesAreServedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 32) // untrusted: 16, 2 each, 8 spare
		defer c.close()
		c.ask(t.Context(), owner, "", 16)
		c.ask(t.Context(), untrusted, "greedy", 20) // 8 of its own
		c.ask(t.Context(), owner, "", 8)
		c.ask(t.Context(), untrusted, "poor", 1)
		c.ask(t.Context(), known, "friend", 1)
		c.ask(t.Context(), owner, "", 1)
		if c.has("poor")+c.has("friend") != 0 || c.has("") != 24 {
			t.Fatalf("%v hold places of 32", c.order)
		}
		c.order = nil
		c.end("greedy", 4)
		if want := []string{"", "friend", "poor"}; !slices.Equal(c.order[:3], want) || len(c.order) != 3 {
			t.Errorf("places went to %v, want %v and none to callers above their share", c.order, want)
		}
	})
}

// The peer with the longest queue makes room; if it is the caller, its call is rejected.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2) // 32 of a class wait, 8 of a node, 4 of a consumer
		defer c.close()
		c.ask(t.Context(), untrusted, "first", 1)
		c.ask(t.Context(), untrusted, "a#x", 5)
		if len(c.errs) != 1 || c.errs[0] != errFull {
			t.Errorf("of 5 of one consumer: %v, want one refused", c.errs)
		}
		c.ask(t.Context(), untrusted, "a#y", 4)
		c.ask(t.Context(), untrusted, "a#z", 1)
		if len(c.errs) != 2 {
			t.Errorf("of 9 of a node %d are refused, want one", len(c.errs)-1)
		}
		for i := range 3 {
			c.ask(t.Context(), untrusted, fmt.Sprint("b", i, "#x"), 4)
			c.ask(t.Context(), untrusted, fmt.Sprint("b", i, "#y"), 4)
		}
		if c.errs = nil; c.a.waiting[untrusted] != 32 {
			t.Fatalf("%d wait, want 32", c.a.waiting[untrusted])
		}
		c.ask(t.Context(), untrusted, "honest", 4)
		if n := c.a.peers[peerKey{untrusted, "honest"}].waiting; n != 4 || len(c.errs) != 4 || c.a.waiting[untrusted] != 32 {
			t.Errorf("%d of 4 of a newcomer wait, %d of others are refused", n, len(c.errs))
		}
		if d := c.a.after(); d < minAfter || d > maxAfter {
			t.Errorf("to be tried again after %v", d)
		}
	})
}

// Waiting ends with the context or the deadline, and leaves no state.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1)
		defer c.close()
		c.ask(t.Context(), owner, "", 1)
		ctx, cancel := context.WithCancel(t.Context())
		c.ask(ctx, known, "a", 2)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		c.ask(short, untrusted, "b", 1)
		if _, err := c.a.enter(t.Context(), time.Now().Add(time.Second), claim{class: untrusted, node: "c"}); err != errLate {
			t.Errorf("at its deadline: %v", err)
		}
		cancel()
		synctest.Wait()
		late := func(err error) bool { return err == errLate }
		left := func(err error) bool { return errors.Is(err, context.Canceled) }
		if len(c.errs) != 3 || !slices.ContainsFunc(c.errs, late) || !slices.ContainsFunc(c.errs, left) || c.a.waiting != [classes]int{} {
			t.Errorf("%v; %v wait", c.errs, c.a.waiting)
		}
		if len(c.a.peers) != 1 {
			t.Errorf("%d callers are remembered, want the one that runs", len(c.a.peers))
		}
	})
}

// For random operations no call waits that could run, and the counters are right.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		c := newCrowd(t, 40)
		defer c.close()
		for range 3000 {
			who, cl := string(rune('a'+r.IntN(3))), class(r.IntN(int(classes)))
			who = fmt.Sprint(who, cl, "#", []string{"", "a", "b"}[r.IntN(3)])
			switch n := c.has(who); {
			case r.IntN(5) < 2 && n > 0:
				c.end(who, r.IntN(n)+1)
			case r.IntN(3) == 0:
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(100)))
				c.ask(ctx, cl, who, 1)
				time.Sleep(time.Duration(r.IntN(100)))
				defer cancel()
			default:
				c.ask(t.Context(), cl, who, 1)
			}
			synctest.Wait()
			c.check()
		}
	})
}

// check compares the counters of an admission with its content.
func (c *crowd) check() {
	c.t.Helper()
	a := c.a
	a.mu.Lock()
	defer a.mu.Unlock()
	var used, waiting [classes]int
	for k, p := range a.peers {
		used[k.class] += p.running
		waiting[k.class] += p.waiting
		running, calls := 0, 0
		for name, l := range p.lines {
			running, calls = running+l.running, calls+l.calls.Len()
			if l.calls.Len() > 0 && a.fitsLocked(p, l) || l.running+l.calls.Len() == 0 {
				c.t.Fatalf("%q of %v waits and might run, or has nothing: %v used", name, k, a.used)
			}
		}
		if running != p.running || calls != p.waiting {
			c.t.Fatalf("%v has %d and waits with %d, its consumers %d and %d", k, p.running, p.waiting, running, calls)
		}
	}
	sum := 0
	for k := range used {
		if sum += used[k]; used[k] > a.shares[k].class || sum > a.shares[k].below {
			c.t.Fatalf("used %v, more than %+v", used, a.shares)
		}
	}
	if used != a.used || waiting != a.waiting {
		c.t.Fatalf("used %v and waiting %v, but counted %v and %v", used, waiting, a.used, a.waiting)
	}
}

// A place that is granted while its caller leaves is released.
func TestLastMoment(t *testing.T) {
	t.Parallel()
	a := newAdmission(1)
	for range 300 {
		held, _ := a.enter(t.Context(), time.Time{}, claim{class: owner})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if p, err := a.enter(ctx, time.Time{}, claim{class: owner}); err == nil {
				a.leave(p)
			}
		})
		wg.Go(cancel)
		wg.Go(func() { a.leave(held) })
		wg.Wait()
		if !a.unused() {
			t.Fatalf("%v used and %v waiting", a.used, a.waiting)
		}
	}
}

func TestPlacesAllocate(t *testing.T) {
	a := newAdmission(64)
	c := claim{class: known, node: "did:key:z6Mk"}
	if n := testing.AllocsPerRun(100, func() {
		p, _ := a.enter(t.Context(), time.Time{}, c)
		a.leave(p)
	}); n != 0 {
		t.Errorf("%v allocations without waiting calls", n)
	}
}
