package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// readEvents reads all events of a stream and writes each as "id|name|data".
func readEvents(src io.Reader, limit int) (got []string, e *Reader, err error) {
	e = NewReader(src, limit)
	for {
		ev, err := e.Next()
		if err == io.EOF {
			return got, e, nil
		}
		if err != nil {
			return got, e, err
		}
		got = append(got, fmt.Sprintf("%s|%s|%s", ev.ID, ev.Name, ev.Data))
	}
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, stream string
		want         []string
		id           string
	}{
		{"an event", "data: 1\n\n", []string{"||1"}, ""},
		{"without the space", "data:1\n\n", []string{"||1"}, ""},
		{"only one space is removed", "data:  1\n\n", []string{"|| 1"}, ""},
		{"several lines of data", "data: a\ndata: b\ndata\ndata: c\n\n", []string{"||a\nb\n\nc"}, ""},
		{"all fields", "id: 7\nevent: hot\ndata: {}\nretry: 100\n\n", []string{"7|hot|{}"}, "7"},
		{"CR, LF and both", "data: 1\r\rdata: 2\n\ndata: 3\r\n\r\n", []string{"||1", "||2", "||3"}, ""},
		{"CR before LF ends one line", "data: 1\r\n\r\ndata: 2\r\n\r\n", []string{"||1", "||2"}, ""},
		{"a byte order mark", "\xef\xbb\xbfdata: 1\n\n", []string{"||1"}, ""},
		{"a partial byte order mark is a name", "\xef\xbbdata: 1\n\n", nil, ""},
		{"a second byte order mark is a name", "data: 1\n\n\xef\xbb\xbfdata: 2\n\n", []string{"||1"}, ""},
		{"comments", ": hello\n:\ndata: 1\n: in between\n\n", []string{"||1"}, ""},
		{"unknown fields", "date: x\nDATA: x\ndata x: y\ndata: 1\n\n", []string{"||1"}, ""},
		{"a name without data is dropped", "event: a\n\ndata: 1\n\n", []string{"||1"}, ""},
		{"the last name counts", "event: a\nevent: b\ndata: 1\n\n", []string{"|b|1"}, ""},
		{"empty data is data", "data\n\ndata:\n\n", []string{"||", "||"}, ""},
		{"an id stays", "id: 1\ndata: a\n\ndata: b\n\n", []string{"1||a", "1||b"}, "1"},
		{"an empty id resets it", "id: 1\ndata: a\n\nid\ndata: b\n\n", []string{"1||a", "||b"}, ""},
		{"an id with NUL is ignored", "id: 1\ndata: a\n\nid: \x00\ndata: b\n\n", []string{"1||a", "1||b"}, "1"},
		{"an id without data counts", "id: 5\n\n", nil, "5"},
		{"a partial event is dropped with its id", "id: 1\ndata: a\n\nid: 2\ndata: b\n", []string{"1||a"}, "1"},
		{"a partial line is dropped", "data: a\n\ndata: b", []string{"||a"}, ""},
		{"a long id is replaced by an empty one", "id: " + strings.Repeat("x", 1025) + "\ndata: a\n\n", []string{"||a"}, ""},
		{"nothing", "", nil, ""},
		{"only blank lines", "\n\r\n\r\r\n", nil, ""},
	}
	for _, tt := range tests {
		for kind, src := range map[string]io.Reader{"at once": strings.NewReader(tt.stream),
			"byte by byte":   iotest.OneByteReader(strings.NewReader(tt.stream)),
			"with the error": iotest.DataErrReader(strings.NewReader(tt.stream))} {
			got, e, err := readEvents(src, 2000)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) || e.ID != tt.id {
				t.Errorf("%s, %s: got %q, id %q, %v, want %q, id %q", tt.name, kind, got, e.ID, err, tt.want, tt.id)
			}
		}
	}
}

func TestRetryOfAnEventStream(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"1500": 1500 * time.Millisecond, "-1": 7, "1.5": 7, "": 7,
		"99999999999999999999999": 7, "x": 7} {
		if got := retryOf([]byte(text), 7); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestEventStreamIsBounded(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{
		"a line without end":       "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		"a comment without end":    ":xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
		"an event without end":     "data: 12345678901234567890\n",
		"an event of empty lines":  "data\n",
		"a line without any field": strings.Repeat("x", 5000),
	} {
		src := &endless{part: []byte(part)}
		_, _, err := readEvents(src, 1<<20)
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v", name, err)
		}
		if src.read > 8<<20 {
			t.Errorf("%s: %d bytes were read", name, src.read)
		}
	}
}

