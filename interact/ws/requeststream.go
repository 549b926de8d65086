package ws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime/debug"
	"sync"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// Limits of request streams.
const (
	maxStreams = 64        // of a connection, in each direction
	window     = 256 << 10 // initial credit of a sender in bytes
	maxCredit  = 16 << 20  // limit of the credit in bytes
)

// flows are the request streams of a connection, by their numbers.
type flows struct {
	mu   sync.Mutex // guards all
	in   map[uint32]*inflow
	out  map[uint32]*outflow
	last uint32 // of out
}

// An inflow is a request stream from the peer. The peer gets credit with the first read, and more when half of it is used. Credit
// counts the bytes of frames with their headers; one frame may exceed it.
type inflow struct {
	c      *conn
	number uint32
	bell   chan struct{} // has an element when something changed

	mu     sync.Mutex // guards the rest
	queue  [][]byte
	credit int // bytes that the peer may send
	owed   int // bytes that were read, or not granted yet
	used   int // bytes of the chunk that the reader has; they become owed with its next read
	read   bool
	over   bool // the stream has ended
	err    error
}

// accept starts the stream that the request f announces. The reader of the connection calls it.
func (c *conn) accept(f *frame.Frame) (*inflow, error) {
	if f.Stream == 0 {
		return nil, nil
	}
	s := &c.flows
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.in[f.Stream] != nil:
		return nil, interact.Errorf(interact.Invalid, "use a different number for each stream", "the stream %d is open", f.Stream)
	case len(s.in) >= maxStreams:
		return nil, interact.Errorf(interact.Overloaded, "wait for the end of one, or open another connection",
			"this connection has %d request streams", maxStreams)
	}
	i := &inflow{c: c, number: f.Stream, bell: make(chan struct{}, 1), owed: window}
	if s.in == nil {
		s.in = map[uint32]*inflow{}
	}
	s.in[f.Stream] = i
	return i, nil
}

// drop removes the stream after the reply to its request, and stops a peer that may wait for credit. It may be nil.
func (i *inflow) drop() {
	if i == nil {
		return
	}
	i.end(interact.Errorf(interact.Cancelled, "read it before the reply", "the interaction has ended"), "")
	i.c.flows.mu.Lock()
	defer i.c.flows.mu.Unlock()
	delete(i.c.flows.in, i.number)
}

// chunks returns the stream for a Thing, until ctx ends. If the Thing leaves the loop, the stream is stopped.
func (i *inflow) chunks(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		i.mu.Lock()
		again := i.read
		i.read = true
		i.mu.Unlock()
		if again {
			yield(nil, interact.Errorf(interact.Internal, "store the chunks", "a request stream can be read once"))
			return
		}
		for {
			b, err := i.next(ctx)
			if err == io.EOF || !yield(b, err) || err != nil {
				break
			}
		}
		i.end(errUnwanted, "")
	}
}

// next waits for a chunk. The error is io.EOF at the end.
func (i *inflow) next(ctx context.Context) ([]byte, error) {
	for {
		b, credit, err := i.step()
		if credit > 0 {
			p := frame.Packet{Kind: frame.KindCredit, Stream: i.number, Credit: uint32(credit)}
			_ = i.c.post(ctx, p) // it fails with the connection
		}
		if b != nil || err != nil {
			return b, err
		}
		select {
		case <-i.bell:
		case <-ctx.Done():
			return nil, interact.AsError(ctx.Err())
		case <-i.c.ctx.Done():
			return nil, &interact.Error{Code: interact.Unreachable, Title: "the connection to " + i.c.name + " was lost",
				Hint: "the stream is incomplete", Err: context.Cause(i.c.ctx)}
		}
	}
}

// step takes the next chunk, if any, and the credit for the peer.
func (i *inflow) step() (b []byte, credit int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.owed, i.used = i.owed+i.used, 0
	if i.owed >= window/2 && !i.over && i.err == nil {
		credit, i.credit, i.owed = i.owed, i.credit+i.owed, 0
	}
	switch {
	case len(i.queue) > 0:
		b, i.queue[0] = i.queue[0], nil
		i.queue = i.queue[1:]
		i.used = frame.PacketHead + len(b)
	case i.err != nil:
		err = i.err
	case i.over:
		err = io.EOF
	}
	return b, credit, err
}

// take handles a packet of the peer. The reader of the connection calls it.
func (i *inflow) take(p frame.Packet) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer poke(i.bell)
	switch {
	case i.over || i.err != nil:
	case p.Kind == frame.KindEnd:
		i.over = true
	case p.Kind == frame.KindAbort:
		i.queue, i.err = nil, &interact.Error{Code: interact.Cancelled, Remote: true, Hint: "send it again",
			Title: "incomplete request stream: " + frame.Clip(string(p.Body), frame.MaxReason)}
	case i.credit <= 0:
		i.queue, i.err = nil, interact.Errorf(interact.Invalid, "wait for credit", "the request stream exceeded its credit")
		i.c.work.Go(func() { i.stop("the stream exceeded its credit") })
	default:
		i.credit -= frame.PacketHead + len(p.Body)
		if cap(p.Body) > 2*len(p.Body) { // small chunks must not hold large buffers
			p.Body = append(make([]byte, 0, len(p.Body)), p.Body...)
		}
		i.queue = append(i.queue, p.Body)
	}
}

// end ends the stream with err for its reader. A peer that may send more receives KindStop with the reason.
func (i *inflow) end(err error, why string) {
	i.mu.Lock()
	more := !i.over && i.err == nil
	if i.queue = nil; more {
		i.err = err
	}
	poke(i.bell)
	i.mu.Unlock()
	if more {
		i.stop(why)
	}
}

