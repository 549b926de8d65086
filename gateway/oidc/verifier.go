package oidc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v3"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/policy/access"
)

const (
	// keyLife is the age at which known keys are read again, while they stay in use.
	keyLife = 15 * time.Minute
	// maxAge is the age at which keys of a provider that does not answer are not used any more: it may have withdrawn them.
	maxAge = 24 * time.Hour
	// minPause is the time between two attempts to read the keys of a provider, whatever tokens arrive.
	minPause = 5 * time.Second
	// maxWait is how long a request waits for the keys.
	maxWait = 5 * time.Second
	// maxGrants limits the remembered tokens of a provider. Only valid ones are remembered.
	maxGrants = 4096
)

// A Verifier accepts the tokens of identity providers; it implements [tokens.Verifier]. It is safe for concurrent use.
type Verifier struct {
	all   []*provider // ordered by name
	rules *access.Set // for the scopes of all
	stop  context.CancelFunc
}

// New returns a verifier for the tokens of providers. It sends no request before the first token. The error is that of [Check], or of a file
// with certificates. A nil log discards.
func New(all []Provider, log *slog.Logger) (*Verifier, error) {
	if err := Check(all); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	v := &Verifier{stop: stop}
	for _, c := range all {
		p := &provider{Provider: c, ctx: ctx, algs: c.algorithms(), log: cmp.Or(log, slog.New(slog.DiscardHandler)).With("provider", c.Name)}
		var err error
		if p.client, err = c.newClient(); err != nil {
			stop()
			return nil, err
		}
		if p.mapped, err = c.rights(); err != nil {
			stop()
			return nil, err
		}
		v.all = append(v.all, p)
	}
	slices.SortFunc(v.all, func(a, b *provider) int { return cmp.Compare(a.Name, b.Name) })
	b := access.NewBuilder(access.Options{})
	if err := v.Rules(b); err != nil {
		stop()
		return nil, err
	}
	v.rules = b.Build()
	return v, nil
}

// Rules implements [tokens.Verifier].
func (v *Verifier) Rules(b *access.Builder) error {
	var all []Provider
	for _, p := range v.all {
		all = append(all, p.Provider)
	}
	return addRules(b, all)
}

// Is implements [tokens.Verifier].
func (v *Verifier) Is(text string) bool {
	t, err := read(text)
	return err == nil && v.of(t.issuer) != nil
}

// of returns the provider of an issuer; nil if it is unknown.
func (v *Verifier) of(issuer string) *provider {
	for _, p := range v.all {
		if p.Issuer == issuer {
			return p
		}
	}
	return nil
}

// Find implements [tokens.Verifier].
func (v *Verifier) Find(ctx context.Context, text string) (*tokens.Grant, error) {
	if len(text) > maxToken { // before it is hashed
		return nil, errUnknown
	}
	digest, now := sha256.Sum256([]byte(text)), time.Now()
	for _, p := range v.all {
		if g := p.remembered(digest, now); g != nil {
			return g, nil
		}
	}
	t, err := read(text)
	if err != nil {
		return nil, errUnknown
	}
	p := v.of(t.issuer)
	if p == nil {
		return nil, errUnknown
	}
	i, k, err := p.verify(ctx, t)
	if err != nil {
		return nil, err
	}
	return p.remember(digest, k, p.principal(i), v.rules), nil
}

var errUnknown = interact.Errorf(interact.TokenRejected, "", "this is not a token of the node or of its identity providers")

// Issuers implements [tokens.Verifier].
func (v *Verifier) Issuers() []tokens.Issuer {
	var all []tokens.Issuer
	for _, p := range v.all {
		p.mu.Lock()
		all = append(all, tokens.Issuer{Name: p.Name, URL: p.Issuer, Scopes: slices.Sorted(maps.Keys(p.Scopes)), Keys: len(p.keys), Since: p.fetched, Err: p.err})
		p.mu.Unlock()
	}
	return all
}

// Close ends all requests to providers, and all grants.
func (v *Verifier) Close() error {
	v.stop()
	for _, p := range v.all {
		p.mu.Lock()
		p.closed = true
		for _, r := range p.grants {
			r.end(context.Canceled)
		}
		p.mu.Unlock()
		p.running.Wait()
		p.client.CloseIdleConnections()
	}
	return nil
}

// A provider is an identity provider with its keys and the tokens that they verified.
type provider struct {
	Provider
	ctx    context.Context // of requests to it
	client *http.Client
	algs   []jose.SignatureAlgorithm
	mapped map[string][]tokens.Scope // by OAuth scope
	log    *slog.Logger

	running sync.WaitGroup // of requests to it

	mu      sync.Mutex
	keys    []key         // owned by mu, as are the rest; the slice is not changed
	fetched time.Time     // when keys were read; zero: never
	tried   time.Time     // the last attempt to read them
	err     error         // of that attempt
	reading chan struct{} // closed at the end of the running attempt; nil: none runs
	grants  map[[sha256.Size]byte]remembered
	closed  bool
}

// A remembered token is valid.
type remembered struct {
	*tokens.Grant
	key string // the thumbprint of the key that verified it
	end context.CancelCauseFunc
}

func (r remembered) isOver() bool { return !time.Now().Before(r.Expires) }

// remembered returns the grant of a token that was verified before, or nil.
func (p *provider) remembered(digest [sha256.Size]byte, now time.Time) *tokens.Grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, found := p.grants[digest]
	if !found || !now.Before(r.Expires) || now.Sub(p.fetched) > maxAge {
		return nil
	}
	p.refreshLocked(now) // it may have lost its key
	return r.Grant
}

