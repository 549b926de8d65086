package hub

import (
	"cmp"
	"context"
	"fmt"

	"github.com/lmosd/lmosd/interact"
)

// Limits of a batch of events from the ring. A batch stays in memory while it is yielded, even after the ring has dropped it.
const (
	batchEvents = 64
	batchBytes  = 16 << 10
)

// A subscriber is one consumer of a topic. The goroutine of the consumer owns it.
type subscriber struct {
	topic  *topic
	m      *interact.Message // the request
	run    *run              // that it follows
	at     uint64            // the number of the next event that it reads
	joined uint64            // before this number it catches up and may lag
	seen   string            // the ID of the last event yielded
	batch  []*interact.Message
}

// deliver yields events until the consumer leaves, ctx or the run ends, or the consumer is too slow.
func (s *subscriber) deliver(ctx context.Context, yield func(*interact.Message, error) bool) {
	corr := cmp.Or(s.m.Correlation, s.m.ID)
	for {
		if err := ctx.Err(); err != nil {
			yield(nil, err)
			return
		}
		wait, over, err := s.take()
		switch {
		case err != nil:
			yield(nil, err)
			return
		case over:
			return
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
			}
			continue
		}
		for i, e := range s.batch {
			r := *e
			s.batch[i] = nil
			r.Correlation, r.TraceParent, r.TraceState = corr, s.m.TraceParent, s.m.TraceState
			s.seen = r.ID
			if !yield(&r, nil) {
				return
			}
		}
	}
}

// take reads the next events into the batch. If there are none, it returns the channel to wait for, or the end of the run; or the
// error of the agent, or of a slow consumer.
func (s *subscriber) take() (wait <-chan struct{}, over bool, err error) {
	t := s.topic
	clear(s.batch) // releases the events
	s.batch = s.batch[:0]
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.nextLocked()
	if s.run.over {
		end = s.run.end
	}
	waiting := end - s.at
	switch {
	case waiting == 0 && s.run.over:
		return nil, true, s.run.err
	case waiting == 0:
		if t.wake == nil {
			t.wake = make(chan struct{})
		}
		return t.wake, false, nil
	case s.at < t.first, s.at >= s.joined && waiting > uint64(t.hub.o.Queue):
		return nil, false, s.slow(waiting)
	}
	from := t.events[s.at-t.first : end-t.first]
	bytes := int64(0)
	for _, e := range from[:min(len(from), batchEvents)] {
		if bytes += int64(len(e.Data)); bytes > batchBytes && len(s.batch) > 0 {
			break
		}
		s.batch = append(s.batch, e)
	}
	s.at += uint64(len(s.batch))
	return nil, false, nil
}

// slow returns the error of a consumer that is too slow.
func (s *subscriber) slow(waiting uint64) error {
	hint := "read faster, and subscribe again"
	if s.seen != "" {
		hint = fmt.Sprintf("read faster, and subscribe again with After %q to receive the kept events", s.seen)
	}
	return interact.Errorf(interact.Overloaded, hint, "the consumer reads too slowly: %d events waited", waiting)
}
