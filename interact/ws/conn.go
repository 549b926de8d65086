package ws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/ws/frame"
)

// settings are the choices of a connection, defaults applied.
type settings struct {
	log              *slog.Logger
	maxMessage       int64
	maxPending       int
	maxSubscriptions int
	rate             float64       // inbound frames per second
	keep             time.Duration // of the last states of actions
	idle             time.Duration // after which an unused connection ends; 0 means never
}

func (s settings) withDefaults() settings {
	s.log = cmp.Or(s.log, slog.New(slog.DiscardHandler))
	s.maxMessage = cmp.Or(max(s.maxMessage, 0), defaultMessage)
	s.maxPending = cmp.Or(max(s.maxPending, 0), defaultPending)
	s.maxSubscriptions = cmp.Or(max(s.maxSubscriptions, 0), defaultSubscriptions)
	s.rate = cmp.Or(max(s.rate, 0), defaultRate)
	s.keep = cmp.Or(max(s.keep, 0), defaultKeep)
	return s
}

// A conn is one connection. It serves the requests of the peer and sends requests to it, regardless of the side that dialed.
//
// It has three goroutines: the reader (run), the writer, and watch, which pings; and one for each served request and subscription.
// Only the writer writes frames; it receives them over out. The connection ends once, with end: then ctx is cancelled, the writer
// sends the close frame, and run returns when the last goroutine has.
type conn struct {
	settings
	socket
	name     string                // of the peer, for errors and the log
	dialects frame.DialectDetector // owned by the reader

	ctx      context.Context // its cause is a *closing
	cancel   context.CancelCauseFunc
	ended    sync.Once
	last     *time.Timer // until raw is closed; set by end
	out      chan outgoing
	pen      chan struct{} // has an element while no frame is being added to out
	room     chan struct{} // has an element after a frame has left out
	waiting  atomic.Int64  // the weight of the frames in out
	writing  atomic.Bool
	pinging  atomic.Bool
	lastRead atomic.Int64 // time of the last frame, in Unix nanoseconds
	work     sync.WaitGroup

	serving serving
	asking  asking
	flows   flows
}

// An outgoing is a frame that waits to be written. sent is set, if it is not nil, before the first byte goes out.
type outgoing struct {
	data   []byte
	sent   *atomic.Bool
	binary bool
}

// weight is the share of o in maxWait: at least maxWait/maxFrames, at most all of it.
func (o outgoing) weight() int64 { return int64(min(max(len(o.data), maxWait/maxFrames), maxWait)) }

// A closing is the cause of the end of a connection: status and reason for the peer, and the error for calls here.
type closing struct {
	code   websocket.StatusCode
	reason string // at most 123 bytes
	err    error
}

func (e *closing) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return e.reason
}

func (e *closing) Unwrap() error { return e.err }

// Reasons for which this side closes a connection.
var (
	goodbye     = &closing{websocket.StatusNormalClosure, "done", nil}
	goingAway   = &closing{websocket.StatusGoingAway, "the node is shutting down", nil}
	evicted     = &closing{websocket.StatusPolicyViolation, "the agent is offered by another node", nil}
	readsSlow   = &closing{websocket.StatusTryAgainLater, "the peer reads too slowly: frames waited longer than 10 s", nil}
	noPong      = &closing{websocket.StatusPolicyViolation, "no response to a ping", nil}
	writeFailed = &closing{websocket.StatusAbnormalClosure, "", errors.New("the connection was lost while a frame was written")}
)

// newConn returns the connection over k, which serves h; nil serves nothing. run runs it. Served requests have the values
// of ctx.
func newConn(ctx context.Context, k socket, name string, s settings, assumed frame.Dialect, h *host) *conn {
	c := &conn{settings: s, socket: k, name: name, dialects: frame.DialectDetector{Assumed: assumed}, out: make(chan outgoing, maxFrames),
		pen: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	c.pen <- struct{}{}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.serving.init(h, s)
	c.asking.init()
	c.lastRead.Store(time.Now().UnixNano())
	k.ws.SetReadLimit(s.maxMessage)
	return c
}

// run reads frames until the connection ends, and returns when its last goroutine has. The error is the cause of the end.
func (c *conn) run() error {
	var own sync.WaitGroup
	own.Go(c.write)
	own.Go(c.watch)
	why := c.listen()
	if c.pinging.Load() && why.code == websocket.StatusAbnormalClosure {
		why = noPong // the library closes the socket if it cannot write a ping
	}
	c.end(why)
	c.work.Wait()
	own.Wait()
	c.last.Stop()
	c.serving.release()
	return context.Cause(c.ctx)
}

// end ends the connection for why. Only the first call counts. The peer has a short time to receive the reason.
func (c *conn) end(why *closing) {
	c.ended.Do(func() {
		c.last = time.AfterFunc(farewell, func() { _ = c.raw.Close() })
		c.cancel(why)
	})
}

// listen reads and dispatches frames. It does not wait for requests.
func (c *conn) listen() *closing {
	for {
		kind, data, err := c.ws.Read(context.Background())
		if err != nil {
			return lost(err)
		}
		c.lastRead.Store(time.Now().UnixNano())
		if kind != websocket.MessageText { // no dialect has them
			c.packet(data)
			continue
		}
		c.dispatch(data)
	}
}

// lost returns the closing for a failed read: the peer closed the connection, or the network failed.
func lost(err error) *closing {
	var end websocket.CloseError
	switch {
	case errors.As(err, &end):
		return &closing{websocket.StatusNormalClosure, "", fmt.Errorf("closed by the peer: %d %s", end.Code, frame.Clip(end.Reason, 130))}
	case errors.Is(err, websocket.ErrMessageTooBig):
		return &closing{websocket.StatusMessageTooBig, "", errors.New("a frame exceeded the limit")}
	}
	return &closing{websocket.StatusAbnormalClosure, "", errors.New("read failed: " + form.Reason(err, true))}
}

// dispatch handles a frame: a request of the peer, or a reply to a request of this side.
func (c *conn) dispatch(data []byte) {
	f, err := frame.Decode(data)
	f.Style = c.dialects.Style(f)
	switch {
	case err != nil && f.Type != 0 && !f.IsRequest(): // an invalid reply ends its request
		f.Type = frame.TypeError
		f.Fault = interact.Errorf(interact.AgentFailed, "see the agent's log", "invalid message of the agent: %v", err)
		c.asking.answer(f, len(data))
	case err != nil:
		c.serving.bucket.take()
		c.refuse(f, err)
	case f.IsRequest():
		c.request(f)
	default:
		c.asking.answer(f, len(data))
	}
}

// write writes frames until the connection ends. If this side ends it, write then writes the waiting frames and the reason.
func (c *conn) write() {
	for c.ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
		case o := <-c.out:
			c.writeFrame(o)
		}
	}
	if why := context.Cause(c.ctx); why == error(goingAway) || why == error(goodbye) {
		for len(c.out) > 0 { // responses
			c.writeFrame(<-c.out)
		}
	}
	c.close()
}

