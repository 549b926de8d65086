package td

import (
	"bytes"
	"reflect"
	"testing"
)

func TestPack(t *testing.T) {
	t.Parallel()
	d := verified(t, published(t, readFile(t, "weather.td.json"), signer(t, 1), 7))
	p, ok := d.Pack()
	if !ok {
		t.Fatal("a verified description is not packed")
	}
	if again := p.Description(); !reflect.DeepEqual(again, d) {
		t.Errorf("got %+v, want %+v", again, d)
	}
	if r := p.Record(); p.Description().Record != r || cap(p.TD()) > len(p.TD())*5/4 || cap(r.Raw) > len(r.Raw)*5/4 {
		t.Error("it takes more memory than it needs")
	}
	if at := bytes.Index(p.Record().Raw, p.Record().Inline); at < 0 || !same(p.Record().Inline, p.Record().Raw[at:at+len(p.Record().Inline)]) {
		t.Error("the TD inside is kept twice")
	}
	other := *d.Thing
	for name, d := range map[string]*Description{
		"a tombstone":           {Record: d.Record, Signed: &Signed{}},
		"nobody verified it":    {Thing: mustParse(t, string(d.Raw)), Record: d.Record, Signed: &Signed{TD: d.Raw}},
		"of other bytes":        {Thing: d.Thing, Record: d.Record, Signed: &Signed{TD: []byte(string(d.Raw))}, ProofMethod: "x"},
		"a view of its own":     {Thing: &Thing{Raw: other.Raw, ID: other.ID}, Record: d.Record, Signed: d.Signed, ProofMethod: "x"},
		"what its author wrote": {Thing: mustParse(t, string(d.Raw)), Record: d.Record, Signed: d.Signed, ProofMethod: "x"},
	} {
		if _, ok := d.Pack(); ok {
			t.Errorf("%s: it is packed", name)
		}
	}
}

func BenchmarkUnpack(b *testing.B) {
	d := verified(b, published(b, readFile(b, "weather.td.json"), signer(b, 1), 7))
	p, _ := d.Pack()
	b.SetBytes(int64(len(d.Raw)))
	b.ReportAllocs()
	for b.Loop() {
		p.Description()
	}
}
