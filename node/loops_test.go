package node

import (
	"slices"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/heartbeat"
)

// The loop of relays runs only with Options.NAT.
func TestLoopsBeat(t *testing.T) {
	t.Parallel()
	o := quiet()
	o.Dir = t.TempDir()
	n := start(t, o)
	want := []string{"access rules", "announcements", "delegations", "dht", "directory", "directory store", "gossip", "groups", "organization", "reachability", "reconciliation", "streams", "tasks"}
	var all, vital []string
	until(t, "all loops have begun", func() bool {
		all, vital = n.life.loops.Names()
		return len(all) >= len(want)
	})
	if !slices.Equal(all, want) || !slices.Equal(vital, []string{"directory", "gossip", "streams", "tasks"}) {
		t.Errorf("loops %q, of which vital %q", all, vital)
	}
	if late := n.life.loops.Late(); len(late) != 0 {
		t.Errorf("late: %v", late)
	}
}

func TestHangingLoopIsReported(t *testing.T) {
	t.Parallel()
	n := start(t, quiet()) // without listeners, so that nothing else reads the state
	check := func() (d api.DoctorCheck) {
		doc, err := n.Client().Doctor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(doc.Items, func(c api.DoctorCheck) bool { return c.Name == "loops" })
		return doc.Items[max(i, 0)]
	}
	if c := check(); c.Name != "loops" || c.Status != api.CheckPass {
		t.Errorf("the check of a healthy node: %+v", c)
	}
	slow := heartbeat.Late{Name: "dht", Since: time.Minute}
	n.reporter.Late = func() []heartbeat.Late { return []heartbeat.Late{slow} }
	if s := n.Status(); s.State != "ready" || len(s.Warnings) != 1 || s.Warnings[0].Code != api.LoopHangs.Code || s.Warnings[0].Severity != "medium" ||
		s.Warnings[0].Text != "1 loop hangs: dht for 1m0s" {
		t.Errorf("the status with a loop that waits for the network: %s, %+v", s.State, s.Warnings)
	}
	if err := n.Client().Ready(t.Context()); err != nil || check().Status != api.CheckWarn {
		t.Errorf("a loop that waits for the network: %v, %+v", err, check())
	}
	n.reporter.Late = func() []heartbeat.Late {
		return []heartbeat.Late{{Name: "gossip", Vital: true, Since: 40 * time.Second}, slow}
	}
	wantCode(t, n.Client().Ready(t.Context()), interact.NotReady)
	if c := check(); c.Status != api.CheckFail || c.Text != "2 loops hang: gossip for 40s, dht for 1m0s" {
		t.Errorf("the check with a vital loop that hangs: %+v", c)
	}
	if s := n.Status(); s.State != "degraded" {
		t.Errorf("the state with a vital loop that hangs: %s", s.State)
	}
}
