package messaging

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
)

// Results of an unacknowledged message.
var (
	ErrReset   = errors.New("the message was rejected (Reset)")
	ErrSilent  = errors.New("nothing acknowledged the message")
	ErrRefused = errors.New("nothing listens there")
	errClosed  = errors.New("the connection is closed")
)

// A Timing has the parameters of retransmission (RFC 7252 §4.8).
type Timing struct {
	ack        time.Duration // ACK_TIMEOUT; it is up to half longer at random, and doubles each time
	retransmit int           // MAX_RETRANSMIT
}

// Usual are the default parameters: a message times out after 62 to 93 s.
var Usual = Timing{ack: 2 * time.Second, retransmit: 4}

// A Layer sends messages to one far end over datagrams and retransmits until they are acknowledged (RFC 7252 §4.2). The reader
// of the datagrams reports acknowledgements with Settle. A Layer has no goroutine. It is safe for concurrent use.
type Layer struct {
	write  func(b []byte) error
	timing Timing

	mu      sync.Mutex            // guards the rest
	mid     uint16                // the last one
	waiting map[uint16]chan error // results of the unacknowledged messages
}

func NewLayer(t Timing, write func(b []byte) error) *Layer {
	return &Layer{write: write, timing: t, mid: uint16(rand.Uint32()), waiting: make(map[uint16]chan error)}
}

// Confirm sends p as a confirmable message and waits until it is acknowledged. An earlier response is taken from answers
// and counts as an acknowledgement (RFC 7252 §5.2.2). The error is ErrReset, ErrSilent, one of the socket, or that of ctx; copies is
// how often p was sent.
func (l *Layer) Confirm(ctx context.Context, p *Packet, answers <-chan *Packet) (early *Packet, copies int, err error) {
	fate := make(chan error, 1)
	p.Kind, p.Mid = message.Confirmable, l.register(fate)
	defer l.forget(p.Mid)
	b, err := p.Datagram()
	if err != nil {
		return nil, 0, err
	}
	pause := l.timing.ack + rand.N(l.timing.ack/2+1)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for copies < l.timing.retransmit+1 {
		if err := l.write(b); err != nil {
			return nil, copies, err
		}
		copies++
		select {
		case err := <-fate:
			return nil, copies, err
		case early := <-answers:
			return early, copies, nil
		case <-ctx.Done():
			return nil, copies, ctx.Err()
		case <-timer.C:
			pause *= 2
			timer.Reset(pause)
		}
	}
	return nil, copies, ErrSilent
}

// Fire sends p as a non-confirmable message.
func (l *Layer) Fire(p *Packet) error {
	p.Kind, p.Mid = message.NonConfirmable, l.register(nil)
	b, err := p.Datagram()
	if err != nil {
		return err
	}
	return l.write(b)
}

// register returns a message ID that no unacknowledged message has.
func (l *Layer) register(fate chan error) uint16 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.mid++; l.waiting[l.mid] != nil; l.mid++ {
	}
	if fate != nil {
		l.waiting[l.mid] = fate
	}
	return l.mid
}

func (l *Layer) forget(mid uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, mid)
}

// Settle reports the result of the message mid: nil if it was acknowledged.
func (l *Layer) Settle(mid uint16, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fate := l.waiting[mid]; fate != nil {
		report(fate, err)
	}
}

// settleAll reports err for all unacknowledged messages.
func (l *Layer) settleAll(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fate := range l.waiting {
		report(fate, err)
	}
}

// report sends the first result of a message.
func report(fate chan error, err error) {
	select {
	case fate <- err:
	default:
	}
}

// Bare is an Empty message, an acknowledgement or a reset (RFC 7252 §4.1).
func Bare(kind message.Type, mid uint16) []byte {
	return []byte{1<<6 | byte(kind)<<4, 0, byte(mid >> 8), byte(mid)}
}

// IsRefused reports whether err means that nothing listens: an ICMP message for an earlier datagram.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
