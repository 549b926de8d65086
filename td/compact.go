package td

import (
	"bytes"
	"slices"
	"time"
)

// A Compact is a verified description in a fraction of its memory: the bytes of the TD, and the values that cannot be derived from them.
// Only [Description.Compact] creates one, so its description was verified before. It is read-only.
type Compact struct {
	record  *Record
	td      []byte
	method  string
	created time.Time
	expires time.Time
}

// Compact returns the compact form of d. It returns false if [Signed.Verify] did not build the typed view from the bytes, because the view
// then cannot be built again. The bytes of the TD are shared with d, unless their slice has much spare capacity; the record is a copy
// without the TD inside.
func (d *Description) Compact() (Compact, bool) {
	if d.Thing == nil || d.terms == nil || d.doc != nil || !sameMemory(d.Raw, d.Signed.TD) || d.ProofMethod == "" {
		return Compact{}, false
	}
	r := *d.Record
	r.Raw, r.Inline = compactBytes(r.WithoutTD()), nil
	r.Hosts = slices.Clone(r.Hosts)
	return Compact{&r, compactBytes(d.Signed.TD), d.ProofMethod, d.ProofCreated, d.ProofExpires}, true
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
	doc, err := decode(p.td)
	if err != nil {
		panic("td: a verified TD cannot be decoded: " + err.Error()) // it was decoded before, and is read-only
	}
	return &Description{
		Thing: view(p.td, doc), Record: p.record, Signed: &Signed{Record: p.record.Raw, TD: p.td},
		ProofMethod: p.method, ProofCreated: p.created, ProofExpires: p.expires,
	}
}

// Record returns the record of the description.
func (p *Compact) Record() *Record { return p.record }

// TD returns the TD of the description. The caller must not change it.
func (p *Compact) TD() []byte { return p.td }
