package trust

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
)

// An offer is what an invitation of this node promises besides its own content.
type offer struct {
	Until   time.Time `json:"until,omitzero"` // the end of the partnership
	Issuer  bool      `json:"issuer,omitempty"`
	Expires time.Time `json:"expires"` // of the invitation
}

// issuerText tells a new member that it may become an issuer.
const issuerText = "issuer"

// approach reaches an issuer of an invitation: a node with an issuing key in the log that has the SCID and signed the invitation.
func (t *Trust) approach(ctx context.Context, i *invitation.Invitation) (node did.DID, addr string, l *webvh.Log, err error) {
	var errs []error
	for _, addr := range i.Addresses {
		node := nodeIn(addr)
		if node == t.self {
			errs = append(errs, interact.Errorf(interact.Usage, "use it on another node", "this node made the invitation"))
			continue
		}
		if l, err := t.proveIssuer(ctx, node, i.SCID(), addr); err == nil {
			return node, addr, l, i.Verify(l)
		} else {
			errs = append(errs, err)
		}
	}
	for _, err := range errs {
		if known := (*interact.Error)(nil); errors.As(err, &known) {
			return "", "", nil, known
		}
	}
	return "", "", nil, &interact.Error{Code: interact.Unreachable, Title: "no node of the invitation answers", Err: errors.Join(errs...),
		Hint: "see that the node runs there, in the same network (" + t.o.Network + "), and that a firewall lets the port through"}
}

// proveIssuer gets the log of an organization from a node that proves an issuing key in it.
func (t *Trust) proveIssuer(ctx context.Context, node did.DID, scid string, addrs ...string) (*webvh.Log, error) {
	r, err := t.ask(ctx, node, &request{Op: opGet, Known: []known{{SCID: scid, Kind: kindLog}}}, addrs...)
	if err != nil {
		return nil, err
	}
	l, err := webvh.Verify(r.Body, webvh.Check{Now: t.now()})
	if err != nil || l.SCID() != scid {
		return nil, interact.Errorf(interact.InvalidInvite, "request a new invitation", "the node %s does not show the log of the organization", node.Short())
	}
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	if r, err = t.ask(ctx, node, &request{Op: opStatus, SCID: scid, Nonce: nonce}); err != nil {
		return nil, err
	}
	st, method, err := t.readStatus(ctx, newAuthority(scid, l, nil), r.Body)
	if err != nil || method == "" || st.Node != node || st.Audience != t.self || st.Nonce != base64.RawURLEncoding.EncodeToString(nonce) {
		return nil, interact.Errorf(interact.IssuerUntrusted, "request a new invitation", "the node %s does not prove an issuing key of the organization", node.Short())
	}
	return l, nil
}

// readInvitation reads an invitation that this node may use.
func (t *Trust) readInvitation(text string, want invitation.Kind, readers ...did.DID) (*invitation.Invitation, error) {
	i, err := invitation.Parse(text)
	if err != nil {
		return nil, err
	}
	if i.Kind != want {
		hint := "it is for a node that joins an organization"
		if i.Kind == invitation.Partner {
			hint = "it is for another organization, which accepts it as a partner"
		}
		return nil, interact.Errorf(interact.InvalidInvite, hint, "the invitation is for a %s", i.Kind)
	}
	return i, i.Check(t.o.Network, t.now(), readers...)
}

// Join makes this node a member of the organization of an invitation.
func (t *Trust) Join(ctx context.Context, a api.Acceptance) (*api.Organization, error) {
	if t.o.Dir == "" {
		return nil, errStoresNothing()
	}
	i, err := t.readInvitation(a.Invitation, invitation.Node, t.self)
	if err != nil {
		return nil, err
	}
	if err := t.mayJoin(i.SCID()); err != nil {
		return nil, err
	}
	node, addr, l, err := t.approach(ctx, i)
	if err != nil {
		return nil, err
	}
	r, err := t.ask(ctx, node, &request{Op: opRedeem, SCID: i.SCID(), Secret: i.Secret[:]})
	if err != nil {
		return nil, notReached(node, err)
	}
	return t.enter(ctx, node, addr, l, r)
}

func errStoresNothing() error {
	return interact.Errorf(interact.Usage, "start the node with a data directory", "this node stores nothing")
}

// mayJoin returns an error if this node is a member of another organization than the one of its first run.
func (t *Trust) mayJoin(scid string) error {
	old, err := t.mine()
	switch {
	case err != nil || old.SCID() == scid:
		return nil
	case !old.Auto():
		return userError(fmt.Errorf("%w: %s", organization.ErrExists, old.Name()))
	}
	return t.replaceable()
}

