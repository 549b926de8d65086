package ucan

import (
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
)

// revokeCommand is the command of revocations.
const revokeCommand Command = "/ucan/revoke"

// A Revocation is a verified statement that a delegation is void. It has effect on chains in which Revoker issued that delegation or one
// before it, which [Options.Revoked] decides: it is valid before the delegation is seen. It cannot be withdrawn.
type Revocation struct {
	Revoker did.DID
	Revoked CID
	Path    []CID     // delegations from one of Revoker to Revoked, a hint for who has the tokens
	Expires time.Time // it may be forgotten then, the skew later: that of the delegation
}

// Revoke returns the revocation of the last delegation of path by the key of s, an issuer of the first one. Expires is when the delegation
// expires. Equal revocations are one token.
func Revoke(s did.Signer, path []CID, expires time.Time) (*Token, error) {
	if len(path) == 0 || len(path) > MaxLinks {
		return nil, failed(InvalidClaim, CID{}, "a path has 1 to %d delegations", MaxLinks)
	}
	return Invocation{
		Subject: s.DID(), Command: revokeCommand, Expires: expires, Nonce: []byte{},
		Args: map[string]any{"revoke": path[len(path)-1].link(), "path": linksTo(path)},
	}.Sign(s)
}

// ReadRevocation verifies the token of a revocation: invoked by its subject itself, with a path of at most [MaxLinks] delegations that ends
// with the revoked one, and an end within [MaxDelegation] of now. The revoked delegation is the argument revoke, or ucan of older peers. The
// error is an [*Error].
func ReadRevocation(token []byte, now time.Time, skew time.Duration) (*Revocation, error) {
	v := Verifier{options: Options{Skew: skew}}
	chain, err := v.Check([][]byte{token}, now)
	if err != nil {
		return nil, err
	}
	bad := func(why string) error { return failed(InvalidClaim, chain.Invocation, "%s", why) }
	if chain.Command != revokeCommand || len(chain.Args) != 2 {
		return nil, bad("it is not a revocation")
	}
	if chain.Expires.IsZero() || chain.Expires.Sub(now) > MaxDelegation+skew {
		return nil, bad("a revocation expires, within 30 days")
	}
	revoked, ok := chain.Args["revoke"]
	if !ok {
		revoked = chain.Args["ucan"]
	}
	links, _ := chain.Args["path"].([]any)
	path, err := cidsOf(append(slices.Clone(links), revoked))
	if err != nil {
		return nil, bad("it names no delegation")
	}
	last := len(path) - 1
	if last == 0 || last > MaxLinks || path[last-1] != path[last] {
		return nil, bad("the path does not end with the revoked delegation")
	}
	return &Revocation{Revoker: chain.Invoker, Revoked: path[last], Path: path[:last], Expires: chain.Expires}, nil
}
