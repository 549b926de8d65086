package directory

import (
	"sync"
	"sync/atomic"

	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/td"
)

// A view is the description of a thing as the directory keeps it: packed, for there are many and few are looked at. What is
// looked at is unpacked, and stays so for a while. All but the atomics is read-only.
type view struct {
	record *td.Record
	packed td.Compact
	whole  *td.Description // instead, if it cannot be packed
	open   atomic.Pointer[td.Description]
	asked  atomic.Bool // since views last looked for room
	shown  atomic.Bool // to somebody here who searched
	vector atomic.Pointer[embedding.Vector]
}

// newView returns the view of a verified description.
func newView(desc *td.Description) *view {
	if packed, ok := desc.Compact(); ok {
		return &view{record: packed.Record(), packed: packed}
	}
	return &view{record: desc.Record, whole: desc}
}

// body returns the TD.
func (v *view) body() []byte {
	if v.whole != nil {
		return v.whole.Signed.TD
	}
	return v.packed.TD()
}

// signed returns what was verified.
func (v *view) signed() *td.Signed {
	if v.whole != nil {
		return v.whole.Signed
	}
	return &td.Signed{Record: v.record.Raw, TD: v.packed.TD()}
}

// peek returns the description for a moment.
func (v *view) peek() *td.Description {
	if v.whole != nil {
		return v.whole
	}
	if d := v.open.Load(); d != nil {
		return d
	}
	return v.packed.Description()
}

// maxOpen is how much memory the views that are unpacked may take, as weighed by weighOpen; and a quarter of Options.Bytes.
const maxOpen = 32 << 20

// views keeps the descriptions that were looked at last unpacked. Its methods are safe for concurrent use.
type views struct {
	most  int        // read-only
	mu    sync.Mutex // owns the rest
	line  []*view    // who was asked for since it came here goes to the end again
	bytes int
}

// describe returns the description of v, and keeps it.
func (vs *views) describe(v *view) *td.Description {
	if v.whole != nil {
		return v.whole
	}
	if d := v.open.Load(); d != nil {
		v.asked.Store(true)
		return d
	}
	return vs.keep(v, v.packed.Description())
}

// keep keeps d as the description of v, unless another is kept already, which it then returns.
func (vs *views) keep(v *view, d *td.Description) *td.Description {
	if !v.open.CompareAndSwap(nil, d) {
		if other := v.open.Load(); other != nil {
			return other
		}
		return d
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.line = append(vs.line, v)
	vs.bytes += weighOpen(d)
	for vs.bytes > vs.most && len(vs.line) > 1 {
		eldest := vs.line[0]
		vs.line[0] = nil
		vs.line = vs.line[1:]
		if eldest.asked.Swap(false) {
			vs.line = append(vs.line, eldest)
			continue
		}
		vs.bytes -= weighOpen(eldest.open.Swap(nil))
	}
	return d
}

// adopt returns the view of desc with it unpacked: what has just come is soon looked at.
func (vs *views) adopt(desc *td.Description) *view {
	v := newView(desc)
	if v.whole == nil {
		again := *desc
		again.Record, again.Signed = v.record, v.signed()
		vs.keep(v, &again)
	}
	return v
}

// weighOpen returns about how much memory an unpacked description takes beside its view, in bytes: its text and the typed view of
// each part.
func weighOpen(desc *td.Description) int {
	const thing, affordance, form, variable = 1 << 10, 512, 320, 64
	bytes := thing + 5*len(desc.Raw) // decoded schemas take most
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

// weigh returns about how much memory the view of a thing and what it has in the index take, in bytes. Terms that nothing else
// has are counted by the index.
func weigh(v *view, terms int) int {
	const thing, host, postings = 1200, 256, 12
	r := v.record
	bytes := thing + len(v.body()) + len(r.Raw) + len(r.Thing) + len(r.Title) + len(r.Summary) + host*len(r.Hosts) + postings*terms
	for _, c := range r.Capabilities {
		bytes += 32 + len(c)
	}
	if v.whole != nil {
		bytes += weighOpen(v.whole)
	}
	return bytes
}
