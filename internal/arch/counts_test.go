package arch

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// counted finds a number before a plural, which would be "1 agents" for one. A limit before it is a constant, which is more than one.
var counted = regexp.MustCompile(`(\w*) ?%d (agents|peers|nodes|hosts|relays|members|admins|tasks|records|actions|capabilities|topics|addresses|` +
	`descriptions|days|requests|lines|keys|entries|events|calls|inputs|things|reservations|groups|partners|organizations|roles|backups|warnings|` +
	`problems|errors|results|matches|files|peers|routers|is|are)\b`)

// limits are words before a number that is a constant or never 1.
var limits = []string{"most", "than", "first", "last", "of", "to", "only", "node"}

// neverOne are texts whose number is at least 2, or a constant.
var neverOne = []string{"match %q", "begin with %q", "the limit is", "are possible", "wait for this reader", "on the local network", "the same description", "match the same words",
	"are allowed", "expected 1 to", "are watched", "a report with a name", "are open"}

// TestCountsHaveOneFunction: texts for people about the state of a node count with interact.Count, which has the singular.
func TestCountsHaveOneFunction(t *testing.T) {
	t.Parallel()
	for path, f := range goFiles(t) {
		top, _, _ := strings.Cut(path, "/")
		if !slices.Contains([]string{"agent", "api", "cmd", "expose", "gateway", "node"}, top) || strings.Contains(path, "localnet") {
			continue // numbers over a limit are never 1; those of the scripted demo are known
		}
		literals(f, func(text string) {
			for _, m := range counted.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(limits, m[1]) && !slices.ContainsFunc(neverOne, func(part string) bool { return strings.Contains(text, part) }) {
					t.Errorf("%s: %q counts without interact.Count", path, text)
				}
			}
		})
	}
}
