// The race detector allocates in the initialization, too, and drops values from pools at random.
//go:build !race

package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// maxInit is the number of bytes that the initialization of a package may allocate. Each command pays for all packages, before its first line.
const maxInit = 64 << 10

// costlyInits are the packages that allocate more, and why the program has them. They are of other modules: packages of lmosd compute tables,
// schemas and regular expressions on first use.
var costlyInits = map[string]string{
	"github.com/Masterminds/semver/v3":        "compiles its regular expressions; ranges of versions",
	"github.com/itchyny/gojq":                 "the table of built-in functions; --jq",
	"github.com/mochi-mqtt/server/v2/packets": "packets of its own tests; the embedded broker",
	"github.com/piprate/json-gold/ld":         "compiles its regular expressions; JSON-LD of legacy credentials",
	"github.com/prometheus/procfs":            "compiles its regular expressions; metrics of the process, which libp2p brings",
	"github.com/xeipuuv/gojsonschema":         "parses the schemas of three drafts; the library of legacy DID documents brings it",
	// The program of the test has the tests, too.
	"github.com/google/jsonschema-go/jsonschema": "servers of MCP in tests",
	"github.com/lmosd/lmosd/cmd/lmosd":           "tables of tests",
}

var initLine = regexp.MustCompile(`(?m)^init (\S+) @.* clock, (\d+) bytes, \d+ allocs$`)

// The initialization of packages stays cheap: a costly one is new, or a known one has become cheap.
func TestInitialization(t *testing.T) {
	t.Parallel()
	// What a package allocates depends on the seeds of its maps and on pools: the least of three runs counts.
	least := map[string]int{}
	for range 3 {
		cmd := exec.Command("lmosd", "version")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines := initLine.FindAllSubmatch(out, -1)
		if len(lines) < 100 {
			t.Fatalf("%d packages with initialization: the trace has another form\n%.500s", len(lines), out)
		}
		for _, line := range lines {
			name := string(line[1])
			n, err := strconv.Atoi(string(line[2]))
			if err != nil {
				t.Fatal(err)
			}
			if known, found := least[name]; !found || n < known {
				least[name] = n
			}
		}
	}
	costly := map[string]bool{}
	for name, n := range least {
		if costly[name] = n > maxInit; costly[name] && costlyInits[name] == "" {
			t.Errorf("the initialization of %s allocates %d bytes, more than %d: compute the value on first use, do without the package, "+
				"or add it to the table with the reason", name, n, maxInit)
		}
	}
	for name := range costlyInits {
		if !costly[name] {
			t.Errorf("the initialization of %s is cheap now, or the package is not used: remove it from the table", name)
		}
	}
}
