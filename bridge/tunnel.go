package bridge

import (
	"context"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxChunk is the size limit of one chunk of a tunnel, and of one part of an output, in bytes.
const maxChunk = 64 << 10

// The @types of tunnel actions. Only clients of the same protocol call them.
const (
	MCPSession   = "mcp:Session"   // newline-delimited MCP messages; the Thing is an MCP server
	A2AOperation = "a2a:Operation" // an operation and its results; the Thing is an A2A agent
)

// IsTunnel reports whether an action with these @types is a tunnel, or lists undescribed tools ([MoreTools]): clients of other
// protocols are not offered it.
func IsTunnel(types []string) bool {
	return slices.Contains(types, MCPSession) || slices.Contains(types, A2AOperation) || slices.Contains(types, MoreTools)
}

// ActionOfType returns the name of the action with an @type, the first by name; empty if there is none.
func ActionOfType(t *td.Thing, typ string) string {
	for _, name := range slices.Sorted(maps.Keys(t.Actions)) {
		if slices.Contains(t.Actions[name].Types, typ) {
			return name
		}
	}
	return ""
}

// octets is the media type of tunnel bytes.
const octets = "application/octet-stream"

// closeTimeout is how long a Thing may continue after its request stream has ended, for example a program that reads its input.
const closeTimeout = time.Second

// Dial opens a tunnel through the action of t that m names: a stream of bytes in both directions, which carries a foreign protocol
// verbatim. Writes become the action's request stream, and reads return its output. The first Read or Write invokes the action. The
// tunnel ends with ctx, with Close, or when the Thing ends it: then Read returns io.EOF or the error of the Thing, and so does Write.
//
// Close ends the request stream; a Thing that does not end by itself within 1 s is canceled.
func Dial(ctx context.Context, t interact.Thing, m *interact.Message) io.ReadWriteCloser {
	ctx, cancel := context.WithCancel(ctx)
	in := newPipe()
	d := &dialer{in: in, out: make(chan []byte), ctx: ctx, cancel: cancel, closed: make(chan struct{}), done: make(chan struct{})}
	c := *m
	c.Type, c.Accept = interact.InvokeAction, octets
	c.Chunks = d.chunks
	d.run = func() {
		go func() {
			defer close(d.done)
			err := copyReplies(t.Do(ctx, &c), in)
			if err != nil {
				d.cause.Store(&err)
			}
			cancel() // first, so that a Write after the end of the output fails
			in.finish(err)
		}()
	}
	d.shut = sync.OnceFunc(d.end)
	return d
}

type dialer struct {
	in     *pipe
	out    chan []byte
	ctx    context.Context
	cancel context.CancelFunc
	start  sync.Once
	run    func() // called by start
	shut   func()
	closed chan struct{}         // closed by Close: writes fail
	done   chan struct{}         // closed by run: the interaction has ended
	cause  atomic.Pointer[error] // the error with which the Thing ended the tunnel
}

func (d *dialer) Read(p []byte) (int, error) {
	d.start.Do(d.run)
	return d.in.Read(p)
}

func (d *dialer) Write(p []byte) (int, error) {
	d.start.Do(d.run)
	n, err := send(d.ctx, d.closed, d.out, p)
	if why := d.cause.Load(); err != nil && why != nil {
		err = *why
	}
	return n, err
}

// Close ends the tunnel and waits until the interaction has ended.
func (d *dialer) Close() error {
	d.shut()
	return nil
}

func (d *dialer) end() {
	close(d.closed)
	d.start.Do(func() {
		close(d.done)
		d.in.finish(io.ErrClosedPipe) // the action was not invoked
	})
	late := time.AfterFunc(closeTimeout, d.cancel)
	defer late.Stop()
	stop := context.AfterFunc(d.ctx, func() { d.in.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, d.in) // a Thing that is blocked in a write does not end
	d.cancel()
	<-d.done
}

// chunks is the request stream.
func (d *dialer) chunks(yield func([]byte, error) bool) {
	for {
		select {
		case b := <-d.out:
			if !yield(b, nil) {
				return
			}
		case <-d.closed:
			return
		case <-d.ctx.Done():
			return
		}
	}
}

// copyReplies writes the parts of an output to w, and returns the error of the sequence.
func copyReplies(replies iter.Seq2[*interact.Message, error], w io.Writer) error {
	for r, err := range replies {
		if err != nil {
			return err
		}
		if len(r.Data) > 0 {
			if _, err := w.Write(r.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends copies of the bytes of p as chunks to a channel.
func send(ctx context.Context, closed <-chan struct{}, to chan<- []byte, p []byte) (n int, err error) {
	for len(p) > 0 {
		if ctx.Err() != nil { // the select below would pick at random
			return n, io.ErrClosedPipe
		}
		piece := append([]byte(nil), p[:min(len(p), maxChunk)]...)
		select {
		case to <- piece:
		case <-closed:
			return n, io.ErrClosedPipe
		case <-ctx.Done():
			return n, io.ErrClosedPipe
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

// Accept serves the invocation m of a tunnel: serve reads the request stream and writes the output. The tunnel ends when serve
// returns. When the consumer disconnects, ctx ends, and Read and Write return an error, as they do after Close. The goroutine that
// reads the request stream ends with the first chunk after the end of the tunnel.
func Accept(ctx context.Context, m *interact.Message,
	serve func(context.Context, io.ReadWriteCloser) error) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Chunks == nil {
			yield(nil, interact.Errorf(interact.Invalid, "tunnels are for clients of the protocol that they carry; call the other actions",
				"%s is a tunnel: it needs a request stream", m.Name))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		in := newPipe()
		a := &acceptor{in: in, out: make(chan []byte), ctx: ctx, closed: make(chan struct{})}
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel()
		defer in.Close()
		go func() { in.finish(copyChunks(m.Chunks, in)) }()
		served := make(chan error, 1)
		work.Go(func() { served <- serve(ctx, a) })
		for {
			select {
			case b := <-a.out:
				if !yield(m.ReplyStatus(interact.StatusRunning, octets, b), nil) {
					return
				}
			case err := <-served:
				if err != nil {
					yield(nil, err)
					return
				}
				yield(m.ReplyStatus(interact.StatusCompleted, "", nil), nil)
				return
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

type acceptor struct {
	in     *pipe
	out    chan []byte
	ctx    context.Context
	close  sync.Once
	closed chan struct{}
}

func (a *acceptor) Read(p []byte) (int, error)  { return a.in.Read(p) }
func (a *acceptor) Write(p []byte) (int, error) { return send(a.ctx, a.closed, a.out, p) }

func (a *acceptor) Close() error {
	a.close.Do(func() { close(a.closed) })
	return a.in.Close()
}

func copyChunks(chunks iter.Seq2[[]byte, error], w io.Writer) error {
	for b, err := range chunks {
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
