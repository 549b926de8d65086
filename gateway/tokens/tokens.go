// Package tokens keeps the access tokens of a node: secrets with a name, scopes, roles and an expiry, for callers of its HTTP, WebSocket and
// MQTT listeners.
//
// A token is shown once, when it is created; the node stores its SHA-256. The principal of its callers is did.Consumer(did.Token, name). Its
// scopes are access rules ([Store.Rules]): without a rule such a caller may do nothing. The node's own token, in the file api.token, has the
// name [did.Operator] and all rights. With a [Verifier], a store also finds the grants of tokens of identity providers, which it does not keep.
package tokens

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
)

// The lifetime of a token.
const (
	MinLife     = time.Minute
	DefaultLife = 90 * day
	MaxLife     = 365 * day
	day         = 24 * time.Hour
)

// A Token describes an access token, without its secret.
type Token struct {
	Name   string  `json:"name"` // 1 to 64 of [a-z0-9._-]
	Scopes []Scope `json:"scopes"`
	// Roles are words of the operator for agents and access rules of this node. They are not roles of an organization, and no other node
	// receives them.
	Roles []string `json:"roles,omitempty"`
	// Created and Expires are UTC in whole seconds. From Expires on the token is not valid.
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
}

// A Grant is the right of a caller that presented a valid token. It is immutable.
type Grant struct {
	Token
	principal *did.Principal
	rules     *access.Set
	ctx       context.Context // ends when the token expires or is revoked
	end       context.CancelCauseFunc
}

// NewGrant returns the grant of a token of an identity provider. Its name is that of the principal, and its lifetime ends at p.Expires. rules are
// the access rules for p.Scopes, which scopes has as values. end ends the grant earlier, with a reason; it releases nothing that the end of the
// lifetime does not.
func NewGrant(p *did.Principal, scopes []Scope, rules *access.Set) (g *Grant, end context.CancelCauseFunc) {
	g = &Grant{Token: Token{Name: p.Name, Scopes: scopes, Roles: p.Roles, Expires: p.Expires}, principal: p, rules: rules}
	g.begin()
	return g, g.end
}

// begin creates the context of a grant.
func (g *Grant) begin() {
	ctx, cancel := context.WithCancelCause(context.Background())
	ctx, stop := context.WithDeadlineCause(ctx, g.Expires, interact.Errorf(interact.TokenRejected, "", "the token %s expired", g.Name))
	g.ctx, g.end = ctx, func(cause error) { cancel(cause); stop() }
}

// A Verifier accepts the tokens of identity providers. It is safe for concurrent use.
type Verifier interface {
	// Find returns the grant of a token. The error is an [*interact.Error] without a hint: TokenRejected, or StatusUnknown if the provider cannot
	// be reached and the token cannot be checked without it.
	Find(ctx context.Context, token string) (*Grant, error)
	// Is reports whether a text states to be a token of one of the providers, valid or not.
	Is(text string) bool
	// Rules adds the access rules for the scopes of its principals.
	Rules(b *access.Builder) error
	// Issuers returns the providers, ordered by name.
	Issuers() []Issuer
	Close() error
}

// An Issuer is an identity provider whose tokens the node accepts.
type Issuer struct {
	Name string // in the configuration
	URL  string // the issuer identifier (OpenID Connect Discovery §3)
	// Scopes are the OAuth scopes that the configuration maps to rights, ordered.
	Scopes []string
	// Keys is the number of known keys, and Since the time when they were last read; zero: never.
	Keys  int
	Since time.Time
	// Err is why the last attempt to read the keys failed; nil after a success.
	Err error
}

// Principal returns the caller.
func (g *Grant) Principal() *did.Principal { return g.principal }

// Context returns a context that ends when the token expires or is revoked.
func (g *Grant) Context() context.Context { return g.ctx }

// IsOperator reports whether the token is that of the operator, which has all rights.
func (g *Grant) IsOperator() bool { return g.rules == nil }

// IsUnlimited reports whether the token has all rights: that of the operator, or one with the scope "*".
func (g *Grant) IsUnlimited() bool {
	return g.IsOperator() || slices.Contains(g.Scopes, Scope{Op: all})
}

