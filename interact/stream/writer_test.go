package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// A gate is a stream whose writes wait until it is opened.
type gate struct {
	script
	mu     sync.Mutex
	open   chan struct{} // a write takes an element; closed: all pass
	writes [][]byte
	shut   bool // the write side was closed
	fail   error
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, bytes.Clone(p))
	return len(p), g.fail
}

func (g *gate) CloseWrite() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	return nil
}

// count returns how many writes there were, and of how many bytes.
func (g *gate) count() (writes, bytes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.writes {
		bytes += len(w)
	}
	return len(g.writes), bytes
}

func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// gated runs a test with a session over a gate, in simulated time.
func gated(t *testing.T, test func(t *testing.T, l *session, g *gate)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(nil, Options{})
		g := &gate{open: make(chan struct{})}
		g.script = script{conn: scriptConn{id: scriptID}, scope: &tally{}}
		l, err := b.newSession(g, "", nil, false)
		if err != nil {
			t.Fatal(err)
		}
		test(t, l, g)
		l.fail(errOver)
		b.work.Wait()
	})
}

func push(l *session, n int, direct bool) error {
	return l.out.push(context.Background(), frame.Chunk, 1, direct, func(b []byte) ([]byte, error) { return append(b, make([]byte, n)...), nil })
}

// An interaction that is over while its caller still writes must not leave that write behind: a stream is reset then, not closed.
func TestTheEndOfAWriter(t *testing.T) {
	for _, writes := range []bool{false, true} {
		t.Run(fmt.Sprintf("it writes: %v", writes), func(t *testing.T) {
			gated(t, func(t *testing.T, l *session, g *gate) {
				if writes {
					if err := push(l, 10, false); err != nil {
						t.Error(err)
					}
				}
				synctest.Wait()
				l.fail(errOver)
				if g.ended != map[bool]string{false: "closed", true: "reset"}[writes] || g.code != network.StreamNoError {
					t.Errorf("the stream was %s with %#x", g.ended, g.code)
				}
				close(g.open)
			})
		})
	}
}

func TestFramesLeaveTogether(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		for range 100 {
			if err := push(l, 100, false); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if l.out.sent(0) != true || l.out.sent(1<<20) {
			t.Error("what was given to the stream is not told")
		}
		close(g.open)
		synctest.Wait()
		if writes, n := g.count(); writes > 2 || n != 100*103 {
			t.Errorf("100 frames of 103 bytes were written as %d bytes in %d writes, want at most 2", n, writes)
		}
	})
}

func TestDirectWrites(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		close(g.open)
		_ = push(l, 100, true)
		if n, _ := g.count(); n != 1 {
			t.Errorf("a small frame was not written at once: %d writes", n)
		}
		_ = push(l, 100, false)
		_ = push(l, directSize, true)
		synctest.Wait()
		if _, n := g.count(); n != 103+103+directSize+4 {
			t.Errorf("%d bytes were written, want all", n)
		}
	})
}

// taken is how many frames of 50 kB may wait.
const taken = highWater/50_000 + 1

func TestWritersAreThrottled(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		errs := make(chan error, 100)
		for range 100 {
			go func() { errs <- push(l, 50_000, false) }()
		}
		synctest.Wait()
		if n := len(errs); n != taken {
			t.Errorf("%d of 100 frames of 50 kB were taken in, want %d", n, taken)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.out.push(ctx, frame.End, 1, false, func(b []byte) ([]byte, error) { return b, nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another one waited until %v", err)
		}
		close(g.open)
		for range 100 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		if _, n := g.count(); n < 100*50_000 {
			t.Errorf("%d bytes were written, want more than %d", n, 100*50_000)
		}
	})
}

func TestEndReleasesWaitingCallers(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		errs := make(chan error, 100)
		for range 100 {
			go func() { errs <- push(l, 50_000, false) }()
		}
		synctest.Wait()
		l.fail(errClosed)
		freed := 0
		for range 100 {
			if err := <-errs; errors.Is(err, errClosed) {
				freed++
			}
		}
		if freed != 100-taken {
			t.Errorf("%d were freed, want the %d that waited", freed, 100-taken)
		}
		close(g.open)
	})
}

func TestAWriteThatFails(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		g.fail = &network.StreamError{ErrorCode: 7, Remote: true}
		close(g.open)
		_ = push(l, 100, true)
		if err := l.reason(); !errors.Is(err, g.fail) {
			t.Errorf("the session ended with %v, want the error of the write", err)
		}
		if err := push(l, 100, true); !errors.Is(err, g.fail) {
			t.Errorf("the next frame: %v", err)
		}
	})
}

func TestStuck(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		if l.out.stuck(time.Now().Add(time.Hour)) {
			t.Error("stuck without a write")
		}
		_ = push(l, 100, false)
		synctest.Wait()
		if l.out.stuck(time.Now().Add(writeTime)) || !l.out.stuck(time.Now().Add(writeTime+1)) {
			t.Errorf("a write is stuck after %v, not before", writeTime)
		}
		close(g.open)
	})
}

func TestFinishFollowsTheLastFrame(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		_ = push(l, 100, false)
		synctest.Wait()
		l.out.finish()
		if g.isShut() {
			t.Error("closed while a frame waits")
		}
		close(g.open)
		synctest.Wait()
		if !g.isShut() {
			t.Error("not closed after the last frame")
		}
	})
}

func TestFinishWithoutFrames(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		if l.out.finish(); !g.isShut() {
			t.Error("not closed")
		}
		close(g.open)
	})
}

func TestResetCodes(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]network.StreamErrorCode{
		errMemory: 0x1002, errSlow: 0x1003, errStuck: 0x1003, frame.ErrProtocol: 0x1004, frame.Errorf("x"): 0x1004,
		io.ErrUnexpectedEOF: 0x1004, errIdle: 0x1006, errClosed: 0x1007, io.EOF: 0, context.Canceled: 0, errSilent: 0,
	} {
		if got := resetCode(err); got != want {
			t.Errorf("%v: got %#x, want %#x", err, got, want)
		}
	}
}

// TestLargeFramesAreWrittenInParts: so that a slow link shows that it moves.
func TestLargeFramesAreWrittenInParts(t *testing.T) {
	gated(t, func(t *testing.T, l *session, g *gate) {
		if err := l.out.chunk(t.Context(), 1, make([]byte, frame.MaxChunk), func() {}); err != nil {
			t.Fatal(err)
		}
		for range 4 { // 1 MiB within 36 s
			synctest.Wait()
			time.Sleep(writeTime - time.Second)
			if l.out.stuck(time.Now()) {
				t.Error("stuck, although it moves")
			}
			g.open <- struct{}{}
		}
		close(g.open)
		synctest.Wait()
		if writes, n := g.count(); writes != 5 || n != frame.MaxChunk+len("\x82\x80\x40\x06\x01") {
			t.Errorf("%d bytes in %d writes, want 1 MiB and 5 bytes in 5", n, writes)
		}
	})
}
