package sse

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A written event is read as one event with the same fields.
func FuzzWrittenEvent(f *testing.F) {
	f.Add("hot", "1", []byte(`{"a":1}`))
	f.Add("a\r\nevent: b", "x\x00", []byte("a\r\rb\n\r\n: c\n\ndata: d"))
	f.Add("", "", []byte("\n"))
	f.Fuzz(func(t *testing.T, name, id string, data []byte) {
		if max(len(name), len(id)) > 200 || strings.Contains(string(data)+name+id, "\ufeff") {
			return
		}
		out := appendEvent(nil, name, id, data)
		if strings.ContainsAny(id, "\x00\r\n") {
			id = ""
		}
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data))
		n := 0
		for e, err := range Events(bytes.NewReader(out), 1<<20) {
			if n++; err != nil || e.Name != oneLine(name) || e.ID != id || string(e.Data) != want {
				t.Fatalf("%q became %q, %q, %q, %v", out, e.Name, e.ID, e.Data, err)
			}
		}
		if n != 1 && want != "" {
			t.Fatalf("%q has %d events", out, n)
		}
	})
}

// Follow sends each value, keep-alives while there is none, and ends its sequence with the context.
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		rec, ended := httptest.NewRecorder(), false
		e := NewWriter(rec, 0)
		Follow(ctx, e, time.Second, func(ctx context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				defer func() { ended = true }()
				_ = yield(1, nil)
				time.Sleep(2500 * time.Millisecond)
				_ = yield(2, nil)
				<-ctx.Done()
				yield(0, ctx.Err())
			}
		}, func(n int) error {
			if n == 2 {
				cancel()
			}
			return e.Send("n", "", strconv.AppendInt(nil, int64(n), 10))
		})
		const want = ": \n\nevent: n\ndata: 1\n\n: \n\n: \n\nevent: n\ndata: 2\n\n"
		if got := rec.Body.String(); got != want || !ended {
			t.Errorf("got %q, want %q; the sequence ended: %v", got, want, ended)
		}
	})
}

// A failed write ends Follow and its sequence.
func TestFollowOfAFailedWrite(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	Follow(t.Context(), NewWriter(httptest.NewRecorder(), 0), time.Hour, func(ctx context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			_ = yield(1, nil)
			<-ctx.Done()
			ended <- ctx.Err()
		}
	}, func(int) error { return io.ErrClosedPipe })
	if len(ended) != 1 {
		t.Error("the sequence continues")
	}
}
