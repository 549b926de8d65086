package stream

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lmosd/lmosd/interact"
)

// laneOf returns a session that reads what r brings, at the calling end, and its stream.
func laneOf(t testing.TB, r io.Reader, own bool) (*session, *script) {
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
	sizes := []int{0, 1, 100, readSize - 10, readSize, readSize + 1, maxControl, 7}
	var sent []byte
	for i, n := range sizes {
		k := kindReply
		if n == 0 {
			k = kindEnd
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
		l, _ := laneOf(t, r, false)
		for i, n := range sizes {
			f, err := l.read()
			if err != nil {
				t.Fatalf("%s: frame %d: %v", name, i, err)
			}
			if f.id != uint64(i)*1000+1 || len(f.body) != n || strings.Trim(string(f.body), "x") != "" {
				t.Errorf("%s: frame %d has number %d and %d bytes, want %d", name, i, f.id, len(f.body), n)
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
	for name, sent := range map[string][]byte{"small": raw(kindReply, 1, "hello"), "large": raw(kindReply, 1, strings.Repeat("x", 50_000))} {
		for _, n := range []int{1, 2, 3, len(sent) / 2, len(sent) - 1} {
			l, _ := laneOf(t, bytes.NewReader(sent[:n]), false)
			if _, err := l.read(); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes of %d: got %v, want ErrUnexpectedEOF", name, n, len(sent), err)
			}
		}
	}
}

func TestLargeChunksNeedAnOwnLane(t *testing.T) {
	t.Parallel()
	sent := raw(kindChunk, 0, strings.Repeat("x", maxChunk))
	own, _ := laneOf(t, bytes.NewReader(sent), true)
	if f, err := own.read(); err != nil || len(f.body) != maxChunk || !f.own {
		t.Errorf("on a lane of its own: %d bytes, %v", len(f.body), err)
	}
	shared, s := laneOf(t, bytes.NewReader(sent), false)
	if _, err := shared.read(); !errors.Is(err, errProtocol) {
		t.Errorf("on a shared lane: %v", err)
	}
	if s.scope.peak > 2*slab {
		t.Errorf("%d bytes were reserved for a frame that is not allowed", s.scope.peak)
	}
}

// TestMemoryComesBeforeAllocation: an announced size costs nothing that the peer's budget does not hold.
func TestMemoryComesBeforeAllocation(t *testing.T) {
	t.Parallel()
	l, _ := laneOf(t, bytes.NewReader(raw(kindChunk, 0, strings.Repeat("x", maxChunk))), true)
	l.memory.scope = &ration{limit: slab}
	if f, err := l.read(); !errors.Is(err, errMemory) || f.body != nil && f.own {
		t.Errorf("got %v", err)
	}
}

func TestFrameThatIsTooLong(t *testing.T) {
	t.Parallel()
	before := []byte("what was there")
	long := func(b []byte) ([]byte, error) { return append(b, make([]byte, maxControl+1)...), nil }
	got, err := appendFrame(before, kindReply, 1, long)
	if e := interact.AsError(err); e == nil || e.Code != interact.TooLarge || string(got) != string(before) {
		t.Errorf("got %v and %d bytes, want TooLarge and what was there", err, len(got))
	}
	failure := errors.New("no")
	got, err = appendFrame(before, kindReply, 1, func(b []byte) ([]byte, error) { return append(b, 1, 2, 3), failure })
	if err != failure || string(got) != string(before) {
		t.Errorf("got %v and %q", err, got)
	}
}

func TestFramesCost(t *testing.T) {
	t.Parallel()
	for k := kindRequest; k <= kindCredit; k++ {
		want := 5
		if k == kindReply || k == kindLast || k == kindChunk {
			want += 64
		}
		if got := (frame{kind: k, body: make([]byte, 5)}).cost(); got != want {
			t.Errorf("kind %d costs %d, want %d", k, got, want)
		}
	}
}