// enter makes this node a member by the credential in the response of an issuer.
func (t *Trust) enter(ctx context.Context, node did.DID, addr string, l *webvh.Log, r *response) (*api.Organization, error) {
	c, err := vc.Verify(ctx, r.Credential, vc.Check{Resolver: resolver{l.DID(): l}, Now: t.now()})
	if err != nil {
		return nil, userError(err)
	}
	org, err := organization.Join(t.orgDir(), l, c, t.self, organization.Options{Now: t.o.Now})
	if err != nil {
		return nil, userError(err)
	}
	t.mu.Lock()
	t.book.Issuers = addAddr(t.book.Issuers, addr)
	err = t.saveLocked()
	t.mu.Unlock()
	t.adopt(org)
	if p, err := peerOf(node); err == nil && r.Text == issuerText {
		if err := t.hello(ctx, node, p); err != nil { // it must know this node as a member
			t.o.Log.Debug("hello failed", "peer", node.Short(), "err", err)
		}
		t.enroll(ctx, node, org)
	}
	if err != nil {
		return nil, err
	}
	return t.Organization()
}

// enroll makes this node an issuer, with the consent of the node that has the root key.
func (t *Trust) enroll(ctx context.Context, root did.DID, org *organization.Organization) {
	key, err := org.NewIssuerKey()
	if err == nil {
		_, err = t.ask(ctx, root, &request{Op: opEnroll, Key: key})
	}
	if err != nil {
		t.o.Log.Warn("this node did not become an issuer", "err", err)
		return
	}
	t.fetchAll(ctx, root, []known{{SCID: org.SCID(), Kind: kindLog, Version: 1 << 62}})
}

func addAddr(all []string, addr string) []string {
	all = slices.DeleteFunc(slices.Clone(all), func(a string) bool { return nodeIn(a) == nodeIn(addr) })
	all = slices.Insert(all, 0, addr)
	return all[:min(len(all), maxAddrs)]
}

// Accept makes the organization of an invitation a partner, and the own one a partner of it.
func (t *Trust) Accept(ctx context.Context, a api.Acceptance) (*api.Partner, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	if !org.IsIssuer() {
		return nil, userError(organization.ErrNotIssuer)
	}
	i, err := t.readInvitation(a.Invitation, invitation.Partner, t.self, org.DID())
	if err != nil {
		return nil, err
	}
	if i.SCID() == org.SCID() {
		return nil, interact.Errorf(interact.InvalidInvite, "use it on a node of another organization", "the invitation is of the own organization")
	}
	t.mu.Lock()
	name, err := t.newNameLocked(a.Name, i.Organization)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	node, addr, l, err := t.approach(ctx, i)
	if err != nil {
		return nil, err
	}
	q := &request{Op: opRedeem, SCID: i.SCID(), Secret: i.Secret[:], Org: org.SCID(), Addrs: t.publicAddrs(invitation.MaxAddresses)}
	if _, err := t.ask(ctx, node, q); err != nil {
		return nil, notReached(node, err)
	}
	// Whoever altered the way of the invitation could have made another one: the operator compares the words.
	p := &partner{Name: name, DID: l.DID(), Addrs: []string{addr}}
	if err := t.addPartner(p, l); err != nil {
		return nil, err
	}
	if id, err := peerOf(node); err == nil {
		if err := t.hello(ctx, node, id); err != nil {
			t.o.Log.Debug("hello failed", "peer", node.Short(), "err", err)
		}
	}
	t.confirmDue(ctx)
	t.update()
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.describeLocked(p), nil
}

// addPartner stores a partner and its log, and puts it in force.
func (t *Trust) addPartner(p *partner, l *webvh.Log) error {
	words := t.checkWords(l.SCID())
	t.mu.Lock()
	p.Since, p.Shared, p.Words = t.now().UTC().Truncate(time.Second), true, words
	stored, err := t.storedLog(l.SCID())
	if err == nil {
		err = organization.CheckLog(stored, l)
	}
	if err == nil {
		err = t.store(l.SCID(), "log.jsonl", l.Bytes())
	}
	if err == nil {
		if old := t.book.find(l.SCID()); old != nil {
			p.Name, p.Forked = old.Name, old.Forked
			t.book.Partners = slices.DeleteFunc(t.book.Partners, func(o *partner) bool { return o == old })
		}
		if len(t.book.Partners) >= maxPartners {
			err = interact.Errorf(interact.Usage, "remove others first", "there are %d partners, the most that are possible", maxPartners)
		}
	}
	if err == nil {
		t.book.Partners = append(t.book.Partners, p)
		t.addAuthorityLocked(newAuthority(l.SCID(), l, p))
		err = t.sharePartnersLocked()
	}
	t.mu.Unlock()
	if err == nil {
		t.o.Record("partner added: " + p.Name + ", " + string(p.DID))
		t.afterPartners()
	}
	return err
}

