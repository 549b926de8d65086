package ucan

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/boundedmap"
)

// Bounds of the memo. Larger tokens are verified each time.
const (
	memoTokens = 1024 // of each kind
	memoBytes  = 1024 // of one token
)

// Options of a [Verifier].
type Options struct {
	// Host is the DID whose commands [Verifier.Verify] accepts: the node.
	Host did.DID
	// Skew is the tolerance at the bounds of times. Zero is none; lmosd uses a minute.
	Skew time.Duration
	// Revoked reports whether one of the issuers has revoked the delegation id. They are the issuers of the chain from its root to that
	// delegation, the only ones that may revoke it. It is asked for each delegation of a chain at each check, so that all chains through a
	// revoked delegation end. Nil revokes nothing. It must not keep issuers.
	Revoked func(id CID, issuers []did.DID) bool
}

// A Verifier checks the tokens of calls. It keeps tokens of chains that it has verified, so that their signatures are verified once. It is
// safe for concurrent use.
type Verifier struct {
	options Options

	mu                       sync.Mutex
	delegations, invocations map[CID]*Token // verified; owned by mu
}

// NewVerifier returns a verifier with an empty memo.
func NewVerifier(o Options) *Verifier { return &Verifier{options: o} }

// A Chain is what the tokens of a call prove: Subject lets Invoker use Command with Args until Expires. It shares memory with the verifier
// and must not be changed.
type Chain struct {
	Subject    did.DID // issuer of the first link, in lmosd the host
	Invoker    did.DID
	Invocation CID
	Command    Command
	Args       map[string]any
	Links      []Link    // delegations, that of Subject first. None: Subject itself invokes
	Expires    time.Time // the earliest of all tokens; zero: never
}

// A Link is a delegation of a chain.
type Link struct {
	CID CID
	*Delegation
}

// Verify checks the tokens of one call, one invocation and its delegations in any order, by the rules of the specification and of lmosd:
//
//   - the subject is the host, and so is the audience of the invocation, if it has one;
//   - at most [MaxLinks] delegations, and no principal in two places;
//   - each token expires: delegations within [MaxDelegation] of now and of their beginning, invocations within [MaxInvocation].
//
// It does not look for replays. The error is an [*Error].
func (v *Verifier) Verify(tokens [][]byte, now time.Time) (*Chain, error) {
	return v.check(tokens, now, true)
}

// Check checks the tokens of one call by the rules of the specification only. The host is not compared, and tokens may be valid without
// end. The error is an [*Error].
func (v *Verifier) Check(tokens [][]byte, now time.Time) (*Chain, error) {
	return v.check(tokens, now, false)
}

// check applies the rules of lmosd too if house is true.
func (v *Verifier) check(tokens [][]byte, now time.Time, house bool) (*Chain, error) {
	invocation, delegations, err := v.read(tokens)
	switch {
	case err != nil:
		return nil, err
	case invocation == nil:
		return nil, failed(InvalidClaim, CID{}, "no invocation among %d tokens", len(tokens))
	}
	proofs, err := proofsOf(invocation, delegations)
	if err != nil {
		return nil, err
	}
	if house { // before the signatures: these checks cost less
		if err := v.checkHouseRules(invocation, proofs, now); err != nil {
			return nil, err
		}
	}
	if err := v.checkToken(invocation, now); err != nil {
		return nil, err
	}
	chain, err := v.link(invocation, proofs, now, house)
	if err != nil {
		return nil, err
	}
	if err := checkPolicies(invocation, proofs); err != nil {
		return nil, err
	}
	v.remember(invocation, proofs)
	return chain, nil
}

// A Call uses delegations without an invocation: the channel proves the key of By.
type Call struct {
	By      did.DID
	Command Command
	// Args returns the arguments. It is called only if a delegation has a policy.
	Args func() (map[string]any, error)
}

