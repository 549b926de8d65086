// Package vc issues and verifies the credentials of an organization's members, and its status lists.
//
// A credential states that a node or an agent is a member of an organization, and its roles. It lives for hours and is renewed. A status list
// revokes credentials earlier. Both are signed by an issuing key of the organization (eddsa-jcs-2022). Sources: Verifiable Credentials Data
// Model 2.0; Bitstring Status List 1.0.
package vc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/internal/lazyregexp"
)

// Types of credentials.
const (
	Node  = "NodeCredential"  // of a node
	Agent = "AgentCredential" // of an agent with a key of its own
)

// Limits of a credential.
const (
	MaxCredential = 16 << 10 // bytes
	MaxRoles      = 32
	MaxLife       = 30 * 24 * time.Hour
)

// Skew is the permitted difference of the clocks of issuer and verifier.
const Skew = 5 * time.Minute

// Errors of credentials and status lists. They are wrapped with the reason.
var (
	// ErrInvalid means that the document is not what its issuer signed, or not a credential or status list of this package.
	ErrInvalid = errors.New("credential refused")
	// ErrTime means that the document is valid at another time. ErrExpired is the case that it was valid before.
	ErrTime    = errors.New("not valid yet")
	ErrExpired = errors.New("expired")
)

// A Credential states a membership. Those that [Verify] and [Issue] return are immutable.
type Credential struct {
	ID     string
	Type   string  // Node or Agent
	Issuer did.DID // the organization; the node, of a credential that a node issued for an agent at it
	// Method is the DID URL of the key that signed, "did:webvh:…#i1".
	Method  string
	Subject did.DID // a did:key
	// Organization is that of which the subject is a member: Issuer, unless that is a node.
	Organization did.DID
	Host         did.DID // the node through which the agent is reached; empty for nodes
	Roles        []string
	From         time.Time
	Until        time.Time
	Status       Status          // zero if a node issued it: it ends with the membership of the node
	Raw          json.RawMessage // canonical JSON
}

// A Status is the place of a credential in a status list.
type Status struct {
	List  string // its URL
	Index int
}

// HasRole reports whether the credential states the role.
func (c *Credential) HasRole(role string) bool { return slices.Contains(c.Roles, role) }

