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

// A crowd calls an admission from within a bubble.
type crowd struct {
	t  *testing.T
	a  *admission
	wg sync.WaitGroup

	mu    sync.Mutex
	held  map[string][]place // by who
	order []string           // who got places
	errs  []error
}

func newCrowd(t *testing.T, places int) *crowd {
	return &crowd{t: t, a: newAdmission(places), held: map[string][]place{}}
}

// from is a claim of the caller that text names: "node" or "node#name".
func from(c class, text string) claim {
	node, name, _ := strings.Cut(text, "#")
	return claim{c, node, name}
}

// ask has a caller ask for n places, in this order, and returns how many it holds when all is quiet.
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

// close ends what runs, and what that lets run, to the end. Then nothing may be left.
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

// TestOneKeyLeavesPlaces: of one key's 64 slow calls 16 run, of four keys' 28, and a newcomer finds a place at once.
func TestOneKeyLeavesPlaces(t *testing.T) {
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
					t.Errorf("beside %d attackers an honest newcomer has %d places of 4", i+1, n)
				}
				c.end("honest", 4)
			}
		}
		if n := c.a.used[untrusted]; n > 32 {
			t.Errorf("untrusted callers have %d places of 64", n)
		}
	})
}

// TestFreshKeysDoNotTouchTheOthers: 64 keys fill the untrusted half, 64 that are known a quarter more; the rest stays.
func TestFreshKeysDoNotTouchTheOthers(t *testing.T) {
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
			t.Error("trust.allow buys no place")
		}
		flood(allowed)
		if n := c.a.used[untrusted] + c.a.used[known] + c.a.used[allowed]; n != 56 {
			t.Errorf("others than the owner have %d places, want all but an eighth", n)
		}
		if n := c.ask(t.Context(), owner, "", 8); n != 8 {
			t.Errorf("the owner has %d places of 8", n)
		}
		// Known keys do not starve those that nobody knows either.
		for i := range 64 {
			c.end(fmt.Sprint(untrusted, "-", i), c.has(fmt.Sprint(untrusted, "-", i)))
		}
		if n := c.a.used[known]; n > 32 {
			t.Errorf("known keys have %d places of 64", n)
		}
	})
}

// TestConsumersOfANodeLeavePlaces: of one consumer's slow calls not all run that its node may have. Another one of the same node finds a
// place at once, and all together have no more than the node without names.
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

// TestShares: whatever the number of places, each class can have one, the sums fit, and a fifth caller finds a place after four.
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

// TestTurns: nodes take turns, whatever they have waiting, and the consumers of a node take turns within it.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2)
		defer c.close()
		c.ask(t.Context(), untrusted, "first", 1) // the one place that strangers have
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

// TestHigherClassesAreServedFirst: and who has less than its share before who has more.
func TestHigherClassesAreServedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 32) // strangers: 16, 2 each, 8 spare
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
			t.Errorf("places went to %v, want %v and none to who has more than its share", c.order, want)
		}
	})
}

// TestFullQueue: who has most that wait makes room; who has most itself is refused.
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

// TestWaitingEnds with the context or the deadline, and leaves nothing.
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

// TestAnyOrder: whatever happens, nobody waits who could run, and the counts are right.
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

// check compares what an admission says with what is.
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

// TestLastMoment: a place that comes when its caller leaves is nobody's for ever.
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
		t.Errorf("%v allocations where nobody waits", n)
	}
}
