package interact

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"strings"
	"time"
)

// MaxWait limits the timeout of unary interactions and actions.
const MaxWait = 10 * time.Minute

// Trace adds an id, a W3C trace context and a deadline after timeout to messages without them. A deadline beyond [MaxWait] is
// reduced to it.
func Trace(timeout time.Duration) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			now := time.Now()
			tooLong := m.Deadline.Sub(now) > MaxWait && !m.Type.Long()
			if m.ID != "" && m.TraceParent != "" && !m.Deadline.IsZero() && !tooLong {
				return t.Do(ctx, m)
			}
			c := *m
			if c.ID == "" {
				c.ID = NewID()
			}
			if c.TraceParent == "" {
				c.TraceParent = newTrace()
			}
			if c.Deadline.IsZero() && !c.Type.Long() {
				c.Deadline = now.Add(timeout)
			}
			if tooLong {
				c.Deadline = now.Add(MaxWait)
			}
			return t.Do(ctx, &c)
		})
	}
}

// Limits of a forwarded trace context, in bytes. A later version of traceparent may be longer than 55.
const (
	maxTraceParent = 256
	maxTraceState  = 512 // W3C Trace Context §3.3.1.5
)

// TraceContext returns a valid W3C trace context: empty if parent is malformed (Trace Context §3.2.2), and without state if that is
// too long.
func TraceContext(parent, state string) (string, string) {
	hex := func(r rune) bool { return r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r == '-' }
	if len(parent) < 55 || len(parent) > maxTraceParent || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' ||
		strings.IndexFunc(parent, func(r rune) bool { return !hex(r) }) >= 0 {
		return "", ""
	}
	if len(state) > maxTraceState {
		state = ""
	}
	return parent, state
}

// A Tracer records spans, the parts of a trace (OpenTelemetry).
type Tracer interface {
	// Start starts the span of one stage of m. It returns the message for the next stage, with the span as parent, and the function
	// that ends the span, called once.
	Start(stage string, m *Message) (next *Message, end func(err error))
}

// Spans records a span around each interaction. A nil tracer records nothing and costs nothing.
func Spans(tr Tracer, stage string) Middleware {
	return func(t Thing) Thing {
		if tr == nil {
			return t
		}
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			return func(yield func(*Message, error) bool) {
				next, end := tr.Start(stage, m)
				var failed error
				defer func() { end(failed) }()
				for r, err := range t.Do(ctx, next) {
					if failed = err; !yield(r, err) {
						return
					}
				}
			}
		})
	}
}

// Timed measures the time from the request to each reply if the message has Timing, and sets it with set.
func Timed(set func(t *Timing, took time.Duration)) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if m.Timing == nil {
				return t.Do(ctx, m)
			}
			return func(yield func(*Message, error) bool) {
				started := time.Now()
				for r, err := range t.Do(ctx, m) {
					if err == nil {
						r = r.timed(func(t *Timing) { set(t, time.Since(started)) })
					}
					if !yield(r, err) {
						return
					}
				}
			}
		})
	}
}

// timed returns m with its timing changed by set.
func (m *Message) timed(set func(*Timing)) *Message {
	c := *m
	c.Timing = &Timing{}
	if m.Timing != nil {
		*c.Timing = *m.Timing
	}
	set(c.Timing)
	return &c
}

// NewID returns a new message id, a UUID of version 4 (LMOS: messageID).
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var s [36]byte
	hex.Encode(s[:], b[:4])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	hex.Encode(s[9:], b[4:6])
	hex.Encode(s[14:], b[6:8])
	hex.Encode(s[19:], b[8:10])
	hex.Encode(s[24:], b[10:])
	return string(s[:])
}

// newTrace returns the traceparent of a new, unrecorded trace (W3C Trace Context §3.2).
func newTrace() string {
	var b [24]byte
	rand.Read(b[:])
	var s [55]byte
	copy(s[:], "00-")
	hex.Encode(s[3:], b[:16])
	s[35] = '-'
	hex.Encode(s[36:], b[16:])
	copy(s[52:], "-00")
	return string(s[:])
}

// Named replaces the reference of messages by ref: a name that is unique here may be ambiguous elsewhere.
func Named(ref string) Middleware {
	return func(t Thing) Thing {
		return Func(func(ctx context.Context, m *Message) iter.Seq2[*Message, error] {
			if m.Thing == ref {
				return t.Do(ctx, m)
			}
			c := *m
			c.Thing = ref
			return t.Do(ctx, &c)
		})
	}
}