// remember returns the grant of a verified token. Its key may have been withdrawn in between; the next use of the token then finds that.
func (p *provider) remember(digest [sha256.Size]byte, k *key, who *did.Principal, rules *access.Set) *tokens.Grant {
	scopes := make([]tokens.Scope, 0, len(who.Scopes))
	for _, text := range who.Scopes {
		if s, err := tokens.ParseScope(text); err == nil { // always, because it was configured
			scopes = append(scopes, s)
		}
	}
	g, end := tokens.NewGrant(who, scopes, rules)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r, found := p.grants[digest]; {
	case found && !r.isOver(): // verified at the same time
		end(context.Canceled)
		return r.Grant
	case p.hasLocked(k.thumbprint) && !p.closed:
		boundedmap.Put(&p.grants, digest, remembered{g, k.thumbprint, end}, maxGrants, remembered.isOver)
	}
	return g
}

// hasLocked reports whether a key is one of the provider.
func (p *provider) hasLocked(thumbprint string) bool {
	return slices.ContainsFunc(p.keys, func(k key) bool { return k.thumbprint == thumbprint })
}

// verify verifies the signature of a token and checks its claims. The error is an [*interact.Error] of code TokenRejected or StatusUnknown.
func (p *provider) verify(ctx context.Context, t *token) (*identity, *key, error) {
	if !slices.Contains(p.algs, t.alg) {
		return nil, nil, rejected("its algorithm is not permitted")
	}
	keys, err := p.keysFor(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	for i := range keys {
		payload, err := t.jws.Verify(keys[i].public)
		if err != nil {
			continue
		}
		c, err := parseClaims(payload)
		if err != nil {
			return nil, nil, rejected(err.Error())
		}
		who, err := p.identify(t.typ, c, time.Now())
		return who, &keys[i], err
	}
	return nil, nil, rejected("its signature is not valid")
}

// keysFor returns the keys that may have signed a token. For an unknown id of a key it reads the keys of the provider again, and waits.
func (p *provider) keysFor(ctx context.Context, t *token) ([]key, error) {
	found, reading := p.find(t)
	if len(found) > 0 {
		return found, nil
	}
	if reading != nil {
		wait, stop := context.WithTimeout(ctx, maxWait)
		select {
		case <-reading:
		case <-wait.Done():
		}
		stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch found := p.findLocked(t, now); {
	case len(found) > 0:
		return found, nil
	case p.reading == nil && p.err == nil && len(p.keys) > 0:
		return nil, rejected("its key is not one of the identity provider")
	}
	e := interact.Errorf(interact.StatusUnknown, "", "the token cannot be checked: the identity provider %s cannot be reached", p.Name)
	e.RetryAfter = max(p.tried.Add(minPause).Sub(now), time.Second)
	return nil, e
}

// find returns the known keys that may have signed a token. If there is none, reading is closed when the keys have been read again; nil if they
// cannot be read now.
func (p *provider) find(t *token) (found []key, reading <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.refreshLocked(now)
	if found = p.findLocked(t, now); len(found) > 0 {
		return found, nil
	}
	p.readLocked(now)
	return nil, p.reading
}

// findLocked returns the keys for the id of the key and the algorithm of a token, for all ids if the token has none.
func (p *provider) findLocked(t *token, now time.Time) (found []key) {
	if now.Sub(p.fetched) > maxAge {
		return nil
	}
	for _, k := range p.keys {
		if (t.kid == "" || k.id == t.kid) && k.fits(t.alg) {
			found = append(found, k)
		}
	}
	return found
}

// refreshLocked starts to read the keys again if they are old.
func (p *provider) refreshLocked(now time.Time) {
	if now.Sub(p.fetched) > keyLife {
		p.readLocked(now)
	}
}

// readLocked starts to read the keys, unless that has been done in the last seconds.
func (p *provider) readLocked(now time.Time) {
	if p.reading != nil || p.closed || now.Sub(p.tried) < minPause {
		return
	}
	p.tried, p.reading = now, make(chan struct{})
	p.running.Go(func() {
		ctx, stop := context.WithTimeout(p.ctx, fetchTimeout)
		defer stop()
		p.finish(p.fetchKeys(ctx, p.client))
	})
}

// finish ends an attempt to read the keys. Tokens of keys that the provider has withdrawn end.
func (p *provider) finish(keys []key, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { close(p.reading); p.reading = nil }()
	before := p.err
	if p.err = err; err != nil {
		if before == nil && !errors.Is(err, context.Canceled) {
			p.log.Warn("keys of the identity provider not read", "err", err, "known", len(p.keys))
		}
		return
	}
	p.keys, p.fetched = keys, time.Now()
	if before != nil {
		p.log.Info("keys of the identity provider read", "keys", len(keys))
	}
	for digest, r := range p.grants {
		if !p.hasLocked(r.key) {
			delete(p.grants, digest)
			r.end(rejected("its key was withdrawn by the identity provider"))
		}
	}
}

// principal returns the principal of an identity.
func (p *provider) principal(i *identity) *did.Principal {
	who := &did.Principal{Name: "oidc:" + p.Name + ":" + i.subject, Via: did.OIDC, Relation: did.Local, Expires: i.expires}
	for _, scope := range i.scopes {
		for _, s := range p.mapped[scope] {
			who.Scopes = append(who.Scopes, s.String())
		}
	}
	for name, roles := range p.Claims {
		for _, value := range texts(i.claims.at(name)) {
			who.Roles = append(who.Roles, roles[value]...)
		}
	}
	who.Scopes, who.Roles = unique(who.Scopes), unique(who.Roles)
	return who
}

// unique returns texts in order, each once.
func unique(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}
