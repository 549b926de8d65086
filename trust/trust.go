// Package trust determines who a node is: it keeps the organization of this node and its partners in force, and turns the credentials that
// nodes show into principals.
//
// A node shows its credential to the peers that look for its organization (hello.go). The credential counts while the organization counts
// here, and what is known of it says so ([github.com/lmosd/lmosd/trust/authority]). After a start, and after five minutes alone, the state of
// an organization must be confirmed by a node other than the one in question (evidence.go): a revoked node cannot hide its revocation.
// standing.go has the principals of nodes, documents.go gets what other nodes have, share.go merges the partners of several issuers, checkpoints.go
// exchanges the heads of audit logs, credentials.go takes credentials of foreign issuers, agents.go has the agents for which nodes
// call, groups.go carries the requests of package group. What an operator does is in admin.go and join.go.
//
// Subpackages: authority has what is known of one organization, exchange the protocol, partners the trust store, organization the keys and the
// log of the own organization, invitation the strings by which nodes and partners join, foreign credentials of
// issuers that are no organization, proven the organizations whose domain served their log.
//
// Sources: did:webvh 1.0; Verifiable Credentials Data Model 2.0; Bitstring Status List 1.0.
package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/internal/netguard"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/trust/authority"
	"github.com/lmosd/lmosd/trust/exchange"
	"github.com/lmosd/lmosd/trust/foreign"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
	"github.com/lmosd/lmosd/trust/partners"
	"github.com/lmosd/lmosd/trust/proven"
)

// Options configure a [Trust].
type Options struct {
	// Dir is the data directory; it contains org/, trust/ and trust.json. Empty: the node has no organization and no partners.
	Dir string
	// Self is the DID of the node.
	Self did.DID
	// Network is part of the protocol id and of invitations.
	Network string
	// OnChange is called after the standing of a node has changed, with its principals. OnNames is called after the names of organizations have changed.
	// OnHello is called when a new peer has shown its credential, or has none. They must not block. Nil is ignored.
	OnChange func(node did.DID, before, after *did.Principal)
	OnNames  func()
	OnHello  func(node did.DID)
	// Record receives each change of organizations, partners and members, as a sentence. It must not block. Nil is ignored.
	Record func(change string)
	// Checkpoints has the checkpoints of audit logs, which members keep of each other. Nil: this node takes no part.
	Checkpoints Checkpoints
	// Rotation is the replacement of the key of this node that is not completed; nil: none.
	Rotation *rotation.Pending
	// Web fetches the documents of organizations whose domain is checked. Without Dial, it connects to public addresses only.
	Web weblocation.Options
	// Joins reports whether nodes of the local network may ask this node, if it is an issuer, to make them members. Nil: they may not.
	Joins func() bool
	// Now returns the time, without a monotonic reading, so that a machine that slept counts as alone. Nil: the current time.
	Now func() time.Time
	Log *slog.Logger

	confirmPause time.Duration // 0 is the constant; of tests
}

// A trusted organization is one whose credentials count here: the own one or a partner. Trust.mu owns it.
type trusted struct {
	*authority.Authority
	partner *partners.Partner // nil: the own organization
	ended   bool              // the partnership, when its members were evaluated
}

// A Trust knows the organization and the partners of a node. It is safe for concurrent use.
type Trust struct {
	o       Options
	self    did.DID
	host    host.Host // of Start, as the next three; nil: the node has no network yet
	addrs   func() []string
	net     *exchange.Exchange
	notifee *network.NotifyBundle
	fetches fetches
	proven  proven.Organizations
	// verifying are the slots of verifications of claimed memberships.
	verifying chan struct{}
	things    atomic.Pointer[Things] // nil: none are served
	groups    atomic.Pointer[Groups] // nil: there are none
	// delegations answers requests about delegations; nil: none are answered.
	delegations atomic.Pointer[Carried]
	links       atomic.Pointer[Carried] // answers requests about connections; nil: none are answered
	invites     *invitation.Store       // nil without Options.Dir
	joins       joins
	agents      agents
	issuers     issuerDocuments // of foreign issuers

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup // the goroutines of background

	// writing is held while documents are stored and put in force: their order on the disk is that in memory. It is locked before mu.
	writing sync.Mutex

	// mu owns what follows. It is never held during a write to the disk. The organizations, their documents and the book change while
	// writing is held, too.
	mu          sync.RWMutex
	closed      bool
	org         *organization.Organization // nil: none
	book        *partners.Book             // immutable
	distrusted  map[did.DID]bool           // those of book
	authorities map[string]*trusted        // by SCID
	former      []*trusted                 // removed partners: whom they revoked stays barred
	confirming  bool                       // a goroutine confirms and renews
	renewed     time.Time                  // of the last attempt to renew the credential
	asked       map[question]time.Time
	announced   string    // hash of the checkpoint that was announced last
	announcedAt time.Time // its time
	started     time.Time
	shown       shown
	register
}

