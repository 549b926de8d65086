package td

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/lmosd/lmosd/internal/cbor"
)

func TestCompact(t *testing.T) {
	t.Parallel()
	d := verified(t, published(t, readFile(t, "weather.td.json"), signer(t, 1), 7))
	p, ok := d.Compact()
	if !ok {
		t.Fatal("a verified description has no compact form")
	}
	bare, err := d.Signed.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	want := verified(t, &Signed{Record: bare.Record, TD: bytes.Clone(d.Raw)})
	if again := p.Description(); !reflect.DeepEqual(again, want) || again.Record != p.Record() {
		t.Errorf("got %+v, want %+v", again, want)
	}
	if p.Record() == d.Record || len(d.Record.Inline) == 0 {
		t.Error("the record of the description was changed")
	}
	if r := p.Record(); cap(p.TD()) > len(p.TD())*5/4 || cap(r.Raw) > len(r.Raw)*5/4 {
		t.Error("it takes more memory than it needs")
	}
	packed, ok := d.Pack(nil)
	if again := packed.Description(); !ok || !reflect.DeepEqual(again, want) || packed.Size() > len(d.Raw)/2 {
		t.Errorf("packed in %d of %d bytes: got %+v, want %+v", packed.Size(), len(d.Raw), again, want)
	}
	renewed, ok := want.Pack(&packed)
	if !ok || !sameMemory(renewed.td, packed.td) || !bytes.Equal(renewed.TD(), d.Raw) {
		t.Error("a record without the TD does not share the compressed one of the known record")
	}
	if p, ok = want.Pack(nil); !ok || !sameMemory(p.TD(), want.Raw) {
		t.Error("a TD that arrived uncompressed was compressed")
	}
	if p, ok = want.Compact(); !ok || !sameMemory(p.TD(), want.Raw) {
		t.Error("an unnecessary copy was made")
	}
	other := *d.Thing
	for name, d := range map[string]*Description{
		"a tombstone":          {Record: d.Record, Signed: &Signed{}},
		"not verified":         {Thing: mustParse(t, string(d.Raw)), Record: d.Record, Signed: &Signed{TD: d.Raw}},
		"of other bytes":       {Thing: d.Thing, Record: d.Record, Signed: &Signed{TD: []byte(string(d.Raw))}, ProofMethod: "x"},
		"a view of its own":    {Thing: &Thing{Raw: other.Raw, ID: other.ID}, Record: d.Record, Signed: d.Signed, ProofMethod: "x"},
		"parsed by its author": {Thing: mustParse(t, string(d.Raw)), Record: d.Record, Signed: d.Signed, ProofMethod: "x"},
	} {
		if _, ok := d.Compact(); ok {
			t.Errorf("%s: has a compact form", name)
		}
		if _, ok := d.Pack(&packed); ok {
			t.Errorf("%s: has a packed form", name)
		}
	}
}

// Removing the TD from the bytes equals encoding the record without it, for every length.
func TestCutInline(t *testing.T) {
	t.Parallel()
	sizes := []int{0, 1, 23, 24, 255, 256, 6000}
	for i, n := range slices.Concat(sizes, sizes, sizes) {
		w := wireRecord{Version: 1, Owner: "o", Thing: "t", Seq: 7, Inline: bytes.Repeat([]byte{14}, n),
			Signature: bytes.Repeat([]byte{15}, 64)}
		switch {
		case i >= 2*len(sizes):
			w.Version, w.State, w.Grant = 3, 1, bytes.Repeat([]byte{17}, n+1)
		case i >= len(sizes):
			w.Version, w.Audience = 2, uint64(Partners)
		}
		raw, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		inline := w.Inline
		w.Inline = nil
		want, err := cbor.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		r := &Record{Raw: raw, Inline: inline, Audience: Visibility(w.Audience), tail: w.tail()}
		if got := r.WithoutTD(); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %x, want %x", n, got, want)
		}
		r.Inline = []byte("another")
		if got := r.WithoutTD(); !bytes.Equal(got, raw) {
			t.Errorf("%d bytes: a missing TD was cut out", n)
		}
	}
}

func BenchmarkCompactDescription(b *testing.B) {
	d := verified(b, published(b, readFile(b, "weather.td.json"), signer(b, 1), 7))
	p, _ := d.Compact()
	b.SetBytes(int64(len(d.Raw)))
	b.ReportAllocs()
	for b.Loop() {
		p.Description()
	}
}
