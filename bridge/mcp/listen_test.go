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
		_, ended := s.awake(t.Context())
		leave := s.use()
		ended() // by the program
		leave()
		ctx, stop := s.awake(t.Context())
		defer stop()
		time.Sleep(2 * idleAfter)
		if ctx.Err() == nil {
			t.Error("it is listened to, and nobody has asked for long")
		}
		woken := make(chan struct{})
		go func() {
			defer close(woken)
			s.asleep(t.Context())
		}()
		synctest.Wait()
		s.use()()
		<-woken
	})
}
