package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// never is a reader that brings nothing until it is closed.
type never chan struct{}

func (n never) Read([]byte) (int, error) { <-n; return 0, errors.New("closed") }

// exchangeOf returns an exchange at the calling end.
func exchangeOf(t testing.TB, own bool) (*exchange, *script) {
	t.Helper()
	l, s := sessionOf(t, never(nil), own)
	e := &exchange{ready: make(chan struct{}, 1)}
	if err := l.enlist(e); err != nil {
		t.Fatal(err)
	}
	return e, s
}

func reply(n int) frame.Frame { return frame.Frame{Kind: frame.Reply, Body: make([]byte, n)} }

func TestTakeIsInOrder(t *testing.T) {
	t.Parallel()
	e, _ := exchangeOf(t, false)
	for i := range 10 {
		if err := e.put(reply(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	e.end(errClosed) // what came before counts
	for i := range 10 {
		if f, err := e.take(t.Context(), 0); err != nil || len(f.Body) != i+1 {
			t.Errorf("frame %d has %d bytes, %v", i, len(f.Body), err)
		}
	}
	if _, err := e.take(t.Context(), 0); err != errClosed {
		t.Errorf("after the last: %v", err)
	}
	e.end(errSilent)
	if _, _, err := e.state(); err != errClosed {
		t.Errorf("the reason changed to %v", err)
	}
}

func TestTakeWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &exchange{ready: make(chan struct{}, 1)}
		e.init(&session{}, 1)
		began := time.Now()
		if _, err := e.take(t.Context(), time.Second); err != errSlow || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want errSlow after 1 s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.take(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		go func() {
			time.Sleep(time.Second)
			e.end(errClosed)
		}()
		if _, err := e.take(t.Context(), 0); err != errClosed {
			t.Errorf("got %v", err)
		}
	})
}

// TestCreditIsReturned: the reader pays back half a window at a time, and memory at once.
func TestCreditIsReturned(t *testing.T) {
	t.Parallel()
	e, s := exchangeOf(t, false)
	before := e.l.memory.free.Load()
	var credits int
	for range 100 {
		if err := e.put(reply(10_000 - 64)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.take(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, _, _ = e.next()
	until(t, "credit is written", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		credits = 0
		for b := s.wrote.Bytes(); len(b) > 0; b = b[1+int(b[0]):] {
			n, _ := binary.Uvarint(b[3:])
			credits += int(n)
		}
		return credits >= 100*10_000-e.window/2
	})
	if credits > 100*10_000 {
		t.Errorf("%d bytes of credit for %d that were sent", credits, 100*10_000)
	}
	if e.release(); e.l.memory.free.Load() < before {
		t.Errorf("%d bytes are free, %d were", e.l.memory.free.Load(), before)
	}
}

func TestMoreThanTheWindow(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		e, _ := exchangeOf(t, own)
		var err error
		sum := 0
		for err == nil && sum < 10<<20 {
			if err = e.put(reply(50_000)); err == nil {
				sum += 50_064
			}
		}
		if !errors.Is(err, frame.ErrProtocol) || sum < e.window || sum > e.window+e.l.maxBody() {
			t.Errorf("own=%t: %d bytes were taken in: %v", own, sum, err)
		}
	}
}

// TestSendersWait: a sender without credit waits for more, or for the end.
func TestSendersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &exchange{}
		e.init(&session{}, 1)
		e.spend(e.window + 5)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.allow(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without credit: %v", err)
		}
		go func() { _ = e.grant(binary.AppendUvarint(nil, 5)) }()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.allow(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with just what was overdrawn: %v", err)
		}
		go func() { _ = e.grant([]byte{1}) }()
		if err := e.allow(t.Context()); err != nil {
			t.Errorf("with one byte more: %v", err)
		}
		e.spend(1)
		go e.end(errClosed)
		if err := e.allow(t.Context()); err != errClosed {
			t.Errorf("at the end: %v", err)
		}
	})
}

func TestGrant(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		used int
		body []byte
		ok   bool
	}{
		"what was used":      {100, []byte{100}, true},
		"less":               {100, []byte{1}, true},
		"more":               {100, []byte{101}, false},
		"of nothing":         {0, []byte{1}, false},
		"nothing":            {100, []byte{0}, false},
		"no number":          {100, nil, false},
		"2^64-1":             {100, binary.AppendUvarint(nil, 1<<64-1), false},
		"not shortest":       {100, []byte{0x81, 0}, false},
		"bytes after it":     {100, []byte{1, 1}, false},
		"what was overdrawn": {1 << 20, binary.AppendUvarint(nil, 1<<20), true},
	} {
		e := &exchange{}
		e.init(&session{}, 1)
		e.spend(c.used)
		if err := e.grant(c.body); (err == nil) != c.ok {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestAnnouncedSizesAreCheap: memory is taken as data comes, not as it is promised.
func TestAnnouncedSizesAreCheap(t *testing.T) {
	t.Parallel()
	e, s := exchangeOf(t, true)
	if err := e.put(frame.Frame{Kind: frame.Chunk, Body: []byte(strings.Repeat("x", 1000))}); err != nil {
		t.Fatal(err)
	}
	go e.end(errClosed)
	if _, err := e.assemble(t.Context(), 16<<20); err != errClosed {
		t.Errorf("got %v", err)
	}
	if s.scope.peak > 3*slab {
		t.Errorf("%d bytes were reserved for 1000 of 16 MiB", s.scope.peak)
	}
}
