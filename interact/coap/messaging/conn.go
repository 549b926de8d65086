package messaging

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
)

const (
	// parallel is how many requests to one agent may be unacknowledged: NSTART of RFC 7252 §4.7, which is
	// 1 for one consumer; a node serves many.
	parallel = 8
	// recent is how many message identifiers of the agent are stored, to detect duplicates (RFC 7252 §4.5).
	recent = 128
	// Writing limits the write of a message to a stream.
	Writing = 5 * time.Second
	// beside limits a message of a stream without its payload, in bytes.
	beside = 8 << 10
	// baseMessage is the largest message over a stream until the far end announces more (RFC 8323 §5.3.1).
	baseMessage = 1152
)

// A conn is a connection to one agent. One goroutine of the pool reads it (datagrams or frames); any goroutine may send. It ends
// when the reader returns.
type conn struct {
	net    net.Conn
	layer  *Layer        // nil over a stream
	slots  chan struct{} // parallel
	limit  int           // bytes of a message that is read from a stream
	done   chan struct{} // closed at the end; err is the cause
	csm    chan struct{} // closed when the far end of a stream has sent its capabilities
	err    error         // before done is closed, by the reader
	seen   []verdict     // owned by the reader: the last message IDs and their replies
	oldest int           // owned by the reader: index in seen of the next one

	mu      sync.Mutex // guards the rest
	calls   map[string]*Call
	largest int // message that the far end of a stream accepts
}

// A verdict is the reply to a message of the agent: an acknowledgement or a reset.
type verdict struct {
	mid   uint16
	reply message.Type
}

// A Call receives the responses with one token.
type Call struct {
	*conn
	token string
	// Answers are the responses that Ask did not return: the notifications of an observation.
	Answers chan *Packet
	// Newest makes a new response replace the oldest waiting one; otherwise Over is closed. It is set before the first request.
	Newest bool
	// Over is closed when a response was dropped because too many wait.
	Over chan struct{}
	once sync.Once
}

func newConn(c net.Conn, stream bool, t Timing, limit int) *conn {
	k := &conn{net: c, limit: limit, slots: make(chan struct{}, parallel), done: make(chan struct{}), csm: make(chan struct{}),
		calls: make(map[string]*Call), largest: baseMessage}
	if !stream {
		k.layer = NewLayer(t, k.datagram)
	}
	return k
}

// datagram writes a datagram. It ignores the pending ICMP error of an earlier one.
func (c *conn) datagram(b []byte) error {
	_, err := c.net.Write(b)
	if IsRefused(err) {
		_, err = c.net.Write(b)
	}
	if IsRefused(err) {
		return ErrRefused
	}
	return err
}

