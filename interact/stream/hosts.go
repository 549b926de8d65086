package stream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/choice"
	"github.com/lmosd/lmosd/td"
)

// wantConnected is the number of hosts of a Thing to which a node that calls it keeps connections: two to choose from, and one more.
const wantConnected = 3

// A placeKey identifies the measurements of a Thing at one of its hosts.
type placeKey struct {
	thing string
	host  did.DID
}

// order returns the hosts in the order in which they are tried: those that are connected, by their costs (choice.Meter.Indices); then those that
// are not, those that fail, and those that could not be reached lately. It connects to a host in the background if few are connected.
func (t *Thing) order() []td.Host {
	now := time.Now()
	candidates := make([]choice.Candidate[placeKey], len(t.hosts))
	connected := make([]bool, len(t.hosts))
	few := wantConnected
	for i := range t.hosts {
		if candidates[i], connected[i] = t.candidate(i, now); connected[i] {
			few--
		}
	}
	hosts := make([]td.Host, 0, len(t.hosts))
	for n, i := range t.b.meter.Indices(candidates) {
		hosts = append(hosts, t.hosts[i])
		if few > 0 && !connected[i] && !candidates[i].Unreachable && (n == 0 || t.b.warm(t.hosts[i])) {
			few--
		}
	}
	return hosts
}

// candidate returns the state of a host, and whether there is a direct connection to it or one is made in advance.
func (t *Thing) candidate(i int, now time.Time) (c choice.Candidate[placeKey], connected bool) {
	node := t.hosts[i].Node
	connected = t.b.host.Network().Connectedness(t.ids[i]) == network.Connected
	c = choice.Candidate[placeKey]{Key: placeKey{t.ref, node}, Unsure: !connected, RoundTrip: t.b.host.Peerstore().LatencyEWMA(t.ids[i])}
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	if r := t.b.remotes[node]; r != nil {
		c.Unreachable = c.Unsure && r.down(now)
		c.Unsure = c.Unsure || r.probing.Load() || now.UnixNano()-r.broke.Load() < int64(unreachableBackoff)
		connected = connected || r.isWarm(now)
	}
	return c, connected
}

// isDown reports whether a host could not be reached lately.
func (t *Thing) isDown(i int) bool {
	c, _ := t.candidate(i, time.Now())
	return c.Unreachable
}

// isWarm reports whether a connection was made, or tried, in advance lately.
func (r *remote) isWarm(now time.Time) bool {
	return now.UnixNano()-r.warmed.Load() < int64(unreachableBackoff)
}

// warm connects to a host in the background, once a minute at most, so that later calls can choose it. It reports whether it does.
func (b *Binding) warm(h td.Host) bool {
	r, err := b.remote(h.Node)
	if err != nil {
		return false
	}
	now, last := time.Now(), r.warmed.Load()
	if r.isWarm(now) || !r.warmed.CompareAndSwap(last, now.UnixNano()) || !b.enter() {
		r.users.Add(-1)
		return false
	}
	go func() {
		defer b.work.Done()
		defer r.users.Add(-1)
		ctx, cancel := r.dialing(b.ctx, r.prepare(h))
		defer cancel()
		err := r.connect(ctx)
		switch {
		case err == nil:
			r.broke.Store(0)
		case b.ctx.Err() == nil && !isLocal(err) && b.o.Refused(r.node) == nil:
			r.lost()
		}
	}()
	return true
}

// askOneOf tries one host after the other, until one answers, or the request may have started at one and is not repeatable. A message about what one
// host has goes to that host.
func (t *Thing) askOneOf(ctx context.Context, q request, yield func(*interact.Message, error) bool) error {
	t.b.retries.Call(time.Now())
	var failed failures
	i, strict, err := t.pinned(q.m)
	var hosts []td.Host
	switch {
	case err != nil:
		return err
	case i >= 0 && strict:
		hosts = t.hosts[i : i+1]
		failed.started = q.m.Key != ""
	default:
		hosts = t.order()
		if i >= 0 && !t.isDown(i) {
			first := t.hosts[i]
			hosts = slices.Insert(slices.DeleteFunc(hosts, func(h td.Host) bool { return h.Node == first.Node }), 0, first)
		}
	}
	for n, h := range hosts {
		last := n+1 == len(hosts)
		replied, err := t.askOne(ctx, h, q, !last, yield)
		switch {
		case err == nil || replied:
			return err
		case !t.mayMove(err, q.m):
			return failed.final(err)
		}
		failed.add(err)
		t.b.o.Log.Debug("host failed, the call may move to another one", "thing", t.ref, "host", h.Node.Short(), "err", err)
		if last || ctx.Err() != nil || t.b.ctx.Err() != nil || isCounted(err) && !t.b.retries.Take(time.Now()) {
			break
		}
	}
	return failed.report(q.m.Thing)
}

