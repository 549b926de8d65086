package server

import (
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// CheckContentType returns an error of code [interact.UnsupportedType] if the media type of the body is not in want, or if the body has a
// content coding. This also rejects the types that a browser sends to other origins without a preflight (Fetch §2.2.2).
func CheckContentType(r *http.Request, want ...string) error {
	value := r.Header.Get("Content-Type")
	media, params, err := mime.ParseMediaType(value)
	charset := params["charset"]
	if err != nil || !slices.Contains(want, media) || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return interact.Errorf(interact.UnsupportedType, "send Content-Type: "+want[0],
			"the content type %q is not %s", interact.Excerpt(value, 200), strings.Join(want, ", "))
	}
	return checkCoding(r)
}

// checkCoding returns an error for a body with a content coding.
func checkCoding(r *http.Request) error {
	coding := r.Header.Get("Content-Encoding")
	if coding == "" || strings.EqualFold(coding, "identity") {
		return nil
	}
	return interact.Errorf(interact.UnsupportedType, "send the body without Content-Encoding",
		"the content coding %q is not supported", interact.Excerpt(coding, 200))
}
