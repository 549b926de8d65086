package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// TestWrongClockIsReported runs a node whose clock is 2 hours ahead among others: only that node reports it.
func TestWrongClockIsReported(t *testing.T) {
	t.Parallel()
	for by, want := range map[time.Duration]string{10 * time.Minute: "+10m0s (ahead)", -10 * time.Minute: "-10m0s (behind)",
		24 * time.Hour: "+24h0m0s (ahead)", -24 * time.Hour: "-24h0m0s (behind)"} {
		t.Run(want, func(t *testing.T) { t.Parallel(); wrongClock(t, by, want) })
	}
}

func wrongClock(t *testing.T, by time.Duration, skew string) {
	nodes := connected(t, 3)
	o := quiet()
	o.now = func() time.Time { return time.Now().Add(by) }
	wrong := start(t, o)
	for i, n := range nodes {
		connect(t, wrong, n)
		connect(t, n, nodes[(i+1)%3])
	}
	warned := func(n *running) *api.Warning {
		for _, w := range n.Status().Warnings {
			if w.Title == "clock-skew" {
				return &w
			}
		}
		return nil
	}
	// Reconciliation syncs periodically; here each node syncs at once.
	for _, from := range append(nodes, wrong) {
		for _, to := range append(nodes, wrong) {
			if from.Node != to.Node {
				until(t, "all were asked", func() bool { _, err := from.mesh.sync.Sync(t.Context(), to.network.ID()); return err == nil })
			}
		}
	}
	w := warned(wrong)
	if w == nil || w.Code != "LMOS-W031" || w.Severity != "high" || !strings.Contains(w.Text, skew+" against 3 peers") {
		t.Errorf("got %+v", w)
	}
	if state := wrong.Status().State; state != "degraded" {
		t.Errorf("the state is %s", state)
	}
	for _, n := range nodes {
		if w := warned(n); w != nil {
			t.Errorf("a node whose clock is right says %+v", w)
		}
	}
	own := publish(t, wrong, tool("Echo", ""))
	for n, want := range map[*running]int{wrong: 1, nodes[0]: 0} {
		list, err := n.Client().Find(t.Context(), td.Query{Text: "echo"}, 0)
		if err != nil || len(list.Warnings) != want || want > 0 && list.Warnings[0].Text != w.Text {
			t.Errorf("find has the warnings %+v, %v; want %d of the clock", list.Warnings, err, want)
		}
	}
	if detail, err := wrong.Client().Agent(t.Context(), own); err != nil || len(detail.Warnings) != 1 || detail.Warnings[0].Code != "LMOS-W031" {
		t.Errorf("show has the warnings %+v, %v", detail, err)
	}
	e := wantCode(t, wrong.reporter.WithClock(fmt.Errorf("record: %w", td.ErrFuture)), interact.ClockSkew)
	if !strings.Contains(e.Title, skew) {
		t.Errorf("the error does not say by how much: %s", e.Title)
	}
	_, err := wrong.Client().Agent(t.Context(), "unknown")
	if e := wantCode(t, err, interact.NotFound); !strings.Contains(e.Hint, skew) {
		t.Errorf("a thing that is not found has the hint %q", e.Hint)
	}
	failed := errors.New("failed")
	if err := nodes[0].reporter.WithClock(failed); err != failed {
		t.Errorf("got %v", err)
	}
}
