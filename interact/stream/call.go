package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/td"
)

// Thing returns the Thing of d at its hosts, except this node if there are others. Of several hosts the one with the lowest cost is tried first (see
// package choice); connected hosts precede others, and hosts that were unreachable in the last minute are last. The next one is tried if the request
// did not begin, or if it may have unknown, the connection was lost and the request is repeatable by d ([interact.Repeatable]). Any other response is
// final, also if it is an error. Messages about a run, with an idempotency key, of one conversation, or with After go to the host that had the earlier
// ones. If no host is reachable, the error is Unreachable and lists the paths. Thing itself connects to no host; a call may connect to others than it
// uses.
//
// A request that may have started at the only host is repeated there once if it is repeatable or has a Key. The Chunks of a message should end with the
// context of the call: their reading goroutine ends with the first chunk after the end of the interaction.
func (b *Binding) Thing(d *td.Description) *Thing {
	t := &Thing{b: b, desc: d.Thing, ref: d.Ref()}
	for _, h := range d.Record.Hosts {
		if id, _ := peerID(h.Node); id != b.host.ID() || len(d.Record.Hosts) == 1 {
			t.hosts, t.ids = append(t.hosts, h), append(t.ids, id)
		}
	}
	return t
}

// A Thing is a Thing at its hosts, see [Binding.Thing]. It is safe for concurrent use.
type Thing struct {
	b     *Binding
	desc  *td.Thing
	ref   string
	hosts []td.Host
	ids   []peer.ID // of hosts; empty if it is not valid
}

// Do implements [interact.Thing].
func (t *Thing) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		t.b.count.out.Add(1)
		if err := t.ask(ctx, m, yield); err != nil {
			t.b.count.errorsOut.Add(1)
			yield(nil, err)
		}
	}
}

// ask calls the hosts. It returns nil after the last reply, or if the consumer leaves.
func (t *Thing) ask(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) error {
	if m.Hops >= interact.MaxHops {
		return interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message for %q passed %d nodes",
			m.Thing, m.Hops)
	}
	q := request{m, m.Deadline, t.b.as(m)}
	if d, ok := ctx.Deadline(); ok {
		q.by = earliest(q.by, d)
	}
	if err := q.late(ctx, time.Now()); err != nil {
		return interact.AsError(err)
	}
	hosts := t.hosts
	if m.With != nil {
		hosts = slices.DeleteFunc(slices.Clone(hosts), func(h td.Host) bool { return h.Node != m.With.Host })
		if len(hosts) == 0 {
			return interact.Errorf(interact.DelegationInvalid, "call an agent of that host, or leave the delegation out",
				"WrongExecutor: the delegation is for the host %s, which does not offer %s", m.With.Host.Short(), m.Thing)
		}
	}
	if len(hosts) > 1 {
		return t.askOneOf(ctx, q, yield)
	}
	var failed []*pathError
	for _, h := range hosts {
		err := t.askPaced(ctx, h, q, false, yield)
		path, ok := err.(*pathError)
		if !ok {
			return err
		}
		failed = append(failed, path)
	}
	return unreachable(m.Thing, failed)
}

// askPaced calls one host, at the rate that the host permits: if the host rejects the call and states when to retry, it retries while
// time is left. More means that there are other hosts to try.
func (t *Thing) askPaced(ctx context.Context, h td.Host, q request, more bool, yield func(*interact.Message, error) bool) error {
	b := t.b
	k := paceKey{h.Node, q.m.Thing, q.as, q.m.Type.Reads()}
	if err := b.pace.turn(ctx, k, q.by); err != nil {
		return expired(err, h.Node)
	}
	by, full := q.by, crowded{until: time.Now().Add(maxCrowded)}
	for {
		err := t.askHost(ctx, h, q, more, yield)
		e, ok := err.(*interact.Error)
		if !ok || e.RetryAfter <= 0 || e.Started || q.m.Chunks != nil {
			return err
		}
		var again bool
		var late error
		switch e.Code {
		case interact.RateLimited:
			if by.IsZero() {
				by = time.Now().Add(maxTimeout)
			}
			again, late = b.pace.refused(ctx, k, by, e.RetryAfter)
		case interact.Overloaded:
			again, late = b.pace.crowded(ctx, &full, q.by, e.RetryAfter)
		}
		switch {
		case late != nil:
			return expired(late, h.Node)
		case !again:
			return err
		}
	}
}