// checkWords returns the words that the operators of both organizations compare. They take some milliseconds.
func (t *Trust) checkWords(scid string) []string {
	org, err := t.mine()
	if err != nil {
		return nil
	}
	words := invitation.CheckWords(org.SCID(), scid)
	return words[:]
}

// serveRedeem answers a node that uses an invitation of this node.
func (t *Trust) serveRedeem(ctx context.Context, id did.DID, q *request) (*response, error) {
	org, err := t.mine()
	if err != nil || org.SCID() != q.SCID || !org.IsIssuer() {
		return nil, refused
	}
	var secret [16]byte
	if len(q.Secret) != len(secret) {
		return nil, refused
	}
	copy(secret[:], q.Secret)
	if q.Org != "" {
		return t.redeemPartner(ctx, id, secret, q)
	}
	again := t.redeemedBy(secret, id)
	issued, err := t.invites.Redeem(secret, invitation.Node, id)
	if err != nil {
		return nil, err
	}
	if !again { // the roles may have changed since
		if err := org.Admit(id, "", issued.Roles...); err != nil {
			return nil, userError(err)
		}
	}
	c, err := org.Issue(id, nil, 0)
	if err != nil {
		return nil, userError(err)
	}
	r := &response{Credential: c.Raw}
	if t.offerOf(issued.ID).Issuer && org.HasRoot() && len(org.Issuers()) < organization.MaxIssuers {
		r.Text = issuerText
	}
	t.o.Record("member joined: " + string(id) + ", roles " + strings.Join(c.Roles, " ") + ", invitation " + issued.ID[:12])
	t.o.Log.Info("node joined the organization", "node", string(id), "roles", strings.Join(c.Roles, " "), "invitation", issued.ID[:12])
	return r, nil
}

// issuedFor returns the invitation with a secret, or nil.
func (t *Trust) issuedFor(secret [16]byte) *invitation.Issued {
	sum := sha256.Sum256(secret[:])
	id := hex.EncodeToString(sum[:])
	for _, i := range t.invites.List() {
		if i.ID == id {
			return &i
		}
	}
	return nil
}

// redeemedBy reports whether a node has used the invitation with a secret.
func (t *Trust) redeemedBy(secret [16]byte, id did.DID) bool {
	i := t.issuedFor(secret)
	return i != nil && slices.ContainsFunc(i.Redeemed, func(r invitation.Redemption) bool { return r.By == id })
}

