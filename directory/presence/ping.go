package presence

import (
	"context"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/td"
)

// Hosted reports whether this node publishes the Thing.
func (m *Monitor) Hosted(d *td.Description) bool { return m.o.Index.Has(d) }

// Paths returns the paths to a Thing, best first. The error is that of directory.Directory.Locate.
func (m *Monitor) Paths(ctx context.Context, ref string) ([]api.Path, error) {
	t, err := m.o.Directory.Locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	far, ok := t.(*servient.Consumed)
	if !ok {
		return []api.Path{{Name: "local"}}, nil
	}
	var all []api.Path
	for _, s := range far.Paths.States(time.Now()) {
		all = append(all, api.Path{Name: s.Name, Down: s.Down, Took: float64(s.Took.Microseconds()) / 1000})
	}
	return all, nil
}

// Ping measures the round trips to the first host of a Thing that answers, at least once. The error is that of directory.Directory.Get,
// [interact.Unreachable], or [interact.Invalid] for fewer times.
func (m *Monitor) Ping(ctx context.Context, ref string, times int) (*api.Ping, error) {
	if times < 1 {
		return nil, interact.Errorf(interact.Invalid, "", "expected at least one ping, got %d", times)
	}
	d, err := m.o.Directory.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if m.Hosted(d) {
		return &api.Ping{Ref: d.Ref(), Node: m.o.Self, Path: "local", RTT: make([]float64, times)}, nil
	}
	for _, h := range d.Record.Hosts {
		link, all, failed := m.o.Peers.Ping(ctx, h.Node, times)
		if err = failed; err != nil {
			continue
		}
		p := &api.Ping{Ref: d.Ref(), Node: h.Node, Path: "mesh " + link.Transport, Relay: link.Relay,
			Upgrade: float64(link.Upgrade) / float64(time.Millisecond), RTT: make([]float64, 0, times)}
		for _, rtt := range all {
			p.RTT = append(p.RTT, float64(rtt)/float64(time.Millisecond))
		}
		return p, nil
	}
	return nil, &interact.Error{Code: interact.Unreachable, Title: "no host of " + d.Name() + " responds to a ping", Err: err,
		Hint: "see where it is", Next: interact.Next(interact.StepShow, ref)}
}

// AgentState returns what the router compares besides descriptions. The round trip is that to the nearest host. It sends no request.
func (m *Monitor) AgentState(d *td.Description) (s route.AgentState) {
	p := m.Presence(d)
	s.Unreachable, s.Refused = p.State == reachability.Unreachable, p.State == reachability.Refused
	s.Reached, s.Local = p.State == reachability.Reachable, m.Hosted(d)
	s.Trust, _ = directory.TrustIn(d.Record, m.o.Trust)
	for _, h := range d.Record.Hosts {
		if took := m.o.Peers.Latency(h.Node); took > 0 && (s.RoundTrip == 0 || took < s.RoundTrip) {
			s.RoundTrip = took
		}
	}
	return s
}

// Choose returns Things in the order in which a caller of this node should try them (choice.Meter.Order). It sends no request.
func (m *Monitor) Choose(things ...*td.Description) []choice.Choice {
	candidates := make([]choice.Candidate[[32]byte], len(things))
	for i, d := range things {
		s := m.AgentState(d)
		candidates[i] = choice.Candidate[[32]byte]{Key: d.Record.Key(), Local: s.Local, Unreachable: s.Unreachable, Refused: s.Refused, RoundTrip: s.RoundTrip}
	}
	return m.meter.Order(candidates)
}