func (i *inflow) stop(why string) {
	p := frame.Packet{Kind: frame.KindStop, Stream: i.number, Body: frame.Reason(why)}
	_ = i.c.post(i.c.ctx, p) // it fails with the connection
}

// An outflow is a request stream to the peer.
type outflow struct {
	c      *conn
	number uint32
	bell   chan struct{} // has an element when something changed

	mu     sync.Mutex // guards the rest
	k      *call      // its call; nil before the request is sent
	credit int64
	over   bool // the peer has stopped the stream, or has received all of it
}

// offer starts the stream of m, if m has one; else it returns nil. end ends it.
func (c *conn) offer(m *interact.Message) (*outflow, error) {
	if m.Chunks == nil {
		return nil, nil
	}
	s := &c.flows
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) >= maxStreams {
		return nil, interact.Errorf(interact.Overloaded, "wait for the end of one", "%s reads %d request streams", c.name, maxStreams)
	}
	if s.out == nil {
		s.out = map[uint32]*outflow{}
	}
	for s.last++; s.last == 0 || s.out[s.last] != nil; s.last++ {
	}
	o := &outflow{c: c, number: s.last, bell: make(chan struct{}, 1)}
	s.out[s.last] = o
	return o, nil
}

// feed sends the stream of the message of k, and ends k if the stream fails. After the end of the call it returns with the next chunk:
// only the loop can end the source.
func (o *outflow) feed(ctx context.Context, k *call) {
	err := o.pour(ctx, k.m.Chunks)
	o.mu.Lock()
	ended := o.over
	o.over = true
	o.mu.Unlock()
	if ended || ctx.Err() != nil {
		return
	}
	last := frame.Packet{Kind: frame.KindEnd, Stream: o.number}
	if err != nil {
		k.fail(interact.AsError(err))
		last.Kind, last.Body = frame.KindAbort, frame.Reason(err.Error())
	}
	_ = o.c.post(ctx, last) // it fails with the connection, and so does k
}

// pour sends chunks within the credit. The source may be untrusted code.
func (o *outflow) pour(ctx context.Context, chunks iter.Seq2[[]byte, error]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			o.c.log.Error("request stream panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = interact.Errorf(interact.Internal, "see the log of this node", "the source of the request stream failed")
		}
	}()
	for chunk, err := range chunks {
		if err != nil {
			return err
		}
		for len(chunk) > 0 {
			part := chunk[:min(len(chunk), frame.MaxChunk)]
			if err := o.spend(ctx, frame.PacketHead+len(part)); err != nil {
				return err
			}
			if err := o.c.post(ctx, frame.Packet{Kind: frame.KindChunk, Stream: o.number, Body: part}); err != nil {
				return err
			}
			chunk = chunk[len(part):]
		}
	}
	return nil
}

var errUnwanted = errors.New("the reader has stopped the stream")

// spend waits for credit, and takes n of it.
func (o *outflow) spend(ctx context.Context, n int) error {
	for {
		o.mu.Lock()
		over, some := o.over, o.credit > 0
		if some {
			o.credit -= int64(n)
		}
		o.mu.Unlock()
		switch {
		case over:
			return errUnwanted
		case some:
			return ctx.Err()
		}
		select {
		case <-o.bell:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// bind sets the call of the stream. Packets of the peer are ignored before that.
func (o *outflow) bind(k *call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.k = k
}

// take handles a packet of the peer, which may end the interaction. The reader of the connection calls it.
func (o *outflow) take(p frame.Packet) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.k == nil || o.over {
		return
	}
	defer poke(o.bell)
	o.credit += int64(p.Credit)
	switch {
	case o.credit > maxCredit:
		o.over = true
		o.k.fail(interact.Errorf(interact.AgentFailed, "grant less at once", "%s granted more than %d bytes of credit", o.c.name,
			maxCredit))
	case p.Kind == frame.KindStop:
		o.over = true
		if len(p.Body) > 0 {
			o.k.fail(&interact.Error{Code: interact.AgentFailed, Remote: true, Hint: "see the agent's log",
				Title: "the agent stopped the request stream: " + frame.Clip(string(p.Body), frame.MaxReason)})
		}
	}
}

// end ends the stream after its interaction; a peer that may wait for more receives KindAbort. It may be nil.
func (o *outflow) end() {
	if o == nil {
		return
	}
	o.mu.Lock()
	wasOver := o.over
	o.over = true
	o.mu.Unlock()
	o.c.flows.mu.Lock()
	delete(o.c.flows.out, o.number)
	o.c.flows.mu.Unlock()
	if !wasOver {
		p := frame.Packet{Kind: frame.KindAbort, Stream: o.number, Body: frame.Reason("the interaction has ended")}
		_ = o.c.post(o.c.ctx, p) // as in feed
	}
}

// packet handles a binary frame. It ignores a frame without an open stream; an invalid frame ends its stream.
func (c *conn) packet(data []byte) {
	p, err := frame.ReadPacket(data)
	c.flows.mu.Lock()
	in, out := c.flows.in[p.Stream], c.flows.out[p.Stream]
	c.flows.mu.Unlock()
	switch {
	case err != nil && p.Kind == frame.KindChunk && in != nil:
		c.work.Go(func() { in.end(interact.Errorf(interact.Invalid, "see docs/sdk.md, streams", "%v", err), err.Error()) })
	case err != nil:
		c.log.Debug("frame ignored", "peer", c.name, "err", err)
	case p.Kind <= frame.KindAbort && in != nil:
		in.take(p)
	case p.Kind > frame.KindAbort && out != nil:
		out.take(p)
	}
}

// post passes a packet to the writer.
func (c *conn) post(ctx context.Context, p frame.Packet) error {
	return c.give(ctx, func() (outgoing, error) { return outgoing{data: p.Encode(), binary: true}, nil })
}