func (c *conn) writeFrame(o outgoing) {
	c.waiting.Add(-o.weight())
	poke(c.room)
	if o.sent != nil {
		o.sent.Store(true)
	}
	// Longer than writeTimeout: a slow peer still receives the current frame and the reason.
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout+farewell)
	defer cancel()
	c.writing.Store(true)
	defer c.writing.Store(false)
	kind := websocket.MessageText
	if o.binary {
		kind = websocket.MessageBinary
	}
	if c.ws.Write(ctx, kind, o.data) != nil {
		c.end(writeFailed)
	}
}

// close performs the close handshake, as far as the peer does.
func (c *conn) close() {
	var why *closing
	if !errors.As(context.Cause(c.ctx), &why) || why.code == websocket.StatusAbnormalClosure {
		_ = c.ws.CloseNow() // the connection has ended
		return
	}
	_ = c.ws.Close(why.code, why.reason) // as above, if it fails
}

// watch pings a silent peer, and ends an unused connection.
func (c *conn) watch() {
	t := time.NewTicker(pingAfter / 2)
	defer t.Stop()
	for c.ctx.Err() == nil {
		select {
		case <-c.ctx.Done():
		case now := <-t.C:
			c.check(now)
		}
	}
}

func (c *conn) check(now time.Time) {
	if c.idle > 0 && c.asking.idleSince(now) >= c.idle {
		c.end(goodbye)
		return
	}
	if now.Sub(time.Unix(0, c.lastRead.Load())) < pingAfter || c.writing.Load() { // a frame that is being written has its own limit
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, pongWait)
	defer cancel()
	c.pinging.Store(true)
	if c.ws.Ping(ctx) != nil {
		c.end(noPong)
	}
	c.pinging.Store(false)
}

// send encodes f and passes it to the writer with give. The error is an [*interact.Error] for a frame that cannot be sent, or that of
// give.
func (c *conn) send(ctx context.Context, f *frame.Frame, sent *atomic.Bool) error {
	return c.give(ctx, func() (outgoing, error) {
		data, err := f.Encode()
		if err == nil && int64(len(data)) > c.maxMessage {
			err = interact.Errorf(interact.TooLarge, "send or request less", "the frame for %s has %d bytes; the limit is %d",
				frame.Clip(f.Name, 100), len(data), c.maxMessage)
		}
		return outgoing{data: data, sent: sent}, err
	})
}

// give passes the frame of encode to the writer. It waits for its turn, and then for room, while the peer is slow: at most one frame
// exists besides those in out. If that lasts too long, the connection ends. The error is that of encode, or the cause of the end of the
// connection or of ctx.
func (c *conn) give(ctx context.Context, encode func() (outgoing, error)) error {
	w := waiter{c: c, ctx: ctx}
	defer w.stop()
	if err := w.until(c.pen); err != nil {
		return err
	}
	defer poke(c.pen)
	o, err := encode()
	if err != nil {
		return err
	}
	for c.waiting.Load()+o.weight() > maxWait {
		if err := w.until(c.room); err != nil {
			return err
		}
	}
	c.waiting.Add(o.weight())
	c.out <- o // never blocks: weight limits the frames in out
	return nil
}

// A waiter waits for a slow peer, at most writeTimeout.
type waiter struct {
	c    *conn
	ctx  context.Context
	late *time.Timer // nil before the first wait
}

// until waits for an element of bell.
func (w *waiter) until(bell <-chan struct{}) error {
	select {
	case <-bell:
		return nil
	default:
	}
	if w.late == nil {
		w.late = time.NewTimer(writeTimeout)
	}
	select {
	case <-bell:
		return nil
	case <-w.c.ctx.Done():
		return context.Cause(w.c.ctx)
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-w.late.C:
		w.c.end(readsSlow)
		return readsSlow
	}
}

func (w *waiter) stop() {
	if w.late != nil {
		w.late.Stop()
	}
}

// A bucket is a token bucket for the frames of a peer, with the tokens of one second. The reader owns it. Package ratelimit is not used,
// to keep the dependencies of package agent few.
type bucket struct {
	rate, left float64
	at         time.Time
}

// take removes one token, and reports whether it could.
func (b *bucket) take() bool {
	now := time.Now()
	if !b.at.IsZero() {
		b.left += now.Sub(b.at).Seconds() * b.rate
	}
	b.at, b.left = now, min(b.left, b.rate)
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
