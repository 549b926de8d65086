package stream

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lmosd/lmosd/interact/stream/frame"
)

// sessionOf returns a session that reads what r brings, at the calling end, and its stream.
func sessionOf(t testing.TB, r io.Reader, own bool) (*session, *script) {
	t.Helper()
	b := New(nil, Options{})
	s := &script{Reader: r, conn: scriptConn{id: scriptID}, scope: &tally{}}
	l, err := b.newSession(s, "", &remote{b: b, sessions: map[*session]struct{}{}, closed: true}, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.fail(errOver); b.work.Wait() })
	return l, s
}

// TestFramesHoweverTheyCome: frames are the same whether they come in one piece or byte by byte.
func TestFramesHoweverTheyCome(t *testing.T) {
	t.Parallel()
	sizes := []int{0, 1, 100, readSize - 10, readSize, readSize + 1, frame.MaxControl, 7}
	var sent []byte
	for i, n := range sizes {
		k := frame.Reply
		if n == 0 {
			k = frame.End
		}
		sent = append(sent, raw(k, uint64(i)*1000+1, strings.Repeat("x", n))...)
	}
	for name, r := range map[string]io.Reader{
		"in one piece":     bytes.NewReader(sent),
		"byte by byte":     iotest.OneByteReader(bytes.NewReader(sent)),
		"half by half":     iotest.HalfReader(bytes.NewReader(sent)),
		"with its end":     iotest.DataErrReader(bytes.NewReader(sent)),
		"behind one frame": io.MultiReader(bytes.NewReader(sent[:3]), bytes.NewReader(sent[3:])),
	} {
		l, _ := sessionOf(t, r, false)
		for i, n := range sizes {
			f, err := l.read()
			if err != nil {
				t.Fatalf("%s: frame %d: %v", name, i, err)
			}
			if f.ID != uint64(i)*1000+1 || len(f.Body) != n || strings.Trim(string(f.Body), "x") != "" {
				t.Errorf("%s: frame %d has number %d and %d bytes, want %d", name, i, f.ID, len(f.Body), n)
			}
			l.discard(f)
		}
		if _, err := l.read(); err != io.EOF {
			t.Errorf("%s: after the last frame: %v, want EOF", name, err)
		}
	}
}

func TestFramesThatEndEarly(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string][]byte{"small": raw(frame.Reply, 1, "hello"), "large": raw(frame.Reply, 1, strings.Repeat("x", 50_000))} {
		for _, n := range []int{1, 2, 3, len(sent) / 2, len(sent) - 1} {
			l, _ := sessionOf(t, bytes.NewReader(sent[:n]), false)
			if _, err := l.read(); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes of %d: got %v, want ErrUnexpectedEOF", name, n, len(sent), err)
			}
		}
	}
}

func TestLargeChunksUseASeparateSession(t *testing.T) {
	t.Parallel()
	sent := raw(frame.Chunk, 0, strings.Repeat("x", frame.MaxChunk))
	own, _ := sessionOf(t, bytes.NewReader(sent), true)
	if f, err := own.read(); err != nil || len(f.Body) != frame.MaxChunk || !f.Owned {
		t.Errorf("on a session of its own: %d bytes, %v", len(f.Body), err)
	}
	shared, s := sessionOf(t, bytes.NewReader(sent), false)
	if _, err := shared.read(); !errors.Is(err, frame.ErrProtocol) {
		t.Errorf("on a shared session: %v", err)
	}
	if s.scope.peak > 2*slab {
		t.Errorf("%d bytes were reserved for a frame that is not allowed", s.scope.peak)
	}
}

// TestMemoryIsReservedBeforeAllocation: an announced size costs nothing that the peer's budget does not hold.
func TestMemoryIsReservedBeforeAllocation(t *testing.T) {
	t.Parallel()
	l, _ := sessionOf(t, bytes.NewReader(raw(frame.Chunk, 0, strings.Repeat("x", frame.MaxChunk))), true)
	l.memory.scope = &ration{limit: slab}
	if f, err := l.read(); !errors.Is(err, errMemory) || f.Body != nil && f.Owned {
		t.Errorf("got %v", err)
	}
}