// askOne calls one host, measures it, and records what it has then. More means that there are other hosts to try.
func (t *Thing) askOne(ctx context.Context, h td.Host, q request, more bool, yield func(*interact.Message, error) bool) (replied bool, err error) {
	if id, strict, ok := t.pinOf(q.m); ok && strict && id.kind == pinKeyed {
		if at := t.b.pins.claim(id, h.Node); at != h.Node { // another call with the key has chosen it meanwhile
			i := slices.IndexFunc(t.hosts, func(h td.Host) bool { return h.Node == at })
			if i < 0 {
				t.b.pins.release(id, false)
				return false, t.left(at, q.m)
			}
			h = t.hosts[i]
		}
		defer func() { t.b.pins.release(id, err == nil || replied || !t.mayMove(err, q.m)) }()
	}
	var call choice.Call
	measured := !q.m.Type.Long() // others run for days
	if measured {
		call = t.b.meter.Begin(placeKey{t.ref, h.Node}, q.m)
		defer call.End()
		if id, _ := peerID(h.Node); t.b.host.Network().Connectedness(id) != network.Connected {
			call.Untimed()
		}
	}
	run := ""
	err = t.askPaced(ctx, h, q, more, func(r *interact.Message, _ error) bool {
		if !replied || run != r.ActionID {
			replied, run = true, r.ActionID
			t.remember(q.m, r, h.Node)
		}
		if measured {
			call.Reply(r)
		}
		if q.m.Timing != nil {
			r.Timing.Path += " at " + h.Node.Short()
		}
		return yield(r, nil)
	})
	if err != nil && measured {
		call.Fail(coded(err))
	}
	return replied, err
}

// coded returns err with a code: that of a host that was not reached is Unreachable, unless its policy is the reason.
func coded(err error) error {
	if path, ok := err.(*pathError); ok {
		if _, known := errors.AsType[*interact.Error](path.err); !known {
			return &interact.Error{Code: interact.Unreachable, Err: err}
		}
	}
	return err
}

// mayMove reports whether another host may be tried after err.
func (t *Thing) mayMove(err error, m *interact.Message) bool {
	if _, ok := err.(*pathError); ok {
		return true
	}
	return interact.AsError(err).MayMove(m, interact.Repeatable(t.desc, m))
}

// isCounted reports whether a further try after err counts against the budget: the request may run twice, or hosts have too much load. In all other
// cases the next host gets one call, as if it had been the first.
func isCounted(err error) bool {
	if path, ok := err.(*pathError); ok {
		return path.started
	}
	e := interact.AsError(err)
	return e.Started || e.Code == interact.Overloaded || e.Code == interact.RateLimited
}

// failures are the errors of the hosts that were tried. Its zero value has none.
type failures struct {
	paths   []*pathError
	first   *interact.Error // of a host that was reached; one that says more than that the host lacks what was requested
	started bool
}

func (f *failures) add(err error) {
	if path, ok := err.(*pathError); ok {
		f.paths = append(f.paths, path)
		return
	}
	e := interact.AsError(err)
	f.started = f.started || e.Started
	if f.first == nil || lacks(f.first) && !lacks(e) {
		f.first = e
	}
}

// lacks reports whether a host does not have what was requested.
func lacks(e *interact.Error) bool {
	return e.Code == interact.NotFound || e.Code == interact.Withdrawn || e.Code == interact.NoTask
}

// report returns the error for the caller: the first one. A host that could not be reached may have what others lack.
func (f *failures) report(thing string) error {
	if f.first == nil || lacks(f.first) && len(f.paths) > 0 {
		return f.final(unreachable(thing, f.paths))
	}
	return f.final(f.first)
}

// final returns err, with Started if the request may have started at any host.
func (f *failures) final(err error) error {
	if e := interact.AsError(err); f.started && !e.Started {
		started := *e
		started.Started = true
		return &started
	}
	return err
}
