package ws

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// A run is one invocation of an action over a connection. runs.mu guards its fields.
type run struct {
	thing, name     string
	id, correlation string // of the invocation
	actionID        string
	cancel          context.CancelFunc // ends it; nil if it outlives the connection, or has ended
	last            *interact.Message  // the final state, if this connection followed it
	lost            bool               // its output was too large to keep
	over            time.Time          // when it ended
}

// runs are the latest invocations of a connection, oldest first: queries and cancellations name an action, an actionID, or the
// ids of the invocation (LMOS WebSocket subprotocol, tolerance 8). An ended run is kept as long as a task, because its host does not
// serve queries for runs that are not tasks. A connection keeps the latest outputs, up to maxKept bytes in total. Other connections
// cannot query them, and they are dropped with the connection.
type runs struct {
	keep time.Duration

	mu   sync.Mutex // guards the rest
	list []*run
	held int // bytes of the data of last
}

func (r *runs) add(one *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(time.Now())
	for len(r.list) >= maxRuns {
		r.dropLocked(0)
	}
	r.list = append(r.list, one)
}

// end records the end of a run at now, with the state last, without its output if that is lost. last is nil if the end is unknown. A run
// that cannot be queried is dropped.
func (r *runs) end(one *run, last *interact.Message, lost bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.list, one)
	if one.cancel = nil; i < 0 { // it was dropped for newer runs
		return
	}
	if last == nil {
		if one.actionID == "" {
			r.dropLocked(i)
		}
		return
	}
	kept := *last
	kept.Name, kept.Time, one.last, one.over = one.name, now.UTC(), &kept, now
	if lost || len(kept.Data) > maxKept {
		kept.Data, kept.ContentType, one.lost = nil, "", kept.Status == interact.StatusCompleted
	}
	r.held += len(kept.Data)
	for oldest := 0; r.held > maxKept; {
		if old := r.list[oldest]; old.last == nil || old == one {
			oldest++
		} else {
			r.dropLocked(oldest)
		}
	}
}

// sweepLocked removes runs that ended before the keep time.
func (r *runs) sweepLocked(now time.Time) {
	for i := len(r.list) - 1; i >= 0; i-- {
		if one := r.list[i]; one.last != nil && now.Sub(one.over) >= r.keep {
			r.dropLocked(i)
		}
	}
}

// dropLocked removes the run at i.
func (r *runs) dropLocked(i int) {
	if last := r.list[i].last; last != nil {
		r.held -= len(last.Data)
	}
	r.list = slices.Delete(r.list, i, i+1)
}

// setActionID stores the actionID of a run.
func (r *runs) setActionID(one *run, actionID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(actionID) <= frame.MaxID {
		one.actionID = actionID
	}
}

// find returns a copy of the run that f names.
func (r *runs) find(f *frame.Frame) (run, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sweepLocked(time.Now())
	is := func(one *run, id string) bool { return id != "" && (one.id == id || one.correlation == id) }
	for _, fits := range []func(*run) bool{
		func(one *run) bool { return f.ActionID != "" && one.actionID == f.ActionID },
		func(one *run) bool { return f.ActionID == "" && is(one, f.Correlation) },
		func(one *run) bool { return f.ActionID == "" && is(one, f.ID) },
		func(one *run) bool { return f.ActionID == "" && one.thing == f.Thing && one.name == f.Name },
	} {
		for i := len(r.list) - 1; i >= 0; i-- {
			if fits(r.list[i]) {
				return *r.list[i], true
			}
		}
	}
	return run{}, false
}

// invoke runs an action and sends the states that the dialect of the peer supports.
func (c *conn) invoke(f *frame.Frame, flow *inflow, t target, m *interact.Message) error {
	m.Detach = flow == nil && c.detaches(f, t) // a request stream needs its consumer
	ctx, cancel := context.WithCancel(c.ctx)
	if !m.Detach {
		ctx, cancel = context.WithDeadline(c.ctx, c.bound(m))
	}
	defer cancel()
	if flow != nil {
		m.Chunks = flow.chunks(ctx)
	}
	one := &run{thing: f.Thing, name: f.Name, id: f.ID, correlation: f.Correlation, cancel: cancel}
	if m.Detach {
		one.cancel = nil
	}
	c.serving.runs.add(one)
	n := &reporter{c: c, f: f, m: m, run: one}
	defer n.record()
	defer n.close()
	for r, err := range t.thing.Do(ctx, m) {
		if err == nil && r != nil {
			err = n.report(ctx, r)
		}
		switch {
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return n.failed(err)
		}
	}
	return n.finish(ctx)
}

