package publication

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Registrations end in time, also after an extension, a change without an end, and a full disk.
func TestRegistrationsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = d.endRegistrations(ctx) })
		defer run.Wait()
		defer cancel()
		publish := func(thing string, ttl float64) {
			t.Helper()
			if _, err := d.Publisher.publish(ctx, tool(thing, thing), nil, Registration{TTL: ttl}); err != nil {
				t.Fatal(err)
			}
		}
		check := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for _, thing := range []string{"urn:x:a", "urn:x:b", "urn:x:c", "urn:x:d"} {
				offered := false
				for _, w := range want {
					offered = offered || w == thing
				}
				if d.Offers(thing) != offered {
					t.Errorf("%s: offered %v", thing, !offered)
				}
			}
		}
		publish("urn:x:a", 7200)
		publish("urn:x:b", 10) // earlier than the one before
		publish("urn:x:c", 20)
		publish("urn:x:d", 20)
		publish("urn:x:d", 0) // no end any longer
		if err := d.extend(ctx, "urn:x:c", Registration{TTL: 40}, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second - 1)
		check("urn:x:a", "urn:x:b", "urn:x:c", "urn:x:d")
		time.Sleep(time.Nanosecond)
		check("urn:x:a", "urn:x:c", "urn:x:d")
		time.Sleep(29 * time.Second)
		check("urn:x:a", "urn:x:c", "urn:x:d")
		d.disk.fail(syscall.ENOSPC)
		time.Sleep(time.Second)
		check("urn:x:a", "urn:x:c", "urn:x:d")
		d.disk.fail(nil)
		time.Sleep(retryEnd)
		check("urn:x:a", "urn:x:d")
		time.Sleep(2 * time.Hour)
		check("urn:x:d")
		if n := len(d.Index.ends.queue) + len(d.Index.ends.things); n != 0 {
			t.Errorf("%d ends are left", n)
		}
		// After a restart, the registrations of the store end.
		publish("urn:x:a", 5)
		next := d.restart(time.Now())
		if things := next.Index.ended(time.Now().Add(5 * time.Second)); len(things) != 1 || things[0] != "urn:x:a" {
			t.Errorf("after a restart %v end", things)
		}
		if err := next.endRegistration(ctx, "urn:x:d"); err != nil || !next.Offers("urn:x:d") {
			t.Errorf("a Thing without an end: %v", errors.Join(err))
		}
	})
}
