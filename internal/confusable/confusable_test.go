package confusable

import (
	"testing"

	"github.com/lmosd/lmosd/internal/textmatch"
)

func TestSimilarNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
		odd  string // of a
	}{
		{"\u0415cho", "Echo", true, "Cyrillic \u0435"},
		{"\u0435cho", "echo", true, "Cyrillic \u0435"},
		{"\u03bfrder", "order", true, "Greek \u03bf"},
		{"paypa1", "paypal", true, "1"},
		{"ech0", "echo", true, "0"},
		{"rnail", "mail", true, "r"},
		{"e\u200dcho", "echo", true, "Inherited U+200D"},
		{"Echo", "echo", false, ""}, // the same name
		{"echo", "eco", false, "h"},
		{"weather", "whether", false, "a"},
		{"k\u00f6ln", "ko\u0308ln", false, ""}, // composed otherwise
		{"", "", false, ""},
	} {
		if got := textmatch.Fold(c.a) != textmatch.Fold(c.b) && Skeleton(c.a) == Skeleton(c.b); got != c.want {
			t.Errorf("%q, %q: got %v, skeletons %q and %q", c.a, c.b, got, Skeleton(c.a), Skeleton(c.b))
		}
		if got := Odd(c.a, c.b); got != c.odd {
			t.Errorf("%q, %q: odd is %q, want %q", c.a, c.b, got, c.odd)
		}
	}
}

// Names that need no table have the skeleton that the table gives.
func FuzzSkeleton(f *testing.F) {
	for _, s := range []string{"echo", "mail-10", "\u0415cho", "a\u0300\u0301", "\xff", "\u202e", "weather-agent2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s := Skeleton(name)
		if plain(name) && s != Skeleton(name + "M")[:len(s)] {
			t.Errorf("%q is not its own skeleton: %q", name, Skeleton(name+"M"))
		}
		Odd(name, s)
	})
}