var role = lazyregexp.New(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidRole reports whether name can be a role: 1 to 64 of [a-z0-9._-], of which the first is a letter or a digit.
func ValidRole(name string) bool { return role().MatchString(name) }

// A Check has the requirements for a credential or a status list.
type Check struct {
	// Resolver returns the documents of issuers.
	Resolver did.Resolver
	// Now is the time of the check. Zero: the current time.
	Now time.Time
}

func (c Check) now() time.Time {
	if c.Now.IsZero() {
		return time.Now()
	}
	return c.Now
}

// contextV2 is the first @context of each credential.
const contextV2 = "https://www.w3.org/ns/credentials/v2"

// Issue signs a credential with the key of s, which the document of the issuer lists as method. It fills in ID if it is empty. c is not
// changed.
func Issue(c Credential, s did.Signer, method string) (*Credential, error) {
	if c.ID == "" {
		c.ID = newID()
	}
	if c.Organization == "" {
		c.Organization = c.Issuer
	}
	subject := map[string]any{"id": string(c.Subject), "memberOf": string(c.Organization), "roles": anys(c.Roles)}
	if c.Host != "" {
		subject["host"] = string(c.Host)
	}
	doc := map[string]any{
		"@context": []any{contextV2}, "id": c.ID, "type": []any{"VerifiableCredential", c.Type}, "issuer": string(c.Issuer),
		"validFrom": stamp(c.From), "validUntil": stamp(c.Until), "credentialSubject": subject,
	}
	if c.Organization == c.Issuer {
		doc["credentialStatus"] = map[string]any{"id": c.Status.List + "#" + strconv.Itoa(c.Status.Index), "type": "BitstringStatusListEntry",
			"statusPurpose": "revocation", "statusListIndex": strconv.Itoa(c.Status.Index), "statusListCredential": c.Status.List}
	}
	raw, err := sign(doc, s, method, c.From)
	if err != nil {
		return nil, err
	}
	out, err := read(doc) // what readers reject is not issued
	if err != nil {
		return nil, err
	}
	out.Method, out.Raw = method, raw
	return out, nil
}

// Verify verifies a credential: its form, its times, and its proof by a key that the document of its issuer lists under assertionMethod. It
// does not check the status list; see [List.Revokes]. raw is at most [MaxCredential] bytes. The error wraps [ErrInvalid], [ErrTime],
// [ErrExpired], or the error of the resolver.
func Verify(ctx context.Context, raw []byte, check Check) (*Credential, error) {
	v, whole, err := verify(ctx, raw, MaxCredential, check)
	if err != nil {
		return nil, err
	}
	c, err := read(v.Document)
	if err != nil {
		return nil, err
	}
	if v.Owner != c.Issuer {
		return nil, fmt.Errorf("%w: issued by %s, signed by %s", ErrInvalid, c.Issuer.Short(), v.Owner.Short())
	}
	if err := window(c.From, c.Until, check.now()); err != nil {
		return nil, err
	}
	c.Method = v.Method
	c.Raw, err = jcs.Append(nil, whole)
	return c, err
}

// verify decodes a credential and verifies its one proof. It returns the verified document, and the same with its proof.
func verify(ctx context.Context, raw []byte, max int, check Check) (v *proof.Verified, whole map[string]any, err error) {
	if whole, err = jcs.Object(raw, max); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	v, err = proof.Verify(ctx, whole, proof.Check{Resolver: check.Resolver, Now: check.now()})
	switch {
	case errors.Is(err, proof.ErrTime):
		return nil, nil, fmt.Errorf("%w: %w", ErrTime, err)
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case len(v.Owners) != 1:
		return nil, nil, fmt.Errorf("%w: %d issuers signed it, expected one", ErrInvalid, len(v.Owners))
	}
	whole["@context"] = v.Document["@context"]
	return v, whole, nil
}

// window checks the time of a document.
func window(from, until, now time.Time) error {
	if now.Add(Skew).Before(from) {
		return fmt.Errorf("%w: valid from %s, in %s; compare the clocks", ErrTime, stamp(from), from.Sub(now).Round(time.Second))
	}
	if now.Add(-Skew).After(until) {
		return fmt.Errorf("%w: on %s, %s ago", ErrExpired, stamp(until), now.Sub(until).Round(time.Second))
	}
	return nil
}

// read reads a credential without its proof.
func read(doc map[string]any) (*Credential, error) {
	c := &Credential{}
	if err := c.readBody(doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return c, nil
}

func (c *Credential) readBody(doc map[string]any) (err error) {
	if c.Type, err = readEnvelope(doc, Node, Agent); err != nil {
		return err
	}
	if c.ID, _ = doc["id"].(string); c.ID == "" {
		return errors.New("it has no id")
	}
	if c.Issuer, err = issuer(doc["issuer"]); err != nil {
		return err
	}
	if c.From, c.Until, err = times(doc); err != nil {
		return err
	}
	if c.Until.Sub(c.From) > MaxLife {
		return fmt.Errorf("it is valid for %s, more than %s", c.Until.Sub(c.From), MaxLife)
	}
	if err := c.readSubject(doc["credentialSubject"]); err != nil {
		return err
	}
	if status := doc["credentialStatus"]; status != nil || c.Organization == c.Issuer {
		return c.Status.read(status)
	}
	return nil
}

// readEnvelope checks what credentials and status lists have in common, and returns the type.
func readEnvelope(doc map[string]any, types ...string) (string, error) {
	contexts, _ := doc["@context"].([]any)
	if len(contexts) == 0 || contexts[0] != contextV2 {
		return "", fmt.Errorf("the first @context is not %s", contextV2)
	}
	for _, one := range contexts {
		if _, ok := one.(string); !ok {
			return "", errors.New("an @context is not a URL")
		}
	}
	all, _ := doc["type"].([]any)
	if !slices.Contains(all, any("VerifiableCredential")) {
		return "", errors.New("the type is not VerifiableCredential")
	}
	for _, one := range types {
		if slices.Contains(all, any(one)) {
			return one, nil
		}
	}
	return "", fmt.Errorf("the type is not %s", strings.Join(types, " or "))
}

// issuer reads a URL, or an object with an id.
func issuer(v any) (did.DID, error) {
	if m, ok := v.(map[string]any); ok {
		v = m["id"]
	}
	text, _ := v.(string)
	id, err := did.Parse(text)
	if err != nil {
		return "", fmt.Errorf("issuer: %w", err)
	}
	return id, nil
}

func times(doc map[string]any) (from, until time.Time, err error) {
	if from, err = readTime(doc, "validFrom"); err == nil {
		until, err = readTime(doc, "validUntil")
	}
	if err == nil && !until.After(from) {
		err = errors.New("validUntil is not after validFrom")
	}
	return from, until, err
}

// readTime reads an XSD dateTimeStamp.
func readTime(doc map[string]any, name string) (time.Time, error) {
	t, err := proof.DateTime(doc[name])
	if err != nil {
		return t, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

func (c *Credential) readSubject(v any) (err error) {
	m, ok := v.(map[string]any)
	if !ok {
		return errors.New("credentialSubject is not an object")
	}
	if c.Subject, err = memberKey(m["id"]); err != nil {
		return fmt.Errorf("credentialSubject.id: %w", err)
	}
	memberOf, _ := m["memberOf"].(string)
	if c.Organization, err = did.Parse(memberOf); err != nil {
		return fmt.Errorf("credentialSubject.memberOf: %w", err)
	}
	if c.Type == Agent {
		if c.Host, err = memberKey(m["host"]); err != nil {
			return fmt.Errorf("credentialSubject.host: %w", err)
		}
	}
	if c.Organization != c.Issuer && (c.Type != Agent || c.Issuer != c.Host) {
		return errors.New("credentialSubject.memberOf is not the issuer")
	}
	roles, ok := m["roles"].([]any)
	if !ok || len(roles) > MaxRoles {
		return fmt.Errorf("credentialSubject.roles is not an array of at most %d", MaxRoles)
	}
	for _, one := range roles {
		name, _ := one.(string)
		if !ValidRole(name) || slices.Contains(c.Roles, name) {
			return fmt.Errorf("the role %.80q is invalid or repeated", fmt.Sprint(one))
		}
		c.Roles = append(c.Roles, name)
	}
	return nil
}

// memberKey reads a did:key.
func memberKey(v any) (did.DID, error) {
	text, _ := v.(string)
	id, err := did.Parse(text)
	if err == nil && id.Method() != "key" {
		err = errors.New("expected a did:key")
	}
	return id, err
}

// read reads an entry for revocation (Bitstring Status List §2.1).
func (s *Status) read(v any) error {
	m, ok := v.(map[string]any)
	if !ok || m["type"] != "BitstringStatusListEntry" || m["statusPurpose"] != "revocation" {
		return errors.New("credentialStatus is not a BitstringStatusListEntry for revocation")
	}
	if size, ok := m["statusSize"]; ok && size != 1.0 {
		return errors.New("credentialStatus.statusSize is not 1")
	}
	text, _ := m["statusListIndex"].(string)
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || text != strconv.FormatUint(n, 10) {
		return errors.New("credentialStatus.statusListIndex is not a number as text")
	}
	s.Index = int(n)
	if s.List, _ = m["statusListCredential"].(string); s.List == "" || m["id"] == s.List {
		return errors.New("credentialStatus names no list")
	}
	return nil
}

// sign adds a proof to doc, and returns it as canonical JSON. doc does not change.
func sign(doc map[string]any, s did.Signer, method string, created time.Time) (json.RawMessage, error) {
	p, err := proof.Sign(doc, s, proof.Options{Created: created, Method: method})
	if err != nil {
		return nil, err
	}
	signed := map[string]any{"proof": p}
	for name, v := range doc {
		signed[name] = v
	}
	return jcs.Append(nil, signed)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func anys[T ~string](all []T) []any {
	out := make([]any, len(all))
	for i, s := range all {
		out[i] = string(s)
	}
	return out
}

// newID returns a random UUID (RFC 9562 §5.4). It distinguishes credentials, and protects nothing.
func newID() string {
	a, b := rand.Uint64(), rand.Uint64()
	return fmt.Sprintf("urn:uuid:%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}
