package directory

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// A ChangeKind is the kind of a change.
type ChangeKind int

// The kinds of changes.
const (
	Added ChangeKind = iota + 1
	Changed
	Removed
	// Overflow reports that earlier changes were dropped: read everything again. It has no Thing.
	Overflow
)

// A Reason is the cause of a change.
type Reason int

// The causes of changes.
const (
	Published   Reason = iota + 1 // Added: new; Changed: a newer description
	Unreachable                   // Changed: all hosts are unreachable; with Reachable, at most twice in 10 s per host
	Reachable                     // Changed: a host is reachable again
	Withdrawn                     // Removed: by its owner
	Moved                         // Removed: to another id or owner, the successor in the record
	Expired                       // Removed: not refreshed
	Left                          // Removed, for watchers of a query: it no longer matches
	Discovered                    // Added or Changed, see [Directory.Notify]: found outside of the mesh
	Vanished                      // Removed: no longer found there
	Evicted                       // Removed: from a full index; the mesh may have it
)

// A Change is a change of one Thing.
type Change struct {
	// Seq numbers the changes of a directory. It ascends, also over restarts, and is a time.
	Seq    uint64
	Time   time.Time
	Kind   ChangeKind
	Reason Reason
	Thing  *td.Description // after the change, or the last one
	Was    *td.Description // before the change, if the description has changed; else nil
}

// as returns the change for watchers of q; false if it does not concern them.
func (c Change) as(r *reader, q *td.Query) (Change, bool) {
	if c.Kind == Overflow {
		return c, true
	}
	visible := r.sees(c.Thing)
	now, was := visible && q.Match(c.Thing), c.Was != nil && q.Match(c.Was) && r.sees(c.Was)
	if was && !visible {
		c.Thing = c.Was // the last description that they may receive
	}
	switch {
	case c.Was == nil || now && was:
		return c, now
	case now:
		c.Kind, c.Was = Added, nil
		return c, true
	case was:
		c.Kind, c.Reason, c.Was = Removed, Left, nil
		return c, true
	}
	return c, false
}

// Watch yields the changes of matches of q after the change with number after, or from now on if after is 0. At the end of ctx it yields the
// error of ctx. A change of kind [Overflow] replaces changes that were dropped because they are old or the loop is slow. Limit and Counter of
// q are ignored.
func (d *Directory) Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if after == 0 {
			after = d.changed.last()
		}
		p := did.PrincipalOf(ctx)
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
			r := d.readerFor(p)                        // rules may change
			current, _ := d.withMembers(ctx, q, false) // an organization that is not known any more has no members
			if c, ok := d.change(h).as(&r, &current); ok && !yield(c, nil) {
				return
			}
		}
	}
}

// Notify notifies watchers of a Thing outside of the directory. The kind is Added, Changed, with the earlier description, or Removed.
func (d *Directory) Notify(kind ChangeKind, why Reason, thing, was *td.Description) {
	h := logEntry{kind: kind, reason: why, thing: newView(thing), external: true}
	if was != nil {
		h.was = newView(was)
	}
	d.changed.add(h)
}

// change unpacks a recorded change.
func (d *Directory) change(h logEntry) Change {
	c := Change{Seq: h.seq, Time: h.time, Kind: h.kind, Reason: h.reason}
	if h.thing != nil {
		c.Thing = d.views.describe(h.thing)
	}
	if h.was != nil {
		c.Was = h.was.peek()
	}
	return c
}

// A logEntry is a recorded [Change].
type logEntry struct {
	seq        uint64
	time       time.Time
	kind       ChangeKind
	reason     Reason
	thing, was *view
	external   bool // the Thing is not in the index
}

// Limits of recorded changes.
const (
	maxChanges     = 16 << 10
	maxChangeBytes = 16 << 20
)

// changeLog has the latest changes. Its methods are safe for concurrent use.
type changeLog struct {
	// mu owns the following fields. It is acquired after Directory.mu.
	mu    sync.Mutex
	log   []logEntry    // oldest first
	sizes []int         // of log, in bytes
	bytes int           // their sum
	seq   uint64        // of the last change
	mark  uint64        // the highest of marked
	lost  uint64        // the number of the last change that was dropped, or of the last one before the start
	more  chan struct{} // closed by the next change; nil without waiters
}

// start starts the numbers after those of earlier runs, which average less than one change per microsecond.
func (l *changeLog) start(now time.Time) {
	l.seq = uint64(now.UnixMicro())
	l.lost = l.seq
}

// marked returns a number after the last change and before the next one, which does not depend on the last one.
func (l *changeLog) marked() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark = max(l.mark, l.seq, uint64(time.Now().UnixMicro()))
	return l.mark
}

func (l *changeLog) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seq
}

// before returns the number before the last n changes.
func (l *changeLog) before(n int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= len(l.log) {
		return l.lost
	}
	return l.log[len(l.log)-n-1].seq
}

// add numbers and appends a change. The numbers are times: consecutive ones would count the changes that a watcher may not see.
func (l *changeLog) add(h logEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.seq = max(l.seq+1, l.mark+1, uint64(now.UnixMicro()))
	h.seq, h.time = l.seq, now
	size := 128
	for _, v := range []*view{h.thing, h.was} {
		if v != nil && (v == h.was || h.kind == Removed || h.external) { // otherwise the index has it
			size += viewSize(v, 0)
		}
	}
	l.log, l.sizes, l.bytes = append(l.log, h), append(l.sizes, size), l.bytes+size
	for len(l.log) > maxChanges || l.bytes > maxChangeBytes && len(l.log) > 1 {
		l.bytes, l.lost = l.bytes-l.sizes[0], l.log[0].seq
		l.log[0] = logEntry{}
		l.log, l.sizes = l.log[1:], l.sizes[1:]
	}
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// following returns the first change after a number, or one of kind Overflow; or a channel that the next change closes.
func (l *changeLog) following(after uint64) (h logEntry, next <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if after < l.lost {
		return logEntry{seq: l.lost, time: time.Now(), kind: Overflow}, nil, true
	}
	at, _ := slices.BinarySearchFunc(l.log, after+1, func(h logEntry, seq uint64) int { return cmp.Compare(h.seq, seq) })
	if at == len(l.log) {
		if l.more == nil {
			l.more = make(chan struct{})
		}
		return h, l.more, false
	}
	return l.log[at], nil, true
}

// Latest returns the number of the last change. Reading everything and then watching after that number misses nothing.
func (d *Directory) Latest() uint64 { return d.changed.last() }

// Before returns the number after which the last n changes come, or all that are kept if there are fewer.
func (d *Directory) Before(n int) uint64 { return d.changed.before(n) }

// More returns a channel that is closed when there is a change after a number.
func (d *Directory) More(after uint64) <-chan struct{} {
	if _, next, ok := d.changed.following(after); !ok {
		return next
	}
	more := make(chan struct{})
	close(more)
	return more
}

// Mark is [Directory.Latest] for other programs: the number does not tell when the last change was, which they may not be permitted to see.
func (d *Directory) Mark() uint64 { return d.changed.marked() }