// Call returns a call with a new token. room is how many responses may wait, and a sixteenth of it for responses larger than datagrams.
// The caller ends it.
func (c *conn) Call(room int) *Call {
	token := make([]byte, maxToken) // unpredictable (RFC 7252 §5.3.1)
	_, _ = rand.Read(token)         // never fails
	k := &Call{conn: c, token: string(token), Answers: make(chan *Packet, room), Over: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[k.token] = k
	return k
}

// End ends the call. Later messages with its token are rejected, which also ends an observation (RFC 7641 §3.6).
func (k *Call) End() {
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	delete(k.conn.calls, k.token)
}

// A Loss is the error of a missing response.
type Loss struct {
	Cause   error // an error of this package, of the network, or of the context
	Started bool  // the far end may have received the request
	Acked   bool  // the far end has received it
}

// Error implements error.
func (l *Loss) Error() string { return l.Cause.Error() }

// Unwrap returns the cause.
func (l *Loss) Unwrap() error { return l.Cause }

// Ask sends p and waits for the next response. The error is a [*Loss].
func (k *Call) Ask(ctx context.Context, p *Packet) (*Packet, error) {
	if cap(k.Answers) == 1 {
		select {
		case <-k.Answers: // a copy of the previous response
		default:
		}
	}
	early, err := k.Send(ctx, p)
	if err != nil || early != nil {
		return early, err
	}
	lost := Loss{Started: true, Acked: p.Kind == message.Confirmable}
	select {
	case a := <-k.Answers:
		return a, nil
	case <-ctx.Done():
		lost.Cause = ctx.Err()
	case <-k.conn.done:
		lost.Cause = k.conn.err
	}
	select { // the response can precede the end
	case a := <-k.Answers:
		return a, nil
	default:
		return nil, &lost
	}
}

// Send sends p; over datagrams until it is acknowledged, unless it is non-confirmable. It returns a response that precedes the
// acknowledgement.
// The error is a [*Loss].
func (k *Call) Send(ctx context.Context, p *Packet) (early *Packet, err error) {
	c := k.conn
	p.Token = k.token
	if ctx.Err() != nil {
		return nil, &Loss{Cause: ctx.Err()}
	}
	if c.layer == nil {
		return nil, c.sendFrame(ctx, p)
	}
	if p.Kind == message.NonConfirmable {
		if err := c.layer.Fire(p); err != nil {
			return nil, &Loss{Cause: err}
		}
		return nil, nil
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, &Loss{Cause: ctx.Err()}
	case <-c.done:
		return nil, &Loss{Cause: c.err}
	}
	early, copies, err := c.layer.Confirm(ctx, p, k.Answers)
	if err != nil {
		// The first copy was refused, or none was sent, or the agent rejected it: the request has no effect.
		started := copies > 0 && !errors.Is(err, ErrReset) && !(errors.Is(err, ErrRefused) && copies == 1)
		return nil, &Loss{Cause: err, Started: started}
	}
	return early, nil
}

// sendFrame writes p to a stream. A partial write ends the stream.
func (c *conn) sendFrame(ctx context.Context, p *Packet) error {
	b, err := p.frame()
	if err != nil {
		return &Loss{Cause: err}
	}
	until := time.Now().Add(Writing)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	_ = c.net.SetWriteDeadline(until) // an error shows in Write
	if n, err := c.net.Write(b); err != nil {
		c.close()
		return &Loss{Cause: err, Started: n > 0}
	}
	return nil
}

// Stream reports whether messages go over a stream.
func (c *conn) Stream() bool { return c.layer == nil }

// Ended is closed when the connection has ended.
func (c *conn) Ended() <-chan struct{} { return c.done }

// Why returns the cause of the end of the connection.
func (c *conn) Why() error { return c.err }

// close makes the reader return.
func (c *conn) close() { _ = c.net.Close() } // the reader reports the end

// finish ends the connection for its users. The reader calls it last.
func (c *conn) finish(err error) {
	c.close()
	c.err = err
	if c.layer != nil {
		c.layer.settleAll(err)
	}
	close(c.done)
}

// read reads until the connection ends. After each idle time without a message it checks whether the connection is still used.
func (c *conn) read(idle time.Duration, goOn func() bool) {
	var err error
	if c.layer != nil {
		err = c.readDatagrams(idle, goOn)
	} else {
		err = c.readFrames(idle, goOn)
	}
	c.finish(err)
}

func (c *conn) readDatagrams(idle time.Duration, goOn func() bool) error {
	buf := make([]byte, MaxDatagram)
	for {
		_ = c.net.SetReadDeadline(time.Now().Add(idle)) // an error shows in Read
		n, err := c.net.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) || IsTimeout(err):
			if !goOn() {
				return errClosed
			}
		case IsRefused(err):
			c.layer.settleAll(ErrRefused)
		case err != nil:
			return broken(err)
		default:
			// Invalid datagrams are ignored (RFC 7252 §4.2, §4.3): any host can send them.
			if p, err := ParseDatagram(slices.Clone(buf[:n])); err == nil {
				c.receive(p)
			}
		}
	}
}

// IsTimeout reports whether err is the deadline of a socket.
func IsTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// broken is err of a socket, or errClosed if this side closed it.
func broken(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return errClosed
	}
	return fmt.Errorf("the connection broke: %w", err)
}

// receive handles one message of the agent (RFC 7252 §4.2, §4.3).
func (c *conn) receive(p *Packet) {
	switch p.Kind {
	case message.Acknowledgement:
		if p.isResponse() {
			c.deliver(p)
		}
		c.layer.Settle(p.Mid, nil)
	case message.Reset:
		c.layer.Settle(p.Mid, ErrReset)
	default:
		c.answer(p)
	}
}

