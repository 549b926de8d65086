package problem

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
)

// ReadBody reads the body of a request of at most limit bytes.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	body, err := httpbody.Read(w, r, limit)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, interact.Errorf(interact.TooLarge, fmt.Sprintf("send at most %d bytes", limit), "the body is larger than %d bytes", limit)
	case err != nil:
		return nil, IncompleteBody(err)
	}
	return body, nil
}

// IncompleteBody returns the error for a body that ended with err.
func IncompleteBody(err error) error {
	return &interact.Error{Code: interact.Invalid, Title: "the body is incomplete", Hint: "send it again", Err: err}
}
