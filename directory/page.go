package directory

import (
	"context"
	"slices"
	"time"

	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/td"
)

// A Page is a part of a list of Things.
type Page struct {
	Items []Item
	Total int // length of the list
	// Version identifies the state of the list, also after a restart: lists with equal versions have the same Things in the same order. A
	// changed description may change it, too.
	Version uint64
}

// An Item is a Thing of a [Page]. Its typed view is made on demand.
type Item struct {
	d    *Directory
	view *view
	own  bool
}

// Record returns the record, which is read-only.
func (i Item) Record() *td.Record { return i.view.record }

// TD returns the TD as its owner signed it. The caller must not modify it.
func (i Item) TD() []byte { return i.view.body() }

// Own reports whether this node publishes the thing.
func (i Item) Own() bool { return i.own }

// Description returns the verified description.
func (i Item) Description() *td.Description { return i.d.views.describe(i.view) }

// Page returns the matches of q from offset on, at most limit, ascending by id and then owner, and their total number. It ignores Limit and
// Counter of q, and does not rank. It queries no sources, and waits until the Things of this node are loaded. A query that the index
// cannot decide alone, with a capability and a version, costs about 50 µs per candidate. Total and Version are those of the list that the caller of ctx may see.
func (d *Directory) Page(ctx context.Context, q td.Query, offset, limit int) Page {
	return d.pageWithin(ctx, q, offset, limit)
}

// pageWithin is Page within lists.
func (d *Directory) pageWithin(ctx context.Context, q td.Query, offset, limit int, within ...*index.List) Page {
	if d.opts.Own != nil && d.opts.Own.Await(ctx, td.Ref{Name: q.ID}) != nil { // a page cannot say that Things are missing
		return Page{} // the caller has left
	}
	return d.page(ctx, &q, max(offset, 0), max(limit, 0), within...)
}

// PageOwn is [Directory.Page] for Things that this node publishes.
func (d *Directory) PageOwn(ctx context.Context, q td.Query, offset, limit int) Page {
	return d.pageWithin(ctx, q, offset, limit, &d.own)
}

func (d *Directory) page(ctx context.Context, q *td.Query, offset, limit int, within ...*index.List) (p Page) {
	d.dropExpired(time.Now())
	r := d.reader(ctx)
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	s := d.sightLocked(&r)
	if s.cheap {
		p.Version = d.versionLocked(&s)
	}
	if c.Exact && s.cheap {
		defer d.mu.RUnlock()
		p.Items, p.Total = d.itemsLocked(c.In(offset, limit, s.filter())), s.countLocked(&c)
		return p
	}
	all := d.itemsLocked(c.In(0, len(d.live), nil))
	d.mu.RUnlock()
	matches := r.matches(q, c.Exact)
	all = slices.DeleteFunc(all, func(i Item) bool { return !matches(i.view.peek()) })
	if !s.cheap {
		for _, i := range all {
			p.Version += digestOf(i.view.record.Key(), i.view.record)
		}
	}
	p.Total, p.Items = len(all), part(all, offset, limit)
	return p
}

// part returns at most limit elements from offset on.
func part[T any](all []T, offset, limit int) []T {
	from := min(offset, len(all))
	return all[from : from+min(limit, len(all)-from)]
}

// dropExpired removes expired Things from the index.
func (d *Directory) dropExpired(now time.Time) {
	d.mu.RLock()
	due := len(d.live) > 0 && !alive(d.live[0].view.record, now)
	d.mu.RUnlock()
	if due {
		d.dropDue(now)
	}
}

func (d *Directory) itemsLocked(slots []uint32) []Item {
	items := make([]Item, len(slots))
	for i, slot := range slots {
		e := d.slots[slot]
		items[i] = Item{d: d, view: e.view, own: e.own}
	}
	return items
}
