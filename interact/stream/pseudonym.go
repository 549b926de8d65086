package stream

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"sync"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/stream/frame"
)

// Pseudonyms state for whom a node calls ([Options.As]). The name of a token is sent unchanged. The name of a
// user of this machine ("uid:1000") or of a subject of an identity provider ("oidc:acme:ada") is replaced by a pseudonym, which is stable and derived with the key of the node: hosts distinguish
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

// Of returns the statement for p. A consumer that proved its identity to the operating system, or to nobody because it is code of the node,
// may use all roles of the node. A token has none, of this node or of an identity provider, because its roles are words of the node and not of its organization; nor has a consumer of a
// listener that only this machine reaches. An
// unproven consumer is untrusted, and gets a name: without a name, its calls would count as calls of the node itself.
func (n *Pseudonyms) Of(p *did.Principal) frame.As {
	as := frame.As{IsConsumer: true, Name: n.name(p.Name), Agent: p.Agent(), Relation: did.Own}
	switch p.Proof() {
	case did.Unproven:
		as.Name, as.Relation = string(did.Unproven), did.Untrusted
	case did.Process, did.Socket:
		if as.Roles = frame.AllRoles; as.Name == "" && as.Agent == "" {
			return frame.As{}
		}
	case did.Token:
		if !p.Scoped() { // the token of the operator
			as.Roles = frame.AllRoles
		}
	}
	return as
}

// Name returns the name by which other nodes know a consumer; empty if it has none. A nil principal has none.
func (n *Pseudonyms) Name(p *did.Principal) string {
	if p == nil {
		return ""
	}
	return n.Of(p).Name
}

// name returns the name of a consumer for other nodes; empty if it has none.
func (n *Pseudonyms) name(own string) string {
	if own == "" || did.ValidPrincipalName(own) {
		return own
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.all[own]
	if !ok {
		mac := hmac.New(sha256.New, n.secret)
		mac.Write([]byte(own))
		name = "u-" + hex.EncodeToString(mac.Sum(nil)[:10])
		if len(n.all) < maxPseudonyms {
			n.all[own] = name
		}
	}
	return name
}
