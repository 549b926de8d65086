// Package httpbody reads bodies of limited size, and ends the body of a request when its connection is lost.
package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net/http"
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
	var b bytes.Buffer
	b.Grow(int(min(max(length, 0), maxPrealloc)) + bytes.MinRead) // with MinRead free bytes at the end the buffer does not grow again
	n, err := b.ReadFrom(io.LimitReader(r, limit+1))
	if n > limit {
		return b.Bytes()[:limit], ErrTooLarge
	}
	return b.Bytes(), err
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
