package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
)

// userError returns an error of the organization with a hint.
func userError(err error) error {
	known := (*interact.Error)(nil)
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, organization.ErrNotIssuer):
		return interact.Errorf(interact.Forbidden, "use a node that is an issuer", "%v", err)
	case errors.Is(err, organization.ErrNoRoot):
		return interact.Errorf(interact.Forbidden, "use the node with the root key, or import the key here", "%v", err)
	case errors.Is(err, organization.ErrNotMember), errors.Is(err, organization.ErrRoles):
		return interact.Errorf(interact.Usage, "see the members and their roles in the list of members", "%v", err)
	case errors.Is(err, organization.ErrRevoked):
		return interact.Errorf(interact.CredentialRevoked, "restore the member to end the revocation", "%v", err)
	case errors.Is(err, organization.ErrExists):
		return interact.Errorf(interact.Usage, "end the membership of this node first", "%v", err)
	case errors.Is(err, fs.ErrExist):
		return interact.Errorf(interact.Usage, "name a new file", "%v", err)
	case errors.Is(err, vc.ErrExpired), errors.Is(err, vc.ErrTime):
		return interact.Errorf(interact.CredentialExpired, "invite the node again", "%v", err)
	case errors.Is(err, vc.ErrInvalid):
		return interact.Errorf(interact.CredentialInvalid, "", "%v", err)
	}
	return err
}

// errNone is the error of a node without an organization.
func errNone() error {
	return interact.Errorf(interact.NotFound, "make one, or join one by an invitation", "this node has no organization").
		Then(interact.StepOrgInit).Then(interact.StepOrgJoin)
}

// mine returns the organization of this node.
func (t *Trust) mine() (*organization.Organization, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.org == nil {
		return nil, errNone()
	}
	return t.org, nil
}

// Init makes an organization whose first member and issuer is this node.
func (t *Trust) Init(_ context.Context, o api.OrganizationInit) (*api.Organization, error) {
	if o.Auto {
		return t.initAuto()
	}
	return t.init(o.Domain, organization.Options{RecoveryFile: o.RecoveryFile})
}

// initAuto makes the organization of a first run, unless the node has one. Its name tells nothing about the machine.
func (t *Trust) initAuto() (*api.Organization, error) {
	if _, err := t.mine(); err == nil {
		return t.Organization()
	}
	return t.init("home-"+strings.ToLower(rand.Text()[:6])+".internal", organization.Options{Auto: true})
}

func (t *Trust) init(domain string, o organization.Options) (*api.Organization, error) {
	if t.o.Dir == "" {
		return nil, errStoresNothing()
	}
	if err := t.replaceable(); err != nil {
		return nil, err
	}
	o.Now, o.Endpoints = t.o.Now, t.publicAddrs(8)
	org, err := organization.Create(t.orgDir(), domain, t.self, o)
	if err != nil {
		return nil, userError(err)
	}
	t.adopt(org)
	return t.Organization()
}

// replaceable returns an error if the organization of this node has partners: another one may not take its place.
func (t *Trust) replaceable() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.org != nil && slices.ContainsFunc(t.book.Partners, func(p *partner) bool { return !p.removed() }) {
		return interact.Errorf(interact.Usage, "end the partnerships first", "the organization of this node has partners")
	}
	return nil
}

// adopt makes org the organization of this node.
func (t *Trust) adopt(org *organization.Organization) {
	t.mu.Lock()
	if t.org != nil && t.org.SCID() != org.SCID() {
		delete(t.authorities, t.org.SCID())
		t.book.IssuerNodes = nil
	}
	t.org, t.renewed = org, time.Time{}
	clear(t.issuers)
	t.addOwnLocked()
	t.mu.Unlock()
	t.o.Record("organization of this node: " + string(org.DID()))
	t.o.OnNames()
	t.update()
	t.repeatHello()
}

// repeatHello repeats the hello with all connected peers, after the organizations or the credential of this node have changed.
func (t *Trust) repeatHello() {
	t.mu.RLock()
	all := t.peersLocked(func(*did.Principal) bool { return true })
	t.mu.RUnlock()
	t.start(func(ctx context.Context) {
		for _, id := range all {
			if p, err := peerOf(id); err == nil && ctx.Err() == nil {
				if err := t.hello(ctx, id, p); err != nil {
					t.o.Log.Debug("hello failed", "peer", id.Short(), "err", err)
				}
			}
		}
		t.confirmDue(ctx)
		t.update()
	})
}

