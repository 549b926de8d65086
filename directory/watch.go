package directory

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A ChangeKind says what happened to a thing.
type ChangeKind int

// What happens to things.
const (
	Added ChangeKind = iota + 1
	Changed
	Gone
	// Missed says that changes before this one are not remembered: look at everything anew. It has no thing.
	Missed
)

// A Reason says why.
type Reason int

// Why things come, change and go.
const (
	Published   Reason = iota + 1 // Added: it was not known; Changed: there is a newer description
	Unreachable                   // Changed: none of its hosts can be reached now; with Reachable, at most twice in 10 s of a host
	Reachable                     // Changed: one of them can again
	Withdrawn                     // Gone: by its owner
	Moved                         // Gone: to another id or owner, which the record's successor names
	Expired                       // Gone: nobody refreshed it
	Left                          // Gone, for who watches a query: it is there, and fits no longer
	Discovered                    // Added or Changed, see [Directory.Tell]: it was found somewhere else than in the mesh
	Vanished                      // Gone: it is no longer found there
	Evicted                       // Gone: it left a full index for what is worth more there; the mesh may have it
)

// A Change is one thing that came, changed or went.
type Change struct {
	// Seq numbers the changes of a directory. It ascends, and goes on above after a restart.
	Seq    uint64
	Time   time.Time
	Kind   ChangeKind
	Reason Reason
	Thing  *td.Description // as it is now, or as it last was
	Was    *td.Description // as it was before, if its description has changed; else nil
}

// as returns the change as who watches q sees it; false if it is none to him.
func (c Change) as(q *td.Query) (Change, bool) {
	if c.Kind == Missed {
		return c, true
	}
	now, was := q.Match(c.Thing), c.Was != nil && q.Match(c.Was)
	switch {
	case c.Was == nil || now && was:
		return c, now
	case now:
		c.Kind, c.Was = Added, nil
		return c, true
	case was:
		c.Kind, c.Reason, c.Was = Gone, Left, nil
		return c, true
	}
	return c, false
}

// Watch yields the changes of what q asks for that come after the one numbered after, until ctx ends, whose error it then
// yields; with 0, those that come from now on. A change that is no longer remembered, because it is old or because the loop is
// slow, is told by one of kind [Missed]. Limit and Tally of q mean nothing.
func (d *Directory) Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if after == 0 {
			after = d.changed.last()
		}
		for {
			h, next, ok := d.changed.following(after)
			if !ok {
				select {
				case <-next:
					continue
				case <-ctx.Done():
					yield(Change{}, ctx.Err())
					return
				}
			}
			after = h.seq
			if c, ok := d.change(h).as(&q); ok && !yield(c, nil) {
				return
			}
		}
	}
}

// Tell has those who watch hear of a thing that is no thing of the directory, and stays none: of kind Added, Changed, with what it was,
// or Gone.
func (d *Directory) Tell(kind ChangeKind, why Reason, thing, was *td.Description) {
	h := happening{kind: kind, why: why, thing: newView(thing), apart: true}
	if was != nil {
		h.was = newView(was)
	}
	d.changed.add(h)
}

// change unpacks what happened.
func (d *Directory) change(h happening) Change {
	c := Change{Seq: h.seq, Time: h.time, Kind: h.kind, Reason: h.why}
	if h.thing != nil {
		c.Thing = d.views.describe(h.thing)
	}
	if h.was != nil {
		c.Was = h.was.peek()
	}
	return c
}

// A happening is a [Change] as it is remembered.
type happening struct {
	seq        uint64
	time       time.Time
	kind       ChangeKind
	why        Reason
	thing, was *view
	apart      bool // the index does not have the thing
}

// Bounds of what is remembered of changes.
const (
	maxChanges     = 16 << 10
	maxChangeBytes = 16 << 20
)

// changeLog remembers the latest changes. Its methods are safe for concurrent use.
type changeLog struct {
	// mu owns what follows. It is taken after Directory.mu.
	mu    sync.Mutex
	log   []happening   // the eldest first
	sizes []int         // of log, in bytes
	bytes int           // their sum
	seq   uint64        // of the last change
	more  chan struct{} // closed by the next change; nil if nobody waits
}

// start has the numbers go on where no earlier run has been: no directory changes more than once in a microsecond for long.
func (l *changeLog) start(now time.Time) { l.seq = uint64(now.UnixMicro()) }

func (l *changeLog) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// add appends what happens now, and gives it its number.
func (l *changeLog) add(h happening) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	h.seq, h.time = l.seq, time.Now()
	size := 128
	for _, v := range []*view{h.thing, h.was} {
		if v != nil && (v == h.was || h.kind == Gone || h.apart) { // else the index has it
			size += weigh(v, 0)
		}
	}
	l.log, l.sizes, l.bytes = append(l.log, h), append(l.sizes, size), l.bytes+size
	for len(l.log) > maxChanges || l.bytes > maxChangeBytes && len(l.log) > 1 {
		l.bytes -= l.sizes[0]
		l.log[0] = happening{}
		l.log, l.sizes = l.log[1:], l.sizes[1:]
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// following returns the first change after the one numbered after, or that changes were missed; or a channel that is closed by
// the next change.
func (l *changeLog) following(after uint64) (h happening, next <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case after >= l.seq:
		if l.more == nil {
			l.more = make(chan struct{})
		}
		return h, l.more, false
	case len(l.log) == 0 || after+1 < l.log[0].seq:
		return happening{seq: l.seq - uint64(len(l.log)), time: time.Now(), kind: Missed}, nil, true
	}
	return l.log[after+1-l.log[0].seq], nil, true
}

// Latest returns the number of the last change: who then looks at everything, and watches after it, misses nothing.
func (d *Directory) Latest() uint64 { return d.changed.last() }