// askHost calls one host, and repeats the call if the session has failed: once, or a few times if nothing was sent. If there are more hosts to try,
// it does not dial a lost one again.
func (t *Thing) askHost(ctx context.Context, h td.Host, q request, more bool, yield func(*interact.Message, error) bool) error {
	b := t.b
	r, err := b.remote(h.Node)
	if err != nil {
		return &pathError{host: h, err: err}
	}
	defer r.users.Add(-1)
	var resumed, unknown *lostError
	for tries := 0; ; tries++ {
		began := time.Now()
		err := r.ask(ctx, h, q, yield)
		lost, ok := err.(*lostError)
		if !ok && unknown != nil {
			return unknown.after(err, interact.Repeatable(t.desc, q.m), h.Node)
		}
		if _, unopened := err.(*pathError); unopened && resumed != nil {
			return resumed.report(h.Node) // another host does not know the events that were received
		}
		if ok && lost.resumable(q.m) {
			if errors.Is(lost.cause, errMoved) || isSpent(lost.cause) || time.Since(began) > resumeAfter {
				tries = 0
			}
			if tries < maxResumes {
				resumed = lost
				m := *q.m
				m.After = lost.last
				q.m = &m
				continue
			}
		}
		if ok && !lost.answered { // a rejected connection may look connected for a moment
			if refusal := b.o.Refused(h.Node); refusal != nil {
				return &pathError{host: h, err: refusal}
			}
			if resetBy(lost.cause, network.StreamGated) {
				return &pathError{host: h, err: &interact.Error{Code: interact.Forbidden, Remote: true, Hint: "ask its operator for an invitation",
					Title: "host " + h.Node.Short() + " refuses this node by its policy", Next: interact.Next(interact.StepID)}}
			}
		}
		if !ok {
			return err
		}
		anywhere := interact.Repeatable(t.desc, q.m)
		dead := !lost.hostIsThere()
		if dead {
			r.broke.Store(time.Now().UnixNano())
		}
		switch {
		case !lost.repeatable(q.m, anywhere):
			return lost.report(h.Node)
		case errors.Is(lost.cause, errMoved), isSpent(lost.cause) && tries == 0:
		case isSpent(lost.cause):
			return lost.report(h.Node)
		case dead && more && (!lost.sent || anywhere), tries > 0 && lost.sent, tries > 3:
			err = &pathError{host: h, err: lost.cause}
			if lost.mayHaveStarted(q.m) {
				err = lost.after(err, anywhere, h.Node)
			}
			return err
		}
		if lost.mayHaveStarted(q.m) {
			unknown = lost
		}
	}
}

// A subscription is resumed a few times at once, and then as often as it lasted a while.
const (
	maxResumes  = 3
	resumeAfter = time.Second
)

// A request is a message with its deadline and the consumer for which this node calls.
type request struct {
	m  *interact.Message
	by time.Time // zero: none
	as frame.As  // see Binding.as
}

// late returns the error of a context if q has ended at now, else nil.
func (q request) late(ctx context.Context, now time.Time) error {
	if ctx.Err() == nil && !q.by.IsZero() && !now.Before(q.by) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// within returns ctx with the deadline of q, for waits before a session watches the deadline.
func (q request) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); q.by.IsZero() || ok && !q.by.Before(d) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, q.by)
}

// class returns the class of the interaction. An action whose consumer accepts neither JSON nor CBOR may answer with a stream, such as
// sound or a file.
func (q request) class() class {
	switch {
	case q.large() || q.m.Chunks != nil:
		return alone
	case q.m.Type.Long():
		return long
	case q.m.Type == interact.InvokeAction && !structured(q.m.Accept):
		return alone
	}
	return short
}

// structured reports whether accept is JSON, CBOR or any type.
func structured(accept string) bool {
	return accept == "" || accept == "*/*" || td.IsJSON(accept) || interact.IsCBOR(accept)
}

