package directory

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
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

// Peek returns the verified description like [Item.Description], for lists of many Things: it does not stay unpacked.
func (i Item) Peek() *td.Description { return i.view.peek() }

// ItemOf returns a description as an item of a list.
func ItemOf(desc *td.Description) Item { return Item{view: newOwnView(desc)} }

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

// A Place is a position in the order of Things: that of an id and an owner. The zero value is the beginning.
type Place struct {
	Thing string
	Owner did.DID
}

// After is [Directory.Page] from the first Thing after a place. A Thing need not be there any more: what is added or removed elsewhere neither repeats
// nor hides a Thing of the next page. A query may name an organization; the error is NotFound for one that the caller does not know.
func (d *Directory) After(ctx context.Context, q td.Query, after Place, limit int) (Page, error) {
	q, err := d.withMembers(ctx, q, false)
	if err != nil {
		return Page{}, err
	}
	if d.opts.Own != nil {
		if err := d.opts.Own.Await(ctx, td.Ref{Name: q.ID}); err != nil {
			return Page{}, err
		}
	}
	return d.pageFrom(ctx, &q, start{after: after}, max(limit, 0)), nil
}

// A start is where a page begins: after a place, or else at an offset.
type start struct {
	after  Place
	offset int
}

// in returns the slots of a page.
func (s start) in(c *index.Choice, limit int, keep func(slot uint32) bool) []uint32 {
	if s.after != (Place{}) {
		return c.After(s.after.Thing, s.after.Owner, limit, keep)
	}
	return c.In(s.offset, limit, keep)
}

// of returns the items of a page, of all that are in order.
func (s start) of(all []Item, limit int) []Item {
	offset := s.offset
	if s.after != (Place{}) {
		offset = sort.Search(len(all), func(i int) bool {
			r := all[i].view.record
			return cmp.Or(strings.Compare(r.Thing, s.after.Thing), strings.Compare(string(r.Owner), string(s.after.Owner))) > 0
		})
	}
	return part(all, offset, limit)
}

func (d *Directory) page(ctx context.Context, q *td.Query, offset, limit int, within ...*index.List) (p Page) {
	return d.pageFrom(ctx, q, start{offset: offset}, limit, within...)
}

func (d *Directory) pageFrom(ctx context.Context, q *td.Query, from start, limit int, within ...*index.List) (p Page) {
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
		p.Items, p.Total = d.itemsLocked(from.in(&c, limit, s.filter())), s.countLocked(&c)
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
	p.Total, p.Items = len(all), from.of(all, limit)
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
