package stream

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"sync"

	"github.com/lmosd/lmosd/did"
)

// Pseudonyms are the names of the consumers of a node for other nodes ([Options.As]). The name of a token is sent unchanged. The name of a
// user of this machine ("uid:1000") is replaced by a pseudonym, which is stable and derived with the key of the node: hosts distinguish
// the users of a node and learn nothing about its machine. It is safe for concurrent use.
type Pseudonyms struct {
	secret []byte

	mu  sync.Mutex
	all map[string]string // by name; owned by mu
}

const maxPseudonyms = 1024 // cached

// NewPseudonyms derives the secret of the pseudonyms from the key of the node: a signature for this purpose only.
func NewPseudonyms(s did.Signer) *Pseudonyms {
	text := sha512.Sum512([]byte("lmosd: consumers before other nodes"))
	secret, err := s.Sign(did.PurposeAssertion, text[:])
	if err != nil { // With such a signer, the pseudonyms change at each start.
		secret = []byte(rand.Text())
	}
	return &Pseudonyms{secret: secret, all: map[string]string{}}
}

// Of returns the name of p for other nodes; empty if it has none. An unproven consumer gets a name, too: without a name, its calls would
// count as calls of the node itself.
func (n *Pseudonyms) Of(p *did.Principal) string {
	switch {
	case p.Via == did.Unproven:
		return string(did.Unproven)
	case p.Name == "", did.ValidPrincipalName(p.Name):
		return p.Name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.all[p.Name]
	if !ok {
		mac := hmac.New(sha256.New, n.secret)
		mac.Write([]byte(p.Name))
		name = "u-" + hex.EncodeToString(mac.Sum(nil)[:10])
		if len(n.all) < maxPseudonyms {
			n.all[p.Name] = name
		}
	}
	return name
}