// answer acknowledges expected messages and their duplicates, and rejects others. A reset also answers the CoAP ping and requests to
// this node.
func (c *conn) answer(p *Packet) {
	reply := message.Reset
	for _, v := range c.seen {
		if v.mid == p.Mid {
			c.reply(p, v.reply)
			return
		}
	}
	if p.isResponse() && c.deliver(p) {
		reply = message.Acknowledgement
	}
	if v := (verdict{p.Mid, reply}); len(c.seen) < recent {
		c.seen = append(c.seen, v)
	} else {
		c.seen[c.oldest], c.oldest = v, (c.oldest+1)%recent
	}
	c.reply(p, reply)
}

// reply answers p. A non-confirmable message gets no acknowledgement.
func (c *conn) reply(p *Packet, kind message.Type) {
	if kind == message.Reset && p.Code != codes.Empty || p.Kind == message.Confirmable {
		_ = c.datagram(Bare(kind, p.Mid)) // the agent will send it again
	}
}

// deliver gives p to the call that waits for it.
func (c *conn) deliver(p *Packet) bool {
	c.mu.Lock()
	k := c.calls[p.Token]
	c.mu.Unlock()
	if k == nil {
		return false
	}
	room := cap(k.Answers)
	if len(p.Payload) > MaxDatagram { // of a stream: larger than any datagram
		room = max(room/16, 1)
	}
	for {
		if len(k.Answers) < room {
			select {
			case k.Answers <- p:
				return true
			default:
			}
		}
		if !k.Newest {
			k.once.Do(func() { close(k.Over) })
			return true
		}
		select {
		case <-k.Answers:
		default:
		}
	}
}

// readFrames reads a stream. It replies to signals at once (RFC 8323 §5).
func (c *conn) readFrames(idle time.Duration, goOn func() bool) error {
	r := bufio.NewReader(c.net)
	for {
		_ = c.net.SetReadDeadline(time.Now().Add(idle)) // an error shows in Peek
		if _, err := r.Peek(1); IsTimeout(err) {
			if goOn() {
				continue
			}
			return errClosed
		} else if err != nil {
			return broken(err)
		}
		_ = c.net.SetReadDeadline(time.Now().Add(idle))
		p, err := readFrame(r, c.limit+beside)
		if err != nil {
			return broken(err)
		}
		if p.Code>>5 != 7 {
			c.deliver(p) // unexpected messages are ignored (RFC 8323 §7.4)
		} else if err := c.signal(p); err != nil {
			return err
		}
	}
}

// signal handles a message of class 7 (RFC 8323 §5.3 to §5.6).
func (c *conn) signal(p *Packet) error {
	switch p.Code {
	case codes.CSM:
		c.mu.Lock()
		defer c.mu.Unlock()
		if size, ok := p.Option(message.TCPMaxMessageSize); ok && len(size) <= 4 {
			c.largest = int(uint32Of(size))
		}
		select {
		case <-c.csm:
		default:
			close(c.csm)
		}
	case codes.Ping:
		if err := c.sendFrame(context.Background(), &Packet{Code: codes.Pong, Token: p.Token}); err != nil {
			return err
		}
	case codes.Release, codes.Abort:
		return errors.New("the agent ended the connection")
	}
	return nil
}

func uint32Of(b []byte) (n uint32) {
	for _, c := range b {
		n = n<<8 | uint32(c)
	}
	return n
}

// introduce sends the capabilities of this side, the first message of a stream (RFC 8323 §5.3).
func (c *conn) introduce(ctx context.Context) error {
	p := &Packet{Code: codes.CSM}
	p.AddUint(message.TCPMaxMessageSize, uint32(c.limit+beside))
	p.Add(message.TCPBlockWiseTransfer, nil)
	return c.sendFrame(ctx, p)
}

// Room returns how many bytes of payload fit into one message of a stream. It waits for the capabilities of the far end.
func (c *conn) Room(ctx context.Context) int {
	timer := time.NewTimer(Writing)
	defer timer.Stop()
	select {
	case <-c.csm:
	case <-timer.C:
	case <-ctx.Done():
	case <-c.done:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.largest-1024, 512) // the rest is for token and options
}
