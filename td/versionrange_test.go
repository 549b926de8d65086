package td

import (
	"strings"
	"testing"
)

// The ranges of LMOS channels: those of npm, and Ivy's.
func TestRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		in, out string // versions
	}{
		{"1.0.0", "1.0.0 1.0 v1", "1.0.1 0.9 1.0.0-beta"},
		{"1.0", "1.0.0", "1.0.1 1.1"},
		{"^1.2", "1.2.0 1.9.9", "1.1.9 2.0.0 2.0.0-rc.1"},
		{"~1.2.3", "1.2.3 1.2.9", "1.3.0 1.2.2"},
		{"1.2.x", "1.2.0 1.2.7", "1.3.0"},
		{"1.X", "1.0.0 1.9", "2.0.0"},
		{"*", "0.0.1 9", "nothing"},
		{">=1.0 <2.0", "1.0 1.9", "2.0 0.9"},
		{"<1.0", "0.9", "1.0"},
		{"1.0 || 3.0", "1.0 3.0", "2.0"},
		{"[1.0,2.0]", "1.0 2.0", "0.9 2.0.1"},
		{"[1.0,2.0[", "1.0 1.9.9", "2.0"},
		{"]1.0,2.0]", "1.0.1 2.0", "1.0"},
		{"]1.0,2.0[", "1.5", "1.0 2.0"},
		{"[1.0,)", "1.0 9", "0.9"},
		{"]1.0,)", "1.0.1", "1.0"},
		{"(,2.0]", "0.1 2.0", "2.0.1"},
		{"(,2.0[", "1.9", "2.0"},
		{" [ 1.0 , 2.0 ] ", "1.5", "3"},
		{"1.0.0-beta", "1.0.0-beta", "1.0.0"},
	} {
		r, err := ParseRange(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		for _, v := range strings.Fields(c.in) {
			if !r.Has(v) {
				t.Errorf("%q has no %s", c.text, v)
			}
		}
		for _, v := range strings.Fields(c.out) {
			if r.Has(v) {
				t.Errorf("%q has %s", c.text, v)
			}
		}
	}
	for _, bad := range []string{"", "latest", ">=", "[1.0", "[1.0,2.0", "[1.0;2.0]", "1.0.0.0.0", strings.Repeat("1 || ", 100) + "1"} {
		if r, err := ParseRange(bad); err == nil || r.Has("1.0.0") {
			t.Errorf("%q was parsed as a range", bad)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	order := []string{"none", "0.9", "1.0.0-alpha", "1.0.0-beta", "1.0", "1.10", "2.0.0"}
	for i, a := range order {
		for j, b := range order {
			if got, want := compareVersions(a, b), sign(i-j); got != want {
				t.Errorf("%s and %s: got %d, want %d", a, b, got, want)
			}
		}
	}
	if compareVersions("", "none") != 0 || compareVersions("1.0", "v1.0.0") != 0 {
		t.Error("equal versions differ")
	}
}

func sign(n int) int { return min(max(n, -1), 1) }

func FuzzRange(f *testing.F) {
	f.Add("[1.0,2.0[", "1.5")
	f.Add("^1.2 || 3.x", "v3")
	f.Fuzz(func(t *testing.T, text, version string) {
		r, err := ParseRange(text)
		if in := r.Has(version); err != nil && in {
			t.Fatal("an invalid range has versions")
		}
	})
}