// Allows reports whether the scopes permit an operation on a Thing, or on all Things and the node if t is nil. Other access rules may still
// deny it.
func (g *Grant) Allows(op access.Op, t *access.Target) bool {
	return g.IsOperator() || g.rules.Decide(g.principal, access.Request{Op: op, Target: t}).Allow
}

// AllowsCalls reports whether the scopes permit to call some Thing in some way.
func (g *Grant) AllowsCalls() bool {
	return g.IsOperator() || slices.ContainsFunc(g.Scopes, Scope.isCall)
}

// A Store has the access tokens of a node. It is safe for concurrent use. The methods of a nil Store find no token.
type Store struct {
	dir      string
	secret   string // of the operator
	operator *Grant

	writing sync.Mutex // held during a change

	mu       sync.RWMutex
	others   Verifier  // nil: no other tokens are accepted; owned by mu, as are the rest
	preview  *Verifier // nil: Rules adds those of others
	changed  func() error
	byDigest map[digest]*Grant // valid and expired ones
	digests  map[string]digest // by name
}

// New returns a store in memory with the operator's token secret.
func New(secret string) *Store {
	s := &Store{secret: secret, byDigest: map[digest]*Grant{}, digests: map[string]digest{}}
	s.operator = &Grant{Token: Token{Name: did.Operator}, principal: did.Consumer(did.Token, did.Operator), ctx: context.Background()}
	return s
}

// Open opens the tokens in a data directory, and creates the token of the operator if it is missing. An empty dir keeps them in memory. The
// error is an [*interact.Error] of code KeyPermissions or StoreCorrupt, or that of a read or write.
func Open(dir string) (*Store, error) {
	secret, err := openOperator(dir)
	if err != nil {
		return nil, err
	}
	s := New(secret)
	s.dir = dir
	all, err := load(dir)
	for _, e := range all {
		if err := s.addLocked(e); err != nil {
			return nil, err
		}
	}
	return s, err
}

// OnChange sets the function that puts [Store.Rules] in force after a change. A token whose rules it rejects is not created.
func (s *Store) OnChange(f func() error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = f
}

// Preview makes [Store.Rules] add the rules of v in place of those of the verifier in use, until [Store.Accept]. With on unset, it ends that.
func (s *Store) Preview(v Verifier, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.preview = nil
	if on {
		s.preview = &v
	}
}

// Accept makes the store accept the tokens of v, too, and own v; nil: no others. It replaces an earlier verifier, whose tokens are invalid from
// then on. The caller puts [Store.Rules] in force, before with [Store.Preview] or after.
func (s *Store) Accept(v Verifier) {
	s.mu.Lock()
	before := s.others
	s.others, s.preview = v, nil
	s.mu.Unlock()
	if before != nil {
		before.Close()
	}
}

// verifier returns the verifier of other tokens; nil: there is none.
func (s *Store) verifier() Verifier {
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.others
}

// Issuers returns the identity providers whose tokens the store accepts, ordered by name.
func (s *Store) Issuers() []Issuer {
	v := s.verifier()
	if v == nil {
		return nil
	}
	return v.Issuers()
}

