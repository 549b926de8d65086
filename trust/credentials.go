package trust

import (
	"context"
	"encoding/hex"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/boundedmap"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/foreign"
	"github.com/lmosd/lmosd/trust/partners"
)

// A foreign issuer is no organization: its credentials make no members, and give roles to nodes (docs/decisions/0055-credentials-of-other-issuers.md).
// The holder of a credential shows it on its connection, which proves that it is the subject.

const (
	maxShown      = 8       // credentials of a node that count
	maxRemembered = 1 << 12 // credentials whose verification is remembered
	// verifiedFor limits how long a verification is remembered: the issuer may remove a key from its document.
	verifiedFor = time.Hour
	issuerFor   = 5 * time.Minute  // a document of an issuer is used
	issuerAgain = 30 * time.Second // until a document that could not be read is fetched again
	maxIssuers  = 256
)

// shown are the credentials that nodes have shown. Trust.mu owns it.
type shown struct {
	held     []*foreign.Held                   // by this node
	of       map[did.DID][]*foreign.Credential // of connected nodes, in force or not
	verified map[string]verification           // by hash
}

// A verification is one that is remembered.
type verification struct {
	*foreign.Credential
	at time.Time
}

func (t *Trust) heldFile() string { return filepath.Join(t.o.Dir, "presentations.json") }

// A ForeignCredential is a credential of a foreign issuer that counts here.
type ForeignCredential struct {
	Issuer did.DID
	Name   string // of the issuer in rules
	Types  []string
	Claims map[string]any // of the subject; shared, and read-only
	Roles  []string       // that it gives
	Until  time.Time
	Hash   string // SHA-256, in hexadecimal digits
}

// Multihash returns the hash as [did.Hash] writes it.
func (c *ForeignCredential) Multihash() string {
	sum, _ := hex.DecodeString(c.Hash) // of this package
	return did.EncodeBase58(append([]byte{0x12, 0x20}, sum...))[1:]
}

// CredentialsOf returns the credentials of foreign issuers that a connected node has shown and that count now. A nil Trust has none.
func (t *Trust) CredentialsOf(node did.DID) (all []ForeignCredential) {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, c := range t.shown.of[node] {
		if i := t.issuerOfLocked(c, t.now()); i != nil {
			all = append(all, ForeignCredential{c.Issuer, i.Name, c.Types, c.Claims, c.Roles(i.Roles), c.Until, c.Hash})
		}
	}
	return all
}

// issuerOfLocked returns the issuer of a credential that counts at this time, or nil.
func (t *Trust) issuerOfLocked(c *foreign.Credential, now time.Time) *partners.Issuer {
	i := t.book.FindIssuer(string(c.Issuer))
	if i == nil || i.IsRemoved() || now.After(c.Until.Add(aries.Skew)) {
		return nil
	}
	return i
}