// storedLog returns the stored log of an organization, of a former partner too; nil if there is none.
func (t *Trust) storedLog(scid string) (*webvh.Log, error) {
	raw, err := os.ReadFile(t.file(scid, "log.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return webvh.Verify(raw, webvh.Check{Now: farFuture})
}

// farFuture is the time at which stored logs are verified: a clock that is behind does not make them wrong.
var farFuture = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

func (t *Trust) offerOf(id string) offer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.book.Offers[id]
}

// redeemPartner makes the organization of a node a partner: the node proves an issuing key of it first.
func (t *Trust) redeemPartner(ctx context.Context, id did.DID, secret [16]byte, q *request) (*response, error) {
	if i := t.issuedFor(secret); i == nil || i.Kind != invitation.Partner || t.now().After(i.Expires) {
		_, err := t.invites.Redeem(secret, invitation.Partner, id) // the reason
		return nil, cmp.Or(err, error(refused))
	}
	l, err := t.proveIssuer(ctx, id, q.Org)
	if err != nil {
		return nil, interact.AsError(err)
	}
	issued, err := t.invites.Redeem(secret, invitation.Partner, l.DID())
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	known := t.book.find(l.SCID())
	again := known != nil && !known.removed()
	name := ""
	for n := 1; !again && name == ""; n++ {
		given := ""
		if n > 1 {
			given = fmt.Sprintf("%.28s-%d", nameOf(l.DID()), n)
		}
		if checkName(nameOf(l.DID())) != nil {
			given = fmt.Sprintf("partner-%d", n)
		}
		name, _ = t.newNameLocked(given, l.DID())
	}
	t.mu.Unlock()
	if again {
		return &response{}, nil
	}
	p := &partner{Name: name, DID: l.DID(), Roles: issued.Roles, Until: t.offerOf(issued.ID).Until, Confirmed: issued.For != ""}
	for _, a := range q.Addrs {
		if nodeIn(a) == id {
			p.Addrs = append(p.Addrs, a)
		}
	}
	if err := t.addPartner(p, l); err != nil {
		return nil, userError(err)
	}
	t.o.Log.Info("organization became a partner", "name", name, "organization", string(l.DID()), "invitation", issued.ID[:12])
	return &response{}, nil
}

// serveEnroll adds the issuing key of a node that joined by an invitation for issuers.
func (t *Trust) serveEnroll(id did.DID, q *request) (*response, error) {
	org, err := t.mine()
	if err != nil || !org.HasRoot() {
		return nil, refused
	}
	invited := slices.ContainsFunc(t.invites.List(), func(i invitation.Issued) bool {
		return t.offerOf(i.ID).Issuer && slices.ContainsFunc(i.Redeemed, func(r invitation.Redemption) bool { return r.By == id })
	})
	t.mu.Lock()
	p := t.nodeLocked(id).principal
	eligible := invited && p.Relation == did.Own && p.Barred == "" && !t.issuerNodeLocked(id)
	t.mu.Unlock()
	if !eligible {
		return nil, refused
	}
	method, err := org.AddIssuer(q.Key)
	if err != nil {
		return nil, userError(err)
	}
	t.mu.Lock()
	err = t.bindLocked(method, id)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t.start(func(context.Context) { t.changed() })
	return &response{Text: method}, nil
}

// serveKey makes the issuing key of this node for the node with the root key, which a member of the own organization is.
func (t *Trust) serveKey(id did.DID) (*response, error) {
	org, err := t.mine()
	if err != nil || t.Principal(id).Relation != did.Own {
		return nil, refused
	}
	key, err := org.NewIssuerKey()
	if err != nil {
		return nil, userError(err)
	}
	return &response{Text: key}, nil
}

// Times of the renewal of the credential of this node.
const (
	renewPause = time.Minute      // between attempts
	listAge    = 45 * time.Minute // of the list of the issuer: it may be away for long
)

// renewDue renews the credential after half of its life, if its issuer was away for long, and if its entry is set.
func (t *Trust) renewDue(ctx context.Context) {
	t.mu.Lock()
	a, now := t.ownLocked(), t.now()
	if a == nil || now.Sub(t.renewed).Abs() < renewPause {
		t.mu.Unlock()
		return
	}
	c := t.org.Credential()
	due := c == nil || now.After(c.From.Add(c.Until.Sub(c.From)/2))
	if c != nil && !due {
		l := a.lists[c.Method]
		others := slices.ContainsFunc(a.issuers(now), func(m string) bool { return m != c.Method })
		due = a.keys[c.Method] == "" || l != nil && (l.IsSet(c.Status.Index) || others && now.Sub(l.From) > listAge)
	}
	if due {
		t.renewed = now
	}
	t.mu.Unlock()
	if !due {
		return
	}
	if err := t.renew(ctx); err != nil {
		t.o.Log.Warn("credential not renewed", "err", err)
	}
}

// renew gets a new credential: from this node if it is an issuer, else from the first issuer that answers.
func (t *Trust) renew(ctx context.Context) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if org.IsIssuer() && t.settled() {
		c, err := org.Issue(t.self, nil, 0)
		if err == nil {
			err = org.SetCredential(c)
		}
		if err == nil {
			t.update()
			t.repeatHello()
			return nil
		}
		t.o.Log.Debug("own credential not issued", "err", err)
	}
	old := org.Credential()
	if old == nil {
		return interact.Errorf(interact.CredentialExpired, "invite the node again", "this node has no credential")
	}
	t.mu.RLock()
	var nodes []did.DID
	for node := range t.issuers {
		if n := t.nodes[node]; n != nil && n.hello != nil {
			nodes = append(nodes, node)
		}
	}
	addrs := slices.Clone(t.book.Issuers)
	t.mu.RUnlock()
	var errs []error
	try := func(node did.DID, addr ...string) bool {
		r, err := t.ask(ctx, node, &request{Op: opRenew, Credential: old.Raw}, addr...)
		if err == nil {
			var c *vc.Credential
			if c, err = vc.Verify(ctx, r.Credential, vc.Check{Resolver: org, Now: t.now()}); err == nil {
				err = org.SetCredential(c)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", node.Short(), err))
			return false
		}
		return true
	}
	renewed := slices.ContainsFunc(nodes, func(n did.DID) bool { return try(n) }) || slices.ContainsFunc(addrs, func(a string) bool {
		node := nodeIn(a)
		return node != "" && node != t.self && !slices.Contains(nodes, node) && try(node, a)
	})
	if !renewed {
		return &interact.Error{Code: interact.Unreachable, Title: "no issuer of the organization renewed the credential", Err: errors.Join(errs...),
			Hint: "connect this node to an issuer"}
	}
	t.update()
	t.repeatHello()
	return nil
}
