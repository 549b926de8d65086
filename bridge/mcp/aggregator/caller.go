package aggregator

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/lmosd/lmosd/did"
)

// callerOf names who sends a request: by whom the node found, and beyond that by what the request showed, of which only the hash is
// kept. The gateway has judged both. A consumer of this machine that shows nothing has the empty name.
func callerOf(r *http.Request) string {
	var words []string
	switch p := did.PrincipalOf(r.Context()); {
	case p == nil:
		words = append(words, "/")
	case *p != *did.Consumer(did.Loopback, ""):
		words = append(words, string(p.Via)+"/"+p.Name)
	}
	if shown := r.Header.Get("Authorization"); shown != "" {
		sum := sha256.Sum256([]byte(shown))
		words = append(words, hex.EncodeToString(sum[:16]))
	}
	return strings.Join(words, " ")
}

// principalOf returns the principal of a name that [callerOf] made: sessions of the old era reach a thing through a connection, which
// carries names.
func principalOf(caller string) *did.Principal {
	word, _, _ := strings.Cut(caller, " ")
	via, name, ok := strings.Cut(word, "/")
	switch {
	case !ok:
		return did.Consumer(did.Loopback, "")
	case via == "":
		return nil
	}
	return did.Consumer(did.Via(via), name)
}
