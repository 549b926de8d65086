package mqtt

import (
	"context"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

const (
	maxQueued = 8 << 20 // bytes that wait for a slow consumer
	maxSeen   = 1024    // topics of which a listener knows that their retained message is old
)

// A listener is a bounded queue of messages for one consumer.
type inbox struct {
	limit int
	// once means that a lost connection is the end: who waits for an answer does not wait on another connection.
	once bool
	// retained means that messages from before the subscription are wanted.
	retained bool
	wake     chan struct{} // has room for one

	mu    sync.Mutex // guards the rest
	queue []*delivery
	size  int
	err   error
	seen  map[string]bool
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, wake: make(chan struct{}, 1), seen: map[string]bool{}}
}

// push adds a message. One too many ends the listener: it would miss something without knowing.
func (l *inbox) push(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || !l.newLocked(d) {
		return
	}
	if len(l.queue) >= l.limit || l.size+d.weight() > max(maxQueued, d.weight()) {
		l.failLocked(interact.Errorf(interact.Overloaded, "read faster, or observe less",
			"the consumer is too slow: %d messages wait", len(l.queue)))
		return
	}
	l.queue, l.size = append(l.queue, d), l.size+d.weight()
	l.ring()
}

// newLocked reports whether d is news. The retained message of a topic comes again when somebody else subscribes to it.
func (l *inbox) newLocked(d *delivery) bool {
	if d.retained && (!l.retained || l.seen[d.topic]) {
		return false
	}
	if l.retained && len(l.seen) < maxSeen {
		l.seen[d.topic] = true
	}
	return true
}

// renew forgets what was seen: the retained message may have changed while the connection was lost.
func (l *inbox) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}

// fail ends the listener when what is queued was read.
func (l *inbox) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failLocked(err)
}

func (l *inbox) failLocked(err error) {
	if l.err == nil {
		l.err = err
		l.ring()
	}
}

func (l *inbox) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next returns the oldest message, or why there will be none. lost ends the waiting, too; nil never does.
func (l *inbox) next(ctx context.Context, lost <-chan struct{}) (*delivery, error) {
	for {
		if d, err := l.take(); d != nil || err != nil {
			return d, err
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-lost:
			if d, err := l.take(); d != nil || err != nil {
				return d, err
			}
			return nil, errLost
		}
	}
}

func (l *inbox) take() (*delivery, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil, l.err
	}
	d := l.queue[0]
	l.queue[0] = nil
	l.queue, l.size = l.queue[1:], l.size-d.weight()
	return d, nil
}
