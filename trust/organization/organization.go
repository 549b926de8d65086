// Package organization stores what a node holds of its own organization: the log of its did:webvh, the credential of the node, and on some
// nodes the root key, an issuing key and the list of members.
//
// An organization has three kinds of keys. The root signs versions of the log. The next root, whose hash is in the log, replaces a stolen or
// lost root. One to four issuer nodes have an issuing key each, which the newest document lists and which signs credentials and a status list.
// The log commits to two keys, always in this order: the root and the next root. Only the next root may change the second one: a thief of
// the root cannot exclude the next root, see [CheckLog].
//
// The package uses no network. Sources: did:webvh 1.0; Bitstring Status List 1.0.
package organization

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
)

// Errors of this package. They are wrapped with the details.
var (
	// ErrExists means that the node has an organization, which a new one may not replace.
	ErrExists = errors.New("the node has an organization")
	// ErrNotIssuer means that the newest document lists no issuing key of this node.
	ErrNotIssuer = errors.New("this node is not an issuer of its organization")
	// ErrNoRoot means that the root key is not on this node.
	ErrNoRoot = errors.New("the root key of the organization is not on this node")
	// ErrNotMember means that this issuer did not admit the subject.
	ErrNotMember = errors.New("not a member of the organization")
	// ErrRevoked means that the member was revoked and not restored.
	ErrRevoked = errors.New("revoked")
	// ErrRoles means that the member does not have the roles.
	ErrRoles = errors.New("the member does not have the role")
)

// Options of [Create], [Open] and [Join].
type Options struct {
	// RecoveryFile is the path of a new file for the next root key, PKCS#8 in PEM with mode 0600. Only for [Create], which requires it
	// unless Auto is set. An existing file is an error.
	RecoveryFile string
	// Auto creates an organization that the node makes without being asked: the next root key stays in the folder. [Create] and [Join] may
	// replace such an organization while it has no other member; see [Organization.Auto]. Only for [Create].
	Auto bool
	// Endpoints are up to [MaxEndpoints] multiaddrs with /p2p of nodes at which the organization is reached, for the service #mesh of its document.
	// Only for [Create]. Empty: the document has no service.
	Endpoints []string
	// Now returns the time. Nil: [time.Now].
	Now func() time.Time
}

// An Organization is the node's own organization. Every change is durable before the method returns. It is safe for concurrent use; only
// one process may use the folder.
type Organization struct {
	dir  string
	node did.DID
	now  func() time.Time

	mu         sync.Mutex // protects all fields below
	log        *webvh.Log
	doc        *did.Document  // nil: deactivated
	credential *vc.Credential // nil: none
	root       *keystore.Key  // nil: not on this node, or replaced
	next       *keystore.Key  // the next root; nil: not on this node
	issuing    *keystore.Key  // nil: this node has none
	method     string         // DID URL of the issuing key in doc; "" if doc does not list it
	book       book
	list       *vc.List // the newest own list, signed since the start; nil: sign it

	shown atomic.Pointer[shown]
}

// shown is a copy of fields that readers get without a lock: mu is held while files are written.
type shown struct {
	log        *webvh.Log
	credential *vc.Credential
	issuing    *keystore.Key
	method     string
}

// show makes the present fields visible to readers. o.mu is held, or o is new.
func (o *Organization) show() {
	o.shown.Store(&shown{o.log, o.credential, o.issuing, o.method})
}