// New opens the trust store. It uses no network before [Trust.Start].
func New(o Options) (*Trust, error) {
	o.complete()
	t := &Trust{o: o, self: o.Self, book: partners.New(), authorities: map[string]*trusted{}, asked: map[question]time.Time{}, register: newRegister(), verifying: make(chan struct{}, maxVerifying)}
	t.started = t.now()
	t.issuers.open(&t.o)
	t.ctx, t.end = context.WithCancel(context.Background())
	if o.Dir != "" {
		if err := t.open(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Start serves the protocol at a host, through which it dials other nodes. addrs returns the multiaddrs of this node with /p2p, for invitations.
// The caller calls it once, and closes the Trust before the host.
func (t *Trust) Start(h host.Host, addrs func() []string) {
	t.host, t.addrs = h, addrs
	t.net = exchange.New(exchange.Options{Network: t.o.Network, Host: h, Handle: t.serve, Now: t.o.Now, Log: t.o.Log})
	t.net.Start()
	t.notifee = &network.NotifyBundle{ConnectedF: t.connected, DisconnectedF: t.disconnected}
	h.Network().Notify(t.notifee)
}

// Documents returns the documents of the own organization and of partners, as this node has stored them. They list nodes of their organizations.
// A nil Trust has none.
func (t *Trust) Documents() (all []*did.Document) {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, scid := range t.soughtLocked() {
		a := t.authorities[scid]
		if a == nil || a.partner != nil && (a.partner.Forked || a.partner.HasEnded(t.now())) {
			continue
		}
		if doc, err := a.Log().Document(); err == nil { // else it is deactivated
			all = append(all, doc)
		}
	}
	return all
}

func (o *Options) complete() {
	if o.OnChange == nil {
		o.OnChange = func(did.DID, *did.Principal, *did.Principal) {}
	}
	if o.OnNames == nil {
		o.OnNames = func() {}
	}
	if o.OnHello == nil {
		o.OnHello = func(did.DID) {}
	}
	if o.Joins == nil {
		o.Joins = func() bool { return false }
	}
	o.confirmPause = cmp.Or(o.confirmPause, confirmPause)
	if o.Record == nil {
		o.Record = func(string) {}
	}
	if o.Web.Dial == nil {
		o.Web.Dial = netguard.Public().DialContext
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().Round(0) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func (t *Trust) now() time.Time { return t.o.Now() }

func (t *Trust) orgDir() string { return orgDir(t.o.Dir) }

func orgDir(dir string) string { return filepath.Join(dir, "org") }

// folder returns the folder of an organization.
func (t *Trust) folder(scid string) authority.Folder {
	if t.o.Dir == "" {
		return ""
	}
	return authority.Folder(filepath.Join(t.o.Dir, "trust", scid))
}

// open reads the organization, the partners, and the logs and lists that were stored.
func (t *Trust) open() (err error) {
	if t.invites, err = invitation.OpenStore(filepath.Join(t.o.Dir, "invitations.json"), t.o.Now); err != nil {
		return fmt.Errorf("read the invitations: %w", err)
	}
	b, err := partners.Read(t.bookFile())
	if err != nil {
		return fmt.Errorf("read trust.json: %w", err)
	}
	t.useLocked(b)
	if t.shown.held, err = foreign.Read(t.heldFile()); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(t.heldFile()), err)
	}
	switch t.org, err = organization.Open(t.orgDir(), t.self, organization.Options{Now: t.o.Now}); {
	case errors.Is(err, fs.ErrNotExist):
		t.org = nil
	case err != nil:
		return fmt.Errorf("open the organization: %w", err)
	default:
		t.adoptCredential()
		if err := t.addOwn(); err != nil {
			return fmt.Errorf("read the status lists: %w", err)
		}
	}
	for _, p := range b.Partners {
		a, err := t.stored(p)
		switch {
		case err != nil: // one damaged file costs one partner
			t.o.Log.Error("partner not loaded: its documents cannot be read", "name", p.Name, "err", err)
		case a != nil && p.IsRemoved():
			t.former = append(t.former, a)
		case a != nil:
			t.authorities[a.SCID()] = a
		}
	}
	return nil
}

func (t *Trust) bookFile() string { return filepath.Join(t.o.Dir, "trust.json") }

// stored returns a partner with its stored documents, or nil if there are none.
func (t *Trust) stored(p *partners.Partner) (*trusted, error) {
	l, err := t.folder(p.SCID()).Log()
	if l == nil {
		return nil, err
	}
	return t.load(l, p)
}

// load returns an organization with a log and its stored lists.
func (t *Trust) load(l *webvh.Log, p *partners.Partner) (*trusted, error) {
	a := &trusted{Authority: authority.New(l), partner: p}
	return a, t.folder(l.SCID()).Load(a.Authority, t.now())
}

// addOwn makes the own organization one whose credentials count. writing is held, and mu is not.
func (t *Trust) addOwn() error {
	a, err := t.load(t.org.Log(), nil)
	if err != nil {
		return err
	}
	t.mu.Lock()
	if old := t.authorities[a.SCID()]; old != nil {
		t.touchExcludedLocked(old)
	}
	t.authorities[a.SCID()] = a
	t.mu.Unlock()
	t.signOwnList()
	return nil
}

// dismissLocked ends the standing of the members of an organization. Whom a partner revoked stays barred.
func (t *Trust) dismissLocked(scid string) {
	if a := t.authorities[scid]; a != nil {
		delete(t.authorities, scid)
		t.touchMembersLocked(scid)
		if a.partner != nil {
			t.former = append(t.former, a)
		} else {
			t.touchExcludedLocked(a)
		}
	}
}

// touchExcludedLocked notes that an organization, which is replaced or removed, excludes no node any more.
func (t *Trust) touchExcludedLocked(old *trusted) {
	old.Touch()
	_, nodes := old.TakeChanges(t.now())
	maps.Copy(t.touched, nodes)
}

// edit changes the trust store: durably first, then in force. f changes a copy.
func (t *Trust) edit(f func(b *partners.Book) error) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	return t.editWriting(f)
}

// editWriting is edit for callers that hold writing.
func (t *Trust) editWriting(f func(b *partners.Book) error) error {
	b := t.book.Clone()
	if err := f(b); err != nil {
		return err
	}
	if t.o.Dir != "" {
		if err := b.Write(t.bookFile()); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.useLocked(b)
	return nil
}

// useLocked puts a trust store in force.
func (t *Trust) useLocked(b *partners.Book) {
	before := t.distrusted
	t.book, t.distrusted = b, map[did.DID]bool{}
	for _, id := range b.Distrusted {
		t.distrusted[id] = true
		if !before[id] {
			t.touched[id] = true
		}
	}
	for id := range before {
		if !t.distrusted[id] {
			t.touched[id] = true
		}
	}
	for scid, a := range t.authorities {
		switch p := b.Find(scid); {
		case a.partner == nil || p == a.partner:
		case p == nil || p.IsRemoved():
			t.dismissLocked(scid)
		default:
			a.partner = p
			a.Touch()
		}
	}
}

// signOwnList takes the status list of this issuer, signed again if it is due, and reports whether it is new. writing is held, and mu is not.
func (t *Trust) signOwnList() bool {
	a := t.ownLocked() // writing owns it, too
	if a == nil || !t.org.IsIssuer() {
		return false
	}
	l, err := t.org.List(false)
	if err != nil {
		t.o.Log.Warn("status list not signed", "err", err)
		return false
	}
	if old := a.List(l.Method); old != nil && old.Version >= l.Version {
		return false
	}
	r := a.AfterList(l)
	if err := t.folder(a.SCID()).WriteRecord(a.Authority, r); err != nil {
		t.o.Log.Warn("revocations not stored", "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.SetList(l, r, t.now())
	return true
}

// ownLocked returns the own organization, or nil.
func (t *Trust) ownLocked() *trusted {
	if t.org == nil {
		return nil
	}
	return t.authorities[t.org.SCID()]
}

// resolverLocked returns the documents of the organizations that count here.
func (t *Trust) resolverLocked() did.Resolver {
	logs := make(resolver, len(t.authorities))
	for _, a := range t.authorities {
		logs[a.DID()] = a.Log()
	}
	return logs
}

type resolver map[did.DID]*webvh.Log

// Resolve implements [did.Resolver].
func (r resolver) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	l := r[id]
	if l == nil {
		return nil, fmt.Errorf("%w: %s is neither the own organization nor a partner", did.ErrNotFound, id.Short())
	}
	return l.Document()
}

// Named returns the organization or the foreign issuer that rules call name: "own", the name of a partner or an issuer, or of a former one (rules.Options.Organization).
func (t *Trust) Named(name string) (did.DID, bool) {
	if t == nil {
		return "", false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if name == "own" || t.org != nil && name == partners.NameOf(t.org.DID()) {
		if t.org == nil {
			return "", false
		}
		return t.org.DID(), true
	}
	if p := t.book.Find(name); p != nil {
		return p.DID, true
	}
	if i := t.book.FindIssuer(name); i != nil && name == i.Name {
		return i.DID, true
	}
	return "", false
}

// Names returns the names of the partners, without former ones. A nil Trust has none.
func (t *Trust) Names() (all []string) {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.book.Partners {
		if !p.IsRemoved() {
			all = append(all, p.Name)
		}
	}
	return all
}

// background runs f until it returns, with a context that ends with Close. Nothing starts after Close.
func (t *Trust) background(f func(ctx context.Context)) {
	if t.ctx.Err() == nil {
		t.work.Go(func() { f(t.ctx) })
	}
}

// start is background for callers that do not hold mu.
func (t *Trust) start(f func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.background(f)
	}
}

// Intervals of the checks of Run: while a connected node is pending, they start at quick and double up to tick.
const (
	tick  = 15 * time.Second
	quick = time.Second
)

// Run keeps the credential, the lists and the standings current, until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	ticker := time.NewTicker(quick)
	defer ticker.Stop()
	if t.o.Rotation.Follows(t.self) {
		t.start(t.completeRotation)
	}
	t.maintain()
	last, pause := time.Now(), quick
	loop := heartbeat.Start(ctx, "organization", quick)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		loop.Beat()
		waits, since := t.waits(), time.Since(last)
		if !waits {
			pause = quick
		}
		if since < tick-quick/2 && (!waits || since < pause-quick/2) {
			continue
		}
		if waits {
			pause = min(2*pause, tick)
		}
		last = time.Now()
		t.maintain()
	}
}

// waits reports whether a connected node is pending.
func (t *Trust) waits() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, n := range t.online {
		if n.principal.Pending != "" {
			return true
		}
	}
	return false
}

// maintain does once what Run does.
func (t *Trust) maintain() {
	t.writing.Lock()
	issued := t.signOwnList()
	t.writing.Unlock()
	t.mu.Lock()
	now, own := t.now(), t.ownLocked()
	t.contactLocked(now)
	var outdated []did.DID // a renewal fails while this issuer does not know what the others revoked
	for id, n := range t.online {
		if t.isOutdatedLocked(n) {
			outdated = append(outdated, id)
		}
	}
	t.mu.Unlock()
	for _, id := range outdated {
		t.notify(id)
	}
	if issued {
		t.announce(own.SCID(), "")
	}
	t.announceCheckpoint()
	t.update()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.confirming || t.closed {
		return
	}
	t.confirming = true
	t.background(func(ctx context.Context) {
		t.renewDue(ctx)
		t.confirmDue(ctx)
		t.shareDue()
		t.update()
		t.mu.Lock()
		t.confirming = false
		t.mu.Unlock()
	})
}

// contactLocked tells each organization which connected nodes could report a revocation: members of the own organization, and witnesses.
func (t *Trust) contactLocked(now time.Time) {
	var own, others []did.DID
	for id, n := range t.online {
		switch {
		case n.principal.Barred != "" || id == t.self:
		case n.principal.Relation == did.Own:
			own = append(own, id)
		default:
			others = append(others, id)
		}
	}
	for _, a := range t.authorities {
		witnesses := slices.DeleteFunc(slices.Clone(others), func(id did.DID) bool { return !a.IsWitness(id) })
		a.Contact(append(witnesses, own...), now)
	}
}

// Close ends what [Trust.Start] began, and returns after the last goroutine.
func (t *Trust) Close() error {
	t.mu.Lock()
	t.closed = true
	t.end()
	t.mu.Unlock()
	if t.net != nil {
		t.host.Network().StopNotify(t.notifee)
		t.net.Close()
	}
	t.work.Wait()
	return nil
}

// peersLocked returns the connected nodes that satisfy want.
func (t *Trust) peersLocked(want func(*did.Principal) bool) []did.DID {
	var all []did.DID
	for id, n := range t.online {
		if id != t.self && want(n.principal) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
