package frame

import (
	"errors"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestFrameThatIsTooLong(t *testing.T) {
	t.Parallel()
	before := []byte("what was there")
	long := func(b []byte) ([]byte, error) { return append(b, make([]byte, MaxControl+1)...), nil }
	got, err := Append(before, Reply, 1, long)
	if e := interact.AsError(err); e == nil || e.Code != interact.TooLarge || string(got) != string(before) {
		t.Errorf("got %v and %d bytes, want TooLarge and what was there", err, len(got))
	}
	failure := errors.New("no")
	got, err = Append(before, Reply, 1, func(b []byte) ([]byte, error) { return append(b, 1, 2, 3), failure })
	if err != failure || string(got) != string(before) {
		t.Errorf("got %v and %q", err, got)
	}
}

func TestFramesCost(t *testing.T) {
	t.Parallel()
	for k := Request; k <= Credit; k++ {
		want := 5
		if k == Reply || k == Last || k == Chunk {
			want += 64
		}
		if got := (Frame{Kind: k, Body: make([]byte, 5)}).Cost(); got != want {
			t.Errorf("kind %d costs %d, want %d", k, got, want)
		}
	}
}

// TestIsLong looks at the first member only, whatever follows.
func TestIsLong(t *testing.T) {
	t.Parallel()
	for typ := range interact.Type(40) {
		b, err := AppendRequest(nil, &interact.Message{Type: typ, Name: "x"}, Extra{}, 0)
		if got := IsLong(b); err == nil && got != typ.Long() {
			t.Errorf("type %d: got %t", typ, got)
		}
	}
	for _, b := range []string{"", "\xa1", "\xa1\x02\x07", "\x07", "\xa1\x01\x61\x07"} {
		if IsLong([]byte(b)) {
			t.Errorf("%x announces a long frame", b)
		}
	}
}
