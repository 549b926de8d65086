package td

import (
	"bytes"
	"slices"
	"time"
)

// A Packed is a verified description in a fraction of its memory: its bytes, and what cannot be had from them. Only
// [Description.Pack] makes one, so what comes out of it was verified before. It is read-only.
type Packed struct {
	record  *Record
	td      []byte
	method  string
	created time.Time
	expires time.Time
}

// Pack returns d packed; or false if its typed view was not made of its bytes by [Signed.Verify], and so could not be made again.
// The bytes are shared with d, unless they stand in much more memory than they need; the record is a copy.
func (d *Description) Pack() (Packed, bool) {
	if d.Thing == nil || d.terms == nil || d.doc != nil || !same(d.Raw, d.Signed.TD) || d.ProofMethod == "" {
		return Packed{}, false
	}
	r := *d.Record
	r.Raw, r.Hosts = tight(r.Raw), slices.Clone(r.Hosts)
	if at := bytes.Index(r.Raw, r.Inline); at >= 0 && len(r.Inline) > 0 {
		r.Inline = r.Raw[at : at+len(r.Inline) : at+len(r.Inline)] // it was a copy
	}
	return Packed{&r, tight(d.Signed.TD), d.ProofMethod, d.ProofCreated, d.ProofExpires}, true
}

// tight returns b in no much more memory than it needs.
func tight(b []byte) []byte {
	if cap(b)-len(b) > len(b)/8 {
		return bytes.Clone(b)
	}
	return b
}

// same reports whether a and b are the same memory.
func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// Description makes the description again: as it was, with a new typed view of its TD. All that are made share one record. It
// costs as much as reading the JSON.
func (p *Packed) Description() *Description {
	doc, err := decode(p.td)
	if err != nil {
		panic("td: a verified TD cannot be read: " + err.Error()) // it was read before, and nobody may change it
	}
	return &Description{
		Thing: view(p.td, doc), Record: p.record, Signed: &Signed{Record: p.record.Raw, TD: p.td},
		ProofMethod: p.method, ProofCreated: p.created, ProofExpires: p.expires,
	}
}

// Record returns the record of the description.
func (p *Packed) Record() *Record { return p.record }

// TD returns the TD of the description, which must not be changed.
func (p *Packed) TD() []byte { return p.td }

// TypeKey returns the form of an @type in which [Thing.HasType] compares: all spellings of the LMOS types have one.
func TypeKey(typ string) string { return bareType(typ) }
