// Package httpbody reads bodies of limited size, and ends the body of a request when its connection is lost.
package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
)

// ErrTooLarge means that the content has more bytes than the limit.
var ErrTooLarge = errors.New("too large")

// maxPrealloc is the largest buffer, in bytes, that is allocated for a declared length before the content arrives.
const maxPrealloc = 64 << 10

// ReadAll reads r to its end. If it has more than limit bytes, the error is [ErrTooLarge], and the result the first limit bytes. length is the
// declared length, which may be wrong, or -1.
func ReadAll(r io.Reader, length, limit int64) ([]byte, error) {
	if length > limit {
		return nil, ErrTooLarge
	}
	size := min(length, maxPrealloc) + 1 // the last byte is for the read that finds the end
	if length < 0 {
		size = bytes.MinRead
	}
	b := make([]byte, 0, size)
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
		n, err := r.Read(b[len(b):min(int64(cap(b)), limit+1)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return b[:limit], ErrTooLarge
		case err == io.EOF:
			return b, nil
		case err != nil:
			return b, err
		}
	}
}

// Read reads the body of a request. A body that is too large is read to the limit even if its length is declared: most clients read
// the response after they have sent the body. The server then closes the connection.
func Read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := ReadAll(http.MaxBytesReader(w, r.Body, limit), min(r.ContentLength, limit), limit)
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		err = ErrTooLarge
	}
	return body, err
}
