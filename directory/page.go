package directory

import (
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
// Counter of q, and does not rank. It queries no sources. A query that the index cannot decide alone, with a capability and a version,
// costs about 50 µs per candidate.
func (d *Directory) Page(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0))
}

// PageOwn is [Directory.Page] for Things that this node publishes.
func (d *Directory) PageOwn(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0), &d.own)
}

func (d *Directory) page(q *td.Query, offset, limit int, within ...*index.List) Page {
	d.dropExpired(time.Now())
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	p := Page{Version: d.index.Version}
	if c.Exact {
		p.Items, p.Total = d.itemsLocked(c.In(offset, limit))
		d.mu.RUnlock()
		return p
	}
	all, _ := d.itemsLocked(c.In(0, len(d.live)))
	d.mu.RUnlock()
	all = slices.DeleteFunc(all, func(i Item) bool { return !fits(q, i.view.peek()) })
	p.Total = len(all)
	from := min(offset, p.Total)
	p.Items = all[from : from+min(limit, p.Total-from)]
	return p
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

func (d *Directory) itemsLocked(slots []uint32, total int) ([]Item, int) {
	items := make([]Item, len(slots))
	for i, slot := range slots {
		e := d.slots[slot]
		items[i] = Item{d: d, view: e.view, own: e.own}
	}
	return items, total
}
