package td

import "testing"

// LMOS platform, CapabilityResolver: HIGHEST selects the highest version that fits; MOST_SIMILAR the lowest.
func TestStrategy(t *testing.T) {
	t.Parallel()
	having := func(name string, capabilities ...Capability) *Description {
		return &Description{Thing: &Thing{ID: name, Capabilities: capabilities}}
	}
	all := []*Description{
		{}, // a tombstone
		having("a", Capability{Name: "bill", Version: "1.0.0"}, Capability{Name: "bill", Version: "1.4.0"}),
		having("b", Capability{ID: "urn:x:bill", Name: "bill", Version: "1.9.0"}),
		having("c", Capability{ID: "urn:x:bill", Name: "other", Version: "1.9"}, Capability{Name: "bill", Version: "next"}),
		having("d", Capability{ID: "urn:X/bill", Name: "bill", Version: "2.0.0"}),
	}
	for _, c := range []struct {
		name    string
		s       Strategy
		r       Requirement
		want    string
		version string
	}{
		{"the highest", "", Requirement{Name: "bill"}, "d", "2.0.0"},
		{"the highest in a range", Highest, Requirement{Name: "bill", Version: "^1.0"}, "b", "1.9.0"},
		{"the lowest", MostSimilar, Requirement{Name: "bill", Version: ">=1.0.0"}, "a", "1.0.0"},
		{"the lowest in a range", MostSimilar, Requirement{Name: "bill", Version: "[1.1,2.0["}, "a", "1.4.0"},
		{"the first of equals", "", Requirement{ID: "urn:x:bill", Version: "<2"}, "b", "1.9.0"},
		{"by id in other spelling", "", Requirement{ID: "URN:x/Bill", Name: "whatever"}, "d", "2.0.0"},
		{"by part of an id", "", Requirement{ID: "x", Name: "bill"}, "a", "1.4.0"},
		{"no such version", "", Requirement{Name: "bill", Version: "3.0.0"}, "", ""},
		{"no range", "", Requirement{Name: "bill", Version: "?"}, "", ""},
		{"no name", "", Requirement{}, "", ""},
	} {
		d, by, ok := selectBest(c.s, c.r, all)
		got := ""
		if ok {
			got = d.ID
		}
		if got != c.want || by.Version != c.version {
			t.Errorf("%s: got %q with %q, want %q with %q", c.name, got, by.Version, c.want, c.version)
		}
	}
}

// selectBest returns the first description that meets r best, and the matching capability.
func selectBest(s Strategy, r Requirement, descriptions []*Description) (d *Description, by Capability, ok bool) {
	for _, other := range descriptions {
		if other.Thing == nil {
			continue
		}
		if c, meets := r.Match(other.Thing, s); meets && (d == nil || s.prefers(c.Version, by.Version)) {
			d, by = other, c
		}
	}
	return d, by, d != nil
}
