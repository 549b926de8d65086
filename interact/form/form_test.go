package form

import (
	"context"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
)

func TestDefaultDeadline(t *testing.T) {
	t.Parallel()
	within := func(m *interact.Message) (time.Time, bool) {
		ctx, cancel := Within(context.Background(), m)
		defer cancel()
		return ctx.Deadline()
	}
	until, _ := within(&interact.Message{Type: interact.ReadProperty})
	if left := time.Until(until); left < 25*time.Second || left > 30*time.Second {
		t.Errorf("got %v", left)
	}
	m := &interact.Message{Type: interact.ReadProperty, Deadline: time.Unix(1, 0)}
	if got, _ := within(m); !got.Equal(m.Deadline) {
		t.Errorf("got %v", got)
	}
	if _, ok := within(&interact.Message{Type: interact.ObserveProperty}); ok {
		t.Error("an observation has a deadline")
	}
}
