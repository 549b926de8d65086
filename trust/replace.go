package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
)

// A node replaces its key in two exchanges with an issuer, both with the statement that both keys signed. With the connection of the old key,
// the issuer gives the new key the membership; the old key stays valid, so that the node can withdraw what it published with it. With the
// connection of the new key, which proves that the node has changed its key, the issuer revokes the old one. Whoever has only one of the keys,
// or only a credential and the statement, changes nothing.

// Pauses between attempts to reach an issuer.
const (
	replacePause    = 250 * time.Millisecond
	maxReplacePause = time.Minute
)

// OrganizationIn returns the SCID of the organization of a node that does not run, by its data directory; empty: it has none.
func OrganizationIn(dir string, node did.DID) (string, error) {
	org, err := organization.Open(orgDir(dir), node, organization.Options{})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	}
	return org.SCID(), nil
}

// Replace asks an issuer to give the membership of this node to a new key, and returns the credential of that key. It waits for an issuer until
// ctx ends. raw is the statement of both keys (rotation.Sign).
func (t *Trust) Replace(ctx context.Context, raw []byte) ([]byte, error) {
	for {
		c, err := t.replace(ctx, raw)
		if err == nil {
			return c.Raw, nil
		}
		if e := interact.AsError(err); !e.Code.Retryable() || backoff.Sleep(ctx, replacePause) != nil {
			return nil, err
		}
	}
}

// replace asks the issuers once.
func (t *Trust) replace(ctx context.Context, raw []byte) (*vc.Credential, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	s, err := rotation.Parse(raw)
	if err != nil {
		return nil, err
	}
	own := org.Credential()
	if org.IsIssuer() && t.settled() {
		return t.replaceHere(org, s, own, t.self == s.To)
	}
	q := &exchange.Request{Op: exchange.OpReplace, Statement: raw}
	if own != nil {
		q.Credential = own.Raw
	}
	var errs []error
	for _, issuer := range t.issuersToAsk() {
		node := issuer.node
		r, err := t.net.Ask(ctx, node, q, issuer.addrs...)
		var c *vc.Credential
		if err == nil {
			c, err = vc.Verify(ctx, r.Credential, vc.Check{Resolver: org, Now: t.now()})
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", node.Short(), err))
		case c.Subject != s.To:
			errs = append(errs, fmt.Errorf("%s: the credential is of another key", node.Short()))
		default:
			return c, nil
		}
	}
	for _, err := range errs { // the refusal of an issuer tells more than that another one is away
		if known, ok := errors.AsType[*interact.Error](err); ok && !known.Code.Retryable() {
			return nil, known
		}
	}
	return nil, &interact.Error{Code: interact.Unreachable, Title: "no issuer of the organization confirmed the new key", Err: errors.Join(errs...),
		Hint: "connect this node to an issuer"}
}

// A reachable is an issuer that is connected, or has a known address.
type reachable struct {
	node  did.DID
	addrs []string
}

// issuersToAsk returns the issuers in the order in which they are asked: first those that are connected.
func (t *Trust) issuersToAsk() (all []reachable) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	add := func(node did.DID, addrs ...string) {
		if node == "" || node == t.self {
			return
		}
		at := slices.IndexFunc(all, func(r reachable) bool { return r.node == node })
		if at < 0 {
			at, all = len(all), append(all, reachable{node: node})
		}
		all[at].addrs = append(all[at].addrs, addrs...)
	}
	for _, node := range t.book.IssuerNodes {
		if t.online[node] != nil {
			add(node)
		}
	}
	for _, addr := range t.book.Issuers {
		add(exchange.NodeIn(addr), addr)
	}
	return all
}

// replaceHere replaces the key of a member by this issuer. complete is set for a request of the new key.
func (t *Trust) replaceHere(org *organization.Organization, s *rotation.Statement, c *vc.Credential, complete bool) (*vc.Credential, error) {
	fresh, err := org.Replace(s.From, s.To, c, complete)
	if err != nil {
		return nil, userError(err)
	}
	verb := map[bool]string{false: "is to be replaced by ", true: "was replaced by "}[complete]
	t.o.Record("key of a member: " + string(s.From) + " " + verb + string(s.To))
	if complete {
		err = t.rename(s.From, s.To)
		t.start(func(context.Context) { t.changed() })
	}
	return fresh, err
}

