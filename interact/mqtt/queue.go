package mqtt

import (
	"context"
	"sync"

	"github.com/lmosd/lmosd/interact"
)

const (
	maxQueued = 8 << 20 // bytes that wait for a slow consumer
	maxSeen   = 1024    // topics whose retained message was delivered
)

// An inbox is a bounded queue of messages for one consumer.
type inbox struct {
	limit int
	// once means that a lost connection ends the wait, because the response comes on the same connection.
	once bool
	// retained means that retained messages are accepted.
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

// push adds a message. If the limit is exceeded, the inbox ends with an error, because a message is lost.
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

// newLocked reports whether d is new. The retained message of a topic is delivered again for each subscription.
func (l *inbox) newLocked(d *delivery) bool {
	if d.retained && (!l.retained || l.seen[d.topic]) {
		return false
	}
	if l.retained && len(l.seen) < maxSeen {
		l.seen[d.topic] = true
	}
	return true
}

// renew accepts retained messages again: they may have changed while the connection was lost.
func (l *inbox) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}

// fail ends the inbox after the queued messages.
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

// next returns the oldest message, or the error that ended the inbox. The channel lost ends the wait; nil never does.
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