// attestedLocked returns the roles that foreign issuers give a node.
func (t *Trust) attestedLocked(node did.DID, now time.Time) (all []did.Attestation) {
	for _, c := range t.shown.of[node] {
		i := t.issuerOfLocked(c, now)
		if i == nil {
			continue
		}
		for _, role := range c.Roles(i.Roles) {
			if a := (did.Attestation{Issuer: i.DID, Role: role}); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// touchShownLocked notes that the standing of the nodes that have shown credentials may have changed.
func (t *Trust) touchShownLocked() {
	for id := range t.shown.of {
		t.touched[id] = true
	}
}

// touchEndedLocked adds the nodes with a credential that has ended since the last update.
func (t *Trust) touchEndedLocked(due map[did.DID]bool, now time.Time) {
	for id, all := range t.shown.of {
		if slices.ContainsFunc(all, func(c *foreign.Credential) bool {
			end := c.Until.Add(aries.Skew)
			return now.After(end) && !t.updated.After(end)
		}) {
			due[id] = true
		}
	}
}

// acceptCredential verifies a credential whose subject is node, and keeps it for the node. A credential is verified once in an hour.
func (t *Trust) acceptCredential(ctx context.Context, node did.DID, raw []byte) error {
	hash, now := foreign.Hash(raw), t.now()
	t.mu.RLock()
	known := t.shown.verified[hash]
	t.mu.RUnlock()
	c := known.Credential
	if c == nil || now.Sub(known.at).Abs() > verifiedFor || c.Subject != node || now.After(c.Until) {
		var err error
		if c, err = foreign.Verify(ctx, raw, aries.Check{Resolver: issuersOf(t), Subject: node, Now: now}); err != nil {
			return err
		}
		known.at = now
	}
	t.mu.Lock()
	i := t.issuerOfLocked(c, now)
	if i == nil || t.online[node] == nil { // removed or disconnected meanwhile, or verified for an issuer that is removed
		t.mu.Unlock()
		return interact.Errorf(interact.IssuerUntrusted, "add the issuer to the trust store", "%v", foreign.ErrIssuer)
	}
	boundedmap.Put(&t.shown.verified, hash, verification{c, known.at}, maxRemembered, func(v verification) bool { return now.Sub(v.at).Abs() > verifiedFor })
	n := t.nodeLocked(node)
	all := slices.DeleteFunc(slices.Clone(t.shown.of[node]), func(old *foreign.Credential) bool { return old.Hash == c.Hash || now.After(old.Until) })
	isNew := len(all) == len(t.shown.of[node])
	all = append(all, c)
	slices.SortFunc(all, func(a, b *foreign.Credential) int { return b.Until.Compare(a.Until) })
	if t.shown.of == nil {
		t.shown.of = map[did.DID][]*foreign.Credential{}
	}
	t.shown.of[node] = all[:min(len(all), maxShown)]
	before := n.principal
	changed := t.evaluateAgainLocked(n, now)
	after := n.principal
	t.mu.Unlock()
	if isNew {
		t.o.Record("credential of " + i.Name + " shown by " + string(node) + ", " + hash[:12])
	}
	if changed {
		t.standingChanged(node, before, after)
	}
	return nil
}

// servePresent takes a credential that a node shows. Nodes that are neither members nor partners do not learn which issuers count here: a
// credential of an issuer that does not, and one that is not valid, have the same answer.
func (t *Trust) servePresent(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	p := t.Principal(id)
	if p.Barred != "" {
		return nil, refused
	}
	if err := t.acceptCredential(ctx, id, q.Credential); err != nil {
		t.o.Log.Debug("credential of a foreign issuer rejected", "peer", id.Short(), "err", err)
		if p.Relation < did.Partner {
			return nil, interact.Errorf(interact.IssuerUntrusted, "", "the credential does not count here")
		}
		return nil, err
	}
	return &exchange.Response{}, nil
}

// present shows a node the credentials that are for it.
func (t *Trust) present(ctx context.Context, id did.DID) {
	t.mu.RLock()
	relation, now := did.Untrusted, t.now()
	if n := t.nodes[id]; n != nil {
		relation = n.principal.Relation
	}
	var all []*foreign.Held
	for _, h := range t.shown.held {
		if h.IsFor(id, relation) && !now.After(h.Until) {
			all = append(all, h)
		}
	}
	t.mu.RUnlock()
	for _, h := range all {
		if _, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpPresent, Credential: []byte(h.Credential)}); err != nil {
			t.o.Log.Debug("credential not accepted", "peer", id.Short(), "hash", h.Hash()[:12], "err", err)
		}
	}
}

// Present stores a credential whose subject is this node, and shows it to the connected nodes that it is for, now and on later connections.
func (t *Trust) Present(ctx context.Context, p api.CredentialPresentation) (*api.ForeignCredential, error) {
	if err := t.maySend(p.To); err != nil {
		return nil, err
	}
	c, err := foreign.Verify(ctx, p.Credential, aries.Check{Resolver: resolverOf(t), Subject: t.self, Now: t.now()})
	if err != nil {
		return nil, err
	}
	h := &foreign.Held{Credential: string(p.Credential), Issuer: c.Issuer, Types: c.Types, Until: c.Until, To: p.To}
	if err := t.hold(func(all []*foreign.Held) ([]*foreign.Held, error) { return foreign.With(all, h, t.now()) }); err != nil {
		return nil, err
	}
	t.o.Record("credential stored: " + c.Hash[:12] + " of " + string(c.Issuer))
	t.presentAll()
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.heldLocked(h), nil
}

// maySend returns an error unless this node can store a credential for nodes.
func (t *Trust) maySend(to []did.DID) error {
	if t.o.Dir == "" {
		return errStoresNothing()
	}
	for _, id := range to {
		if d, err := did.Parse(string(id)); err != nil || d.Method() != "key" {
			return interact.Errorf(interact.Usage, "copy the DID from the list of peers", "expected the did:key of a node, got %q", interact.Excerpt(string(id), 100))
		}
	}
	return nil
}

// credentialService is the type of the service of a DID that serves its credentials (LMOS, digital identity).
const (
	credentialService = "VerifiableCredentialService"
	maxServices       = 4
	maxServed         = 64 << 10 // bytes of one response
)

// FetchCredentials is [Trust.Present] for the credentials that the services of a did:web serve. It fetches over HTTPS, from public addresses. Those
// that are of other subjects or not valid are left out; if none is left, the error is that of the last.
func (t *Trust) FetchCredentials(ctx context.Context, q api.CredentialFetch) ([]api.ForeignCredential, error) {
	if err := t.maySend(q.To); err != nil {
		return nil, err
	}
	if q.From.Method() != "web" {
		return nil, interact.Errorf(interact.Usage, "for example did:web:wallet.example", "expected a did:web, got %q", interact.Excerpt(string(q.From), 100))
	}
	doc, err := t.issuers.Resolve(ctx, q.From)
	if err != nil {
		return nil, interact.Errorf(interact.Unreachable, "check the DID and its web server", "%s", interact.Excerpt(fetchReason(err), 300))
	}
	services := web.Endpoints(doc, credentialService)
	failed := error(interact.Errorf(interact.NotFound, "", "%s has no service that serves a credential of this node", q.From))
	client, all := weblocation.NewClient(t.o.Web), []api.ForeignCredential{}
	for _, address := range services[:min(len(services), maxServices)] {
		if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.User != nil {
			failed = interact.Errorf(interact.Unreachable, "", "the service %q is not an https URL", interact.Excerpt(address, 200))
			continue
		}
		raw, err := client.Fetch(ctx, address, "application/vc, application/vc+ld+json, application/json;q=0.9", maxServed)
		if err != nil {
			failed = interact.Errorf(interact.Unreachable, "try again", "%s", interact.Excerpt(fetchReason(err), 300))
			continue
		}
		for _, one := range foreign.Served(raw) {
			c, err := t.Present(ctx, api.CredentialPresentation{Credential: one, To: q.To})
			if err != nil {
				failed = err
				continue
			}
			all = append(all, *c)
		}
	}
	if len(all) == 0 {
		return nil, failed
	}
	return all, nil
}

// hold changes the credentials of this node: durably first, then in force.
func (t *Trust) hold(f func([]*foreign.Held) ([]*foreign.Held, error)) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	all, err := f(t.shown.held)
	if err != nil {
		return err
	}
	if err := foreign.Write(t.heldFile(), all); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown.held = all
	return nil
}