// VerifyCall checks delegations, in any order, by the rules of [Verifier.Verify], for a call that its channel authenticates. All of them form one
// chain. The error is an [*Error], or that of Call.Args.
func (v *Verifier) VerifyCall(tokens [][]byte, c Call, now time.Time) (*Chain, error) {
	invocation, delegations, err := v.read(tokens)
	switch {
	case err != nil:
		return nil, err
	case invocation != nil:
		return nil, failed(InvalidClaim, invocation.cid, "an invocation, and the call needs none")
	case len(delegations) > MaxLinks:
		return nil, failed(TooLarge, CID{}, "%d delegations, %d are allowed", len(delegations), MaxLinks)
	}
	call := &Token{verified: true, invocation: &Invocation{Issuer: c.By, Subject: v.options.Host, Command: c.Command}}
	for holder := v.options.Host; len(call.invocation.Proofs) < len(delegations); {
		i := slices.IndexFunc(delegations, func(t *Token) bool {
			return t.issuer == holder && !slices.Contains(call.invocation.Proofs, t.cid)
		})
		if i < 0 {
			return nil, failed(UnavailableProof, CID{}, "no delegation by %s", holder.Short())
		}
		call.invocation.Proofs = append(call.invocation.Proofs, delegations[i].cid)
		holder = delegations[i].delegation.Audience
	}
	proofs, err := proofsOf(call, delegations)
	if err != nil {
		return nil, err
	}
	if err := v.checkDelegations(CID{}, proofs, now); err != nil {
		return nil, err
	}
	chain, err := v.link(call, proofs, now, true)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(proofs, func(t *Token) bool { return len(t.delegation.Policy.statements) > 0 }) {
		if call.invocation.Args, err = c.Args(); err != nil {
			return nil, err
		}
		if err := checkPolicies(call, proofs); err != nil {
			return nil, err
		}
		chain.Args = call.invocation.Args
	}
	v.remember(nil, proofs)
	return chain, nil
}

// read finds tokens in the memo, and parses the others. The invocation is nil if there is none.
func (v *Verifier) read(tokens [][]byte) (invocation *Token, delegations []*Token, err error) {
	total := 0
	delegations = make([]*Token, 0, len(tokens))
	for _, b := range tokens {
		if total += len(b); total > MaxBytes {
			return nil, nil, failed(TooLarge, CID{}, "the tokens have more than %d bytes", MaxBytes)
		}
		t := v.memoized(b)
		if t == nil {
			if t, err = Parse(b); err != nil {
				return nil, nil, err
			}
		}
		switch {
		case t.delegation != nil:
			delegations = append(delegations, t)
		case invocation != nil:
			return nil, nil, failed(InvalidClaim, t.cid, "a second invocation")
		default:
			invocation = t
		}
	}
	return invocation, delegations, nil
}

// memoized returns the token of these bytes if it has been verified, or nil.
func (v *Verifier) memoized(b []byte) *Token {
	if len(b) > memoBytes {
		return nil
	}
	id := CID(sha256.Sum256(b))
	v.mu.Lock()
	defer v.mu.Unlock()
	if t := v.delegations[id]; t != nil {
		return t
	}
	return v.invocations[id]
}

// remember keeps the tokens of a chain that has been verified, so that tokens of other chains displace none.
func (v *Verifier) remember(invocation *Token, proofs []*Token) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range proofs {
		rememberLocked(&v.delegations, t)
	}
	if invocation != nil {
		rememberLocked(&v.invocations, invocation)
	}
}

// rememberLocked keeps a new token without its bytes, which are a part of the buffer of the caller.
func rememberLocked(memo *map[CID]*Token, t *Token) {
	if !t.verified && len(t.bytes) <= memoBytes {
		t.verified, t.bytes, t.signed, t.signature = true, nil, nil, nil
		boundedmap.Put(memo, t.cid, t, memoTokens, nil)
	}
}

// proofsOf returns the delegations that the invocation names, in its order.
func proofsOf(invocation *Token, delegations []*Token) ([]*Token, error) {
	proofs := make([]*Token, 0, len(delegations))
	for _, id := range invocation.invocation.Proofs {
		i := slices.IndexFunc(delegations, func(t *Token) bool { return t.cid == id })
		if i < 0 {
			return nil, failed(UnavailableProof, id, "not among the tokens")
		}
		if slices.Contains(proofs, delegations[i]) {
			return nil, failed(InvalidClaim, id, "a proof is named twice")
		}
		proofs = append(proofs, delegations[i])
	}
	return proofs, nil
}

// checkHouseRules checks the host, the length of the chain, and lifetimes.
func (v *Verifier) checkHouseRules(invocation *Token, proofs []*Token, now time.Time) error {
	i := invocation.invocation
	if i.Subject != v.options.Host || i.Audience != "" && i.Audience != v.options.Host {
		return failed(WrongExecutor, invocation.cid, "the call is for %s, not for this host", i.Subject.Short())
	}
	if err := v.checkLifetime(invocation, now, MaxInvocation); err != nil {
		return err
	}
	return v.checkDelegations(invocation.cid, proofs, now)
}