// An endless reader repeats part.
type endless struct {
	part []byte
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e.part) <= len(p) {
		n += copy(p[n:], e.part)
	}
	if n == 0 {
		n = copy(p, e.part[:min(len(p), len(e.part))])
	}
	e.read += n
	return n, nil
}

func TestEventStreamAtItsLimit(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", 94)
	if got, _, err := readEvents(strings.NewReader("data: "+line+"\n\n"), 100); err != nil || len(got) != 1 {
		t.Errorf("a line of the limit: %q, %v", got, err)
	}
	if _, _, err := readEvents(strings.NewReader("data: "+line+"x\n\n"), 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a byte more: %v", err)
	}
	if got, _, err := readEvents(strings.NewReader("data: "+line+"\ndata: 12345\n\n"), 100); err != nil || len(got) != 1 {
		t.Errorf("an event of the limit: %q, %v", got, err)
	}
	if _, _, err := readEvents(strings.NewReader("data: "+line+"\ndata: 123456\n\n"), 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a byte more: %v", err)
	}
}

// A source that returns no bytes and no error is an error, not an endless loop.
func TestEmptyEventStream(t *testing.T) {
	t.Parallel()
	if _, _, err := readEvents(iotest.ErrReader(io.ErrClosedPipe), 100); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	if _, _, err := readEvents(emptyReader{}, 100); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, nil }

// The memory of a long line is released when shorter lines follow.
func TestBufferOfLongLineIsReleased(t *testing.T) {
	t.Parallel()
	e := NewReader(strings.NewReader("data: "+strings.Repeat("x", 1<<20)+"\n\ndata: 1\n\n"), 2<<20)
	for range 2 {
		if _, err := e.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(e.long) > maxLine {
		t.Errorf("%d bytes are held", cap(e.long))
	}
}

// referenceEvents is a reference implementation of HTML §9.2.6 that reads the whole stream at once.
func referenceEvents(stream string) []string {
	var got []string
	stream = strings.TrimPrefix(stream, "\xef\xbb\xbf")
	stream = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	lines := strings.Split(stream, "\n")
	id, last, name, data := "", "", "", ""
	for _, line := range lines[:len(lines)-1] {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && data == "":
			last, name = id, ""
		case line == "":
			last = id
			got = append(got, fmt.Sprintf("%s|%s|%s", last, name, data[:len(data)-1]))
			name, data = "", ""
		case field == "data":
			data += value + "\n"
		case field == "event":
			name = value
		case field == "id" && len(value) > maxID:
			id = ""
		case field == "id" && !strings.Contains(value, "\x00"):
			id = value
		}
	}
	return got
}

func FuzzEventStream(f *testing.F) {
	for _, s := range []string{"data: 1\n\n", "\xef\xbb\xbfid: 1\revent: a\r\ndata: x\ndata\n\r\n", ":\n\nretry: 5\n\n",
		"id: \x00\ndata: \xff\n\n", "data: 1\r"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		src := io.Reader(bytes.NewReader(stream))
		if step > 0 {
			src = stepping{src, int(step)}
		}
		got, _, err := readEvents(src, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		want := referenceEvents(string(stream))
		for i := range want { // a name that is too long is cut
			if parts := strings.SplitN(want[i], "|", 3); len(parts[1]) > maxName {
				return
			}
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%q: got %q, want %q", stream, got, want)
		}
	})
}

// A stepping reader reads at most n bytes at once.
type stepping struct {
	src io.Reader
	n   int
}

func (s stepping) Read(p []byte) (int, error) { return s.src.Read(p[:min(len(p), s.n)]) }

func BenchmarkEventStream(b *testing.B) {
	const one = "id: 1718000000000\nevent: temperature\ndata: {\"value\":21.5,\"unit\":\"celsius\"}\n\n"
	stream := strings.Repeat(one, 1000)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		e := NewReader(strings.NewReader(stream), 16<<20)
		for {
			if _, err := e.Next(); err != nil {
				break
			}
		}
	}
}

// A partial event is returned only if the caller accepts it.
func TestPartialEvent(t *testing.T) {
	t.Parallel()
	for stream, want := range map[string]string{"data: 1\n\ndata: last": "|1|last", "data: 1\n\ndata: 2\n": "|1|2", "data: 1\n\nid: 7": "|1",
		"data: 1\n\n": "|1", "": ""} {
		for kind, src := range map[string]io.Reader{"at once": strings.NewReader(stream),
			"byte by byte": iotest.OneByteReader(strings.NewReader(stream))} {
			r, got := NewReader(src, 100), ""
			r.Partial = true
			for ev, err := range r.all {
				if err != nil {
					t.Fatal(err)
				}
				got += "|" + string(ev.Data)
			}
			if got != want {
				t.Errorf("%q, %s: got %s, want %s", stream, kind, got, want)
			}
		}
	}
}
