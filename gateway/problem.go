package gateway

import (
	"net/http"

	"github.com/lmosd/lmosd/interact"
)

// notAllowed sets the methods of a path.
func notAllowed(w http.ResponseWriter, r *http.Request, allow string) error {
	w.Header().Set("Allow", allow)
	return interact.Errorf(interact.NotAllowed, "use "+allow, "method %s is not supported at %s", clip(r.Method),
		clip(r.URL.Path))
}

// clip shortens text of a caller and removes control characters, which would command a terminal.
func clip(s string) string { return interact.Clip(interact.Readable(s), 200) }
