package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// An inbound is a node that calls this node.
type inbound struct {
	sessions int // owned by Binding.mu
	serving  load
}

// accept serves a stream of a peer. Handlers check in this order: service, memory, deadline, one message, identity, work, close.
func (b *Binding) accept(s network.Stream) {
	if !b.enter() {
		_ = s.ResetWithError(network.StreamShutdown)
		return
	}
	defer b.work.Done()
	id := s.Conn().RemotePeer()
	if err := s.Scope().SetService(Service); err != nil {
		b.o.Log.Debug("stream refused", "peer", did.ShortPeer(id), "err", err)
		_ = s.ResetWithError(network.StreamResourceLimitExceeded)
		return
	}
	node, err := did.FromPeer([]byte(id))
	if err != nil {
		b.o.Log.Debug("stream refused", "peer", did.ShortPeer(id), "err", err)
		_ = s.ResetWithError(network.StreamGated)
		return
	}
	l, err := b.newSession(s, node, nil, false)
	if err != nil {
		b.o.Log.Debug("stream refused", "peer", did.ShortPeer(id), "err", err)
		return
	}
	l.first, l.inbound = true, b.arrive(id)
	defer b.depart(id)
	l.serve(l.request)
	b.o.Log.Debug("stream ended", "peer", did.ShortPeer(id), "reason", l.reason())
}

func (b *Binding) arrive(id peer.ID) *inbound {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.inbounds[id]
	if in == nil {
		in = &inbound{}
		b.inbounds[id] = in
	}
	in.sessions++
	return in
}

func (b *Binding) depart(id peer.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.inbounds[id]
	if in.sessions--; in.sessions == 0 {
		delete(b.inbounds, id)
	}
}

// request handles a frame of the caller. The reader of the session calls it.
func (l *session) request(f frame.Frame) error {
	if l.first {
		return l.begin(f)
	}
	e := l.find(f.ID)
	switch {
	case f.Kind == frame.Request && !l.own && f.ID != 0 && e == nil:
		return l.admit(f)
	case f.Kind == frame.Request, f.Kind.Ends() && f.Kind != frame.End, f.Kind == frame.Reply:
		return frame.Errorf("a frame of kind %d from the calling end", f.Kind)
	case e == nil: // answered
		l.discard(f)
		return nil
	case f.Kind == frame.Credit:
		return e.grant(f.Body)
	case f.Kind == frame.Cancel:
		if l.remove(e) {
			e.end(context.Canceled)
		}
		return nil
	case !l.own:
		return frame.Errorf("a request stream on a shared session")
	}
	return e.put(f)
}

// begin handles the first frame, which decides the use of the session.
func (l *session) begin(f frame.Frame) error {
	l.stopFrameTimer()
	if f.Kind != frame.Request {
		return frame.Errorf("the first frame is of kind %d", f.Kind)
	}
	l.first, l.own = false, f.ID == 0
	return l.admit(f)
}

// admit starts to serve a request, or rejects it.
func (l *session) admit(f frame.Frame) error {
	l.b.count.in.Add(1)
	v := &served{body: f.Body}
	limit := l.b.o.MaxPerPeer
	if v.long = frame.IsLong(f.Body); v.long {
		v.class, limit = long, l.b.o.MaxLong
	}
	v.init(l, f.ID)
	v.work = &v.ctx
	busy := l.b.serving[v.class].Add(1) > int64(l.b.o.MaxConcurrent)
	busy = l.inbound.serving[v.class].Add(1) > int64(limit) || busy
	var err error
	switch {
	case l.b.draining.Load():
		v.refuse(f, goingDown())
	case busy:
		v.refuse(f, interact.Errorf(interact.Overloaded, "try again in a moment", "the host serves the maximum number of calls"))
	default:
		err = v.accept(f)
	}
	return err
}

func goingDown() error {
	return interact.HostShutdownError("try again in a moment")
}

// A served is the serving end of an interaction.
type served struct {
	exchange
	ctx   work
	class class
	body  []byte // the map of the request
	req   *interact.Message
	held  *interact.Message // a reply that may be the last
	solo  bool              // no other request was waiting
	err   error             // reason why the replies ended early
}

// accept reserves memory, copies the request from the buffer of the session, and serves it in a goroutine.
func (v *served) accept(f frame.Frame) error {
	err := v.keep(f)
	if err == nil {
		err = v.l.add(&v.exchange)
	}
	v.solo = v.l.busy.Load() <= 2 && v.l.in.Buffered() == 0
	if err != nil {
		v.depart()
		return err
	}
	if v.long && v.l.b.draining.Load() {
		v.ctx.end() // Drain did not see it
	}
	v.l.b.employ(v)
	return nil
}

