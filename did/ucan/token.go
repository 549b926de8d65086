package ucan

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/cbor"
)

// varsig is the Varsig header of Ed25519 over DAG-CBOR. Other headers are refused.
var varsig = []byte{0x34, 0x01, 0xed, 0x01, 0xed, 0x01, 0x13, 0x71}

// The tags of the payloads.
const (
	delegationTag = "ucan/dlg@1.0.0"
	invocationTag = "ucan/inv@1.0.0"
)

// maxTime limits times, in seconds from 1970 (53 bits, as the specification demands).
const maxTime = 1<<53 - 1

// A Delegation lets Audience use Command of Subject.
type Delegation struct {
	Issuer    did.DID // who delegates; of did:key, whose key signs. Sign sets it
	Audience  did.DID
	Subject   did.DID // whose command it is, in lmosd the host; empty: whatever Issuer may use of any subject
	Command   Command
	Policy    Policy    // on the arguments of invocations; the zero value allows all
	NotBefore time.Time // whole seconds; zero: no bound
	Expires   time.Time // whole seconds; zero: never
	Nonce     []byte    // nil: Sign makes 12 random bytes
}

// An Invocation invokes a command.
type Invocation struct {
	Issuer    did.DID // who invokes; of did:key, whose key signs. Sign sets it
	Audience  did.DID // who executes; empty: Subject
	Subject   did.DID
	Command   Command
	Args      map[string]any // values of the kinds that [cbor.UnmarshalDAG] lists
	Proofs    []CID          // delegations, that of Subject first
	NotBefore time.Time      // whole seconds; zero: no bound
	Expires   time.Time      // whole seconds; zero: never
	Nonce     []byte         // nil: Sign makes 12 random bytes. Empty: an equal invocation is the same token
}

// A Token is a delegation or an invocation whose signature has not been verified. It is immutable and shared.
type Token struct {
	cid        CID
	delegation *Delegation
	invocation *Invocation
	issuer     did.DID
	notBefore  time.Time
	expires    time.Time

	bytes     []byte
	signed    []byte // part of bytes
	signature []byte
	verified  bool // set by a Verifier before others see the token
}

// CID returns the name of the token.
func (t *Token) CID() CID { return t.cid }

// Bytes returns the token. The caller must not change it.
func (t *Token) Bytes() []byte { return t.bytes }

// Delegation returns the content of a delegation, or nil.
func (t *Token) Delegation() *Delegation { return t.delegation }

// Invocation returns the content of an invocation, or nil.
func (t *Token) Invocation() *Invocation { return t.invocation }

// Sign returns the delegation signed with the key of s. A delegation that [Parse] would refuse is an error.
func (d Delegation) Sign(s did.Signer) (*Token, error) {
	return sign(s, delegationTag, optional(map[string]any{
		"aud": string(d.Audience), "sub": orNull(d.Subject), "cmd": string(d.Command), "pol": d.Policy.source,
	}, d.NotBefore, d.Expires, d.Nonce))
}

// Sign returns the invocation signed with the key of s. An invocation that [Parse] would refuse is an error.
func (i Invocation) Sign(s did.Signer) (*Token, error) {
	payload := optional(map[string]any{
		"sub": string(i.Subject), "cmd": string(i.Command), "args": i.Args, "prf": linksTo(i.Proofs),
	}, i.NotBefore, i.Expires, i.Nonce)
	if i.Audience != "" {
		payload["aud"] = string(i.Audience)
	}
	return sign(s, invocationTag, payload)
}

func optional(payload map[string]any, notBefore, expires time.Time, nonce []byte) map[string]any {
	payload["exp"] = nil
	if !expires.IsZero() {
		payload["exp"] = expires.Unix()
	}
	if !notBefore.IsZero() {
		payload["nbf"] = notBefore.Unix()
	}
	if nonce == nil {
		nonce = make([]byte, 12)
		_, _ = rand.Read(nonce) // never fails
	}
	payload["nonce"] = nonce
	return payload
}

func orNull(d did.DID) any {
	if d == "" {
		return nil
	}
	return string(d)
}

func sign(s did.Signer, tag string, payload map[string]any) (*Token, error) {
	payload["iss"] = string(s.DID())
	signed, err := cbor.MarshalDAG(map[string]any{"h": varsig, tag: payload})
	if err != nil {
		return nil, err
	}
	signature, err := s.Sign(did.PurposeUCAN, signed)
	if err != nil {
		return nil, err
	}
	first, err := cbor.MarshalDAG(signature)
	if err != nil {
		return nil, err
	}
	return Parse(slices.Concat([]byte{0x82}, first, signed))
}

// Parse reads a token, which keeps b. It checks the form: canonical DAG-CBOR, the Varsig header, version 1.0.0, the members, commands,
// times and policies. Unknown members are refused, since they could be conditions. It does not verify the signature. The error wraps
// [InvalidClaim], [InvalidSignature] or [TooLarge].
func Parse(b []byte) (*Token, error) {
	t := &Token{cid: sha256.Sum256(b), bytes: b}
	if len(b) > MaxBytes {
		return nil, failed(TooLarge, t.cid, "%d bytes, %d are allowed", len(b), MaxBytes)
	}
	if err := t.parse(); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			return nil, failed(e.Reason, t.cid, "%s", e.Detail)
		}
		return nil, failed(InvalidClaim, t.cid, "%v", err)
	}
	return t, nil
}