// serveReplace answers a member that replaces its key.
func (t *Trust) serveReplace(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	s, err := rotation.Parse(q.Statement)
	if err != nil {
		return nil, interact.Errorf(interact.Invalid, "", "%v", err)
	}
	org, err := t.mine()
	switch {
	case err != nil || !org.IsIssuer() || s.SCID != org.SCID() || t.Principal(id).Barred != "":
		return nil, refused
	case id != s.From && id != s.To:
		return nil, interact.Errorf(interact.Forbidden, "", "the rotation is of other keys than that of the connection")
	case s.Network != t.o.Network:
		return nil, interact.Errorf(interact.Invalid, "", "the rotation is for the network %s", s.Network)
	case !s.IsCurrent(t.now()) && !org.Replaced(s.From, s.To):
		return nil, interact.Errorf(interact.CredentialExpired, "begin the rotation again", "the rotation was signed at %s", s.Created.Format(time.RFC3339))
	case !t.settled():
		return nil, interact.Errorf(interact.StatusUnknown, "try again", "this issuer does not know yet what the others revoked")
	}
	c, err := vc.Verify(ctx, q.Credential, vc.Check{Resolver: org, Now: t.now()})
	if err != nil || c.Subject != id || c.Type != vc.Node {
		c = nil
	}
	if c == nil && (id == s.From || !org.Replaced(s.From, s.To)) {
		return nil, interact.Errorf(interact.CredentialInvalid, "invite the node again", "the node has no valid credential")
	}
	fresh, err := t.replaceHere(org, s, c, id == s.To)
	if err != nil {
		return nil, err
	}
	return &exchange.Response{Credential: fresh.Raw}, nil
}

// rename makes a node that replaced its key known by the new one.
func (t *Trust) rename(from, to did.DID) error {
	return t.edit(func(b *partners.Book) error {
		b.Rename(from, to)
		return nil
	})
}

// issuerLocked returns the node that has an issuing key of the own organization, as far as it is known. A node that was revoked without the
// key has replaced its own key: whoever proves the issuing key next is its successor.
func (t *Trust) issuerLocked(a *trusted, method string) did.DID {
	node, now := t.book.IssuerNodes[method], t.now()
	if a.Excludes(node, now) && a.IsIssuer(method, now) {
		return ""
	}
	return node
}

// isUnboundLocked reports whether the node of another issuing key of the own organization is not known.
func (t *Trust) isUnboundLocked(a *trusted) bool {
	own := t.ownMethodLocked(a)
	return a.partner == nil && slices.ContainsFunc(a.Issuers(t.now()), func(method string) bool { return method != own && t.issuerLocked(a, method) == "" })
}

// adoptCredential stores the credential that an issuer has issued for this key before it was in use. An expired one is replaced by
// completeRotation.
func (t *Trust) adoptCredential() {
	r := t.o.Rotation
	if !r.Follows(t.self) || len(r.Credential) == 0 || t.org.Credential() != nil {
		return
	}
	if err := t.org.SetCredential(&vc.Credential{Raw: r.Credential}); err != nil {
		t.o.Log.Warn("the credential of the new key does not count", "err", err)
	}
}

// completeRotation has the key revoked that this one has replaced, as soon as an issuer can be reached.
func (t *Trust) completeRotation(ctx context.Context) {
	for pause := replacePause; ; pause = min(2*pause, maxReplacePause) {
		err := t.complete(ctx)
		if err == nil {
			return
		}
		level := t.o.Log.Debug
		if pause > time.Second {
			level = t.o.Log.Warn
		}
		level("the key that was replaced is not revoked yet", "err", err)
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (t *Trust) complete(ctx context.Context) error {
	r := t.o.Rotation
	org, err := t.mine()
	if err != nil || org.SCID() != r.SCID {
		return r.Done()
	}
	c, err := t.replace(ctx, r.Raw)
	if err == nil {
		err = org.SetCredential(c)
	}
	if err == nil {
		err = t.rename(r.From, r.To)
	}
	if err == nil {
		err = r.Done()
	}
	t.update()
	t.repeatHello()
	return err
}