// Close ends the contexts of all grants.
func (s *Store) Close() error {
	if v := s.verifier(); v != nil {
		defer v.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.byDigest {
		g.end(context.Canceled)
	}
	return nil
}

// Secret returns the token of the operator.
func (s *Store) Secret() string { return s.secret }

// isNil reports whether there are no tokens, not even that of the operator.
func (s *Store) isNil() bool { return s == nil || s.secret == "" }

// Find returns the grant of a token. It compares hashes, so that the time that it takes discloses nothing about a token. For the token of an
// identity provider it may wait for the keys of the provider. The error is an [*interact.Error] without a hint: TokenRejected, or StatusUnknown as
// that of [Verifier].
func (s *Store) Find(ctx context.Context, secret string) (*Grant, error) {
	if s.isNil() {
		return nil, errUnknown
	}
	given, own := digestOf(secret), digestOf(s.secret)
	if subtle.ConstantTimeCompare(given[:], own[:]) == 1 {
		return s.operator, nil
	}
	s.mu.RLock()
	g, others := s.byDigest[given], s.others
	s.mu.RUnlock()
	switch {
	case g == nil && others != nil:
		return others.Find(ctx, secret)
	case g == nil:
		return nil, errUnknown
	case !time.Now().Before(g.Expires):
		return nil, interact.Errorf(interact.TokenRejected, "", "the token %s expired on %s", g.Name, g.Expires.Format(time.DateOnly))
	}
	return g, nil
}

// Is reports whether text is a token for this node, valid or not, or has the form of one: it is a secret, and not for an agent.
func (s *Store) Is(text string) bool {
	if Is(text) || s.isNil() {
		return Is(text)
	}
	given, own := digestOf(text), digestOf(s.secret)
	v := s.verifier()
	return subtle.ConstantTimeCompare(given[:], own[:]) == 1 || v != nil && v.Is(text)
}

var errUnknown = interact.Errorf(interact.TokenRejected, "", "this is not a token of the node")

// Login returns the authentication of clients by a password, for protocols without an Authorization header. It returns the principal of a
// client and the context that ends its right; nil refuses the client. The password is a token; the name of the user is not checked. A client
// without a token is anonymous; nil refuses it.
func (s *Store) Login(anonymous *did.Principal) func(user, password string) (*did.Principal, context.Context) {
	return func(_, password string) (*did.Principal, context.Context) {
		switch g, err := s.Find(context.Background(), password); { // waits for a few seconds at most
		case err == nil:
			return g.principal, g.ctx
		case anonymous == nil || s.Is(password): // it was a token
			return nil, nil
		}
		return anonymous, context.Background()
	}
}

// List returns the tokens by name, also expired ones, without that of the operator.
func (s *Store) List() []Token {
	if s.isNil() {
		return nil
	}
	var list []Token
	for _, e := range s.entries() {
		list = append(list, e.Token)
	}
	return list
}

// entries returns the tokens by name.
func (s *Store) entries() []entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]entry, 0, len(s.digests))
	for _, name := range slices.Sorted(maps.Keys(s.digests)) {
		d := s.digests[name]
		all = append(all, entry{s.byDigest[d].Token, d})
	}
	return all
}

// Create creates a token and returns its secret. Created is set to now, and Expires if it is zero; the time of both is truncated to seconds.
// An expired token of the same name is replaced. The error is an [*interact.Error] of code Usage, or that of a write or of [Store.OnChange]; the
// tokens are then unchanged.
func (s *Store) Create(t Token) (secret string, created Token, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	t.Created = time.Now().UTC().Truncate(time.Second)
	if t.Expires.IsZero() {
		t.Expires = t.Created.Add(DefaultLife)
	}
	t.Expires = t.Expires.UTC().Truncate(time.Second)
	t.Scopes, t.Roles = slices.Clone(t.Scopes), slices.Clone(t.Roles)
	if err := t.check(); err != nil {
		return "", t, err
	}
	if did.IsReservedName(t.Name) {
		return "", t, interact.Errorf(interact.Usage, "choose another name", "%q is the name of callers without a token", t.Name)
	}
	rest := s.entries()
	if i := slices.IndexFunc(rest, func(e entry) bool { return e.Name == t.Name }); i >= 0 {
		if t.Created.Before(rest[i].Expires) {
			return "", t, interact.Errorf(interact.Usage, "choose another name, or revoke it first", "a token %s exists", t.Name)
		}
		rest = slices.Delete(rest, i, i+1)
	}
	if len(rest) >= maxTokens {
		return "", t, interact.Errorf(interact.Overloaded, "revoke tokens that are not used", "the node has %d tokens, the maximum", len(rest))
	}
	secret = newSecret()
	if err := s.replace(append(rest, entry{t, digestOf(secret)})); err != nil {
		return "", t, err
	}
	return secret, t, nil
}