// detaches reports whether the action of f outlives its consumer: it is not synchronous, and the peer accepts a state as a
// response.
func (c *conn) detaches(f *frame.Frame, t target) bool {
	if !c.serving.host.detaches || f.Dialect != frame.Doc && f.Dialect != frame.WTP || t.desc == nil {
		return false
	}
	a := t.desc.Actions[f.Name]
	return a != nil && (a.Synchronous == nil || !*a.Synchronous)
}

// errEnough means that the peer received all replies of its dialect.
var errEnough = errors.New("enough")

// A reporter sends the states of an action to a peer: every state in the dialect of the documents, only the final one to Kotlin, and in
// wtp one response, which is the output or a state that the peer queries later.
type reporter struct {
	c    *conn
	f    *frame.Frame
	m    *interact.Message
	run  *run
	last *interact.Message
	sum  sum
	end  *interact.Message // the final state, as queries return it
	sent sum               // sent parts, for end
	lost bool              // the parts were too many to keep

	hasState  bool // a state was sent
	recorded  bool // see record
	following bool // see follow
}

// report handles one state.
func (n *reporter) report(ctx context.Context, r *interact.Message) error {
	if r.ActionID != "" {
		n.c.serving.runs.setActionID(n.run, r.ActionID)
	}
	switch {
	case r.Status.Final() || r.Status == interact.StatusNone:
		n.last = r
		return nil
	case n.f.WantsSteps():
		if err := n.send(ctx, r); err != nil {
			return err
		}
		n.hasState = true
		n.lost = n.lost || n.sent.add(r, maxKept) != nil
		return n.follow()
	case n.f.Dialect == frame.WTP && n.m.Detach && r.ActionID != "":
		if err := n.send(ctx, r); err != nil {
			return err
		}
		return errEnough
	}
	return n.sum.add(r, n.c.maxMessage)
}

// follow frees the slot of the request: an action that outlives the connection may run for days. The followed actions have their own
// limit; beyond it the consumer can query.
func (n *reporter) follow() error {
	s := &n.c.serving
	if !n.m.Detach || n.run.actionID == "" || n.following {
		return nil
	}
	if s.following.Add(1) > int64(n.c.maxSubscriptions) {
		s.following.Add(-1)
		return errEnough
	}
	n.following = true
	s.pending.Add(-1)
	return nil
}

// close takes the slot again that follow has freed.
func (n *reporter) close() {
	if n.following {
		n.c.serving.following.Add(-1)
		n.c.serving.pending.Add(1)
	}
}

// record records the end of the run, once: before the final state is sent, so that a query that follows it returns the same.
func (n *reporter) record() {
	if !n.recorded {
		n.recorded = true
		n.c.serving.runs.end(n.run, n.end, n.lost, time.Now())
	}
}

// finish sends the final state.
func (n *reporter) finish(ctx context.Context) error {
	if n.last == nil {
		return interact.Errorf(interact.AgentFailed, "see the agent's log", "the action ended without a result")
	}
	switch n.last.Status {
	case interact.StatusFailed:
		return n.failed(frame.ReadProblem(n.last.Data))
	case interact.StatusCancelled:
		return n.failed(&interact.Error{Code: interact.Cancelled, Remote: true, Title: "the action was cancelled", Hint: "invoke it again"})
	}
	r, err := n.sum.whole(n.last, n.c.maxMessage)
	if err != nil {
		return err
	}
	if n.end, err = n.sent.whole(r, maxKept); err != nil {
		n.end, n.lost = r, true
	}
	n.record()
	return n.send(ctx, r)
}

