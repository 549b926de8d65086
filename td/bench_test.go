package td

import (
	"context"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/jcs"
)

func BenchmarkParse(b *testing.B) {
	raw := readFile(b, "weather.td.json")
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(raw); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerify measures the first verification of a description: record, proof, schema, typed view.
func BenchmarkVerify(b *testing.B) {
	s := published(b, readFile(b, "weather.td.json"), signer(b, 1), 7)
	bare, err := s.WithoutTD()
	if err != nil {
		b.Fatal(err)
	}
	for name, s := range map[string]*Signed{"inline": {Record: s.Record}, "fetched": {Record: bare.Record, TD: s.TD}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				v := NewVerifier(did.Keys()) // an empty cache
				if _, err := s.Verify(context.Background(), v, epoch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecord(b *testing.B) {
	s, err := published(b, readFile(b, "weather.td.json"), signer(b, 1), 7).WithoutTD()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := NewVerifier(nil).Record(s.Record, epoch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("known", func(b *testing.B) {
		v := NewVerifier(nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := v.Record(s.Record, epoch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSign(b *testing.B) {
	k := signer(b, 1)
	thing, err := Complete(readFile(b, "weather.td.json"), k.DID())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Sign(thing, k, lease(7, k.DID())); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	thing := mustParse(b, string(readFile(b, "weather.td.json")))
	input, err := jcs.Decode([]byte(`{"question":"Rain in Bonn?","interactionMode":"text"}`), 1<<10)
	if err != nil {
		b.Fatal(err)
	}
	schema := thing.Actions["getWeather"].Input
	b.ReportAllocs()
	for b.Loop() {
		if issues := schema.Check(input); len(issues) > 0 {
			b.Fatal(issues)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	d := verified(b, published(b, readFile(b, "weather.td.json"), signer(b, 1), 7))
	q := Query{Capability: []string{"example:weather"}, Text: "forecast europe"}
	b.ReportAllocs()
	for b.Loop() {
		if !q.Match(d) {
			b.Fatal("no match")
		}
	}
}

func BenchmarkSelect(b *testing.B) {
	k := signer(b, 1)
	raw := readFile(b, "weather.td.json")
	records := [][]byte{published(b, raw, k, 7).Record, published(b, raw, k, 8).Record}
	b.ReportAllocs()
	for b.Loop() {
		if i, err := Select(records); err != nil || i != 1 {
			b.Fatal(i, err)
		}
	}
}