// Leave ends the membership of this node, and deletes what it has of the organization.
func (t *Trust) Leave(context.Context) error {
	if err := t.replaceable(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.org == nil {
		t.mu.Unlock()
		return errNone()
	}
	err := t.org.Leave()
	if err == nil {
		delete(t.authorities, t.org.SCID())
		t.org = nil
		clear(t.issuers)
		t.book.Issuers, t.book.Shared = nil, 0
		err = t.saveLocked()
	}
	t.mu.Unlock()
	t.o.OnNames()
	t.update()
	return err
}

// Organization returns the organization of this node. The error is NotFound if it has none.
func (t *Trust) Organization() (*api.Organization, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	now := t.now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	a := t.ownLocked()
	own := t.ownMethodLocked(a)
	out := &api.Organization{DID: org.DID(), SCID: org.SCID(), Name: org.Name(), Auto: org.Auto(), Head: org.Log().Head(),
		State: api.OrganizationUnconfirmed, Roles: []string{}, Issuer: org.IsIssuer(), Root: org.HasRoot()}
	if t.settledLocked(a) {
		out.State = api.OrganizationConfirmed
	}
	if c := org.Credential(); c != nil {
		if out.Roles, out.Until = c.Roles, c.Until; now.After(c.Until) {
			out.State = api.OrganizationExpired
		}
	} else {
		out.State = api.OrganizationExpired
	}
	for _, method := range a.methods() {
		_, fragment, _ := strings.Cut(method, "#")
		i := api.Issuer{Method: "#" + fragment, This: method == own}
		for node, m := range t.issuers {
			if m == method {
				i.Node = node
			}
		}
		if i.This {
			i.Node = t.self
		}
		if l := a.lists[method]; l != nil {
			i.ListVersion, i.ListFrom = l.Version, l.From
		}
		out.Issuers = append(out.Issuers, i)
	}
	for _, m := range org.Members() {
		n := t.nodes[m.DID]
		out.Members = append(out.Members, api.Member{DID: m.DID, Roles: m.Roles, Until: m.Until, Revoked: m.Revoked,
			Connected: m.DID == t.self || n != nil && n.hello != nil})
	}
	return out, nil
}

// publicAddrs returns addresses of this node for others, at most n: loopback only if there is nothing else.
func (t *Trust) publicAddrs(n int) []string {
	all := t.o.Addrs()
	far := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return strings.Contains(a, "/ip4/127.") || strings.Contains(a, "/ip6/::1/") })
	if len(far) > 0 {
		all = far
	}
	return all[:min(len(all), n)]
}

// Invite returns an invitation of a node or of a partner.
func (t *Trust) Invite(_ context.Context, r api.InvitationRequest) (*api.Invitation, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	signer, _, err := org.Signer()
	if err != nil {
		return nil, userError(err)
	}
	for _, role := range r.Roles {
		if !vc.ValidRole(role) {
			return nil, interact.Errorf(interact.Usage, "use 1 to 64 of a-z, 0-9, dot, underscore and hyphen", "%q cannot be a role", interact.Excerpt(role, 80))
		}
	}
	i := invitation.Invitation{Network: t.o.Network, Organization: org.DID(), For: r.For, Roles: r.Roles, Addresses: t.publicAddrs(invitation.MaxAddresses)}
	switch r.Kind {
	case api.InviteNode:
		i.Kind = invitation.Node
	case api.InvitePartner:
		i.Kind = invitation.Partner
	default:
		return nil, interact.Errorf(interact.Usage, "node or partner", "expected the kind of the invitation, got %q", interact.Excerpt(r.Kind, 40))
	}
	if r.Issuer && (i.Kind != invitation.Node || !org.HasRoot()) {
		return nil, userError(organization.ErrNoRoot)
	}
	if r.Life != 0 {
		i.Expires = t.now().Add(time.Duration(r.Life))
	}
	made, text, err := invitation.New(i, signer, t.now())
	if err != nil {
		return nil, userError(err)
	}
	uses := max(r.Uses, 1)
	if err := t.invites.Add(made, uses); err != nil {
		return nil, userError(err)
	}
	if !r.Until.IsZero() || r.Issuer {
		t.mu.Lock()
		if t.book.Offers == nil {
			t.book.Offers = map[string]offer{}
		}
		for id, old := range t.book.Offers {
			if t.now().After(old.Expires.Add(invitation.MaxLife)) {
				delete(t.book.Offers, id)
			}
		}
		t.book.Offers[made.ID()] = offer{Until: r.Until, Issuer: r.Issuer, Expires: made.Expires}
		err = t.saveLocked()
		t.mu.Unlock()
	}
	return &api.Invitation{ID: made.ID(), Text: text, InvitationKind: r.Kind, For: r.For, Roles: r.Roles, Issuer: r.Issuer, Uses: uses,
		Expires: made.Expires, Organization: org.DID(), SCID: org.SCID()}, err
}

