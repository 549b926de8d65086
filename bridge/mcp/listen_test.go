package mcp

import (
	"testing"
	"testing/synctest"
	"time"
)

// A program without callers has no permanent subscription, also if it ended one while there were callers.
func TestIdleServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{source: &source{}}
		_, ended := s.whileInUse(t.Context())
		leave := s.use()
		ended() // by the program
		leave()
		ctx, stop := s.whileInUse(t.Context())
		defer stop()
		time.Sleep(2 * idleAfter)
		if ctx.Err() == nil {
			t.Error("the subscription is active without calls")
		}
		woken := make(chan struct{})
		go func() {
			defer close(woken)
			s.waitForCall(t.Context())
		}()
		synctest.Wait()
		s.use()()
		<-woken
	})
}