// presentAll shows connected nodes the credentials that are for them.
func (t *Trust) presentAll() {
	if t.net == nil {
		return
	}
	t.mu.RLock()
	peers := t.peersLocked(func(*did.Principal) bool { return true })
	t.mu.RUnlock()
	t.start(func(ctx context.Context) {
		for _, id := range peers {
			t.present(ctx, id)
		}
	})
}

// ForeignCredentials returns the credentials that this node holds, and those that connected nodes have shown.
func (t *Trust) ForeignCredentials() []api.ForeignCredential {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := []api.ForeignCredential{}
	for _, h := range t.shown.held {
		all = append(all, *t.heldLocked(h))
	}
	for _, id := range slices.Sorted(maps.Keys(t.shown.of)) {
		for _, c := range t.shown.of[id] {
			if i := t.issuerOfLocked(c, t.now()); i != nil {
				all = append(all, api.ForeignCredential{Hash: c.Hash, Issuer: c.Issuer, IssuerName: i.Name, Subject: id, Types: c.Types, Roles: c.Roles(i.Roles), Until: c.Until})
			}
		}
	}
	return all
}

func (t *Trust) heldLocked(h *foreign.Held) *api.ForeignCredential {
	out := &api.ForeignCredential{Hash: h.Hash(), Issuer: h.Issuer, Subject: t.self, Types: h.Types, Until: h.Until, To: h.To, Held: true}
	if i := t.book.FindIssuer(string(h.Issuer)); i != nil {
		out.IssuerName = i.Name
	}
	return out
}

// RemoveCredential removes a credential that this node holds, by its hash or the first 12 or more digits of it. Nodes that have seen it know it
// until the connection ends.
func (t *Trust) RemoveCredential(_ context.Context, hash string) error {
	errNone := interact.Errorf(interact.NotFound, "see the list of credentials", "this node holds no credential %q", interact.Excerpt(hash, 64))
	if len(hash) < 12 || t.o.Dir == "" {
		return errNone
	}
	err := t.hold(func(all []*foreign.Held) ([]*foreign.Held, error) {
		rest := slices.DeleteFunc(slices.Clone(all), func(h *foreign.Held) bool { return h.Hash()[:min(len(hash), 64)] == hash })
		if len(rest) == len(all) {
			return nil, errNone
		}
		return rest, nil
	})
	if err == nil {
		t.o.Record("credential removed: " + hash[:12])
	}
	return err
}