// Invitations returns the open invitations, without their text.
func (t *Trust) Invitations() []api.Invitation {
	out := []api.Invitation{}
	org, err := t.mine()
	if err != nil {
		return out
	}
	now := t.now()
	for _, i := range t.invites.List() {
		if i.Uses > 0 && now.Before(i.Expires) {
			t.mu.RLock()
			o := t.book.Offers[i.ID]
			t.mu.RUnlock()
			out = append(out, api.Invitation{ID: i.ID, InvitationKind: i.Kind.String(), For: i.For, Roles: i.Roles, Issuer: o.Issuer, Uses: i.Uses,
				Expires: i.Expires, Organization: org.DID(), SCID: org.SCID()})
		}
	}
	return out
}

// changed puts a change of the own organization in force: its log or its list.
func (t *Trust) changed() {
	t.mu.Lock()
	a := t.ownLocked()
	if a == nil {
		t.mu.Unlock()
		return
	}
	a.setLog(t.org.Log())
	t.refreshOwnListLocked(a)
	t.mu.Unlock()
	t.update()
	t.announce(a.scid, "")
}

// SetRoles changes the roles of a member.
func (t *Trust) SetRoles(_ context.Context, member did.DID, roles []string) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if err := org.Admit(member, "", roles...); err != nil {
		return userError(err)
	}
	if _, err := org.List(true); err != nil {
		return userError(err)
	}
	t.changed()
	return nil
}

// Revoke excludes a member, and its issuing key if it has one.
func (t *Trust) Revoke(_ context.Context, member did.DID) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	t.mu.RLock()
	a := t.ownLocked()
	ids, unknown := []did.DID{member}, []string{}
	for method, key := range a.keys {
		switch node := t.book.IssuerNodes[method]; {
		case node == member || t.issuers[member] == method:
			ids = append(ids, key)
		case node == "" && method != t.ownMethodLocked(a):
			_, fragment, _ := strings.Cut(method, "#")
			unknown = append(unknown, "#"+fragment)
		}
	}
	t.mu.RUnlock()
	t.o.Record("member revoked: " + string(member))
	for _, id := range ids {
		if _, err := org.Revoke(id); err != nil {
			return userError(err)
		}
	}
	t.changed()
	if len(unknown) > 0 {
		return interact.Errorf(interact.StatusUnknown, "if one of them is of that node, remove it with the root key",
			"%s is revoked, but the nodes of the issuing keys %s are not known here", member.Short(), strings.Join(unknown, ", "))
	}
	return nil
}

// Restore ends the exclusion of a member, which must be invited again, or renew its credential.
func (t *Trust) Restore(_ context.Context, member did.DID) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if _, err := org.Restore(member, 0); err != nil {
		return userError(err)
	}
	t.o.Record("member restored: " + string(member))
	t.changed()
	return nil
}

// Renew renews the credential of this node now.
func (t *Trust) Renew(ctx context.Context) (*api.Organization, error) {
	if _, err := t.mine(); err != nil {
		return nil, err
	}
	if err := t.renew(ctx); err != nil {
		return nil, err
	}
	return t.Organization()
}

// AddIssuer makes a member an issuer.
func (t *Trust) AddIssuer(ctx context.Context, node did.DID) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if !org.HasRoot() {
		return userError(organization.ErrNoRoot)
	}
	key := ""
	if node == t.self {
		key, err = org.NewIssuerKey()
	} else {
		var r *response
		if r, err = t.ask(ctx, node, &request{Op: opKey}); err == nil {
			key = r.Text
		}
	}
	if err != nil {
		return notReached(node, err)
	}
	method, err := org.AddIssuer(key)
	if err != nil {
		return userError(err)
	}
	t.mu.Lock()
	err = t.bindLocked(method, node)
	t.mu.Unlock()
	t.changed()
	return err
}