func (q request) large() bool { return len(q.m.Data) > inline }

// A call is the calling end of an interaction.
type call struct {
	exchange
	request
	slots chan struct{} // holds an element of the call
	at    uint64        // position of the request in the bytes of the session
	sent  bool          // the session has the request
	asked time.Time     // when; zero on a direct connection
	done  bool          // the last frame was taken

	dialed  time.Duration      // the time until there was a session; zero if the times of the call are not measured
	replied bool               // the consumer received a reply
	last    string             // the ID of the last one; empty if it has none
	stop    context.CancelFunc // of feed
}

// ask sends q on a session to h and yields the replies. The error is a *pathError if h is unreachable, and a *lostError if the session
// ended before the response.
func (r *remote) ask(ctx context.Context, h td.Host, q request, yield func(*interact.Message, error) bool) error {
	c, err := r.begin(ctx, h, q)
	if err != nil {
		return err
	}
	defer c.finish()
	if err := c.start(ctx); err != nil {
		return c.failure(ctx, err)
	}
	return c.replies(ctx, yield)
}

// begin takes a slot of the peer and adds a call to a session.
func (r *remote) begin(ctx context.Context, h td.Host, q request) (*call, error) {
	cl := q.class()
	c := &call{request: q, slots: r.slots[cl]}
	c.long = cl == long
	if err := c.admit(ctx, r.node); err != nil {
		return nil, expired(err, r.node)
	}
	c.ready, c.started, c.until = make(chan struct{}, 1), time.Now(), q.by
	l, err := r.sessionFor(ctx, h, q, cl)
	if q.m.Timing != nil {
		c.dialed = time.Since(c.started)
	}
	if err == nil {
		err = r.add(l, c)
	}
	if err != nil {
		<-c.slots
		return nil, err
	}
	return c, nil
}

// admit takes a slot. The error is that of a context, or Overloaded.
func (c *call) admit(ctx context.Context, node did.DID) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	default:
	}
	if c.long {
		return interact.Errorf(interact.Overloaded, "end some of them first",
			"this node has %d observations and subscriptions at %s already", cap(c.slots), node.Short())
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start sends the request. A goroutine sends the data that does not fit its frame, while replies may arrive.
func (c *call) start(ctx context.Context) error {
	f := frame.Extra{Stream: c.m.Chunks != nil, As: c.as}
	if c.large() {
		f.Size = int64(len(c.m.Data))
	}
	if err := c.l.b.fits("message", f.Size, "send less, or in parts"); err != nil {
		return err
	}
	left := frame.TimeLeft(c.by, c.started)
	var err error
	c.at, err = c.l.out.append(ctx, frame.Request, c.id, c.l.direct(), func(b []byte) ([]byte, error) {
		return frame.AppendRequest(b, c.m, f, left)
	})
	if err != nil {
		return err
	}
	if c.l.relayed {
		c.asked = time.Now()
	}
	if c.sent = true; f.Size > 0 || f.Stream {
		return c.feed(ctx)
	}
	return nil
}

// as returns the statement for whom a message is sent: without a name for observations, which consumers of one class share, and the node
// itself for messages of other nodes, because a node states its own consumers only.
func (b *Binding) as(m *interact.Message) frame.As {
	if !m.From.Local() {
		return frame.As{}
	}
	as := b.o.As(m.From)
	if m.Type.Long() {
		as.Name = ""
	}
	return as
}

// A feedError is an error of the request stream, which ends the session of the call.
type feedError struct{ error }

// feed starts to send the data and the chunks after the request.
func (c *call) feed(ctx context.Context) error {
	if !c.l.b.enter() {
		return errClosed
	}
	ctx, c.stop = context.WithCancel(ctx)
	go func() {
		defer c.l.b.work.Done()
		if err := c.pour(ctx); err != nil && ctx.Err() == nil {
			c.l.fail(err)
		}
	}()
	return nil
}

// pour sends the data of a large request, then its chunks. A panic of the source ends its own call only.
func (c *call) pour(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.l.b.o.Log.Error("a request stream panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = feedError{interact.Errorf(interact.Internal, "see the log of this node", "the source of the request stream failed")}
		}
	}()
	if c.large() {
		if err := c.sendData(ctx, c.m.Data, c.l.chunk()); err != nil {
			return err
		}
	}
	if c.m.Chunks == nil {
		return nil
	}
	for chunk, err := range c.m.Chunks {
		if err != nil {
			return feedError{err}
		}
		if err := c.sendData(ctx, chunk, frame.MaxChunk); err != nil {
			return err
		}
	}
	c.l.send(frame.End, c.id, 0)
	return nil
}

