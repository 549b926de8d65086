package directory

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/td"
)

// A Page is a part of a list of things.
type Page struct {
	Items []Item
	Total int // things that the list has
	// Version names the state of the list, over restarts too: while it is the same, the list has the same things in the same
	// order. A thing whose description changes may change it, too.
	Version uint64
}

// An Item is a thing of a [Page]. Its bytes are at hand; its typed view is made when it is asked for.
type Item struct {
	d    *Directory
	view *view
	own  bool
}

// Record returns the record, which is read-only.
func (i Item) Record() *td.Record { return i.view.record }

// TD returns the TD as its owner signed it. The caller must not change it.
func (i Item) TD() []byte { return i.view.body() }

// Own reports whether this node publishes the thing.
func (i Item) Own() bool { return i.own }

// Description returns the verified description.
func (i Item) Description() *td.Description { return i.d.views.describe(i.view) }

// Page returns the things that q asks for from the one at offset on, at most limit, ascending by id and then owner, and how many
// there are. Limit and Tally of q mean nothing, and words do not rank: a list has one order. It asks nobody. A
// query whose answer lists alone cannot tell, one with a capability and a version, costs some 50 µs for each candidate.
func (d *Directory) Page(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0))
}

// PageOwn is [Directory.Page] of what this node publishes.
func (d *Directory) PageOwn(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0), &d.own)
}

func (d *Directory) page(q *td.Query, offset, limit int, within ...*index.List) Page {
	d.settle(time.Now())
	d.mu.RLock()
	c := d.index.Choose(q, within...)
	p := Page{Version: d.index.Version}
	if c.Exact {
		p.Items, p.Total = d.itemsLocked(c.In(offset, limit))
		d.mu.RUnlock()
		return p
	}
	all, _ := d.itemsLocked(c.In(0, len(d.living)))
	d.mu.RUnlock()
	all = slices.DeleteFunc(all, func(i Item) bool { return !fits(q, i.view.peek()) })
	p.Total = len(all)
	from := min(offset, p.Total)
	p.Items = all[from : from+min(limit, p.Total-from)]
	return p
}

// settle drops what is due, so that nothing in the index has expired.
func (d *Directory) settle(now time.Time) {
	d.mu.RLock()
	due := len(d.living) > 0 && !alive(d.living[0].view.record, now)
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
