package schema

import (
	"os"
	"testing"

	"github.com/lmosd/lmosd/internal/jcs"
)

// BenchmarkCheckThing measures the check of a valid TD against the JSON Schema of TD 1.1.
func BenchmarkCheckThing(b *testing.B) {
	raw, err := os.ReadFile("../testdata/weather.td.json")
	if err != nil {
		b.Fatal(err)
	}
	doc, err := jcs.Decode(raw, len(raw))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if issues := CheckThing(doc.(map[string]any)); issues != nil {
			b.Fatal(issues)
		}
	}
}