func notReached(node did.DID, err error) error {
	if known := (*interact.Error)(nil); errors.As(err, &known) {
		return known
	}
	return &interact.Error{Code: interact.Unreachable, Title: "node " + node.Short() + " does not answer", Err: err,
		Hint: "see that it runs, in the same network, and that a firewall lets the port through"}
}

// RemoveIssuer removes an issuing key from the log.
func (t *Trust) RemoveIssuer(_ context.Context, method string) error {
	return t.change(func(org *organization.Organization) error { return org.RemoveIssuer(method) })
}

// RotateRoot replaces the root key.
func (t *Trust) RotateRoot(context.Context) error {
	return t.change((*organization.Organization).RotateRoot)
}

// Deactivate ends the organization.
func (t *Trust) Deactivate(context.Context) error {
	return t.change((*organization.Organization).Deactivate)
}

// Recover replaces the root key with the next root key.
func (t *Trust) Recover(_ context.Context, key []byte, newFile string) error {
	return t.change(func(org *organization.Organization) error { return org.Recover(key, newFile) })
}

// change changes the log of the own organization.
func (t *Trust) change(f func(*organization.Organization) error) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if err := f(org); err != nil {
		return userError(err)
	}
	t.o.Record("keys of the organization changed: " + org.Log().Head())
	t.changed()
	return nil
}

// ExportRoot returns the root key in PEM, encrypted unless the passphrase is empty.
func (t *Trust) ExportRoot(_ context.Context, passphrase string) ([]byte, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	var encrypt func([]byte) ([]byte, error)
	if passphrase != "" {
		p, err := keystore.NewPassphrase(passphrase)
		if err != nil {
			return nil, interact.Errorf(interact.Usage, "choose another", "%v", err)
		}
		encrypt = func(plain []byte) ([]byte, error) { return keystore.Encrypt(plain, p) }
	}
	var b bytes.Buffer
	if err := org.ExportRoot(&b, encrypt); err != nil {
		return nil, userError(err)
	}
	return b.Bytes(), nil
}

// RemoveRoot deletes the root key from this node.
func (t *Trust) RemoveRoot(context.Context) error {
	return t.change((*organization.Organization).RemoveRoot)
}

// ImportRoot stores the root key on this node.
func (t *Trust) ImportRoot(_ context.Context, key []byte, passphrase string) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if passphrase != "" {
		p, err := keystore.NewPassphrase(passphrase)
		if err == nil {
			key, err = keystore.Decrypt(key, p)
		}
		if err != nil {
			return interact.Errorf(interact.Usage, "check the passphrase", "%v", err)
		}
	}
	return userError(org.ImportRoot(key))
}

// Export writes the public files of the organization for a web server.
func (t *Trust) Export(_ context.Context, dir string) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	return userError(org.Export(dir))
}

// Partners returns the partners.
func (t *Trust) Partners() []api.Partner {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := []api.Partner{}
	for _, p := range t.book.Partners {
		if !p.removed() {
			out = append(out, *t.describeLocked(p))
		}
	}
	return out
}

func (t *Trust) describeLocked(p *partner) *api.Partner {
	scid := webvh.SCID(p.DID)
	out := &api.Partner{Name: p.Name, DID: p.DID, SCID: scid, State: api.PartnerActive, Roles: p.Roles, Since: p.Since, Until: p.Until, Words: p.Words}
	if a := t.authorities[scid]; a != nil {
		out.Head = a.log.Head()
	}
	switch {
	case p.Forked:
		out.State = api.PartnerSuspended
	case !p.Until.IsZero() && t.now().After(p.Until):
		out.State = api.PartnerExpired
	case !p.Confirmed:
		out.State = api.PartnerUnconfirmed
	}
	for _, n := range t.nodes {
		if n.hello != nil && webvh.SCID(n.principal.Org) == scid {
			out.Connected++
		}
	}
	return out
}

// Confirm notes that the operator has compared the check words of a partner.
func (t *Trust) Confirm(_ context.Context, name string) (*api.Partner, error) {
	t.mu.Lock()
	p := t.book.find(name)
	if p == nil || p.removed() {
		t.mu.Unlock()
		return nil, errNoPartner(name)
	}
	p.Confirmed, p.Forked = true, false
	err := t.sharePartnersLocked()
	out := t.describeLocked(p)
	t.mu.Unlock()
	t.o.Record("partner confirmed: " + p.Name + ", " + string(p.DID))
	t.afterPartners()
	return out, err
}

