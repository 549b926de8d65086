package td

import (
	"bytes"
	"crypto/ed25519"
	"slices"
	"time"
)

// A Packed is a verified description in a fraction of its memory: its bytes, and what cannot be had from them. Only
// [Description.Compact] makes one, so what comes out of it was verified before. It is read-only.
type Compact struct {
	record  *Record
	td      []byte
	method  string
	created time.Time
	expires time.Time
}

// Compact returns d packed; or false if its typed view was not made of its bytes by [Signed.Verify], and so could not be made
// again. The bytes of the TD are shared with d, unless they stand in much more memory than they need; the record is a copy
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

// WithoutTD returns the encoded record without the TD inside: what [Signed.WithoutTD] makes of it. The caller must not change it.
func (r *Record) WithoutTD() []byte { return cutInline(r.Raw, r.Inline) }

// cutInline returns an encoded record without the TD inside: what [Signed.WithoutTD] makes of it, for a record that was verified.
func cutInline(raw, inline []byte) []byte {
	if len(inline) == 0 {
		return raw
	}
	member := append([]byte{14, 0x59, byte(len(inline) >> 8), byte(len(inline))}, inline...)
	switch n := len(inline); {
	case n < 24:
		member = append([]byte{14, 0x40 | byte(n)}, inline...)
	case n < 256:
		member = append([]byte{14, 0x58, byte(n)}, inline...)
	}
	before, found := bytes.CutSuffix(raw[:max(len(raw)-signatureBytes, 0)], member) // the signature comes last
	if !found {
		return raw
	}
	bare := make([]byte, 0, len(before)+signatureBytes)
	bare = append(append(bare, before...), raw[len(raw)-signatureBytes:]...)
	bare[0]-- // how many members the map has
	return bare
}

// signatureBytes is how long the last member of an encoded record is.
const signatureBytes = 1 + 2 + ed25519.SignatureSize

// message returns the bytes that the signature covers: [wireRecord.signed], for a record in canonical form, which has a signature.
func message(raw, inline []byte) []byte {
	bare := cutInline(raw, inline)
	m := bytes.Clone(bare[:len(bare)-signatureBytes])
	m[0]-- // how many members the map has
	return m
}

// compactBytes returns b in no much more memory than it needs.
func compactBytes(b []byte) []byte {
	if cap(b)-len(b) > len(b)/5 { // what is allocated at once has less
		return bytes.Clone(b)
	}
	return b
}

// sameMemory reports whether a and b are the same memory.
func sameMemory(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// Description makes the description again: with a new typed view of its TD, and a record without the TD inside. All that are
// made share that record. It costs as much as reading the JSON.
func (p *Compact) Description() *Description {
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
func (p *Compact) Record() *Record { return p.record }

// TD returns the TD of the description, which must not be changed.
func (p *Compact) TD() []byte { return p.td }

// TypeKey returns the form of an @type in which [Thing.HasType] compares: all spellings of the LMOS types have one.
func TypeKey(typ string) string { return typeKey(typ) }
