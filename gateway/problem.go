package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest"
)

// A preconditionError says that a thing is not in the state that the client named. The catalogue has no code for it: only
// HTTP asks such questions.
type preconditionError struct {
	id  string
	tag string // of the present state; "" if there is no such thing
}

func (e *preconditionError) Error() string {
	if e.tag == "" {
		return "there is no " + clip(e.id)
	}
	return clip(e.id) + " is in the state " + e.tag
}

// write answers with 412 (RFC 9110 §15.5.13).
func (e *preconditionError) write(w http.ResponseWriter) {
	if e.tag != "" {
		w.Header().Set("ETag", e.tag)
	}
	hint := "GET " + thingPath(e.id) + ", and repeat the change with its ETag in If-Match"
	if e.tag == "" {
		hint = "repeat the change without If-Match: there is nothing that it could match"
	}
	body, _ := json.Marshal(struct { // strings, a number and booleans always encode
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail"`
		Hint      string `json:"hint"`
		Retryable bool   `json:"retryable"`
		Remote    bool   `json:"remote"`
	}{Type: "about:blank", Title: "Precondition Failed", Status: http.StatusPreconditionFailed, Detail: e.Error(),
		Hint: hint})
	writeBytes(w, http.StatusPreconditionFailed, rest.ProblemType, body)
}

// notAllowed tells which methods a path has.
func notAllowed(w http.ResponseWriter, r *http.Request, allow string) error {
	w.Header().Set("Allow", allow)
	return interact.Errorf(interact.NotAllowed, "use "+allow, "%s is not possible at %s", clip(r.Method),
		clip(r.URL.Path))
}

// clip keeps what a caller sent from filling an error, and from commanding the terminal that shows it.
func clip(s string) string { return interact.Clip(interact.Readable(s), 200) }