// ForeignIssuers returns the issuers whose credentials give roles here.
func (t *Trust) ForeignIssuers() []api.ForeignIssuer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := []api.ForeignIssuer{}
	for _, i := range t.book.Foreign {
		if !i.IsRemoved() {
			all = append(all, *shownIssuer(i))
		}
	}
	return all
}

func shownIssuer(i *partners.Issuer) *api.ForeignIssuer {
	return &api.ForeignIssuer{Name: i.Name, DID: i.DID, Roles: i.Roles, Since: i.Since}
}

// TrustIssuer adds an issuer whose credentials give roles here, or changes the roles that they may give. A node shows its credentials again when it
// connects.
func (t *Trust) TrustIssuer(_ context.Context, f api.ForeignIssuer) (*api.ForeignIssuer, error) {
	i := &partners.Issuer{Name: f.Name, DID: f.DID, Roles: f.Roles, Since: t.now().UTC().Truncate(time.Second)}
	if err := t.changeIssuers("issuer trusted: "+i.Name+", "+string(i.DID), func(b *partners.Book, own did.DID) error {
		if old := b.FindIssuer(string(i.DID)); old != nil && old.Name != i.Name {
			return interact.Errorf(interact.Usage, "use that name", "the issuer is called %s already", old.Name)
		}
		return b.PutIssuer(i, own)
	}); err != nil {
		return nil, err
	}
	return shownIssuer(i), nil
}

// RemoveForeignIssuer ends what the credentials of an issuer give. Its name stays taken, so that rules keep their meaning.
func (t *Trust) RemoveForeignIssuer(_ context.Context, name string) error {
	return t.changeIssuers("issuer removed: "+name, func(b *partners.Book, own did.DID) error {
		i := b.FindIssuer(name)
		if i == nil || i.IsRemoved() {
			return interact.Errorf(interact.NotFound, "see the list of issuers", "there is no issuer %q", interact.Excerpt(name, 64))
		}
		c := *i
		c.Removed = t.now().UTC()
		return b.PutIssuer(&c, own)
	})
}

func (t *Trust) changeIssuers(what string, f func(b *partners.Book, own did.DID) error) error {
	if t.o.Dir == "" {
		return errStoresNothing()
	}
	err := t.edit(func(b *partners.Book) error {
		own := did.DID("")
		if t.org != nil {
			own = t.org.DID()
		}
		return f(b, own)
	})
	if err != nil {
		return err
	}
	t.o.Record(what)
	t.mu.Lock()
	t.touchShownLocked()
	t.mu.Unlock()
	t.o.OnNames()
	t.update()
	return nil
}

// issuersOf returns the resolver of the issuers that count here: others are neither computed nor fetched.
func issuersOf(t *Trust) did.Resolver { return issuers{t} }

type issuers struct{ t *Trust }

// Resolve returns the document of an issuer.
func (r issuers) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	r.t.mu.RLock()
	i := r.t.book.FindIssuer(string(id))
	r.t.mu.RUnlock()
	if i == nil || i.IsRemoved() {
		return nil, foreign.ErrIssuer
	}
	return r.t.issuers.Resolve(ctx, id)
}

// resolverOf returns the resolver of any issuer, for what the operator of this node presents.
func resolverOf(t *Trust) did.Resolver { return &t.issuers }

// issuerDocuments resolves did:key, and did:web from a cache. It is safe for concurrent use.
type issuerDocuments struct {
	did.Resolver // without the cache
	now          func() time.Time
	mu           sync.Mutex // owns all
	all          map[did.DID]*issuerDocument
}

// An issuerDocument is a document that is used until end.
type issuerDocument struct {
	mu  sync.Mutex // owns what follows; held during a fetch, so that there is one at a time
	doc *did.Document
	err error
	end time.Time
}

// open sets the resolver.
func (d *issuerDocuments) open(o *Options) {
	d.now = o.Now
	d.Resolver = did.Resolvers(map[string]did.Resolver{"key": did.Fallback(did.Keys(), aries.Resolver()), "web": web.New(o.Web)})
}

// Resolve returns the document of an issuer. That of a did:web is at most 5 minutes old.
func (d *issuerDocuments) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	if id.Method() != "web" {
		return d.Resolver.Resolve(ctx, id)
	}
	d.mu.Lock()
	e := d.all[id]
	if e == nil {
		e = &issuerDocument{}
		boundedmap.Put(&d.all, id, e, maxIssuers, nil)
	}
	d.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.now().Before(e.end) {
		return e.doc, e.err
	}
	doc, err := d.Resolver.Resolve(ctx, id)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	e.doc, e.err, e.end = doc, err, d.now().Add(issuerFor)
	if err != nil {
		e.end = d.now().Add(issuerAgain)
	}
	return doc, err
}
