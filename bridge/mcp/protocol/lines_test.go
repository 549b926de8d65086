package protocol

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A reader is a stream that can only be read.
type reader struct{ io.Reader }

func (reader) Write(p []byte) (int, error) { return len(p), nil }
func (reader) Close() error                { return nil }

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	in := "Welcome!\n\n\r\n" + `{"jsonrpc":"2.0","id":1,"method":"a"}` + "\r\n" +
		`{"jsonrpc":"2.0","id":2,"result":"` + long + "\"}\n" +
		`{"result":"` + long + `,\"id\":9}","jsonrpc":"2.0","id":"three"}` + "\n" +
		`{"jsonrpc":"2.0","method":"` + long + "\"}\n" +
		`{"jsonrpc":"2.0","id":4,"method":"b"}`
	want := []struct {
		id   ID
		code int
	}{{"", ParseError}, {"1", 0}, {"2", InvalidRequest}, {`"three"`, InvalidRequest}, {"", InvalidRequest}, {"4", 0}}
	l := Lines(reader{strings.NewReader(in)})
	for _, w := range want {
		m, err := l.Read(t.Context())
		e := &Error{}
		if err != nil && !errors.As(err, &e) || e.Code != w.code || (m == nil) != (w.id == "") || m != nil && m.ID() != w.id {
			t.Errorf("got %v, %v; want %v", m, err, w)
		}
	}
	if _, err := l.Read(t.Context()); err != io.EOF {
		t.Errorf("got %v at the end", err)
	}
}

// Lines that wait during a write are written together, and each writer gets the result.
func TestQueuedLinesAreWrittenTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 50
		here, there := net.Pipe()
		l := Lines(here)
		results := make(chan error, many)
		for i := range many {
			go func() { results <- l.Write(t.Context(), Request(ID(strconv.Itoa(i)), "x", nil)) }()
		}
		synctest.Wait() // the first line is being written
		got, seen, b := 0, map[string]bool{}, make([]byte, 64<<10)
		for len(seen) < many {
			n, err := there.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got++
			for line := range bytes.Lines(b[:n]) {
				m, err := Parse(bytes.TrimSpace(line))
				if err != nil || seen[string(m.ID())] {
					t.Fatalf("%q: %v, or there twice", line, err)
				}
				seen[string(m.ID())] = true
			}
			synctest.Wait()
		}
		if got > 2 {
			t.Errorf("%d lines were written in %d pieces", many, got)
		}
		for range many {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		for range many {
			go func() { results <- l.Write(t.Context(), Request("1", "x", nil)) }()
		}
		synctest.Wait()
		there.Close()
		for range many {
			if err := <-results; err == nil {
				t.Error("Write of a failed line succeeded")
			}
		}
		l.Close()
	})
}

// A short stream accepts a number of bytes at once.
type short struct {
	begin chan struct{}
	room  int
}

func (s *short) Read([]byte) (int, error) { return 0, io.EOF }
func (s *short) Close() error             { return nil }
func (s *short) Write(p []byte) (int, error) {
	<-s.begin
	n := min(s.room, len(p))
	if s.room -= n; n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Of lines that are written together, only those that were not fully written fail, because the others must not be sent again.
func TestPartialWriteOfQueuedLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := Request("1", "x", nil)
		size := len(m.Bytes()) + 1
		s := &short{make(chan struct{}), 4*size - 1}
		l := Lines(s)
		results := make(chan error, 6)
		for range 6 {
			go func() { results <- l.Write(t.Context(), m) }()
		}
		synctest.Wait() // the first line is being written
		close(s.begin)
		failed := 0
		for range 6 {
			if <-results != nil {
				failed++
			}
		}
		if failed != 3 {
			t.Errorf("%d lines of 6 have failed, want 3", failed)
		}
		l.Close()
	})
}

// A blocked reader does not prevent cancellation, and Close ends all.
func TestWriteWithoutReader(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	l := Lines(here)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 2 { // one that writes, and one that is queued
		if err := l.Write(ctx, Request("1", "x", nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	waits := make(chan error)
	go func() { waits <- l.Write(context.Background(), Request("2", "x", nil)) }()
	l.Close()
	if err := <-waits; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v after the end", err)
	}
	l.Close()
}

// Every stream ends, and each line that is a message is returned as one.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}\nx\n\r\n{"))
	f.Fuzz(func(t *testing.T, in []byte) {
		l := Lines(reader{bytes.NewReader(in)})
		var want, got []string
		for line := range bytes.SplitSeq(in, []byte("\n")) {
			if m, err := Parse(bytes.TrimSuffix(line, []byte("\r"))); err == nil {
				want = append(want, string(m.Bytes()))
			}
		}
		for n := 0; ; n++ {
			m, err := l.Read(t.Context())
			if err == io.EOF {
				break
			} else if err == nil {
				got = append(got, string(m.Bytes()))
			} else if !errors.As(err, new(*Error)) || n > len(in) {
				t.Fatal(err)
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// The id of a line that is too long is the id of its message.
func FuzzIDOf(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":7,"result":{"id":8}}`))
	f.Add([]byte(`{"result":{"id":8},"id":"7","jsonrpc":"2.0"}`))
	f.Add([]byte(`{"result":",\"id\":8}","id":-7}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Parse(bytes.Clone(line))
		if err != nil {
			return
		}
		if id := idOf(line[:min(len(line), scanned)], line[max(0, len(line)-scanned):]); id != "" && id != m.ID() {
			t.Errorf("%s has the id %s, not %s", line, m.ID(), id)
		}
	})
}