// maxWorkers bounds the goroutines that wait for calls. Their stacks have grown: growth takes a quarter of the time of a small call.
const maxWorkers = 64

// employ serves v in a goroutine. Readers of sessions call it; Close waits for them first.
func (b *Binding) employ(v *served) {
	select {
	case b.jobs <- v:
	default:
		b.workers.Add(1)
		go b.worker(v)
	}
}

// worker serves v and then other calls. It ends with the binding, with too many waiting workers, or when it receives nil.
func (b *Binding) worker(v *served) {
	defer b.workers.Done()
	for v != nil {
		v.run()
		if b.waiting.Add(1) > maxWorkers {
			b.waiting.Add(-1)
			return
		}
		v = <-b.jobs
		b.waiting.Add(-1)
	}
}

func (v *served) keep(f frame.Frame) error {
	if v.l.own {
		v.ready = make(chan struct{}, 1)
	}
	if f.Owned {
		v.extra = len(f.Body)
		return nil
	}
	if err := v.reserve(len(f.Body)); err != nil {
		return err
	}
	v.body = append(make([]byte, 0, len(f.Body)), f.Body...)
	return nil
}

// refuse rejects a request with err.
func (v *served) refuse(f frame.Frame, err error) {
	v.l.discard(f)
	v.fail(err, false)
	v.depart()
}

// depart removes the interaction from the counts.
func (v *served) depart() {
	v.l.inbound.serving[v.class].Add(-1)
	v.l.b.serving[v.class].Add(-1)
	v.l.b.settle()
	if v.l.own {
		v.l.conclude()
	}
}

// conclude closes a dedicated session after the last frame, and limits the time for the caller to do the same.
func (l *session) conclude() {
	l.done.Store(true)
	l.out.finish()
	l.startFrameTimer()
}

// run serves the request.
func (v *served) run() {
	err := v.serve()
	if v.long && v.l.b.draining.Load() {
		err = goingDown()
	}
	for _, fault := range [...]error{frame.ErrProtocol, errMemory, errSlow} {
		if errors.Is(err, fault) {
			v.l.fail(err)
		}
	}
	if _, _, ended := v.state(); ended == nil {
		v.close(err)
	}
	v.l.remove(&v.exchange)
	v.end(errOver)
	v.release()
	v.depart()
}

// serve decodes the request, calls the local Thing and sends its replies. It holds only a reply that may be the last.
func (v *served) serve() (err error) {
	defer func() {
		if p := recover(); p != nil {
			v.l.b.o.Log.Error("serving a call panicked", "peer", v.l.node.Short(), "panic", fmt.Sprint(p),
				"stack", string(debug.Stack()))
			err = interact.Errorf(interact.Internal, "see the log of the host", "the host failed while it served the call")
		}
	}()
	m, f, err := frame.ReadRequest(v.body, time.Now())
	if err != nil {
		return err
	}
	v.l.b.o.Wait(&v.ctx, v.l.node)
	v.req = m
	if m.Hops > interact.MaxHops {
		return interact.Errorf(interact.Loop, "see which nodes relay to each other", "the message passed %d nodes", m.Hops)
	}
	v.ctx.until(m.Deadline)
	if err := v.follow(f); err != nil {
		return err
	}
	m.From = v.l.caller(&v.ctx, f.As) // after the data, which may take long: its rights may have changed
	v.l.b.local.Do(&v.ctx, m)(v.reply)
	return v.err
}

// maxConsumers bounds the cached principals of a session.
const maxConsumers = 256

// A consumer is the principal of a consumer of the calling node, derived from that of the node.
type consumer struct{ node, principal *did.Principal }

