package arch

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mostAgentDeps is the limit of the packages that an agent written in Go depends on, those of the standard library included. The JSON
// Schema library of package td/schema accounts for 16 of them.
const mostAgentDeps = 250

// Agents written with the Go SDK use the client of the HTTP API: they contain no part of the server.
func TestAgentsContainNoServer(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./agent")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0") // as releases are built
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 || len(deps) > mostAgentDeps {
		t.Errorf("package agent depends on %d packages, want at most %d", len(deps), mostAgentDeps)
	}
	for _, dep := range deps {
		for _, server := range []string{module + "/gateway", module + "/directory", module + "/bridge", module + "/node", module + "/interact/rest",
			"github.com/prometheus", "github.com/libp2p"} {
			if under(dep, server) {
				t.Errorf("package agent depends on %s", dep)
			}
		}
	}
}
