package server

import (
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// CheckContentType returns an error of code [interact.UnsupportedType] for a body of another media type than one of want, or for one
// that is encoded. A required type also rejects the types that a browser sends to other origins without a preflight (Fetch §2.2.2).
func CheckContentType(r *http.Request, want ...string) error {
	value := r.Header.Get("Content-Type")
	media, params, err := mime.ParseMediaType(value)
	charset := params["charset"]
	if err != nil || !slices.Contains(want, media) || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return interact.Errorf(interact.UnsupportedType, "send Content-Type: "+want[0],
			"the content type %q is not %s", interact.Excerpt(value, 200), strings.Join(want, ", "))
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return interact.Errorf(interact.UnsupportedType, "send the body without Content-Encoding",
			"the content encoding %q is not read here", interact.Excerpt(coding, 200))
	}
	return nil
}
