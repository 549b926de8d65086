package messaging

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
)

// A wireTap notes what a layer sends, and when.
type wireTap struct {
	mu   sync.Mutex
	sent []*Packet
	at   []time.Time
	err  error
}

func (w *wireTap) write(b []byte) error {
	p, err := ParseDatagram(b)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent, w.at = append(w.sent, p), append(w.at, time.Now())
	return w.err
}

// TestRepetition is RFC 7252 §4.2: five copies, each pause twice the one before, the first 2 to 3 s.
func TestRepetition(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			var tap wireTap
			l := NewLayer(Usual, tap.write)
			begun := time.Now()
			_, copies, err := l.Confirm(t.Context(), &Packet{Code: codes.GET, Token: "t"}, nil)
			if !errors.Is(err, ErrSilent) || copies != 5 || len(tap.sent) != 5 {
				t.Fatalf("%d copies, %v", copies, err)
			}
			if took := time.Since(begun); took < 62*time.Second || took > 93*time.Second {
				t.Errorf("given up after %v", took)
			}
			pause := tap.at[1].Sub(tap.at[0])
			if pause < 2*time.Second || pause > 3*time.Second {
				t.Errorf("the first pause was %v", pause)
			}
			for i := 1; i < 4; i++ {
				if pause *= 2; tap.at[i+1].Sub(tap.at[i]) != pause {
					t.Errorf("pause %d was %v, want %v", i, tap.at[i+1].Sub(tap.at[i]), pause)
				}
			}
			for _, p := range tap.sent {
				if p.Mid != tap.sent[0].Mid || p.Kind != message.Confirmable || p.Token != "t" {
					t.Errorf("copies differ: %+v", p)
				}
			}
		})
	}
}

func TestFatesOfAMessage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		then func(l *Layer, mid uint16, answers chan *Packet, cancel context.CancelFunc)
		err  error
	}{
		"acknowledged": {func(l *Layer, mid uint16, _ chan *Packet, _ context.CancelFunc) {
			l.Settle(mid, nil)
			l.Settle(mid, ErrReset)
		}, nil},
		"rejected": {func(l *Layer, mid uint16, _ chan *Packet, _ context.CancelFunc) {
			l.Settle(mid, ErrReset)
			l.Settle(mid, nil)
		}, ErrReset},
		"answered early": {func(_ *Layer, _ uint16, answers chan *Packet, _ context.CancelFunc) { answers <- &Packet{} }, nil},
		"all refused":    {func(l *Layer, _ uint16, _ chan *Packet, _ context.CancelFunc) { l.settleAll(ErrRefused) }, ErrRefused},
		"cancelled":      {func(_ *Layer, _ uint16, _ chan *Packet, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"another's fate": {func(l *Layer, mid uint16, _ chan *Packet, _ context.CancelFunc) { l.Settle(mid+1, nil) }, ErrSilent},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var tap wireTap
				l := NewLayer(Usual, tap.write)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				answers := make(chan *Packet, 1)
				done := make(chan error, 1)
				go func() {
					_, _, err := l.Confirm(ctx, &Packet{Code: codes.GET}, answers)
					done <- err
				}()
				synctest.Wait()
				tap.mu.Lock()
				mid := tap.sent[0].Mid
				tap.mu.Unlock()
				tt.then(l, mid, answers, cancel)
				if err := <-done; !errors.Is(err, tt.err) {
					t.Errorf("got %v, want %v", err, tt.err)
				}
				if len(l.waiting) != 0 {
					t.Errorf("%d messages are still on the way", len(l.waiting))
				}
			})
		})
	}
}

func TestMidsAreNotUsedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	l := NewLayer(Usual, func([]byte) error { return nil })
	busy := l.register(make(chan error, 1))
	for range 1 << 16 {
		if l.register(nil) == busy {
			t.Fatal("a mid was given out that is in use")
		}
	}
}

func TestAWriteThatFails(t *testing.T) {
	t.Parallel()
	tap := wireTap{err: ErrRefused}
	l := NewLayer(Usual, tap.write)
	if _, copies, err := l.Confirm(t.Context(), &Packet{Code: codes.GET}, nil); copies != 0 || !errors.Is(err, ErrRefused) {
		t.Errorf("%d copies, %v", copies, err)
	}
	if err := l.Fire(&Packet{Code: codes.GET}); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	if _, _, err := l.Confirm(t.Context(), &Packet{Code: codes.GET, Token: "123456789"}, nil); err == nil {
		t.Error("a token of nine bytes was sent")
	}
	if err := l.Fire(&Packet{Code: codes.GET, Token: "123456789"}); err == nil {
		t.Error("a token of nine bytes was sent")
	}
}