// Create makes an organization with this node as its first member and first issuer, in the folder dir. domain is a host name, perhaps with a
// port: "acme.example:8443". The parent of dir must exist. Create needs no network, and does not check that the node has the domain. The
// error wraps [ErrExists] if dir has an organization that may not be replaced, or fs.ErrExist if the recovery file exists.
func Create(dir, domain string, node did.DID, o Options) (_ *Organization, err error) {
	if err := replaceable(dir, node, o); err != nil {
		return nil, err
	}
	location, err := locationOf(domain)
	if err != nil {
		return nil, err
	}
	if o.RecoveryFile == "" && !o.Auto {
		return nil, interact.Errorf(interact.Usage, "name a file outside the data folder", "the next root key needs a file")
	}
	root, err1 := keystore.New()
	next, err2 := keystore.New()
	issuing, err3 := keystore.New()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	x := newOrganization(dir+freshSuffix, node, o)
	l, err := webvh.Create(location, root, webvh.Update{Document: firstDocument(location, issuing, o.Endpoints), UpdateKeys: []string{root.DID().Multibase()},
		NextKeyHashes: hashes(root, next), Now: x.now()})
	if err != nil {
		return nil, interact.Errorf(interact.Usage, "use a host name, such as acme.example", "%q: %s", domain, err)
	}
	if err := makeFresh(x.dir); err != nil {
		return nil, err
	}
	recovery := o.RecoveryFile
	if o.Auto {
		recovery = filepath.Join(x.dir, nextFile)
	}
	if err := next.Save(recovery); err != nil {
		return nil, recoveryError(err)
	}
	defer func() {
		if err != nil && !o.Auto && x.dir != dir {
			err = errors.Join(err, os.Remove(recovery))
		}
	}()
	if err := errors.Join(root.Save(x.path(rootFile)), issuing.Save(x.path(issuerFile)), x.write(logFile, l.Bytes())); err != nil {
		return nil, err
	}
	if err := x.load(); err != nil {
		return nil, err
	}
	if err := x.joinSelf(); err != nil {
		return nil, err
	}
	return x, x.commit(dir)
}

// joinSelf makes this node the first member.
func (o *Organization) joinSelf() error {
	if err := o.Admit(o.node, ""); err != nil {
		return err
	}
	c, err := o.Issue(o.node, nil, 0)
	if err != nil {
		return err
	}
	return o.SetCredential(c)
}

// Join stores an organization that this node joins: its log, and the credential of this node, which may be nil if it is still to come. If dir
// has the same organization already, Join is [Organization.SetLog] and [Organization.SetCredential]. The error wraps [ErrExists] if dir has
// another organization that may not be replaced.
func Join(dir string, l *webvh.Log, c *vc.Credential, node did.DID, o Options) (*Organization, error) {
	have, err := Open(dir, node, o)
	if err == nil && have.SCID() == l.SCID() {
		if err := have.SetLog(l); err != nil {
			return nil, err
		}
		if c == nil {
			return have, nil
		}
		return have, have.SetCredential(c)
	}
	if err := replaceable(dir, node, o); err != nil {
		return nil, err
	}
	if err := CheckLog(nil, l); err != nil {
		return nil, err
	}
	x := newOrganization(dir+freshSuffix, node, o)
	if err := makeFresh(x.dir); err != nil {
		return nil, err
	}
	if err := x.write(logFile, l.Bytes()); err != nil {
		return nil, err
	}
	if err := x.load(); err != nil {
		return nil, err
	}
	if c != nil {
		if err := x.SetCredential(c); err != nil {
			return nil, err
		}
	}
	return x, x.commit(dir)
}

// Open opens the organization in the folder dir. The error wraps fs.ErrNotExist if there is none. It completes or undoes a change that a
// crash interrupted.
func Open(dir string, node did.DID, o Options) (*Organization, error) {
	if err := settle(dir); err != nil {
		return nil, err
	}
	x := newOrganization(dir, node, o)
	return x, x.load()
}

func newOrganization(dir string, node did.DID, o Options) *Organization {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Organization{dir: dir, node: node, now: o.Now}
}

// replaceable returns an error if dir has an organization that a new one may not replace.
func replaceable(dir string, node did.DID, o Options) error {
	x, err := Open(dir, node, o)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case x.replaceable():
		return nil
	}
	return &interact.Error{Code: interact.Usage, Title: fmt.Sprintf("the node is in the organization %s", x.Name()), Hint: "leave it first", Err: ErrExists}
}

func (o *Organization) replaceable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isAuto() && len(o.book.Members) <= 1
}

// Leave deletes the folder with all keys. o must not be used afterwards. The last copy of the root key and of the next root key may be lost:
// the caller checks that.
func (o *Organization) Leave() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return removeFolder(o.dir)
}

