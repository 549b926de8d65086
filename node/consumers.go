package node

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"sync"

	"github.com/lmosd/lmosd/did"
)

// pseudonyms are what other nodes hear of the consumers of this one (stream.Options.As). The name of a token is told; that of a user of this
// machine ("uid:1000") never is, but a pseudonym, the same after each start, which nobody can make or read without the node's key:
// hosts tell the users of a node apart, and learn nothing of its machine.
type pseudonyms struct {
	secret []byte

	mu  sync.Mutex
	all map[string]string // by name; the users of a machine are few
}

// maxPseudonyms bounds what is remembered.
const maxPseudonyms = 1024

// newPseudonyms makes the secret of the node's key: a signature that is made for this only, and shown to nobody.
func newPseudonyms(s did.Signer) *pseudonyms {
	text := sha512.Sum512([]byte("lmosd: consumers before other nodes"))
	secret, err := s.Sign(did.PurposeAssertion, text[:])
	if err != nil { // a signer that signs nothing else has pseudonyms of this start
		secret = []byte(rand.Text())
	}
	return &pseudonyms{secret: secret, all: map[string]string{}}
}

// as names p to other nodes; empty if it has no name. Who proved nothing is told as such: without a word the node itself would ask.
func (n *pseudonyms) as(p *did.Principal) string {
	switch {
	case p.Via == did.Unproven:
		return string(did.Unproven)
	case p.Name == "", did.ValidPrincipalName(p.Name):
		return p.Name
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	word, ok := n.all[p.Name]
	if !ok {
		mac := hmac.New(sha256.New, n.secret)
		mac.Write([]byte(p.Name))
		word = "u-" + hex.EncodeToString(mac.Sum(nil)[:10])
		if len(n.all) < maxPseudonyms {
			n.all[p.Name] = word
		}
	}
	return word
}