// Revoke removes a token. Its requests, streams and connections end. The error is an [*interact.Error] of code NotFound, or that of a write;
// the token is then still valid after a restart.
func (s *Store) Revoke(name string) error {
	if name == did.Operator {
		return interact.Errorf(interact.Usage, "stop the node and remove api.token; the next start creates another", "the node's own token cannot be revoked")
	}
	if s.isNil() {
		return errNoToken(name)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	before := s.entries()
	rest := slices.DeleteFunc(slices.Clone(before), func(e entry) bool { return e.Name == name })
	if len(rest) == len(before) {
		return errNoToken(name)
	}
	// First here: a full disk must not keep a stolen token valid. Rules that cannot be read do not either: the token has no grant.
	_ = s.setEntries(rest)
	return save(s.dir, rest)
}

func errNoToken(name string) error {
	return interact.Errorf(interact.NotFound, "list the tokens of the node", "no token has the name %q", name)
}

// replace stores the tokens and puts their rules in force. After an error the tokens are those before.
func (s *Store) replace(all []entry) error {
	before := s.entries()
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	if err := save(s.dir, all); err != nil {
		return err
	}
	err := s.setEntries(all)
	if err != nil {
		return errors.Join(err, save(s.dir, before), s.setEntries(before))
	}
	return nil
}

// setEntries sets the tokens and puts their rules in force. Then it ends the grants of the tokens that were removed: first their running
// interactions end with an error that gives the reason.
func (s *Store) setEntries(all []entry) error {
	kept := map[digest]bool{}
	var ended []*Grant
	s.mu.Lock()
	for _, e := range all {
		kept[e.Digest] = true
	}
	for d, g := range s.byDigest {
		if !kept[d] {
			ended = append(ended, g)
			delete(s.byDigest, d)
			delete(s.digests, g.Name)
		}
	}
	var errs []error
	for _, e := range all {
		if s.byDigest[e.Digest] == nil {
			errs = append(errs, s.addLocked(e))
		}
	}
	changed := s.changed
	s.mu.Unlock()
	if changed != nil {
		errs = append(errs, changed())
	}
	for _, g := range ended {
		g.end(interact.Errorf(interact.TokenRejected, "", "the token %s was revoked", g.Name))
	}
	return errors.Join(errs...)
}

// addLocked adds a token.
func (s *Store) addLocked(e entry) error {
	rule, err := compile(e.Token)
	if err != nil {
		return err
	}
	g := &Grant{Token: e.Token, rules: rule, principal: &did.Principal{Name: e.Name, Via: did.Token, Relation: did.Local, Roles: e.Roles, Expires: e.Expires}}
	g.begin()
	s.byDigest[e.Digest], s.digests[e.Name] = g, e.Digest
	context.AfterFunc(g.ctx, func() {
		if errors.Is(g.ctx.Err(), context.DeadlineExceeded) {
			s.expire()
		}
	})
	return nil
}

// expire puts the rules in force without those of a token that has expired, so that its interactions end.
func (s *Store) expire() {
	s.mu.RLock()
	changed := s.changed
	s.mu.RUnlock()
	if changed != nil {
		_ = changed() // the owner of the rules reports it; the token has no grant
	}
}

// compile returns the access rules of one token.
func compile(t Token) (*access.Set, error) {
	b := access.NewBuilder(access.Options{})
	if err := t.addRules(b); err != nil {
		return nil, err
	}
	return b.Build(), nil
}

func (t *Token) addRules(b *access.Builder) error {
	for _, s := range t.Scopes {
		for _, r := range s.Rules("token:" + t.Name) {
			if err := b.AddRule("token "+t.Name, r); err != nil {
				return scopeError("the scope %q cannot be used: %v", s, err)
			}
		}
	}
	return nil
}

// Rules adds the scopes of the valid tokens as access rules (rules.Options.More): a scope permits the caller "token:NAME" its operation, and a
// scope that permits to call a Thing permits to find it.
func (s *Store) Rules(b *access.Builder) error {
	now := time.Now()
	for _, t := range s.List() {
		if !now.Before(t.Expires) {
			continue
		}
		if err := t.addRules(b); err != nil {
			return err
		}
	}
	if s == nil {
		return nil
	}
	s.mu.RLock()
	v := s.others
	if s.preview != nil {
		v = *s.preview
	}
	s.mu.RUnlock()
	if v != nil {
		return v.Rules(b)
	}
	return nil
}

// ParseLife parses the lifetime of a token: a duration as "12h30m", or days as "90d". The error is an [*interact.Error] of code Usage.
func ParseLife(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * day
	}
	if err != nil || d < MinLife || d > MaxLife {
		return 0, interact.Errorf(interact.Usage, "for example 30d or 12h", "expected a lifetime of %s to %s, got %q", textOf(MinLife), textOf(MaxLife), text)
	}
	return d, nil
}

// textOf returns a lifetime as [ParseLife] reads it.
func textOf(d time.Duration) string {
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}
