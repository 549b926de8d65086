package td

import "slices"

// A Strategy selects one of several matching versions of a capability (LMOS platform, ResolveStrategy).
type Strategy string

// The strategies of LMOS. The zero value is Highest.
const (
	Highest Strategy = "HIGHEST"
	// MostSimilar selects the lowest matching version, like the LMOS platform; channels rely on it.
	MostSimilar Strategy = "MOST_SIMILAR"
)

// A Requirement is a required capability, in the form of LMOS channels.
type Requirement struct {
	ID      string // compared by levels if both sides have one; otherwise names are compared
	Name    string // compared byte by byte, as the platform does
	Version string // a range, see [ParseRange]; empty means any
}

// Match returns the capability of t that meets r; the strategy selects one of several.
func (r Requirement) Match(t *Thing, s Strategy) (Capability, bool) {
	in, err := ParseRange(r.Version)
	var best *Capability
	for i := range t.Capabilities {
		c := &t.Capabilities[i]
		if r.matchesID(c) && (r.Version == "" || err == nil && in.Has(c.Version)) && (best == nil || s.prefers(c.Version, best.Version)) {
			best = c
		}
	}
	if best == nil {
		return Capability{}, false
	}
	return *best, true
}

func (r Requirement) matchesID(c *Capability) bool {
	if r.ID == "" || c.ID == "" {
		return r.Name != "" && r.Name == c.Name
	}
	want, ok := Normal(r.ID)
	has, also := Normal(c.ID)
	return ok && also && slices.Equal(split(want), split(has))
}

// Compare orders versions by preference: -1 if the strategy prefers a to b.
func (s Strategy) Compare(a, b string) int {
	if s == MostSimilar {
		return compareVersions(a, b)
	}
	return compareVersions(b, a)
}

// prefers reports whether the strategy prefers version a to b.
func (s Strategy) prefers(a, b string) bool { return s.Compare(a, b) < 0 }
