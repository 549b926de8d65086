package gateway

import (
	"context"
	"os"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/journal"
	"github.com/lmosd/lmosd/td"
)

// recordActivity adds the connections of peers and the states of tasks to the journal, until stop is called.
func (g *Gateway) recordActivity() (stop func()) {
	if g.o.Tasks != nil {
		g.o.Tasks.OnChange(func(e task.Entry, started bool) {
			event := api.NodeEvent{Kind: api.EventTaskChanged, Thing: e.Thing, Text: e.Action, Code: e.State.String(), ID: e.ActionID}
			switch {
			case started:
				event.Kind = api.EventTaskStarted
			case e.State.Final():
				event.Kind = api.EventTaskEnded
			}
			g.journal.Add(event)
		})
	}
	return g.o.Peers.OnConnection(func(node did.DID, connected bool) {
		kind := api.EventPeerDisconnected
		if connected {
			kind = api.EventPeerConnected
		}
		g.journal.Add(api.NodeEvent{Kind: kind, DID: node})
	})
}

// A monitor compares the state of the node with the last one, for events of parts that notify of nothing, and samples the load.
type monitor struct {
	g             *Gateway
	warnings      map[string]api.Warning
	relays        map[did.DID]bool
	bootstrap     map[string]api.BootstrapState // by their entries
	equivocations map[string]bool               // nil: not compared yet
	total, failed uint64
	durations     uint64 // their number
	sampled       time.Time
}

// watchState compares and samples until ctx ends.
func (g *Gateway) watchState(ctx context.Context) {
	m := &monitor{g: g, sampled: time.Now()}
	m.total, m.failed, m.durations = g.metrics.total.Load(), g.metrics.failed.Load(), g.metrics.recent.next.Load()
	g.journal.Watch(ctx, func(sampled bool) {
		s := g.o.Status.Status(did.AsProcess(ctx))
		m.compareWarnings(s.Warnings)
		n := g.o.Peers.Net()
		m.compareRelays(n.Relays)
		m.compareBootstrap(n.Bootstrap)
		m.compareEquivocations(s.Equivocations)
		if sampled {
			m.sample(ctx, s)
		}
	})
}

func (m *monitor) compareWarnings(all []api.Warning) {
	now := map[string]api.Warning{}
	for _, w := range all {
		key := w.Code + " " + w.Title
		if _, twice := now[key]; twice {
			continue
		}
		if now[key] = w; m.warnings[key].Code == "" {
			m.g.journal.Add(api.NodeEvent{Kind: api.EventWarningRaised, Code: w.Code, Name: w.Title, Text: w.Text})
		}
	}
	for key, w := range m.warnings {
		if _, ok := now[key]; !ok {
			m.g.journal.Add(api.NodeEvent{Kind: api.EventWarningCleared, Code: w.Code, Name: w.Title, Text: w.Text})
		}
	}
	m.warnings = now
}

// compareBootstrap adds the entries of mesh.bootstrap whose state or reason has changed.
func (m *monitor) compareBootstrap(all []api.BootstrapState) {
	now := make(map[string]api.BootstrapState, len(all))
	for _, b := range all {
		last := m.bootstrap[b.Addr]
		if now[b.Addr] = b; last.State == b.State && last.Reason == b.Reason || b.State == api.BootstrapWaiting {
			continue
		}
		kind := api.EventBootstrapFailed
		if b.State == api.BootstrapReached {
			kind = api.EventBootstrapReached
		}
		m.g.journal.Add(api.NodeEvent{Kind: kind, DID: b.DID, Name: b.Addr, Code: b.State, Text: b.Reason})
	}
	m.bootstrap = now
}

func (m *monitor) compareRelays(all []api.NetRelay) {
	now := map[did.DID]bool{}
	for _, r := range all {
		if now[r.DID] = true; !m.relays[r.DID] {
			m.g.journal.Add(api.NodeEvent{Kind: api.EventRelayFound, DID: r.DID, Text: r.Addr})
		}
	}
	for id := range m.relays {
		if !now[id] {
			m.g.journal.Add(api.NodeEvent{Kind: api.EventRelayLost, DID: id})
		}
	}
	m.relays = now
}

// compareEquivocations adds those that were found since the last comparison. The first one finds those of earlier runs.
func (m *monitor) compareEquivocations(all []api.Equivocation) {
	now := map[string]bool{}
	for _, e := range all {
		key := td.ExactRef(e.ID, e.Owner) + " " + strconv.FormatUint(e.Seq, 10)
		if now[key] = true; m.equivocations != nil && !m.equivocations[key] {
			m.g.journal.Add(api.NodeEvent{Kind: api.EventEquivocation, DID: e.Owner, Thing: td.ExactRef(e.ID, e.Owner),
				Text: "two records with the sequence number " + strconv.FormatUint(e.Seq, 10)})
		}
	}
	m.equivocations = now
}

// sample adds the load since the last sample.
func (m *monitor) sample(ctx context.Context, s *api.Status) {
	now, counted := time.Now(), m.g.metrics
	total, failed := counted.total.Load(), counted.failed.Load()
	seconds := max(now.Sub(m.sampled).Seconds(), 0.001)
	open := m.g.o.Status.Status(did.WithPrincipal(ctx, did.Consumer(did.Loopback, "")))
	x := journal.Sample{Calls: float64(total-m.total) / seconds, Errors: float64(failed-m.failed) / seconds, P50: -1, P99: -1,
		Peers: s.Peers.Total, Agents: s.Agents.Known, Open: open.Agents.Known, RSS: residentMemory()}
	durations := counted.recent.next.Load()
	if n := durations - m.durations; n > 0 {
		p := counted.recent.last(n, 0.5, 0.99)
		x.P50, x.P99 = p[0], p[1]
	}
	m.total, m.failed, m.durations, m.sampled = total, failed, durations, now
	m.g.journal.Sample(x)
}

// residentMemory returns the resident memory of this process, in bytes: where the system does not report it, what the runtime has.
func residentMemory() int64 {
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return pages * int64(os.Getpagesize())
			}
		}
	}
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