// replies yields the replies.
func (c *call) replies(ctx context.Context, yield func(*interact.Message, error) bool) error {
	for {
		c.forget()
		f, err := c.take(ctx, 0)
		if err != nil {
			return c.failure(ctx, err)
		}
		c.done = f.Kind.Ends()
		if !c.asked.IsZero() {
			c.l.noteReply(time.Since(c.asked))
			c.asked = time.Time{}
		}
		switch f.Kind {
		case frame.End:
			return nil
		case frame.Error:
			e, err := frame.ReadError(f.Body)
			if err != nil {
				return c.failure(ctx, err)
			}
			if c.replied {
				e.RetryAfter = 0 // the call has started
			}
			e.Started = e.Started || e.Code == interact.RelayLimited // the answer does not fit
			return e
		}
		r, err := c.reply(ctx, f)
		if err != nil {
			return c.failure(ctx, err)
		}
		c.replied, c.last = true, r.ID
		if c.m.Timing != nil {
			if r.Timing == nil {
				r.Timing = &interact.Timing{}
			}
			r.Timing.Path, r.Timing.Node, r.Timing.Dial = c.l.path(), c.l.node, c.dialed
		}
		if !yield(r, nil) || c.done {
			return nil
		}
	}
}

// reply reads the message of f and the data that follows it.
func (c *call) reply(ctx context.Context, f frame.Frame) (*interact.Message, error) {
	if f.Kind != frame.Reply && f.Kind != frame.Last {
		return nil, frame.Errorf("a frame of kind %d where a reply should be", f.Kind)
	}
	r, follow, err := frame.ReadReply(f.Body, c.m)
	if err != nil || follow.Size == 0 {
		return r, err
	}
	if c.done {
		return nil, frame.Errorf("data was announced to follow the last frame")
	}
	r.Data, err = c.assemble(ctx, follow.Size)
	return r, err
}

// failure returns the error for the caller.
func (c *call) failure(ctx context.Context, err error) error {
	var feed feedError
	var known *interact.Error
	switch {
	case ctx.Err() != nil:
		return expired(ctx.Err(), c.l.node)
	case errors.Is(err, context.DeadlineExceeded):
		return expired(err, c.l.node)
	case errors.As(err, &feed):
		return interact.AsError(feed.error)
	case errors.As(err, &known):
		return known
	case errors.Is(err, errMemory):
		return &interact.Error{Code: interact.Overloaded, Title: "no memory left for the answer of " + c.l.node.Short(),
			Hint: "call less at once, or raise the memory limit of this node", Err: err}
	case errors.Is(err, frame.ErrProtocol):
		c.l.fail(err)
		return &interact.Error{Code: interact.Internal, Title: "host " + c.l.node.Short() + " violated the protocol",
			Hint: "update the older of the two nodes", Next: interact.Next(interact.StepStatus), Err: err}
	}
	received, _, _ := c.state()
	return &lostError{cause: err, sent: c.sent && c.l.out.sent(c.at), answered: received, last: c.last}
}

// finish removes the call from its session, cancels it at the host if it still runs, and releases its resources.
func (c *call) finish() {
	if c.stop != nil {
		c.stop()
	}
	removed := c.l.remove(&c.exchange)
	switch {
	case c.l.own && c.done:
		c.l.fail(errOver)
	case c.l.own:
		c.l.fail(context.Canceled)
	case removed && c.sent && !c.done:
		c.l.send(frame.Cancel, c.id, 0)
	}
	c.release()
	<-c.slots
}
