package server

import (
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
)

// capabilityHeader has a container of delegations, by which the caller uses the right of another one.
const capabilityHeader = "Lmos-Capability"

// Capability reads the delegations that a consumer presents to its node: a container of UCANs, as text. Their host is the issuer of the first one. The
// error is Forbidden for a consumer without proof or with a scoped token, else DelegationInvalid.
func Capability(from *did.Principal, text string) (*interact.Capability, error) {
	if from == nil || from.Proof() == did.Unproven || from.Scoped() {
		return nil, interact.Errorf(interact.Forbidden, "use the unix socket, or the token of the operator", "the caller may not use the delegations of this node")
	}
	c := &interact.Capability{}
	tokens, err := ucan.Unpack([]byte(text))
	for _, raw := range tokens {
		t, wrong := ucan.Parse(raw)
		if wrong != nil {
			err = wrong
			break
		}
		if l := t.Delegation(); l != nil && l.Issuer == l.Subject {
			c.Host = l.Subject
		}
	}
	if err == nil {
		c.Tokens, err = ucan.Pack(ucan.Raw, tokens...)
	}
	if err != nil || c.Host == "" || len(c.Tokens) > interact.MaxCapability {
		return nil, interact.Errorf(interact.DelegationInvalid, "copy the whole token", "this is not a delegation of at most %d bytes", interact.MaxCapability)
	}
	return c, nil
}