func errNoPartner(name string) error {
	return interact.Errorf(interact.NotFound, "see the list of partners", "there is no partner %q", interact.Excerpt(name, 64))
}

// RemovePartner ends a partnership. The name stays that of the organization, so that rules keep their meaning.
func (t *Trust) RemovePartner(_ context.Context, name string) error {
	t.mu.Lock()
	p := t.book.find(name)
	if p == nil || p.removed() {
		t.mu.Unlock()
		return errNoPartner(name)
	}
	p.Removed, p.RemovedHere = t.now(), true
	t.dismissLocked(webvh.SCID(p.DID))
	err := t.sharePartnersLocked()
	t.mu.Unlock()
	t.o.Record("partner removed: " + p.Name + ", " + string(p.DID))
	t.afterPartners()
	return err
}

// afterPartners puts changed partners in force.
func (t *Trust) afterPartners() {
	t.o.OnNames()
	t.update()
	t.mu.RLock()
	own := t.ownLocked()
	t.mu.RUnlock()
	if own != nil {
		t.announce(own.scid, "")
	}
	t.repeatHello()
}

// Distrust excludes a node, or ends that.
func (t *Trust) Distrust(_ context.Context, id did.DID, on bool) error {
	if d, err := did.Parse(string(id)); err != nil || d.Method() != "key" {
		return interact.Errorf(interact.Usage, "copy the DID from the list of peers", "expected the did:key of a node, got %q", interact.Excerpt(string(id), 100))
	}
	t.mu.Lock()
	t.book.Distrusted = slices.DeleteFunc(t.book.Distrusted, func(d did.DID) bool { return d == id })
	if on {
		if len(t.book.Distrusted) >= maxDistrusted {
			t.mu.Unlock()
			return interact.Errorf(interact.Usage, "remove others first", "%d nodes are distrusted, the most that are possible", maxDistrusted)
		}
		t.book.Distrusted = append(t.book.Distrusted, id)
	}
	err := t.saveLocked()
	t.nodeLocked(id)
	t.mu.Unlock()
	t.o.Record(map[bool]string{true: "node distrusted: ", false: "node not distrusted any more: "}[on] + string(id))
	t.update()
	return err
}

// Standing returns what is known of a node.
func (t *Trust) Standing(_ context.Context, id did.DID) (*api.Standing, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := t.nodes[id]
	if n == nil {
		n = &node{}
		n.principal = t.evaluateLocked(id, n, t.now())
	}
	p := n.principal
	s := &api.Standing{DID: id, Relation: p.Relation.String(), Roles: p.Roles, Barred: p.Barred, Pending: p.Pending, Until: p.Expires}
	if c := n.credential; c != nil {
		s.Credential = c.Raw
		s.Organization = &api.OrganizationClaim{Name: nameOf(c.Issuer), DID: c.Issuer, State: "claimed"}
		if a := t.authorities[webvh.SCID(c.Issuer)]; a != nil && p.Relation >= did.Partner {
			if s.Organization.State = "own"; a.partner != nil {
				s.Organization.Name, s.Organization.State = a.partner.Name, "partner"
			}
		}
	}
	return s, nil
}

// Credential returns the credential of this node.
func (t *Trust) Credential() ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if c := t.credentialLocked(); c != nil {
		return c.Raw, nil
	}
	return nil, errNone()
}

// Document returns a public document of the own organization by its path on a web server.
func (t *Trust) Document(path string) (content []byte, mediaType string, ok bool) {
	org, err := t.mine()
	if err != nil {
		return nil, "", false
	}
	const wellKnown = "/.well-known/"
	switch {
	case path == wellKnown+"did.jsonl":
		return org.Log().Bytes(), "text/jsonl", true
	case path == wellKnown+"did.json":
		raw, err := org.Document()
		return raw, "application/did+json", err == nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, l := range t.ownLocked().lists {
		if strings.HasSuffix(l.ID, path) && strings.HasPrefix(path, wellKnown) {
			return l.Raw, "application/vc", true
		}
	}
	return nil, "", false
}

// nodeIn returns the node of a multiaddr with /p2p, or "".
func nodeIn(addr string) did.DID {
	info, err := peer.AddrInfoFromString(addr)
	if err != nil {
		return ""
	}
	node, err := did.FromPeer([]byte(info.ID))
	if err != nil {
		return ""
	}
	return node
}
