package stream

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// TestPace: calls that a host refused come again one after the other, new ones behind them, and only what has the time.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, k, begun := &pacer{}, paceKey{host: "did:key:z1", thing: "urn:x"}, time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var came []time.Duration
		note := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if came = append(came, time.Since(begun)); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			wg.Go(func() {
				again, err := p.refused(t.Context(), k, time.Time{}, time.Second)
				if !again {
					t.Error("there was time")
				}
				note(err)
			})
			synctest.Wait()
		}
		wg.Go(func() { note(p.turn(t.Context(), k, time.Time{})) })
		synctest.Wait()
		if again, _ := p.refused(t.Context(), k, begun.Add(4*time.Second), time.Second); again {
			t.Error("a call waits for a turn beyond its deadline")
		}
		if err := p.turn(t.Context(), k, begun.Add(4*time.Second)); err != nil || time.Since(begun) != 0 {
			t.Errorf("a call without time for its turn waits %v, %v; want it to go", time.Since(begun), err)
		}
		if err := p.turn(t.Context(), paceKey{host: "did:key:z1", thing: "urn:y"}, time.Time{}); err != nil || time.Since(begun) != 0 {
			t.Errorf("another thing waits %v, %v", time.Since(begun), err)
		}
		if err := p.turn(t.Context(), paceKey{host: "did:key:z1", thing: "urn:x", as: frame.As{Name: "crm"}}, time.Time{}); err != nil || time.Since(begun) != 0 {
			t.Errorf("another consumer waits %v, %v", time.Since(begun), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := p.refused(ctx, k, time.Time{}, time.Second); !errors.Is(err, context.Canceled) {
				t.Errorf("a call that was left: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		for i, at := range came {
			if at != time.Duration(i+1)*time.Second {
				t.Errorf("the calls came at %v, want them a second apart", came)
			}
		}
		time.Sleep(time.Minute)
		if p.sweep(time.Now()); p.busy.Load() != 0 || len(p.next) != 0 {
			t.Errorf("%d paces are kept when all is over", len(p.next))
		}
	})
}

// TestPacesAreBounded: beyond the bound calls wait for themselves.
func TestPacesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{}
		for i := range maxPaces + 10 {
			if p.after(paceKey{thing: time.Duration(i).String()}, time.Time{}, time.Second).IsZero() {
				t.Fatal("a call is not to come again")
			}
		}
		if len(p.next) != maxPaces || p.busy.Load() != maxPaces {
			t.Errorf("%d paces, want %d", len(p.next), maxPaces)
		}
		time.Sleep(2 * time.Second)
		if p.after(paceKey{thing: "last"}, time.Time{}, time.Second); len(p.next) != 1 || p.busy.Load() != 1 {
			t.Errorf("%d paces when the others are over", len(p.next))
		}
	})
}
