package httpbody

import (
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in     io.Reader
		length int64
		want   string
		err    error
	}{
		"empty":                     {strings.NewReader(""), -1, "", nil},
		"at the limit":              {strings.NewReader("12345"), 5, "12345", nil},
		"above the limit":           {strings.NewReader("123456"), -1, "12345", ErrTooLarge},
		"a length above the limit":  {strings.NewReader("1"), 6, "", ErrTooLarge},
		"a length that is too long": {strings.NewReader("1"), 5, "1", nil},
		"a broken reader":           {io.MultiReader(strings.NewReader("12"), iotest.ErrReader(io.ErrUnexpectedEOF)), 5, "12", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ReadAll(c.in, c.length, 5)
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body   string
		length int64
		err    error
	}{
		"at the limit":                  {"12345", 5, nil},
		"above the limit":               {"123456", 6, ErrTooLarge},
		"above the limit, not declared": {"123456", -1, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(c.body))
			r.ContentLength = c.length
			got, err := Read(w, r, 5)
			if !errors.Is(err, c.err) || err == nil && string(got) != c.body {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestLengthIsNotTrusted reads a short body whose declared length is large.
func TestLengthIsNotTrusted(t *testing.T) {
	t.Parallel()
	got, err := ReadAll(strings.NewReader("1"), 1<<40, 1<<50)
	if err != nil || string(got) != "1" || cap(got) > 2*maxPrealloc {
		t.Errorf("got %q in a buffer of %d bytes, %v", got, cap(got), err)
	}
}
