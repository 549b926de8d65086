package directory

import (
	"sync"
	"sync/atomic"

	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/td"
)

// A view is a stored description. It is packed to save memory, and unpacked for some time after a use. All fields but the atomics are
// read-only.
type view struct {
	record    *td.Record
	packed    td.Compact
	whole     *td.Description // set instead if it is not packed
	open      atomic.Pointer[td.Description]
	usedAgain atomic.Bool // used since the last eviction
	shown     atomic.Bool // was a search result of a caller of this node
	vector    atomic.Pointer[embedding.Vector]
}

// newView returns the view of a verified description. A restricted one is not packed: each read checks it.
func newView(desc *td.Description) *view { return makeView(desc, (*td.Description).Compact) }

// newOwnView is newView for a Thing of this node, whose publication has the description in memory.
func newOwnView(desc *td.Description) *view { return &view{record: desc.Record, whole: desc} }

// newForeignView is newView for a Thing of another node, of which was is the known view, or nil: many are kept, and few are read.
func newForeignView(desc *td.Description, was *view) *view {
	return makeView(desc, func(desc *td.Description) (td.Compact, bool) {
		if was != nil && was.whole == nil {
			return desc.Pack(&was.packed)
		}
		return desc.Pack(nil)
	})
}

func makeView(desc *td.Description, compact func(*td.Description) (td.Compact, bool)) *view {
	if packed, ok := compact(desc); ok && desc.Record.Audience == td.Public {
		return &view{record: packed.Record(), packed: packed}
	}
	return &view{record: desc.Record, whole: desc}
}

// body returns the TD.
func (v *view) body() []byte {
	if v.whole != nil {
		return v.whole.Signed.TD
	}
	if d := v.open.Load(); d != nil {
		return d.Signed.TD
	}
	return v.packed.TD()
}

// signed returns the verified record and TD.
func (v *view) signed() *td.Signed {
	if v.whole != nil {
		return v.whole.Signed
	}
	return &td.Signed{Record: v.record.Raw, TD: v.body()}
}

// peek returns the description without keeping it unpacked.
func (v *view) peek() *td.Description {
	if v.whole != nil {
		return v.whole
	}
	if d := v.open.Load(); d != nil {
		return d
	}
	return v.packed.Description()
}

// maxOpen limits the memory of unpacked views, as weighed by unpackedSize; a quarter of Options.Bytes limits it, too.
const maxOpen = 32 << 20

// views keeps recently used descriptions unpacked. Its methods are safe for concurrent use.
type views struct {
	most  int        // read-only
	mu    sync.Mutex // owns the rest
	order []*view    // in eviction order; a view used since it was appended is appended again
	bytes int
}

// describe returns the description of v, and keeps it unpacked.
func (vs *views) describe(v *view) *td.Description {
	if v.whole != nil {
		return v.whole
	}
	if d := v.open.Load(); d != nil {
		v.usedAgain.Store(true)
		return d
	}
	return vs.keep(v, v.packed.Description())
}

// keep keeps d as the description of v, or returns the one that is kept already.
func (vs *views) keep(v *view, d *td.Description) *td.Description {
	if !v.open.CompareAndSwap(nil, d) {
		if other := v.open.Load(); other != nil {
			return other
		}
		return d
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.order = append(vs.order, v)
	vs.bytes += unpackedSize(d)
	for vs.bytes > vs.most && len(vs.order) > 1 {
		oldest := vs.order[0]
		vs.order[0] = nil
		vs.order = vs.order[1:]
		if oldest.usedAgain.Swap(false) {
			vs.order = append(vs.order, oldest)
			continue
		}
		vs.bytes -= unpackedSize(oldest.open.Swap(nil))
	}
	return d
}

// adopt keeps v unpacked, a new view of desc: new descriptions are likely to be used.
func (vs *views) adopt(v *view, desc *td.Description) *view {
	if v.whole == nil {
		again := *desc
		again.Record, again.Signed = v.record, &td.Signed{Record: v.record.Raw, TD: desc.Signed.TD}
		vs.keep(v, &again)
	}
	return v
}

// unpackedSize returns the approximate memory of an unpacked description in addition to its view, in bytes.
func unpackedSize(desc *td.Description) int {
	const thing, affordance, form, variable = 1 << 10, 512, 320, 64
	bytes := thing + 5*len(desc.Raw) // mostly decoded schemas
	part := func(a *td.Affordance) {
		bytes += affordance + variable*len(a.URIVariables)
		for i := range a.Forms {
			bytes += form + len(a.Forms[i].Href)
		}
	}
	for _, p := range desc.Properties {
		part(&p.Affordance)
	}
	for _, a := range desc.Actions {
		part(&a.Affordance)
	}
	for _, e := range desc.Events {
		part(&e.Affordance)
	}
	return bytes + form*(len(desc.Forms)+len(desc.Links))
}

// viewSize returns the approximate memory of a view and its postings, in bytes, without terms that only this Thing has, which the index counts.
func viewSize(v *view, terms int) int {
	const thing, host, postings = 1200, 256, 12
	r := v.record
	bytes := thing + v.packed.Size() + len(r.Raw) + len(r.Thing) + len(r.Title) + len(r.Summary) + host*len(r.Hosts) + postings*terms
	for _, c := range r.Capabilities {
		bytes += 32 + len(c)
	}
	if v.whole != nil {
		bytes += len(v.whole.Raw) + unpackedSize(v.whole)
	}
	return bytes
}
