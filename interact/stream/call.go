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

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
	"github.com/lmosd/lmosd/td"
)

// Thing returns the thing that is reached through any of hosts. They are tried in order, but those that are connected
// first and those that were down in the last minute last, until one can be reached; what a host answers is the answer, an
// error too. If none can be reached, the error is Unreachable and lists the paths. To call Thing costs nothing; it connects
// when a message is sent.
//
// A request that may have begun at a host is not repeated, unless it only reads. A message's Chunks should end with the
// context of the call: the goroutine that reads them ends with the chunk that comes after the interaction's end.
func (b *Binding) Thing(hosts []td.Host) interact.Thing { return &thing{b, hosts} }

type thing struct {
	b     *Binding
	hosts []td.Host
}

func (t *thing) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		t.b.count.out.Add(1)
		if err := t.ask(ctx, m, yield); err != nil {
			t.b.count.errorsOut.Add(1)
			yield(nil, err)
		}
	}
}

// ask asks one host after the other. It returns nil when all was yielded or the consumer has left.
func (t *thing) ask(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) error {
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
	var failed []*pathError
	for _, h := range t.prefer() {
		err := t.b.askPaced(ctx, h, q, yield)
		path, ok := err.(*pathError)
		if !ok {
			return err
		}
		failed = append(failed, path)
	}
	return unreachable(m.Thing, failed)
}

// prefer returns the hosts in the order in which they are tried: those that are connected, those of which nothing is known,
// those that were down a moment ago.
func (t *thing) prefer() []td.Host {
	if len(t.hosts) < 2 {
		return t.hosts
	}
	ranks := make(map[did.DID]int, len(t.hosts))
	for _, h := range t.hosts {
		ranks[h.Node] = t.b.rank(h.Node)
	}
	hosts := slices.Clone(t.hosts)
	slices.SortStableFunc(hosts, func(a, b td.Host) int { return ranks[a.Node] - ranks[b.Node] })
	return hosts
}