// checkDelegations checks the length of the chain, and lifetimes.
func (v *Verifier) checkDelegations(call CID, proofs []*Token, now time.Time) error {
	if len(proofs) > MaxLinks {
		return failed(TooLarge, call, "%d delegations, %d are allowed", len(proofs), MaxLinks)
	}
	for _, t := range proofs {
		if err := v.checkLifetime(t, now, MaxDelegation); err != nil {
			return err
		}
	}
	return nil
}

// checkLifetime limits the time from now, and from the beginning of the token, to its end.
func (v *Verifier) checkLifetime(t *Token, now time.Time, most time.Duration) error {
	if t.expires.IsZero() {
		return failed(InvalidClaim, t.cid, "it does not expire; at most %v are allowed", most)
	}
	if t.expires.Sub(now) > most+v.options.Skew || !t.notBefore.IsZero() && t.expires.Sub(t.notBefore) > most {
		return failed(InvalidClaim, t.cid, "it expires on %s; at most %v are allowed", t.expires.Format(time.DateOnly), most)
	}
	return nil
}

// checkToken checks the signature, once, and the time.
func (v *Verifier) checkToken(t *Token, now time.Time) error {
	if !t.verified {
		if err := t.checkSignature(); err != nil {
			return err
		}
	}
	return t.checkTime(now, v.options.Skew)
}

// link checks the delegations from the subject to the invoker. With the rules of lmosd a chain does not return to one of its issuers.
func (v *Verifier) link(invocation *Token, proofs []*Token, now time.Time, house bool) (*Chain, error) {
	i := invocation.invocation
	c := &Chain{Subject: i.Subject, Invoker: i.Issuer, Invocation: invocation.cid, Command: i.Command, Args: i.Args,
		Links: make([]Link, len(proofs)), Expires: i.Expires}
	if len(proofs) == 0 && i.Issuer != i.Subject {
		return nil, failed(InvalidClaim, invocation.cid, "no proofs, and %s is not the subject", i.Issuer.Short())
	}
	issuers := make([]did.DID, 0, len(proofs))
	holder, command := i.Subject, Command("/")
	for n, t := range proofs {
		if err := v.checkToken(t, now); err != nil {
			return nil, err
		}
		d := t.delegation
		switch {
		case n == 0 && d.Subject == "":
			return nil, failed(InvalidClaim, t.cid, "the first delegation has no subject")
		case n == 0 && d.Issuer != holder:
			return nil, failed(InvalidSubject, t.cid, "the first delegation is by %s, not by the subject %s", d.Issuer.Short(), holder.Short())
		case d.Issuer != holder:
			return nil, failed(InvalidAudience, t.cid, "it is by %s, and the one before is to %s", d.Issuer.Short(), holder.Short())
		case d.Subject != "" && d.Subject != i.Subject:
			return nil, failed(InvalidSubject, t.cid, "its subject is %s, not %s", d.Subject.Short(), i.Subject.Short())
		case !command.Covers(d.Command), !d.Command.Covers(i.Command):
			return nil, failed(InvalidClaim, t.cid, "%.80q does not cover the command", d.Command)
		}
		issuers = append(issuers, d.Issuer)
		if house && slices.Contains(issuers, d.Audience) {
			return nil, failed(InvalidClaim, t.cid, "the chain returns to %s", d.Audience.Short())
		}
		if v.options.Revoked != nil && v.options.Revoked(t.cid, issuers) {
			return nil, failed(Revoked, t.cid, "the delegation to %s is revoked", d.Audience.Short())
		}
		holder, command = d.Audience, d.Command
		c.Links[n] = Link{t.cid, d}
		if !d.Expires.IsZero() && (c.Expires.IsZero() || d.Expires.Before(c.Expires)) {
			c.Expires = d.Expires
		}
	}
	if len(proofs) > 0 && holder != i.Issuer {
		return nil, failed(InvalidAudience, invocation.cid, "the last delegation is to %s, and %s invokes", holder.Short(), i.Issuer.Short())
	}
	return c, nil
}

// checkPolicies checks the arguments against the policy of each delegation, so that one that drops the policy before it widens nothing.
func checkPolicies(invocation *Token, proofs []*Token) error {
	var m match
	for _, t := range proofs {
		holds := m.all(t.delegation.Policy.statements, invocation.invocation.Args)
		if m.steps > maxSteps {
			return failed(TooLarge, invocation.cid, "the policies take more than %d steps", maxSteps)
		}
		if !holds {
			return failed(MatchError, t.cid, "the arguments do not match its policy")
		}
	}
	return nil
}
