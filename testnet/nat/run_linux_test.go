package nat

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestNodesBehindRouters measures all pairs over QUIC with real nodes, in two minutes: LMOSD_LONG=1 runs it. Each pair must answer. Two routers that
// map a socket to one port must permit a direct connection, two symmetric ones cannot.
func TestNodesBehindRouters(t *testing.T) {
	requires(t)
	if os.Getenv("LMOSD_LONG") == "" {
		t.Skip("LMOSD_LONG=1 runs it")
	}
	o := Options{Dir: t.TempDir(), Binary: filepath.Join(t.TempDir(), "lmosd"), Pairs: Matrix(QUIC), Jobs: 2, Punch: 25 * time.Second}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", o.Binary, "../../cmd/lmosd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o.OnResult = func(r Result) {
		t.Logf("%s calls %s: %s, answer after %.0f ms, direct after %.0f ms %s", r.Caller, r.Called, r.Path, r.First, r.Direct, r.Err)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || len(r.Pairs) != len(o.Pairs) || r.Routers != 2*len(o.Pairs) {
		t.Errorf("%d of %d pairs were measured, with %d verified routers; all answered: %v", len(r.Pairs), len(o.Pairs), r.Routers, r.OK())
	}
	for _, p := range r.Pairs {
		isCone := p.Caller != Symmetric && p.Called != Symmetric
		if isCone && p.Path == Relayed || p.Caller == Symmetric && p.Called == Symmetric && p.Path != Relayed {
			t.Errorf("%s calls %s: %s", p.Caller, p.Called, p.Path)
		}
	}
}

// Each scenario has a name, and each name a scenario.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, name := range Scenarios {
		if scenarios[name].play == nil {
			t.Errorf("there is no scenario %s", name)
		}
	}
	if len(scenarios) != len(Scenarios) {
		t.Errorf("%d scenarios have %d names", len(scenarios), len(Scenarios))
	}
}
