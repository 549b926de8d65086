package trust

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/p2p/relay"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
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
		return interact.Errorf(interact.Usage, "end the membership of this node first", "%v", err).Then(interact.StepOrgLeave)
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
	o.Now, o.Endpoints = t.o.Now, t.entryAddrs()
	org, err := organization.Create(t.orgDir(), domain, t.self, o)
	if err != nil {
		return nil, userError(err)
	}
	if err := t.adopt(org); err != nil {
		return nil, err
	}
	return t.Organization()
}

// replaceable returns an error if the organization of this node has partners: another one may not take its place.
func (t *Trust) replaceable() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.org != nil && slices.ContainsFunc(t.book.Partners, func(p *partners.Partner) bool { return !p.IsRemoved() }) {
		return interact.Errorf(interact.Usage, "end the partnerships first", "the organization of this node has partners")
	}
	return nil
}

// adopt makes org the organization of this node. issuers are addresses of issuer nodes.
func (t *Trust) adopt(org *organization.Organization, issuers ...string) error {
	if err := t.setOrganization(org, issuers); err != nil {
		return err
	}
	t.o.Record("organization of this node: " + string(org.DID()))
	t.o.OnNames()
	t.update()
	t.repeatHello()
	return nil
}

func (t *Trust) setOrganization(org *organization.Organization, issuers []string) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	isOther := t.org != nil && t.org.SCID() != org.SCID()
	if isOther {
		if err := t.invites.Clear(); err != nil {
			return err
		}
	}
	err := t.editWriting(func(b *partners.Book) error {
		if isOther {
			b.Shared, b.SharedHead, b.SharedBy = 0, "", ""
		}
		if isOther || len(issuers) > 0 { // an issuer may have replaced its key since
			b.IssuerNodes = nil
		}
		for _, addr := range issuers {
			b.Issuers = addAddr(b.Issuers, addr)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	if isOther {
		t.dismissLocked(t.org.SCID())
	}
	t.org, t.renewed = org, time.Time{}
	t.mu.Unlock()
	return t.addOwn()
}

// repeatHello repeats the hello with all connected peers, after the organizations or the credential of this node have changed.
func (t *Trust) repeatHello() {
	t.mu.RLock()
	all := t.peersLocked(func(*did.Principal) bool { return true })
	t.mu.RUnlock()
	t.start(func(ctx context.Context) {
		for _, id := range all {
			if ctx.Err() == nil {
				t.hello(ctx, id)
			}
		}
		t.confirmDue(ctx)
		t.update()
	})
}

// Leave ends the membership of this node, and deletes what it has of the organization, its partners and its open invitations. The other
// members keep the partners.
func (t *Trust) Leave(context.Context) error {
	if err := t.leave(); err != nil {
		return err
	}
	t.o.OnNames()
	t.update()
	return nil
}

func (t *Trust) leave() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.org == nil {
		return errNone()
	}
	if err := errors.Join(t.invites.Clear(), t.org.Leave()); err != nil {
		return err
	}
	t.mu.Lock()
	for _, scid := range sortedKeys(t.authorities) {
		t.dismissLocked(scid)
	}
	t.org = nil
	t.mu.Unlock()
	return t.editWriting(func(b *partners.Book) error {
		b.Partners, b.Issuers, b.IssuerNodes, b.Shared, b.SharedHead, b.SharedBy = nil, nil, nil, 0, "", ""
		return nil
	})
}

// Organization returns the organization of this node. The error is NotFound if it has none.
func (t *Trust) Organization() (*api.Organization, error) {
	org, err := t.mine()
	if err != nil {
		return nil, err
	}
	now := t.now()
	out := &api.Organization{DID: org.DID(), SCID: org.SCID(), Name: org.Name(), Auto: org.Auto(), Head: org.Log().Head(),
		State: api.OrganizationUnconfirmed, Roles: []string{}, Issuer: org.IsIssuer(), Root: org.HasRoot(), Bootstrap: org.Endpoints()}
	members := org.Members()
	t.mu.RLock()
	defer t.mu.RUnlock()
	a := t.ownLocked()
	if a == nil {
		return nil, errNone()
	}
	own := t.ownMethodLocked(a)
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
	if org.Log().Deactivated() {
		out.State = api.OrganizationEnded
	}
	for _, method := range a.Methods() {
		_, fragment, _ := strings.Cut(method, "#")
		i := api.Issuer{Method: "#" + fragment, This: method == own, Node: t.book.IssuerNodes[method]}
		if i.This {
			i.Node = t.self
		}
		if l := a.List(method); l != nil {
			i.ListVersion, i.ListFrom = l.Version, l.From
		}
		out.Issuers = append(out.Issuers, i)
	}
	for _, m := range members {
		out.Members = append(out.Members, api.Member{DID: m.DID, Roles: m.Roles, Until: m.Until, Revoked: m.Revoked,
			Connected: m.DID == t.self || t.online[m.DID] != nil})
	}
	return out, nil
}

// publicAddrs returns addresses of this node for others, at most n: loopback only if there is nothing else.
func (t *Trust) publicAddrs(n int) []string {
	all := t.addrs()
	far := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return strings.Contains(a, "/ip4/127.") || strings.Contains(a, "/ip6/::1/") })
	if len(far) > 0 {
		all = far
	}
	return all[:min(len(all), n)]
}