func (t *Token) parse() error {
	v, err := cbor.UnmarshalDAG(t.bytes)
	if err != nil {
		return err
	}
	list, _ := v.([]any)
	if len(list) != 2 {
		return errors.New("expected an envelope of two elements")
	}
	signature, isBytes := list[0].([]byte)
	envelope, isMap := list[1].(map[string]any)
	if !isBytes || !isMap || len(envelope) != 2 {
		return errors.New("expected a signature and a map of two keys")
	}
	t.signature = signature
	first, err := cbor.MarshalDAG(signature)
	if err != nil {
		return err
	}
	t.signed = t.bytes[1+len(first):]
	delegation, isDelegation := envelope[delegationTag].(map[string]any)
	invocation, isInvocation := envelope[invocationTag].(map[string]any)
	if !isDelegation && !isInvocation {
		return fmt.Errorf("neither a delegation nor an invocation of version 1.0.0: %.80q", slices.Sorted(maps.Keys(envelope)))
	}
	if header, ok := envelope["h"].([]byte); !ok || !bytes.Equal(header, varsig) {
		return failed(InvalidSignature, t.cid, "the signature is not of Ed25519 over DAG-CBOR")
	}
	if isDelegation {
		return t.parseDelegation(delegation)
	}
	return t.parseInvocation(invocation)
}

func (t *Token) parseDelegation(m map[string]any) error {
	p := payload{members: m}
	d := &Delegation{Issuer: p.did("iss"), Audience: p.did("aud"), Command: p.command()}
	if !p.null("sub") {
		d.Subject = p.did("sub")
	}
	source := member[[]any](&p, "pol")
	d.NotBefore, d.Expires, d.Nonce = p.common()
	if p.err == nil {
		d.Policy, p.err = policyOf(source)
	}
	t.delegation, t.issuer, t.notBefore, t.expires = d, d.Issuer, d.NotBefore, d.Expires
	return p.end()
}

func (t *Token) parseInvocation(m map[string]any) error {
	p := payload{members: m}
	i := &Invocation{Issuer: p.did("iss"), Subject: p.did("sub"), Command: p.command(), Args: member[map[string]any](&p, "args")}
	if p.has("aud") {
		i.Audience = p.did("aud")
	}
	links := member[[]any](&p, "prf")
	i.NotBefore, i.Expires, i.Nonce = p.common()
	if p.has("iat") {
		p.time("iat")
	}
	if p.has("cause") {
		member[cbor.Link](&p, "cause")
	}
	if p.err == nil {
		i.Proofs, p.err = cidsOf(links)
	}
	t.invocation, t.issuer, t.notBefore, t.expires = i, i.Issuer, i.NotBefore, i.Expires
	return p.end()
}

// checkSignature verifies the signature.
func (t *Token) checkSignature() error {
	key, err := t.issuer.Key()
	if err != nil {
		return failed(InvalidSignature, t.cid, "the issuer %s has no Ed25519 key in its name", t.issuer.Short())
	}
	if !ed25519.Verify(key, t.signed, t.signature) {
		return failed(InvalidSignature, t.cid, "the signature is not by %s", t.issuer.Short())
	}
	return nil
}

// checkTime compares now with the bounds of the token.
func (t *Token) checkTime(now time.Time, skew time.Duration) error {
	if !t.expires.IsZero() && !now.Before(t.expires.Add(skew)) {
		by := now.Sub(t.expires)
		return &Error{Reason: Expired, Token: t.cid, By: by, Detail: fmt.Sprintf("expired %v ago", by.Round(time.Second))}
	}
	if !t.notBefore.IsZero() && now.Before(t.notBefore.Add(-skew)) {
		by := t.notBefore.Sub(now)
		return &Error{Reason: TooEarly, Token: t.cid, By: by, Detail: fmt.Sprintf("valid in %v", by.Round(time.Second))}
	}
	return nil
}

// A payload reads the members of a payload, each once. Its first error stays.
type payload struct {
	members map[string]any
	read    int // members
	err     error
}

func (p *payload) has(name string) bool {
	_, ok := p.members[name]
	return ok
}

// member returns a member that must be there and be of the type T.
func member[T any](p *payload, name string) (v T) {
	if !p.has(name) {
		p.fail("%s is missing", name)
		return v
	}
	p.read++
	v, ok := p.members[name].(T)
	if !ok {
		p.fail("%s has the wrong type", name)
	}
	return v
}

// null reports whether a member is there and null.
func (p *payload) null(name string) bool {
	if v, ok := p.members[name]; !ok || v != nil {
		return false
	}
	p.read++
	return true
}

func (p *payload) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *payload) did(name string) did.DID {
	s := member[string](p, name)
	if p.err != nil {
		return ""
	}
	id, err := did.Parse(s)
	if err != nil {
		p.fail("%s: %w", name, err)
	}
	return id
}

func (p *payload) command() Command {
	s := member[string](p, "cmd")
	if p.err != nil {
		return ""
	}
	c, err := ParseCommand(s)
	p.err = err
	return c
}

// time returns the time of a member that is there. The second that is the zero value of [time.Time], in the year 1, is refused.
func (p *payload) time(name string) time.Time {
	seconds := member[int64](p, name)
	t := time.Unix(seconds, 0).UTC()
	if seconds > maxTime || seconds < -maxTime || t.IsZero() {
		p.fail("%s is out of range", name)
	}
	return t
}

// common reads the members that delegations and invocations have.
func (p *payload) common() (notBefore, expires time.Time, nonce []byte) {
	if !p.null("exp") {
		expires = p.time("exp")
	}
	if p.has("nbf") {
		notBefore = p.time("nbf")
	}
	if p.has("meta") {
		member[map[string]any](p, "meta")
	}
	return notBefore, expires, member[[]byte](p, "nonce")
}

// end returns the first error, or one that names an unknown member.
func (p *payload) end() error {
	if p.err == nil && p.read != len(p.members) {
		return fmt.Errorf("unknown members among %.200q", slices.Sorted(maps.Keys(p.members)))
	}
	return p.err
}
