package td

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/lmosd/lmosd/did"
)

// A Compact is a verified description in a fraction of its memory: the bytes of the TD, and the values that cannot be derived from them.
// Only [Description.Compact] and [Description.Pack] create one, so its description was verified before. It is read-only.
type Compact struct {
	record  *Record
	td      []byte
	packed  bool   // td is compressed
	method  string // empty: that of the owner's did:key
	created time.Time
	expires time.Time
}

// Compact returns the compact form of d. It returns false if [Signed.Verify] did not build the typed view from the bytes, because the view
// then cannot be built again. The bytes of the TD are shared with d, unless their slice has much spare capacity; the record is a copy
// without the TD inside.
func (d *Description) Compact() (Compact, bool) {
	if !d.canCompact() {
		return Compact{}, false
	}
	return d.compact(compactBytes(d.Signed.TD), false), true
}

// Pack is [Description.Compact] with the compressed TD of the record, a third of its size, if there is one there or in known, an earlier compact form,
// which may be nil. Each use of the TD then takes about 10 µs more.
func (d *Description) Pack(known *Compact) (Compact, bool) {
	switch {
	case !d.canCompact():
		return Compact{}, false
	case known != nil && known.packed && known.record.Hash == d.Record.Hash:
		return d.compact(known.td, true), true
	case len(d.Record.Inline) > 0 && len(d.Record.Inline) < len(d.Signed.TD):
		return d.compact(bytes.Clone(d.Record.Inline), true), true
	}
	return d.Compact()
}

func (d *Description) canCompact() bool {
	return d.Thing != nil && d.terms != nil && d.doc == nil && sameMemory(d.Raw, d.Signed.TD) && d.ProofMethod != ""
}

func (d *Description) compact(td []byte, packed bool) Compact {
	r := *d.Record
	r.Raw, r.Inline = compactBytes(r.WithoutTD()), nil
	r.shareText()
	c := Compact{record: &r, td: td, packed: packed, method: d.ProofMethod, created: d.ProofCreated, expires: d.ProofExpires}
	if c.method == keyMethod(r.Owner) {
		c.method = ""
	}
	return c
}

// keyMethod returns the only method of a did:key that signs.
func keyMethod(owner did.DID) string { return string(owner) + "#" + owner.Multibase() }

// shareText lets r use the texts in its bytes, where all of them are, instead of copies.
func (r *Record) shareText() {
	raw := unsafe.String(unsafe.SliceData(r.Raw), len(r.Raw)) // its bytes never change
	share := func(s string) string {
		if i := strings.Index(raw, s); i >= 0 {
			return raw[i : i+len(s)]
		}
		return s // of a grant
	}
	r.Thing, r.Title, r.Summary = share(r.Thing), share(r.Title), share(r.Summary)
	r.Capabilities = slices.Clone(r.Capabilities)
	for i, c := range r.Capabilities {
		r.Capabilities[i] = share(c)
	}
	r.Hosts = slices.Clone(r.Hosts)
	for i := range r.Hosts {
		h := &r.Hosts[i]
		h.Addrs = slices.Clone(h.Addrs)
		for j, a := range h.Addrs {
			h.Addrs[j] = share(a)
		}
	}
}

// compactBytes returns b, or a copy if b has much spare capacity.
func compactBytes(b []byte) []byte {
	if cap(b)-len(b) > len(b)/5 { // a single allocation has less
		return bytes.Clone(b)
	}
	return b
}

// sameMemory reports whether a and b are the same memory.
func sameMemory(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// Description returns the description again, with a new typed view of its TD. All results share one record, without the TD inside. The cost
// is that of decoding the JSON.
func (p *Compact) Description() *Description {
	td := p.TD()
	doc, err := decode(td)
	if err != nil {
		panic("td: a verified TD cannot be decoded: " + err.Error()) // it was decoded before, and is read-only
	}
	return &Description{
		Thing: view(td, doc), Record: p.record, Signed: &Signed{Record: p.record.Raw, TD: td},
		ProofMethod: cmp.Or(p.method, keyMethod(p.record.Owner)), ProofCreated: p.created, ProofExpires: p.expires,
	}
}

// Record returns the record of the description.
func (p *Compact) Record() *Record { return p.record }

// TD returns the TD of the description. The caller must not change it.
func (p *Compact) TD() []byte {
	if !p.packed {
		return p.td
	}
	td, err := zstdDecoder().DecodeAll(p.td, make([]byte, 0, p.record.Size))
	if err != nil {
		panic("td: a verified TD cannot be decompressed: " + err.Error()) // it was decompressed before, and is read-only
	}
	return td
}

// Size returns the size of the TD in memory, in bytes.
func (p *Compact) Size() int { return len(p.td) }