// DID returns the DID of the organization.
func (o *Organization) DID() did.DID { return o.Log().DID() }

// SCID returns the identifier of the organization, 46 characters.
func (o *Organization) SCID() string { return o.Log().SCID() }

// Dir returns the folder. Other packages may keep files with other names in it; [Organization.Leave] deletes them, too.
func (o *Organization) Dir() string { return o.dir }

// Node returns the DID of this node.
func (o *Organization) Node() did.DID { return o.node }

// Name returns the domain of the organization, perhaps with a port: "acme.example:8443". It is a claim.
func (o *Organization) Name() string { return domainOf(o.DID()) }

// Log returns the newest log.
func (o *Organization) Log() *webvh.Log { return o.shown.Load().log }

// Credential returns the newest credential of this node, which may have expired, or nil if there is none that the newest document verifies.
func (o *Organization) Credential() *vc.Credential { return o.shown.Load().credential }

// Resolve returns the newest document of the organization. It makes o a [did.Resolver] of its own DID only: for others the error wraps
// [did.ErrNotFound].
func (o *Organization) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	l := o.Log()
	if id != l.DID() {
		return nil, fmt.Errorf("%w: %s is not the organization of this node", did.ErrNotFound, id.Short())
	}
	return l.Document()
}

// IsIssuer reports whether the newest document lists the issuing key of this node.
func (o *Organization) IsIssuer() bool { return o.shown.Load().method != "" }

// Signer returns the issuing key of this node and its DID URL, such as "did:webvh:…#i1". The error wraps [ErrNotIssuer].
func (o *Organization) Signer() (did.Signer, string, error) {
	s := o.shown.Load()
	if s.method == "" {
		return nil, "", ErrNotIssuer
	}
	return s.issuing, s.method, nil
}

// HasRoot reports whether this node has the root key that the log names.
func (o *Organization) HasRoot() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.root != nil
}

// Auto reports whether the next root key is in the folder, because the node made the organization by itself. [Organization.SaveRecovery]
// ends that.
func (o *Organization) Auto() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isAuto()
}

func (o *Organization) isAuto() bool { return o.next != nil }

// Issuers returns the DID URLs of the issuing keys in the newest document, in its order. It is empty after the end of the organization.
func (o *Organization) Issuers() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doc == nil {
		return nil
	}
	return append([]string{}, o.doc.AssertionMethod...)
}

// SetCredential stores a credential of this node from its organization. It must verify against the newest document and be valid now.
func (o *Organization) SetCredential(c *vc.Credential) error {
	v, err := vc.Verify(context.Background(), c.Raw, vc.Check{Resolver: o, Now: o.now()})
	switch {
	case err != nil:
		return fmt.Errorf("credential of this node: %w", err)
	case v.Type != vc.Node || v.Subject != o.node:
		return fmt.Errorf("%w: it is of %s, not of this node", vc.ErrInvalid, v.Subject.Short())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.write(credentialFile, v.Raw); err != nil {
		return err
	}
	o.credential = v
	o.show()
	return nil
}

// Document returns the did:web document of the organization, for https://DOMAIN/.well-known/did.json. The error wraps
// [webvh.ErrDeactivated].
func (o *Organization) Document() (json.RawMessage, error) {
	l := o.Log()
	if l.Deactivated() {
		return nil, webvh.ErrDeactivated
	}
	return l.WebDocument()
}

// locationOf returns the location of a domain as a did:webvh has it.
func locationOf(domain string) (string, error) {
	location := strings.Replace(strings.ToLower(domain), ":", "%3A", 1)
	if domain == "" || strings.ContainsAny(domain, "/%") || strings.Contains(location, ":") {
		return "", interact.Errorf(interact.Usage, "use a host name, such as acme.example", "expected a domain, got %q", interact.Excerpt(domain, 100))
	}
	return location, nil
}

// domainOf returns the domain of a did:webvh.
func domainOf(id did.DID) string {
	host, _, _ := strings.Cut(webvh.Location(id), ":")
	return strings.Replace(host, "%3A", ":", 1)
}