func (b *Binding) rank(node did.DID) int {
	id, err := peerID(node)
	if err == nil && b.host.Network().Connectedness(id) == network.Connected {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.remotes[node]; r != nil && r.down(time.Now()) {
		return 2
	}
	return 1
}

// askPaced asks one host, as fast as it wants to be asked: again, if it has refused the call before it began and said when to come again, and
// if there is time.
func (b *Binding) askPaced(ctx context.Context, h td.Host, q request, yield func(*interact.Message, error) bool) error {
	k := paceKey{h.Node, q.m.Thing, q.as, q.m.Type.Reads()}
	if err := b.pace.turn(ctx, k, q.by); err != nil {
		return expired(err, h.Node)
	}
	by, full := q.by, crowded{until: time.Now().Add(maxCrowded)}
	for {
		err := b.askHost(ctx, h, q, yield)
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

// askHost asks one host, and again if the session turned out to be dead: once, or some times if nothing was sent.
func (b *Binding) askHost(ctx context.Context, h td.Host, q request, yield func(*interact.Message, error) bool) error {
	r, err := b.remote(h.Node)
	if err != nil {
		return &pathError{host: h, err: err}
	}
	defer r.users.Add(-1)
	for tries := 0; ; tries++ {
		err := r.ask(ctx, h, q, yield)
		lost, ok := err.(*lostError)
		if ok && !lost.answered { // who is refused may believe for a moment that it is connected
			if refusal := b.o.Refused(h.Node); refusal != nil {
				return &pathError{host: h, err: refusal}
			}
		}
		switch {
		case !ok:
			return err
		case !lost.repeatable(q.m):
			return lost.report(h.Node)
		case tries > 0 && lost.sent || tries > 3 || errors.Is(lost.cause, errSilent):
			return &pathError{host: h, err: lost.cause}
		}
	}
}

// A request is a message that is asked, when the answer is of no use any more, and for whom this node asks.
type request struct {
	m  *interact.Message
	by time.Time // zero: never
	as string    // see Binding.as
}

// late reports why q is not worth sending at now: the error of a context, or nil.
func (q request) late(ctx context.Context, now time.Time) error {
	if ctx.Err() == nil && !q.by.IsZero() && !now.Before(q.by) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// within returns ctx with the deadline of q, for what may wait before there is a session that watches it.
func (q request) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); q.by.IsZero() || ok && !q.by.Before(d) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, q.by)
}

// class says which session the interaction takes. An action whose consumer wants something else than JSON or CBOR may answer
// with a stream: sound, a file.
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

// structured reports whether accept is a type of JSON or CBOR, or none in particular.
func structured(accept string) bool {
	return accept == "" || accept == "*/*" || td.IsJSON(accept) || interact.IsCBOR(accept)
}

func (q request) large() bool { return len(q.m.Data) > inline }

// A call is the calling end of an interaction.
type call struct {
	exchange
	request
	slots chan struct{} // from which the call took an element
	at    uint64        // where the request begins in what the session wrote
	sent  bool          // the request was given to the session
	done  bool          // the last frame was taken
	// replied tells that the consumer got something.
	replied bool
	stop    context.CancelFunc // of feed
}

// ask sends q on a session to h and yields the replies. A *pathError says that h was not reached, a *lostError that the session
// ended before the answer.
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

// begin puts a call on a session. It waits for one of the peer's slots.
func (r *remote) begin(ctx context.Context, h td.Host, q request) (*call, error) {
	cl := q.class()
	c := &call{request: q, slots: r.slots[cl]}
	c.long = cl == long
	if err := c.admit(ctx, r.node); err != nil {
		return nil, expired(err, r.node)
	}
	c.ready, c.started, c.until = make(chan struct{}, 1), time.Now(), q.by
	l, err := r.sessionFor(ctx, h, q, cl)
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

// start sends the request. What does not fit its frame is sent by a goroutine, while replies may come.
func (c *call) start(ctx context.Context) error {
	f := frame.Extra{Stream: c.m.Chunks != nil, As: c.as}
	if c.large() {
		f.Size = int64(len(c.m.Data))
	}
	if f.Size > c.l.b.o.MaxMessage {
		return interact.Errorf(interact.TooLarge, "send less, or in parts", "the message has %d bytes, at most %d are allowed",
			f.Size, c.l.b.o.MaxMessage)
	}
	left := frame.TimeLeft(c.by, c.started)
	var err error
	c.at, err = c.l.out.append(ctx, frame.Request, c.id, c.l.direct(), func(b []byte) ([]byte, error) {
		return frame.AppendRequest(b, c.m, f, left)
	})
	if err != nil {
		return err
	}
	if c.sent = true; f.Size > 0 || f.Stream {
		return c.feed(ctx)
	}
	return nil
}

// As is the consumer for whom a message is asked; empty for the node itself, for what is observed for many, and for what another node
// asks: a node speaks for its own consumers.
func (b *Binding) as(m *interact.Message) string {
	if m.Type.Long() || !m.From.Local() {
		return ""
	}
	return b.o.As(m.From)
}

// A feedError says that the request stream gave an error, which ended the call's session.
type feedError struct{ error }

// feed starts to send what follows the request.
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

// pour sends the data of a large request, then its chunks. A source that panics costs its own call only: it runs in a
// goroutine that nobody else guards.
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

// replies yields what arrives.
func (c *call) replies(ctx context.Context, yield func(*interact.Message, error) bool) error {
	for {
		c.forget()
		f, err := c.take(ctx, 0)
		if err != nil {
			return c.failure(ctx, err)
		}
		c.done = f.Kind.Ends()
		switch f.Kind {
		case frame.End:
			return nil
		case frame.Error:
			e, err := frame.ReadError(f.Body)
			if err != nil {
				return c.failure(ctx, err)
			}
			if c.replied {
				e.RetryAfter = 0 // it had begun
			}
			return e
		}
		r, err := c.reply(ctx, f)
		if err != nil {
			return c.failure(ctx, err)
		}
		c.replied = true
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

// failure says what err means for the caller.
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
		return &interact.Error{Code: interact.Internal, Title: "host " + c.l.node.Short() + " answered with nonsense",
			Hint: "update the older of the two nodes", Next: interact.Next(interact.StepStatus), Err: err}
	}
	return &lostError{cause: err, sent: c.sent && c.l.out.sent(c.at), answered: !c.silent()}
}

// finish takes the call off its session, tells the host if it still works, and returns what the call held.
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
