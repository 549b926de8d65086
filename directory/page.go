package directory

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A Page is a part of a list of things.
type Page struct {
	Items []Item
	Total int // things that the list has
	// Version names the state of the list, over restarts too: while it is the same, the list has the same things in the same order.
	// A thing whose description changes may change it, too.
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
// there are. Limit and Tally of q mean nothing, and words do not rank: a list has one order. It asks nobody.
func (d *Directory) Page(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0))
}

// PageOwn is [Directory.Page] of what this node publishes.
func (d *Directory) PageOwn(q td.Query, offset, limit int) Page {
	return d.page(&q, max(offset, 0), max(limit, 0), &d.index.own)
}

func (d *Directory) page(q *td.Query, offset, limit int, within ...*list) Page {
	d.settle(time.Now())
	d.mu.RLock()
	c := d.index.choose(q, within...)
	p := Page{Version: d.index.version}
	if c.exact {
		p.Items, p.Total = d.exactPageLocked(&c, offset, limit)
		d.mu.RUnlock()
		return p
	}
	all, _ := d.exactPageLocked(&c, 0, len(d.living))
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

// exactPageLocked returns a part of what was chosen, by id, and how much there is.
func (d *Directory) exactPageLocked(c *choice, offset, limit int) (items []Item, total int) {
	x := &d.index
	if c.every && len(c.but) == 0 {
		for slot := range x.order.from(x.order.nth(min(offset, x.order.n))) {
			if len(items) == limit {
				break
			}
			items = append(items, d.itemLocked(slot))
		}
		return items, x.order.n
	}
	slots, total := d.inOrderLocked(c, offset, limit)
	for _, slot := range slots {
		items = append(items, d.itemLocked(slot))
	}
	return items, total
}

// fewToSort is how many things are faster sorted than found in the order of all.
const fewToSort = 256

// inOrderLocked returns a part of the chosen slots by id, and how many there are.
func (d *Directory) inOrderLocked(c *choice, offset, limit int) (slots []uint32, total int) {
	x := &d.index
	if !c.every && len(c.slots) <= fewToSort {
		slots = slices.Collect(c.each())
		slices.SortFunc(slots, func(a, b uint32) int { return compareThings(x.slots[a].view.record, x.slots[b].view.record) })
		from := min(offset, len(slots))
		return slots[from : from+min(limit, len(slots)-from)], len(slots)
	}
	in := newSlotSet(len(x.slots))
	for slot := range c.each() {
		in.add(slot)
		total++
	}
	at := 0
	for slot := range x.order.from(0, 0) {
		if !in.has(slot) {
			continue
		}
		if at++; at > offset {
			if len(slots) == limit {
				break
			}
			slots = append(slots, slot)
		}
	}
	return slots, total
}

func (d *Directory) itemLocked(slot uint32) Item {
	e := d.index.slots[slot]
	return Item{d: d, view: e.view, own: e.own}
}
