package index

import (
	"fmt"
	"testing"

	"github.com/lmosd/lmosd/td"
)

// BenchmarkAdd adds and removes a Thing of about 150 words, next to 20,000 others with mostly the same words.
func BenchmarkAdd(b *testing.B) {
	make := func(i int) *td.Description {
		desc := plain(i/10, fmt.Sprintf("urn:example:%d", i), fmt.Sprintf("Agent %d", i), fmt.Sprintf("urn:example:skill-%d", i%1000))
		for j := range 140 {
			desc.Description += fmt.Sprintf("word%c%c%c ", 'a'+(i*j)%26, 'a'+(j*j)%26, 'a'+(i+j)%26)
		}
		return desc
	}
	var x Index
	for i := range 20_000 {
		desc := make(i)
		x.Add(desc.Record, Labels(desc))
	}
	desc := make(20_000)
	labels := Labels(desc)
	b.Run("labels", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Labels(desc)
		}
	})
	b.Run("compare", func(b *testing.B) {
		b.ReportAllocs()
		asked := x.Lookup([]string{"wordxkx", "skills", "agents", "nowhere"})
		for b.Loop() {
			if len(Compare(asked, desc.Thing)) != 2 {
				b.Fatal(Compare(asked, desc.Thing))
			}
		}
	})
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x.Remove(x.Add(desc.Record, labels))
		}
	})
}
