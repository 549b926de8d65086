package gateway

import (
	"net/http"

	"github.com/lmosd/lmosd/interact"
)

// notAllowed tells which methods a path has.
func notAllowed(w http.ResponseWriter, r *http.Request, allow string) error {
	w.Header().Set("Allow", allow)
	return interact.Errorf(interact.NotAllowed, "use "+allow, "%s is not possible at %s", clip(r.Method),
		clip(r.URL.Path))
}

// clip keeps what a caller sent from filling an error, and from commanding the terminal that shows it.
func clip(s string) string { return interact.Clip(interact.Readable(s), 200) }
