// Package journal keeps what a node did lately in bounded memory: events, samples of its load, and the interactions of its consumers.
package journal

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/api"
)

// Limits of the events. With those of the calls and of the samples, a journal has at most 8 MB.
const (
	maxEvents = 10_000
	maxBytes  = 3 << 20 // of the texts of all events
	maxText   = 512     // of one text, in bytes
)

// A Journal has the last 10,000 events, samples of 15 minutes and 500 calls. Nothing in it survives a restart. Writers never wait for readers: a
// reader that is too slow misses events, and gets the number of the last missing one. It is safe for concurrent use.
type Journal struct {
	readers atomic.Int64
	opened  chan struct{} // has an element after the first reader came

	mu sync.Mutex
	// mu owns the following fields.
	events ring[api.NodeEvent]
	bytes  int    // of the texts of events
	seq    uint64 // of the last event or ended call
	mark   uint64 // the highest result of Mark
	lost   uint64 // the number of the last event that was dropped, or of the last one before the start
	more   notice // of events
	any    notice // of events and ended calls

	calls   callLog
	samples samples
}

// New returns an empty journal. Its numbers start after those of earlier runs, which average less than one event per microsecond.
func New() *Journal {
	start := uint64(time.Now().UnixMicro())
	j := &Journal{opened: make(chan struct{}, 1), seq: start, lost: start}
	j.calls.lost = start
	return j
}

// Add appends an event. It sets Seq and At, and shortens texts that are too long.
func (j *Journal) Add(e api.NodeEvent) {
	for _, text := range []*string{&e.Name, &e.Code, &e.Text, &e.ID, &e.TraceID} {
		*text = short(*text)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Seq, e.At = j.nextLocked()
	if j.bytes += sizeOf(&e); j.events.n == maxEvents {
		j.dropLocked()
	}
	j.events.push(e, maxEvents)
	for j.bytes > maxBytes && j.events.n > 1 {
		j.dropLocked()
	}
	j.more.notify()
	j.any.notify()
}

// Changed adds the event of a change that the audit log records (audit.Log.OnChange): kind is one of its kinds.
func (j *Journal) Changed(kind, detail string) {
	event := api.EventTrustChanged
	switch kind {
	case "policy":
		event = api.EventTrustPolicy
		j.Add(api.NodeEvent{Kind: api.EventConfigReloaded, Text: "access rules"})
	case "token":
		event = api.EventTrustToken
	case "key":
		event = api.EventTrustKey
	}
	j.Add(api.NodeEvent{Kind: event, Text: detail})
}

// nextLocked returns the number of the next event, and its time. The numbers are times: consecutive ones would count the events that a reader may
// not see.
func (j *Journal) nextLocked() (uint64, time.Time) {
	now := time.Now()
	j.seq = max(j.seq+1, j.mark+1, uint64(now.UnixMicro()))
	return j.seq, now.UTC()
}

func (j *Journal) dropLocked() {
	first := j.events.pop()
	j.bytes, j.lost = j.bytes-sizeOf(&first), first.Seq
}

// sizeOf returns the bytes of the texts of an event.
func sizeOf(e *api.NodeEvent) int {
	return len(e.DID) + len(e.Thing) + len(e.Name) + len(e.Code) + len(e.Text) + len(e.ID) + len(e.TraceID)
}

// short returns text without what exceeds the limit. The copy does not keep a larger text in memory.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:maxText]), "") + "…"
}

// Mark returns a number after the last event or ended call, and before the next one. It does not tell when the last one was.
func (j *Journal) Mark() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mark = max(j.mark, j.seq, uint64(time.Now().UnixMicro()))
	return j.mark
}

// Events returns up to most events with numbers after after and up to upTo, oldest first. If events after the number after are not kept any more,
// lost is the number of the last of them, else 0. A number from another journal, after all of this one, is like 0.
func (j *Journal) Events(after, upTo uint64, most int) (found []api.NodeEvent, lost uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if after < j.lost {
		lost = j.lost
	}
	for i := j.events.search(func(e *api.NodeEvent) bool { return e.Seq > after }); i < j.events.n && len(found) < most; i++ {
		e := j.events.at(i)
		if e.Seq > upTo {
			break
		}
		found = append(found, *e)
	}
	return found, lost
}

// Before returns the number after which the last n events come, or all if there are fewer.
func (j *Journal) Before(n int) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n >= j.events.n {
		return j.lost
	}
	return j.events.at(j.events.n - n - 1).Seq
}

// More returns a channel that is closed when there is an event, or with calls an ended call, with a number after after.
func (j *Journal) More(after uint64, calls bool) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.events.n > 0 && j.events.at(j.events.n-1).Seq > after || calls && j.calls.last > after {
		return closed
	}
	if calls {
		return j.any.wait()
	}
	return j.more.wait()
}

// Open counts a reader, for whom sources of events may work more often, until release is called.
func (j *Journal) Open() (release func()) {
	if j.readers.Add(1) == 1 {
		select {
		case j.opened <- struct{}{}:
		default:
		}
	}
	return sync.OnceFunc(func() { j.readers.Add(-1) })
}

// IsRead reports whether there are readers.
func (j *Journal) IsRead() bool { return j.readers.Load() > 0 }

// Watch calls compare when it begins, each step, and each second while there are readers, until ctx ends. sampled is true for the calls of the steps.
func (j *Journal) Watch(ctx context.Context, compare func(sampled bool)) {
	compare(false)
	for due := time.Now().Add(Step); ; {
		pause := time.Until(due)
		if j.IsRead() {
			pause = min(pause, time.Second)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-j.opened: // the pause is shorter now
			timer.Stop()
			continue
		case <-timer.C:
		}
		now := time.Now()
		sampled := !now.Before(due)
		if sampled {
			if due = due.Add(Step); !due.After(now) { // the process was suspended
				due = now.Add(Step)
			}
		}
		compare(sampled)
	}
}

// closed is a channel that is closed.
var closed = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// A notice wakes those who wait for the next element; without any it costs nothing. Its owner holds a lock.
type notice struct{ c chan struct{} }

func (n *notice) notify() {
	if n.c != nil {
		close(n.c)
		n.c = nil
	}
}

// wait returns a channel that the next notify closes.
func (n *notice) wait() <-chan struct{} {
	if n.c == nil {
		n.c = make(chan struct{})
	}
	return n.c
}
