package td

import (
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// A Range is a set of versions; the zero value is empty.
type Range struct{ constraints *semver.Constraints }

// maxRange is the size limit of a range, in bytes.
const maxRange = 256

// ivyRange is an interval in the syntax of Ivy: "[1.0,2.0[", "]1.0,)". A bracket that opens away from its version excludes it.
var ivyRange = lazyregexp.New(`^([\[\](])\s*([^,\[\]()]*?)\s*,\s*([^,\[\]()]*?)\s*([\[\])])$`)

// bareVersion is a version without an operator.
var bareVersion = lazyregexp.New(`^v?\d+(\.\d+){0,2}([-+].*)?$`)

// ParseRange parses a range of versions in the syntax of LMOS channels: that of npm, such as "^1.2", "1.x", ">=1.0 <2.0" and
// "1.0 || 2.0", or an interval of Ivy, such as "[1.0,2.0[". A version alone matches that version; missing parts are zero.
func ParseRange(text string) (Range, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxRange {
		return Range{}, fmt.Errorf("expected a version range of at most %d bytes, got %d", maxRange, len(text))
	}
	constraint := text
	switch m := ivyRange().FindStringSubmatch(text); {
	case m != nil:
		constraint = ivyBounds(m[1], m[2], m[3], m[4])
	case bareVersion().MatchString(text):
		constraint = "=" + fullVersion(text)
	}
	c, err := semver.NewConstraint(constraint)
	if err != nil || text == "" {
		return Range{}, fmt.Errorf("expected a version range such as ^1.2, >=1.0 <2.0, 1.x or [1.0,2.0[, got %q", text)
	}
	return Range{c}, nil
}

// ivyBounds converts an interval of Ivy to the syntax of npm.
func ivyBounds(left, low, high, right string) string {
	var bounds []string
	if low != "" {
		operator := ">"
		if left == "[" {
			operator = ">="
		}
		bounds = append(bounds, operator+fullVersion(low))
	}
	if high != "" {
		operator := "<"
		if right == "]" {
			operator = "<="
		}
		bounds = append(bounds, operator+fullVersion(high))
	}
	if len(bounds) == 0 {
		return "*"
	}
	return strings.Join(bounds, ", ")
}

// fullVersion returns a version with all its parts: in npm, a missing part matches any.
func fullVersion(version string) string {
	if v, err := semver.NewVersion(version); err == nil {
		return v.String()
	}
	return version
}

// Has reports whether a version is in the range. An invalid version is in no range.
func (r Range) Has(version string) bool {
	v, err := semver.NewVersion(strings.TrimSpace(version))
	return err == nil && r.constraints != nil && r.constraints.Check(v)
}

// compareVersions orders versions: -1 if a is lower than b. Invalid versions are equal to each other and lower than all valid ones.
func compareVersions(a, b string) int {
	va, errA := semver.NewVersion(strings.TrimSpace(a))
	vb, errB := semver.NewVersion(strings.TrimSpace(b))
	switch {
	case errA != nil && errB != nil:
		return 0
	case errA != nil:
		return -1
	case errB != nil:
		return 1
	}
	return va.Compare(vb)
}
