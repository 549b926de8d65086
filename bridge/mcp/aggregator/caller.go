package aggregator

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/did"
)

// callerOf returns the name of the caller of a request: the principal that the gateway determined, and a hash of credentials in the
// request that did not authenticate it. A local consumer without credentials has the empty name.
func callerOf(r *http.Request) string {
	var parts []string
	switch p := did.PrincipalOf(r.Context()); {
	case p == nil:
		parts = append(parts, "/")
	case p != did.Consumer(did.Loopback, ""): // which is shared
		parts = append(parts, string(p.Via)+"/"+p.Name)
	}
	if shown := r.Header.Get("Authorization"); shown != "" && !did.PrincipalOf(r.Context()).Scoped() { // a new token of a subject is the same caller
		sum := sha256.Sum256([]byte(shown))
		parts = append(parts, hex.EncodeToString(sum[:16]))
	}
	return strings.Join(parts, " ")
}
