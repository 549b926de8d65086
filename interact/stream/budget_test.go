package stream

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// A ration is a scope with an upper bound.
type ration struct {
	tally
	limit int
}

func (s *ration) ReserveMemory(n int, prio uint8) error {
	if s.reserved+n > s.limit {
		return errors.New("resource limit exceeded")
	}
	return s.tally.ReserveMemory(n, prio)
}

func TestBudgetReservesInSteps(t *testing.T) {
	t.Parallel()
	scope := &ration{limit: 1 << 30}
	m := budget{scope: scope}
	for _, step := range []struct {
		take int // or give, if negative
		want int // reserved
	}{
		{1, slab}, {slab - 1, slab}, {1, 2 * slab}, {-1, 2 * slab}, {slab, 2 * slab}, {5 * slab, 7 * slab},
		{-slab, 7 * slab}, {-5 * slab, 2 * slab}, {-slab, 2 * slab},
	} {
		if step.take > 0 {
			if err := m.take(step.take); err != nil {
				t.Fatal(err)
			}
		} else {
			m.give(-step.take)
		}
		if scope.reserved != step.want {
			t.Errorf("after %+d bytes %d are reserved, want %d", step.take, scope.reserved, step.want)
		}
	}
}

func TestBudgetRefuses(t *testing.T) {
	t.Parallel()
	scope := &ration{limit: 2 * slab}
	m := budget{scope: scope}
	if err := m.take(slab); err != nil {
		t.Fatal(err)
	}
	if err := m.take(slab + 1); !errors.Is(err, errMemory) {
		t.Errorf("got %v, want errMemory", err)
	}
	if err := m.take(slab); err != nil {
		t.Errorf("a refusal took something away: %v", err)
	}
}

// TestBudgetIsExact: what is reserved covers what is used, and not much more.
func TestBudgetIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		scope := &ration{limit: 8 * slab}
		m := budget{scope: scope}
		var used []int
		sum := 0
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if len(used) > 0 && rapid.Bool().Draw(t, "give") {
				n := used[len(used)-1]
				used, sum = used[:len(used)-1], sum-n
				m.give(n)
			} else if n := rapid.IntRange(0, 3*slab).Draw(t, "take"); m.take(n) == nil {
				used, sum = append(used, n), sum+n
			}
			if scope.reserved < sum || scope.reserved >= sum+5*slab || scope.reserved-int(m.free.Load()) != sum {
				t.Fatalf("%d bytes reserved, %d of them free, for %d that are used", scope.reserved, m.free.Load(), sum)
			}
		}
	})
}
