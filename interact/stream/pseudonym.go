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

// Pseudonyms name the consumers of a node to other nodes ([Options.As]). The name of a token is sent as it is. The name of a user of this
// machine ("uid:1000") is never sent, but a pseudonym that is the same after each start and can be made and read only with the key of the
// node: hosts tell the users of a node apart and learn nothing of its machine. It is safe for concurrent use.
type Pseudonyms struct {
	secret []byte

	mu  sync.Mutex
	all map[string]string // by name; owned by mu
}

const maxPseudonyms = 1024 // that are cached

// NewPseudonyms derives the secret of the pseudonyms from the key of the node: a signature that is used for nothing else.
func NewPseudonyms(s did.Signer) *Pseudonyms {
	text := sha512.Sum512([]byte("lmosd: consumers before other nodes"))
	secret, err := s.Sign(did.PurposeAssertion, text[:])
	if err != nil { // A signer that does not sign this has other pseudonyms after each start.
		secret = []byte(rand.Text())
	}
	return &Pseudonyms{secret: secret, all: map[string]string{}}
}

// Of returns the name of p for other nodes; empty if it has none. A consumer that proved nothing is named so: without a name the call would
// count as one of the node itself.
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