// caller returns the principal of a request: the node as it is known now, or the consumer that it states. A session uses one principal per
// statement.
func (l *session) caller(ctx context.Context, as frame.As) *did.Principal {
	node := l.b.o.Principal(l.node)
	if !as.IsConsumer {
		return node
	}
	if as.Agent != "" {
		if agent := l.b.o.Agent(ctx, node, as.Agent); agent != nil {
			node = agent
		} else {
			as.Roles = "" // what the agent may do is not known
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.consumers[as]
	if c.node != node {
		c = consumer{node, as.Of(node)}
		if l.consumers == nil {
			l.consumers = map[frame.As]consumer{}
		}
		if _, known := l.consumers[as]; known || len(l.consumers) < maxConsumers {
			l.consumers[as] = c
		}
	}
	return c.principal
}

// follow receives the frames after the request: its data, and a stream of chunks.
func (v *served) follow(f frame.Extra) (err error) {
	if (f.Size > 0 || f.Stream) && !v.l.own {
		return frame.Errorf("data in chunks on a shared session")
	}
	if f.Size > 0 {
		v.req.Data, err = v.assemble(&v.ctx, f.Size)
	}
	if f.Stream {
		v.req.Chunks = v.chunks
	}
	return err
}

// chunks is the request stream. It reuses the memory of a chunk at the request for the next.
func (v *served) chunks(yield func([]byte, error) bool) {
	for {
		f, err := v.take(&v.ctx, 0)
		if err != nil {
			yield(nil, err)
			return
		}
		if f.Kind == frame.End || !yield(f.Body, nil) {
			return
		}
		buffers.put(f.Body)
	}
}

// reply handles a reply or the error of the Thing. An error ends the sequence.
func (v *served) reply(r *interact.Message, err error) bool {
	if err == nil && r == nil {
		err = interact.Errorf(interact.Internal, "this is a bug in the agent's binding", "the agent gave an empty reply")
	}
	if err == nil {
		err = v.flush()
	}
	switch {
	case err != nil:
		v.err = err
	case mayEnd(r, v.req):
		v.held = r
	default:
		v.err = v.send(r)
	}
	return v.err == nil
}

// mayEnd reports whether r may be the last reply to req. Such a reply is held until the end of the sequence, so that one frame has both.
func mayEnd(r, req *interact.Message) bool {
	switch r.Type {
	case interact.Event:
		return false
	case interact.ActionStatus:
		return r.Status.Final()
	}
	return !req.Type.Long()
}

// flush sends the held reply, which others may follow.
func (v *served) flush() error {
	r := v.held
	if v.held = nil; r == nil {
		return nil
	}
	return v.send(r)
}

// send sends a reply that others may follow.
func (v *served) send(r *interact.Message) error {
	if err := v.fits(r); err != nil {
		return err
	}
	if len(r.Data) <= inline {
		return v.frame(frame.Reply, r, frame.Extra{})
	}
	if err := v.frame(frame.Reply, r, frame.Extra{Size: int64(len(r.Data))}); err != nil {
		return err
	}
	return v.sendData(&v.ctx, r.Data, v.l.chunk())
}

// fits returns the error of an answer that is too large for the node, or for what is left of the limits of a relayed connection.
func (v *served) fits(r *interact.Message) error {
	size := int64(len(r.Data))
	if err := v.l.b.fits("answer", size, "ask for less"); err != nil || v.l.meter == nil {
		return err
	}
	if send, _, _ := v.l.meter.Left(time.Now()); size > send/2 {
		e := limitOf(v.l.meter)
		return interact.Errorf(interact.RelayLimited, "the relay permits "+e.limits()+"; request less, or try again: the nodes look for a direct connection",
			"the answer of %d KiB does not fit what is left of the relayed connection; the request may have been carried out", size>>10)
	}
	return nil
}

// direct reports whether the goroutine may write its response itself. Responses to simultaneous requests are written together.
func (v *served) direct() bool { return v.solo && v.l.direct() }

func (v *served) last(r *interact.Message) error { return v.frame(frame.Last, r, frame.Extra{}) }

func (v *served) frame(k frame.Kind, r *interact.Message, f frame.Extra) error {
	return v.exchange.send(&v.ctx, k, v.direct(), func(b []byte) ([]byte, error) { return frame.AppendReply(b, r, v.req, f) })
}

// close ends the interaction: with err, with the held reply, or without a reply.
func (v *served) close(err error) {
	if err == nil && v.held != nil && len(v.held.Data) <= inline && v.fits(v.held) == nil {
		if err = v.last(v.held); err == nil {
			return
		}
		v.held = nil
	}
	if e := v.flush(); err == nil {
		err = e
	}
	if err != nil {
		v.fail(err, v.direct())
		return
	}
	v.l.send(frame.End, v.id, 0)
}

// fail responds with an error.
func (v *served) fail(err error, direct bool) {
	v.l.b.count.errorsIn.Add(1)
	_ = v.l.out.push(context.Background(), frame.Error, v.id, direct, func(b []byte) ([]byte, error) {
		return frame.AppendError(b, interact.AsError(err)), nil
	})
}