// entryAddrs returns the addresses of this node for the document of the organization, which is public and lasts: without relays, and those of the
// local network only if there are no others.
func (t *Trust) entryAddrs() []string {
	var far, local []string
	for _, text := range t.publicAddrs(math.MaxInt) {
		switch a, err := multiaddr.NewMultiaddr(text); {
		case err != nil || relay.IsCircuit(a):
		case isLocalAddr(a):
			local = append(local, text)
		default:
			far = append(far, text)
		}
	}
	if len(far) == 0 {
		far = local
	}
	return far[:min(len(far), organization.MaxEndpoints)]
}

// SetBootstrap replaces the addresses of nodes in the document of the organization, through which others join its mesh. Nil: those of this node.
func (t *Trust) SetBootstrap(_ context.Context, all []string) (*api.Organization, error) {
	if all == nil {
		if all = t.entryAddrs(); len(all) == 0 {
			return nil, interact.Errorf(interact.Usage, "name the addresses", "this node has no address that others can dial without a relay")
		}
	}
	for _, a := range all {
		if exchange.NodeIn(a) == "" {
			return nil, interact.Errorf(interact.Usage, "copy an address of that node, like /ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooW…",
				"expected the address of a node, got %q", interact.Excerpt(a, 200)).Then(interact.StepID)
		}
	}
	org, err := t.mine()
	if err == nil && !slices.Equal(org.Endpoints(), all) { // versions of the log stay
		err = t.change(func(org *organization.Organization) error { return org.SetEndpoints(all) })
	}
	if err != nil {
		return nil, err
	}
	return t.Organization()
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
		err = t.edit(func(b *partners.Book) error {
			maps.DeleteFunc(b.Offers, func(_ string, old partners.Offer) bool { return t.now().After(old.Expires.Add(invitation.MaxLife)) })
			if b.Offers == nil {
				b.Offers = map[string]partners.Offer{}
			}
			b.Offers[made.ID()] = partners.Offer{Until: r.Until, Issuer: r.Issuer, Expires: made.Expires}
			return nil
		})
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

// changed puts a change of the own organization in force: its log or its list. Then it acts on it.
func (t *Trust) changed() { t.act(t.enforce()) }

// enforce puts a change of the own organization in force: from its return on, others get the new documents. a is nil without an organization.
// before are the nodes that might get the log before, if it has changed.
func (t *Trust) enforce() (a *trusted, before []did.DID) {
	t.writing.Lock()
	defer t.writing.Unlock()
	a = t.ownLocked() // writing owns it, too
	if a != nil && a.Log() != t.org.Log() {
		l := t.org.Log()
		t.mu.RLock()
		before = t.peersLocked(func(p *did.Principal) bool { return t.mayGetLocked(p, a) })
		t.mu.RUnlock()
		r := a.AfterLog(l, t.now())
		if err := t.folder(a.SCID()).WriteRecord(a.Authority, r); err != nil {
			t.o.Log.Warn("revocations of a removed issuer not stored", "err", err)
		}
		t.mu.Lock()
		a.SetLog(l, r)
		t.mu.Unlock()
	}
	t.signOwnList()
	return a, before
}

// act evaluates the nodes after [Trust.enforce], which may end their connections, and announces the change.
func (t *Trust) act(a *trusted, before []did.DID) {
	if a == nil {
		return
	}
	t.update()
	t.announce(a.SCID(), "")
	t.announceLog(a, before)
}

// announceLog sends the version of the own log to nodes whose credentials it ends, and which announce leaves out for that.
func (t *Trust) announceLog(a *trusted, before []did.DID) {
	t.mu.RLock()
	after := t.peersLocked(func(p *did.Principal) bool { return t.mayGetLocked(p, a) })
	known := slices.DeleteFunc(knownOf(a), func(k exchange.Known) bool { return k.Kind != exchange.KindLog })
	t.mu.RUnlock()
	for _, id := range before {
		if slices.Contains(after, id) {
			continue
		}
		t.start(func(ctx context.Context) {
			if _, err := t.net.Ask(ctx, id, &exchange.Request{Op: exchange.OpHave, Known: known}); err != nil {
				t.o.Log.Debug("log not announced", "peer", id.Short(), "err", err)
			}
		})
	}
}

// SetRoles changes the roles of a member, which gets a credential with them now if it is this node or connected.
func (t *Trust) SetRoles(ctx context.Context, member did.DID, roles []string) error {
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
	if member == t.self {
		if err := t.renew(ctx); err != nil {
			t.o.Log.Warn("credential not renewed", "err", err)
		}
		return nil
	}
	t.notify(member)
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
	for _, method := range a.Methods() {
		switch t.issuerLocked(a, method) {
		case member:
			ids = append(ids, a.Key(method))
		case "":
			if method != t.ownMethodLocked(a) {
				_, fragment, _ := strings.Cut(method, "#")
				unknown = append(unknown, "#"+fragment)
			}
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
	t.notify(member)
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
		var r *exchange.Response
		if r, err = t.net.Ask(ctx, node, &exchange.Request{Op: exchange.OpKey}); err == nil {
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
	err = t.bind(method, node)
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

// RemoveIssuer removes an issuing key from the log: a DID URL, or "#i2".
func (t *Trust) RemoveIssuer(_ context.Context, method string) error {
	return t.change(func(org *organization.Organization) error {
		if err := t.keepRevoked(method); err != nil {
			return err
		}
		return org.RemoveIssuer(method)
	})
}

// keepRevoked stores whom an issuer of the own organization has revoked, so that they stay excluded without it.
func (t *Trust) keepRevoked(method string) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	a := t.ownLocked() // writing owns it, too
	if a == nil {
		return nil
	}
	return t.folder(a.SCID()).WriteRecord(a.Authority, a.Keep(t.org.Method(method), t.now()))
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

// change changes the log or the keys of the own organization.
func (t *Trust) change(f func(*organization.Organization) error) error {
	org, err := t.mine()
	if err != nil {
		return err
	}
	if err := f(org); err != nil {
		return userError(err)
	}
	t.o.Record("keys or document of the organization changed: " + org.Log().Head())
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
		if !p.IsRemoved() {
			out = append(out, *t.describeLocked(p))
		}
	}
	return out
}

func (t *Trust) describeLocked(p *partners.Partner) *api.Partner {
	scid := webvh.SCID(p.DID)
	out := &api.Partner{Name: p.Name, DID: p.DID, SCID: scid, State: api.PartnerActive, Other: p.Other, Roles: p.Roles, Since: p.Since, Until: p.Until, Words: p.Words}
	if a := t.authorities[scid]; a != nil {
		out.Head = a.Log().Head()
	}
	switch {
	case p.Forked:
		out.State = api.PartnerSuspended
	case p.HasEnded(t.now()):
		out.State = api.PartnerExpired
	case !p.Confirmed:
		out.State = api.PartnerUnconfirmed
	}
	for _, n := range t.online {
		if webvh.SCID(n.principal.Org) == scid {
			out.Connected++
		}
	}
	return out
}

// Confirm notes that the operator has compared the check words of a partner. head is a version of the history that the operator chooses if
// there are two; it is empty if there is one.
func (t *Trust) Confirm(_ context.Context, name, head string) (*api.Partner, error) {
	if err := t.choose(name, head); err != nil {
		return nil, err
	}
	p, err := t.changePartner(name, "partner confirmed", func(p *partners.Partner) {
		p.Confirmed, p.Forked, p.Other = true, false, ""
		p.Chosen = cmp.Or(head, p.Chosen)
	})
	if err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.describeLocked(p), nil
}

// choose uses the history of the log of a partner that has a version. The other one stays as evidence.
func (t *Trust) choose(name, head string) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	p := t.book.Find(name)
	if p == nil || p.IsRemoved() {
		return errNoPartner(name)
	}
	a := t.authorities[p.SCID()]
	if head == "" && !p.Forked || a == nil {
		return nil
	}
	folder := t.folder(p.SCID())
	other, err := folder.Other()
	switch {
	case err != nil:
		return err
	case other == nil:
		return interact.Errorf(interact.Usage, "confirm it without a version", "the log of %s has one history", p.Name)
	case head == "" || a.Log().Has(head) == other.Has(head):
		return interact.Errorf(interact.Usage, "compare the versions with the operator of "+p.Name+", and name the right one",
			"the log of %s has two histories: %s of %s, and %s of %s", p.Name, a.Log().Head(), a.Log().Updated().Format(time.RFC3339), other.Head(),
			other.Updated().Format(time.RFC3339))
	case a.Log().Has(head):
		return nil
	}
	if err := folder.WriteOther(a.Log()); err != nil {
		return err
	}
	return t.useLog(a, other)
}

// changePartner changes a partner as its operator wants, and tells the members.
func (t *Trust) changePartner(name, what string, f func(*partners.Partner)) (p *partners.Partner, err error) {
	err = t.edit(func(b *partners.Book) error {
		if p = b.Find(name); p == nil || p.IsRemoved() {
			return errNoPartner(name)
		}
		p = b.Change(p, t.now(), f)
		if a := t.authorities[p.SCID()]; a != nil {
			p.DID = a.DID() // another history may have another
		}
		return t.share(b)
	})
	if err != nil {
		return nil, err
	}
	t.o.Record(what + ": " + p.Name + ", " + string(p.DID))
	t.afterPartners()
	return p, nil
}

func errNoPartner(name string) error {
	return interact.Errorf(interact.NotFound, "see the list of partners", "there is no partner %q", interact.Excerpt(name, 64))
}

// RemovePartner ends a partnership. The name stays that of the organization, so that rules keep their meaning.
func (t *Trust) RemovePartner(_ context.Context, name string) error {
	_, err := t.changePartner(name, "partner removed", func(p *partners.Partner) { p.Removed = t.now().UTC() })
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
		t.announce(own.SCID(), "")
	}
	t.repeatHello()
}

// Distrust excludes a node, or ends that.
func (t *Trust) Distrust(_ context.Context, id did.DID, on bool) error {
	if d, err := did.Parse(string(id)); err != nil || d.Method() != "key" {
		return interact.Errorf(interact.Usage, "copy the DID from the list of peers", "expected the did:key of a node, got %q", interact.Excerpt(string(id), 100))
	}
	err := t.edit(func(b *partners.Book) error {
		b.Distrusted = slices.DeleteFunc(b.Distrusted, func(d did.DID) bool { return d == id })
		if on {
			if len(b.Distrusted) >= partners.MaxDistrusted {
				return interact.Errorf(interact.Usage, "remove others first", "%d nodes are distrusted, the most that are possible", partners.MaxDistrusted)
			}
			b.Distrusted = append(b.Distrusted, id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.Principal(id) // so that the change is reported
	t.o.Record(map[bool]string{true: "node distrusted: ", false: "node not distrusted any more: "}[on] + string(id))
	t.update()
	return nil
}

// Standing returns what is known of a node.
func (t *Trust) Standing(_ context.Context, id did.DID) (*api.Standing, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := t.nodes[id]
	if n == nil {
		n = &node{id: id, place: -1}
		n.principal = t.evaluateLocked(id, n, t.now())
	}
	p := n.principal
	s := &api.Standing{DID: id, Relation: p.Relation.String(), Roles: p.Roles, Barred: p.Barred, Pending: p.Pending, Until: p.Expires}
	if c := n.credential; c != nil {
		s.Credential = c.Raw
		s.Organization = &api.OrganizationClaim{Name: partners.NameOf(c.Issuer), DID: c.Issuer, State: string(directory.ClaimedOrganization)}
		if a := t.authorities[webvh.SCID(c.Issuer)]; a != nil && p.Relation >= did.Partner {
			s.Organization = a.claim()
		} else if former := t.book.Find(string(c.Issuer)); former != nil && former.IsRemoved() {
			s.Organization.Name, s.Organization.State = former.Name, "former"
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
	if a := t.ownLocked(); a != nil {
		for _, method := range a.Methods() {
			if l := a.List(method); l != nil && strings.HasSuffix(l.ID, path) && strings.HasPrefix(path, wellKnown) {
				return l.Raw, "application/vc", true
			}
		}
	}
	return nil, "", false
}
