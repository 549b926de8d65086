package interact

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/td"
)

// A Path is one path to a Thing: the mesh, or forms of its description.
type Path struct {
	// Name is "mesh", or the scheme of the forms, for example "https".
	Name string
	// Thing sends messages over the path.
	Thing Thing
	// Supports reports whether the path supports m; nil means that it supports all messages.
	Supports func(m *Message) bool
	// HasAddress reports whether via, as in [Message.Via], is an address of the path; nil means that it has none.
	HasAddress func(via string) bool
	// Rank orders paths without measurements: lower is better.
	Rank int
	// IsHost means that the path leads to a host of its own, or to several: other paths may serve what it refuses ([Error.MayMove]), and do
	// not know its runs, keys and events.
	IsHost bool
}

const (
	downFor     = 30 * time.Second // a path that failed is tried last
	speedFactor = 2                // a path that is faster by this factor precedes one of a lower rank
)

// Paths is a Thing with several paths. It uses the best path: no recent failure, not much slower than another, and the lowest rank.
// If that cannot be reached it tries the next, unless the interaction may have started and is not [Repeatable]. It is safe for
// concurrent use.
type Paths struct {
	desc  *td.Thing
	all   []*path
	hosts bool // a path leads to a host of its own
}

// A path is a Path with its measurements.
type path struct {
	Path
	mu     sync.Mutex
	failed time.Time     // zero: no recent failure
	took   time.Duration // moving average of unary interactions; zero: unknown
}

// NewPaths returns the Thing with description d at the end of all paths.
func NewPaths(d *td.Thing, paths ...Path) *Paths {
	p := &Paths{desc: d}
	for _, one := range paths {
		p.all = append(p.all, &path{Path: one})
		p.hosts = p.hosts || one.IsHost
	}
	return p
}

// A PathState is the state of a path.
type PathState struct {
	Name string
	Down bool
	Took time.Duration // average; 0: unknown
}

// States returns the paths, best first.
func (p *Paths) States(now time.Time) []PathState {
	var states []PathState
	for _, one := range p.order(p.all, now) {
		states = append(states, one.state(now))
	}
	return states
}

// Do implements [Thing].
func (p *Paths) Do(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
	if len(p.all) == 1 && p.all[0].Supports == nil && m.Via == "" && m.Timing == nil {
		return p.all[0].Thing.Do(ctx, m) // a single path, and no timing
	}
	return func(yield func(*Message, error) bool) {
		usable, err := p.usable(m)
		if err != nil {
			yield(nil, err)
			return
		}
		again := Repeatable(p.desc, m)
		var failed []error
		for _, one := range p.orderFor(m, usable) {
			err := one.send(ctx, m, yield)
			if err == nil {
				return
			}
			failed = append(failed, err)
			if !mayTryNextPath(err, again) && !(one.IsHost && AsError(err).MayMove(m, again)) || ctx.Err() != nil {
				break
			}
		}
		yield(nil, joinFailures(failed))
	}
}

// usable returns the paths that support m.
func (p *Paths) usable(m *Message) ([]*path, error) {
	var fit []*path
	for _, one := range p.all {
		if one.Supports != nil && !one.Supports(m) || m.Via != "" && !one.is(m.Via) {
			continue
		}
		fit = append(fit, one)
	}
	if len(fit) > 0 {
		return fit, nil
	}
	var names []string
	for _, one := range p.all {
		names = append(names, one.Name)
	}
	if m.Via != "" {
		return nil, Errorf(Unreachable, "its paths are "+strings.Join(names, ", "), "%s does not support %s over %q", p.desc.Name(),
			m.Type.Op(), m.Via)
	}
	return nil, Errorf(NotAllowed, "its paths are "+strings.Join(names, ", "), "no path to %s supports %s", p.desc.Name(), m.Type.Op())
}

// is reports whether via selects the path.
func (p *path) is(via string) bool { return via == p.Name || p.HasAddress != nil && p.HasAddress(via) }

// orderFor returns paths in the order of use for m. What a host may know of earlier messages is not decided by measurements: the first path is
// tried first, and events after a received one exist only there.
func (p *Paths) orderFor(m *Message, usable []*path) []*path {
	switch {
	case !p.hosts:
	case m.After != "" && m.Type.Long():
		return usable[:1]
	case m.Key != "", m.Type.AboutRun():
		return usable
	}
	return p.order(usable, time.Now())
}

// order returns paths in the order of use.
func (p *Paths) order(paths []*path, now time.Time) []*path {
	if len(paths) < 2 {
		return paths
	}
	states := make(map[*path]PathState, len(paths))
	for _, one := range paths {
		states[one] = one.state(now)
	}
	sorted := slices.Clone(paths)
	slices.SortStableFunc(sorted, func(a, b *path) int {
		sa, sb := states[a], states[b]
		switch {
		case sa.Down != sb.Down && sa.Down:
			return 1
		case sa.Down != sb.Down:
			return -1
		case sa.Took > 0 && sb.Took > speedFactor*sa.Took:
			return -1
		case sb.Took > 0 && sa.Took > speedFactor*sb.Took:
			return 1
		}
		return cmp.Compare(a.Rank, b.Rank)
	})
	return sorted
}

func (p *path) state(now time.Time) PathState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PathState{Name: p.Name, Took: p.took, Down: !p.failed.IsZero() && now.Sub(p.failed) < downFor}
}

// send sends m over the path. It returns an error only without a yielded reply.
func (p *path) send(ctx context.Context, m *Message, yield func(*Message, error) bool) error {
	started := time.Now()
	replied := false
	for r, err := range p.Thing.Do(ctx, m) {
		if err != nil {
			p.record(err, 0)
			if !replied {
				return err
			}
			yield(nil, err)
			return nil
		}
		replied = true
		if m.Timing != nil && (r.Timing == nil || r.Timing.Path == "") {
			r = r.timed(func(t *Timing) { t.Path = p.Name })
		}
		if !yield(r, nil) {
			return nil
		}
	}
	if !m.Type.Long() {
		p.record(nil, time.Since(started))
	}
	return nil
}

// record stores the result of an interaction. A remote error means that the path works.
func (p *path) record(err error, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e *Error
	switch {
	case err != nil && errors.As(err, &e) && e.Code == Unreachable && !e.Remote:
		p.failed = time.Now()
	case err != nil:
	case p.took == 0:
		p.failed, p.took = time.Time{}, took
	default:
		p.failed, p.took = time.Time{}, (7*p.took+took)/8
	}
}

// mayTryNextPath reports whether another path may be tried after err: the Thing was not reached, the path does not support the request,
// or the connection was lost and the interaction is repeatable.
func mayTryNextPath(err error, repeatable bool) bool {
	var e *Error
	if !errors.As(err, &e) || e.Remote || e.Started && !repeatable {
		return false
	}
	switch e.Code {
	case Unreachable, RelayLimited, Unauthenticated, UnsupportedType, NotAllowed:
		return true
	}
	return false
}

// joinFailures returns the last error with those before it.
func joinFailures(failed []error) error {
	last := failed[len(failed)-1]
	if len(failed) == 1 {
		return last
	}
	e := *AsError(last)
	for _, err := range failed {
		e.Started = e.Started || AsError(err).Started
	}
	e.Err = errors.Join(failed...)
	e.Title = AsError(last).Error() + "; other paths failed before"
	return &e
}
