package keylock

import (
	"strconv"
	"sync"
	"testing"
)

func TestLocks(t *testing.T) {
	t.Parallel()
	var l Locks
	counts := make([]int, 3)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 300 {
				unlock := l.Lock(strconv.Itoa(i % 3))
				counts[i%3]++ // the race detector reports a missing lock
				unlock()
			}
		})
	}
	all.Wait()
	if counts[0] != 800 || counts[1] != 800 || counts[2] != 800 {
		t.Errorf("%v, want 800 of each", counts)
	}
	if len(l.locks) != 0 {
		t.Errorf("%d locks are left", len(l.locks))
	}
}

func TestKeysAreIndependent(t *testing.T) {
	t.Parallel()
	var l Locks
	defer l.Lock("a")()
	l.Lock("b")() // does not wait for a
}
