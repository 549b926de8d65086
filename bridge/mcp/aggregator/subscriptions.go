package aggregator

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	// maxEvents bounds the stored events of one kind, and maxEventBytes the size of each.
	maxEvents     = 50
	maxEventBytes = 64 << 10
	// maxEventsBytes bounds the stored events of one kind, in bytes.
	maxEventsBytes = 256 << 10
)

// feeds are the subscriptions of one Thing: one per property or event with subscribers. Events are stored and can be read.
type feeds struct {
	t      *thing
	ctx    context.Context
	cancel context.CancelFunc

	mu  sync.Mutex
	all map[string]*feed // by kind and key
}

type feed struct {
	events      []json.RawMessage // the latest events, oldest first
	size        int               // bytes of events
	subscribers map[chan struct{}]bool
	stop        context.CancelFunc // nil while it is not running
	isEvent     bool
}

func newFeeds(t *thing) *feeds {
	f := &feeds{t: t, all: map[string]*feed{}}
	f.ctx, f.cancel = context.WithCancel(t.h.ctx)
	return f
}

func (f *feeds) close() { f.cancel() }

func feedName(key string, event bool) string {
	if event {
		return "events/" + key
	}
	return "properties/" + key
}

// join subscribes to changes of a resource until leave is called.
func (f *feeds) join(r *features.Resource) (changed <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	name := feedName(r.Key, r.Event)
	one := f.all[name]
	if one == nil {
		one = &feed{subscribers: map[chan struct{}]bool{}, isEvent: r.Event}
		f.all[name] = one
	}
	one.subscribers[c] = true
	if one.stop == nil {
		ctx, stop := context.WithCancel(f.ctx)
		one.stop = stop
		f.t.work.Go(func() { f.run(ctx, one, r) })
	}
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if delete(one.subscribers, c); len(one.subscribers) == 0 {
			one.stop()
			one.stop = nil
		}
	}
}

// run subscribes, and renews the subscription when it ends, until the last subscriber leaves.
func (f *feeds) run(ctx context.Context, one *feed, r *features.Resource) {
	pauses := backoff.Backoff{First: resubscribeDelay, Max: maxResubscribeDelay}
	for ctx.Err() == nil {
		kind := interact.ObserveProperty
		if r.Event {
			kind = interact.SubscribeEvent
		}
		m := &interact.Message{Type: kind, Thing: f.t.ref, Name: r.Key, ID: interact.NewID(), From: did.PrincipalOf(ctx)}
		for n, err := range f.t.h.o.Mesh.Do(ctx, m) {
			if err != nil {
				break
			}
			pauses.Reset()
			f.add(ctx, one, n)
		}
		_ = pauses.Sleep(ctx) // the loop checks the context
	}
}

func (f *feeds) add(ctx context.Context, one *feed, n *interact.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if one.isEvent && len(n.Data) <= maxEventBytes {
		one.keep(features.Event(n, time.Now()))
	}
	for c := range one.subscribers {
		signal(c)
	}
}

// keep stores an event and drops the oldest ones beyond the bounds.
func (one *feed) keep(event json.RawMessage) {
	one.events = append(one.events, event)
	for one.size += len(event); len(one.events) > maxEvents || one.size > maxEventsBytes && len(one.events) > 1; one.events = one.events[1:] {
		one.size -= len(one.events[0])
	}
}

// latest returns the stored events as a JSON array.
func (f *feeds) latest(key string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.all[feedName(key, true)]; one != nil && len(one.events) > 0 {
		return protocol.Encode(one.events)
	}
	return []byte("[]")
}
