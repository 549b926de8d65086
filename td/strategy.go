package td

import "slices"

// A Strategy says which version of a capability is taken of those that fit (LMOS platform, ResolveStrategy).
type Strategy string

// The strategies of LMOS. The zero value is Highest.
const (
	Highest Strategy = "HIGHEST"
	// MostSimilar takes the lowest version that fits: so does the platform, where it is a stub, and channels rely on it.
	MostSimilar Strategy = "MOST_SIMILAR"
)

// A Requirement is a capability that somebody needs, as channels name it.
type Requirement struct {
	ID      string // compared by levels if both sides have one; else the names are
	Name    string // compared byte by byte, as the platform does
	Version string // a range, see [ParseRange]; empty means any
}

// Match returns the capability of t that meets r: of several, what the strategy takes.
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

// Compare orders versions as the strategy takes them: -1 if it takes a rather than b.
func (s Strategy) Compare(a, b string) int {
	if s == MostSimilar {
		return CompareVersions(a, b)
	}
	return CompareVersions(b, a)
}

// prefers reports whether the strategy takes version a rather than b.
func (s Strategy) prefers(a, b string) bool { return s.Compare(a, b) < 0 }

// Pick returns which of descriptions meets r, and by what. Of several with the same version it is the first: put what is trusted,
// near and not busy first, and what remains in an order that is always the same.
func (s Strategy) Pick(r Requirement, descriptions []*Description) (d *Description, by Capability, ok bool) {
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
