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
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
)

// issuerText tells a new member that it may become an issuer.
const issuerText = "issuer"

// approach reaches an issuer of an invitation: a node with an issuing key in the log that has the SCID and signed the invitation.
func (t *Trust) approach(ctx context.Context, i *invitation.Invitation) (node did.DID, addr string, l *webvh.Log, err error) {
	var errs []error
	for _, addr := range i.Addresses {
		node := exchange.NodeIn(addr)
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
	r, err := t.net.Ask(ctx, node, &exchange.Request{Op: exchange.OpGet, Known: []exchange.Known{{SCID: scid, Kind: exchange.KindLog}}}, addrs...)
	if err != nil {
		return nil, err
	}
	later := t.now().AddDate(100, 0, 0) // the clocks are compared below
	l, err := webvh.Verify(r.Body, webvh.Check{Now: later})
	if err != nil || l.SCID() != scid {
		return nil, interact.Errorf(interact.InvalidInvite, "request a new invitation", "the node %s does not show the log of the organization", node.Short())
	}
	log := r.Body
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	if r, err = t.net.Ask(ctx, node, &exchange.Request{Op: exchange.OpStatus, SCID: scid, Nonce: nonce}); err != nil {
		return nil, err
	}
	st, method, err := authority.ReadStatement(ctx, r.Body, l, later)
	if err != nil || method == "" || st.Node != node || st.Audience != t.self || st.Nonce != base64.RawURLEncoding.EncodeToString(nonce) {
		return nil, interact.Errorf(interact.IssuerUntrusted, "request a new invitation", "the node %s does not prove an issuing key of the organization", node.Short())
	}
	if skew := t.now().Sub(st.Created); skew.Abs() > webvh.Skew {
		return nil, clockSkew(skew, node)
	}
	return webvh.Verify(log, webvh.Check{Now: t.now()})
}

// clockSkew is the error of a node whose clock differs from that of an issuer: credentials would be expired, or from the future.
func clockSkew(ahead time.Duration, issuer did.DID) error {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	return interact.Errorf(interact.ClockSkew, "compare the clocks of both machines: date -u; then set the wrong one: timedatectl set-ntp true",
		"the clock of this machine is %v %s that of %s", ahead.Abs().Round(time.Second), where, issuer.Short())
}

// readInvitation reads an invitation that this node may use.
func (t *Trust) readInvitation(text string, want invitation.Kind, readers ...did.DID) (*invitation.Invitation, error) {
	i, err := invitation.Parse(text)
	if err != nil {
		return nil, err
	}
	if i.Kind != want {
		if i.Kind == invitation.Partner {
			return nil, interact.Errorf(interact.InvalidInvite, "accept it on an issuer of another organization", "the invitation is for a partner, not for a node").
				Then(interact.StepAccept)
		}
		return nil, interact.Errorf(interact.InvalidInvite, "join with it on a node without an organization", "the invitation is for a node, not for a partner").
			Then(interact.StepOrgJoin)
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
	node, addr, l, r, err := t.redeem(ctx, i, &exchange.Request{})
	if err != nil {
		return nil, err
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
func (t *Trust) enter(ctx context.Context, node did.DID, addr string, l *webvh.Log, r *exchange.Response) (*api.Organization, error) {
	c, err := vc.Verify(ctx, r.Credential, vc.Check{Resolver: resolver{l.DID(): l}, Now: t.now()})
	if err != nil {
		return nil, userError(err)
	}
	org, err := organization.Join(t.orgDir(), l, c, t.self, organization.Options{Now: t.o.Now})
	if err != nil {
		return nil, userError(err)
	}
	if err := t.adopt(org, addr); err != nil {
		return nil, err
	}
	if r.Text == issuerText {
		t.hello(ctx, node) // it must know this node as a member
		t.enroll(ctx, node, org)
	}
	return t.Organization()
}

// redeem uses an invitation at an issuer that it names. q is what the request has besides.
func (t *Trust) redeem(ctx context.Context, i *invitation.Invitation, q *exchange.Request) (node did.DID, addr string, l *webvh.Log, r *exchange.Response, err error) {
	if node, addr, l, err = t.approach(ctx, i); err != nil {
		return "", "", nil, nil, err
	}
	q.Op, q.SCID, q.Secret = exchange.OpRedeem, i.SCID(), i.Secret[:]
	if r, err = t.net.Ask(ctx, node, q); err != nil {
		err = notReached(node, err)
	}
	return node, addr, l, r, err
}

// enroll makes this node an issuer, with the consent of the node that has the root key.
func (t *Trust) enroll(ctx context.Context, root did.DID, org *organization.Organization) {
	key, err := org.NewIssuerKey()
	if err == nil {
		_, err = t.net.Ask(ctx, root, &exchange.Request{Op: exchange.OpEnroll, Key: key})
	}
	if err != nil {
		t.o.Log.Warn("this node did not become an issuer", "err", err)
		return
	}
	t.fetchAll(ctx, root, []exchange.Known{{SCID: org.SCID(), Kind: exchange.KindLog, Version: 1 << 62}})
}

func addAddr(all []string, addr string) []string {
	all = slices.DeleteFunc(slices.Clone(all), func(a string) bool { return exchange.NodeIn(a) == exchange.NodeIn(addr) })
	all = slices.Insert(all, 0, addr)
	return all[:min(len(all), exchange.MaxAddrs)]
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
	t.mu.RLock()
	name, err := t.book.NewName(a.Name, i.Organization, org.DID())
	t.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	node, addr, l, _, err := t.redeem(ctx, i, &exchange.Request{Org: org.SCID(), Addrs: t.publicAddrs(invitation.MaxAddresses)})
	if err != nil {
		return nil, err
	}
	// Whoever altered the way of the invitation could have made another one: the operator compares the words.
	fresh := partners.Partner{Name: name, DID: l.DID(), Addrs: []string{addr}}
	t.mu.RLock()
	if old := t.book.Find(l.SCID()); old != nil && !old.IsRemoved() && !old.HasEnded(t.now()) { // an accepted invitation is accepted again
		fresh.Confirmed = old.Confirmed
	}
	t.mu.RUnlock()
	p, err := t.addPartner(fresh, l)
	if err != nil {
		return nil, err
	}
	t.hello(ctx, node)
	t.confirmDue(ctx)
	t.update()
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.describeLocked(p), nil
}

// addPartner stores a partner and its log, and puts it in force. A former partner keeps its name.
func (t *Trust) addPartner(p partners.Partner, l *webvh.Log) (*partners.Partner, error) {
	p.Words = t.checkWords(l.SCID())
	if err := t.putPartner(&p, l); err != nil {
		return nil, err
	}
	t.o.Record("partner added: " + p.Name + ", " + string(p.DID))
	t.afterPartners()
	return &p, nil
}

func (t *Trust) putPartner(p *partners.Partner, l *webvh.Log) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	stored, err := t.folder(l.SCID()).Log()
	if err == nil {
		err = organization.CheckLog(stored, l)
	}
	if err != nil {
		return err
	}
	if a := t.authorities[l.SCID()]; a != nil {
		err = t.useLog(a, l)
	} else {
		err = t.folder(l.SCID()).WriteLog(l)
	}
	if err != nil {
		return err
	}
	err = t.editWriting(func(b *partners.Book) error {
		p.Since = t.now().UTC().Truncate(time.Second)
		if old := b.Find(l.SCID()); old != nil {
			p.Name, p.Forked, p.Other, p.Chosen = old.Name, old.Forked, old.Other, old.Chosen
			if !p.Since.After(old.Since) { // the new partnership is the later one
				p.Since = old.Since.Add(time.Second)
			}
		}
		p.Changed = p.Since
		return errors.Join(b.Put(p), t.share(b))
	})
	if err != nil || t.authorities[l.SCID()] != nil {
		return err
	}
	return t.addTrusted(p, l)
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
func (t *Trust) serveRedeem(ctx context.Context, id did.DID, q *exchange.Request) (*exchange.Response, error) {
	org, err := t.mine()
	if err != nil || org.SCID() != q.SCID || !org.IsIssuer() { // a node that left, or replaced its first organization
		return nil, interact.Errorf(interact.InvalidInvite, "request a new invitation from the organization", "the node does not know the invitation")
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
	r := &exchange.Response{Credential: c.Raw}
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

func (t *Trust) offerOf(id string) partners.Offer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.book.Offers[id]
}

// redeemPartner makes the organization of a node a partner: the node proves an issuing key of it first.
func (t *Trust) redeemPartner(ctx context.Context, id did.DID, secret [16]byte, q *exchange.Request) (*exchange.Response, error) {
	if i := t.issuedFor(secret); i == nil || i.Kind != invitation.Partner || t.now().After(i.Expires.Add(invitation.Skew)) {
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
	t.mu.RLock()
	known := t.book.Find(l.SCID())
	name := t.book.FreeName(partners.NameOf(l.DID()), l.DID(), t.org.DID())
	t.mu.RUnlock()
	if known != nil && !known.IsRemoved() {
		return &exchange.Response{}, nil
	}
	p := partners.Partner{Name: name, DID: l.DID(), Roles: issued.Roles, Until: t.offerOf(issued.ID).Until, Confirmed: issued.For != ""}
	for _, a := range q.Addrs {
		if exchange.NodeIn(a) == id {
			p.Addrs = append(p.Addrs, a)
		}
	}
	if _, err := t.addPartner(p, l); err != nil {
		return nil, userError(err)
	}
	t.o.Log.Info("organization became a partner", "name", name, "organization", string(l.DID()), "invitation", issued.ID[:12])
	return &exchange.Response{}, nil
}

// serveEnroll adds the issuing key of a node that joined by an invitation for issuers.
func (t *Trust) serveEnroll(id did.DID, q *exchange.Request) (*exchange.Response, error) {
	org, err := t.mine()
	if err != nil || !org.HasRoot() {
		return nil, refused
	}
	invited := slices.ContainsFunc(t.invites.List(), func(i invitation.Issued) bool {
		return t.offerOf(i.ID).Issuer && slices.ContainsFunc(i.Redeemed, func(r invitation.Redemption) bool { return r.By == id })
	})
	t.mu.Lock()
	p := t.nodeLocked(id).principal
	eligible := invited && p.Relation == did.Own && p.Barred == "" && !slices.Contains(slices.Collect(maps.Values(t.book.IssuerNodes)), id)
	t.mu.Unlock()
	if !eligible {
		return nil, refused
	}
	method, err := org.AddIssuer(q.Key)
	if err != nil {
		return nil, userError(err)
	}
	if err := t.bind(method, id); err != nil {
		return nil, err
	}
	a, before := t.enforce() // first: the node gets the log when it has the answer
	t.start(func(context.Context) { t.act(a, before) })
	return &exchange.Response{Text: method}, nil
}

// serveKey makes the issuing key of this node for the node with the root key, which a member of the own organization is.
func (t *Trust) serveKey(id did.DID) (*exchange.Response, error) {
	org, err := t.mine()
	if err != nil || t.Principal(id).Relation != did.Own {
		return nil, refused
	}
	key, err := org.NewIssuerKey()
	if err != nil {
		return nil, userError(err)
	}
	return &exchange.Response{Text: key}, nil
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
		l := a.List(c.Method)
		due = a.Key(c.Method) == "" || l != nil && (l.IsSet(c.Status.Index) || a.HasOtherIssuer(c.Method, now) && now.Sub(l.From) > listAge)
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
	var errs []error
	for _, issuer := range t.issuersToAsk() {
		if err = t.askRenewal(ctx, org, old, issuer.node, issuer.addrs...); err == nil {
			t.update()
			t.repeatHello()
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", issuer.node.Short(), err))
	}
	return &interact.Error{Code: interact.Unreachable, Title: "no issuer of the organization renewed the credential", Err: errors.Join(errs...),
		Hint: "connect this node to an issuer"}
}

// renewAt gets a new credential from one issuer, which has changed the roles of this node.
func (t *Trust) renewAt(ctx context.Context, issuer did.DID) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if old := org.Credential(); old == nil {
		return nil
	} else if err := t.askRenewal(ctx, org, old, issuer); err != nil {
		return err
	}
	t.update()
	t.repeatHello()
	return nil
}

// askRenewal asks an issuer for a credential in place of the old one.
func (t *Trust) askRenewal(ctx context.Context, org *organization.Organization, old *vc.Credential, issuer did.DID, addr ...string) error {
	r, err := t.net.Ask(ctx, issuer, &exchange.Request{Op: exchange.OpRenew, Credential: old.Raw}, addr...)
	if err != nil {
		return err
	}
	c, err := vc.Verify(ctx, r.Credential, vc.Check{Resolver: org, Now: t.now()})
	if err != nil {
		return err
	}
	return org.SetCredential(c)
}
