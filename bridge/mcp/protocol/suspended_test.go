package protocol

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

// A requestState resumes its call once, for its caller, and until the timeout; the calls of one caller and of all callers are bounded.
func TestSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		expired := make(chan string, 2)
		s := &Suspended[string]{Sealer: opaque.New(""), Timeout: time.Minute, Max: 3, MaxEach: 2,
			Expired: func(call string) { expired <- call }}
		ada, eve := opaque.For{Purpose: "x", Caller: "ada"}, opaque.For{Purpose: "x", Caller: "eve"}
		suspend := func(b opaque.For, call string) string {
			t.Helper()
			state, err := s.Suspend(b, call)
			if err != nil {
				t.Fatalf("%s of %s: %v", call, b.Caller, err)
			}
			return state
		}
		refused := func(b opaque.For) {
			t.Helper()
			if _, err := s.Suspend(b, "more"); interact.AsError(err).Code != interact.Overloaded {
				t.Errorf("one more call of %s: got %v, want Overloaded", b.Caller, err)
			}
		}
		one := suspend(ada, "one")
		suspend(ada, "two")
		refused(ada)
		suspend(eve, "three")
		refused(eve)
		if _, e := s.Resume(eve, one); e == nil {
			t.Error("another caller resumed the call")
		}
		if call, e := s.Resume(ada, one); call != "one" || e != nil {
			t.Errorf("got %q, %v", call, e)
		}
		if _, e := s.Resume(ada, one); e == nil || e.Message != UsedStateError().Message {
			t.Errorf("a used state: got %v", e)
		}
		if err := s.Restore(ada, one, "one"); err != nil {
			t.Error(err)
		}
		if call, e := s.Resume(ada, one); call != "one" || e != nil {
			t.Errorf("after Restore: got %q, %v", call, e)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := []string{<-expired, <-expired}; !slices.Contains(got, "two") || !slices.Contains(got, "three") {
			t.Errorf("expired: %q", got)
		}
		last := suspend(ada, "last")
		s.Close()
		if _, e := s.Resume(ada, last); e == nil {
			t.Error("a call was resumed after Close")
		}
		refused(ada)
	})
}
