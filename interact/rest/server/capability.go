package server

import (
	"github.com/lmosd/lmosd/did/ucan"
	"github.com/lmosd/lmosd/interact"
)

// capabilityHeader has a container of delegations, by which the caller uses the right of another one.
const capabilityHeader = "Lmos-Capability"

// capability reads a container of UCANs. Its host is the issuer of the first delegation.
func capability(text string) (*interact.Capability, error) {
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