func (n *reporter) send(ctx context.Context, r *interact.Message) error {
	a := n.f.Answer(r)
	if n.f.Dialect == frame.WTP {
		a.Now()
	}
	return n.c.send(ctx, a, nil)
}

// failed ends the action with err. A peer that received a state gets the final state, because each invocation has one; other peers
// get the error.
func (n *reporter) failed(err error) error {
	e := interact.AsError(err)
	r := &interact.Message{Status: interact.StatusFailed, ActionID: n.run.actionID, ContentType: problem.MediaType,
		Data: frame.Problem(e, n.f.Type)}
	if n.end = r; e.Code == interact.Cancelled {
		n.end = &interact.Message{Status: interact.StatusCancelled, ActionID: r.ActionID}
	}
	n.record()
	if !n.hasState || n.c.ctx.Err() != nil {
		return err
	}
	return n.send(n.c.ctx, r)
}

// A sum collects a stream of parts for a peer that gets the final state only.
type sum struct {
	parts []interact.Part
	size  int
}

func (s *sum) add(r *interact.Message, limit int64) error {
	if len(r.Data) == 0 {
		return nil
	}
	if s.size += len(r.Data); int64(s.size) >= limit || len(s.parts) >= maxParts {
		return interact.Errorf(interact.TooLarge, "use the dialect of the LMOS documents, which supports parts",
			"the output has %d bytes or %d parts, or more", limit, maxParts)
	}
	s.parts = append(s.parts, interact.Part{Data: r.Data, ContentType: r.Media()})
	return nil
}

// whole returns the state last with the parts before it, as a completed state.
func (s *sum) whole(last *interact.Message, limit int64) (*interact.Message, error) {
	r := *last
	r.Status = interact.StatusCompleted
	if len(s.parts) > 0 {
		if err := s.add(last, limit); err != nil {
			return nil, err
		}
		r.Data, r.ContentType = interact.Join(s.parts)
	}
	return &r, nil
}

// inquire serves a query or a cancellation of an action that this connection started, or that has an actionID.
func (c *conn) inquire(f *frame.Frame, t target, m *interact.Message) error {
	one, ok := c.serving.runs.find(f)
	if !ok && f.ActionID == "" {
		return interact.Errorf(interact.NoTask, "send the actionID of its first status",
			"this connection has no known run of %q", frame.Clip(f.Name, 100))
	}
	if ok {
		m.Name, m.ActionID = one.name, one.actionID
	}
	if m.ActionID == "" { // it exists only on this connection
		return c.attached(f, &one)
	}
	ctx, cancel := context.WithTimeout(c.ctx, interact.MaxWait)
	defer cancel()
	r, err := interact.Call(ctx, t.thing, m)
	if err != nil {
		if one.isHere() && interact.AsError(err).Code == interact.NoTask { // the id is that of the agent, or its host restarted
			return c.attached(f, &one)
		}
		return err
	}
	a := f.Answer(r)
	a.ActionID = cmp.Or(a.ActionID, m.ActionID)
	return c.send(ctx, a, nil)
}

// isHere reports whether this connection has the state of the run: the run is attached to it, or was followed until its end.
func (one *run) isHere() bool { return one.cancel != nil || one.last != nil }

// attached sends the last state of a run that ends with its invocation, or has ended.
func (c *conn) attached(f *frame.Frame, one *run) error {
	r := &interact.Message{Status: interact.StatusRunning, Name: one.name, ActionID: one.actionID}
	cancels := f.Type == interact.CancelAction
	switch {
	case !one.isHere():
		return interact.Errorf(interact.NoTask, "query it after its first status", "%s has not started", frame.Clip(one.name, 100))
	case one.last != nil && cancels:
		return interact.Errorf(interact.NoTask, "read its result with queryAction", "%s has ended: %s",
			frame.Clip(one.name, 100), one.last.Status)
	case one.lost:
		return interact.Errorf(interact.TooLarge, "invoke it again", "%s is completed, and its output was too large to be kept",
			frame.Clip(one.name, 100))
	case one.last != nil:
		r = one.last
	case cancels:
		one.cancel()
		r.Status = interact.StatusCancelled
	}
	return c.send(c.ctx, f.Answer(r), nil)
}
