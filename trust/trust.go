// Package trust determines who a node is: it keeps the organization of this node and its partners, exchanges credentials and status lists
// with other nodes, and turns them into principals.
//
// A node shows its credential to the peers that look for its organization (wire.go, exchange.go, serve.go). The credential counts while a
// status list of the organization is valid and nobody has revoked it (authority.go). After a start, and after five minutes alone, the state
// of an organization must be confirmed by a node other than the one in question (evidence.go): a revoked node cannot hide its revocation.
// standing.go has the principals of nodes, partners.go the trust store, admin.go what an operator does.
//
// Subpackages: organization has the keys and the log of the own organization, invitation the strings by which nodes and partners join.
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
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/vc"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/streamserver"
	"github.com/lmosd/lmosd/trust/invitation"
	"github.com/lmosd/lmosd/trust/organization"
)

// Options configure a [Trust].
type Options struct {
	// Dir is the data directory; it contains org/, trust/ and trust.json. Empty: the node has no organization and no partners.
	Dir string
	// Self is the DID of the node.
	Self did.DID
	// Network is part of the protocol id and of invitations.
	Network string
	// Host serves the protocol and dials other nodes. Required.
	Host host.Host
	// Addrs returns the multiaddrs of this node with /p2p, for invitations.
	Addrs func() []string
	// OnChange is called after the standing of a node has changed, with its principals. OnNames is called after the names of organizations have changed.
	// OnHello is called when a new peer has shown its credential, or has none. They must not block. Nil is ignored.
	OnChange func(node did.DID, before, after *did.Principal)
	OnNames  func()
	OnHello  func(node did.DID)
	// Record receives each change of organizations, partners and members, as a sentence. It must not block. Nil is ignored.
	Record func(change string)
	// Joins lets nodes of the local network ask this node, if it is an issuer, to make them members.
	Joins bool
	// Now returns the time, without a monotonic reading, so that a machine that slept counts as alone. Nil: the current time.
	Now func() time.Time
	Log *slog.Logger

	confirmPause time.Duration // 0 is the constant; of tests
}

// A Trust knows the organization and the partners of a node. It is safe for concurrent use.
type Trust struct {
	o       Options
	self    did.DID
	server  *streamserver.Server
	fetches fetches
	things  atomic.Pointer[Things] // nil: none are served
	invites *invitation.Store      // nil without Options.Dir
	joins   joins

	ctx  context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup // the goroutines of background

	// mu owns what follows.
	mu          sync.RWMutex
	closed      bool
	org         *organization.Organization // nil: none
	book        *book
	authorities map[string]*authority // by SCID
	former      []*authority          // of removed partners
	confirming  bool                  // a goroutine confirms and renews
	nodes       map[did.DID]*node
	issuers     map[did.DID]string // nodes that proved an issuing key of the own organization, with its DID URL
	renewed     time.Time          // of the last attempt to renew the credential
	asked       map[question]time.Time
	started     time.Time
}

// New opens the trust store and serves the protocol. The caller closes it before the host.
func New(o Options) (*Trust, error) {
	o.complete()
	t := &Trust{o: o, self: o.Self, book: &book{Version: bookVersion}, authorities: map[string]*authority{}, nodes: map[did.DID]*node{},
		issuers: map[did.DID]string{}, asked: map[question]time.Time{}}
	t.started = t.now()
	t.ctx, t.end = context.WithCancel(context.Background())
	if o.Dir != "" {
		if err := t.open(); err != nil {
			return nil, err
		}
	}
	t.server = streamserver.New(streamserver.Options{Service: service, Total: maxStreams, PerPeer: maxPeerStreams, Deadline: exchangeTime,
		Admit: func(network.Conn) network.StreamErrorCode { return network.StreamNoError }, Done: t.served, Log: o.Log})
	o.Host.SetStreamHandler(Protocol(o.Network), t.handle)
	o.Host.Network().Notify(&network.NotifyBundle{ConnectedF: t.connected, DisconnectedF: t.disconnected})
	return t, nil
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
	o.confirmPause = cmp.Or(o.confirmPause, confirmPause)
	if o.Record == nil {
		o.Record = func(string) {}
	}
	if o.Addrs == nil {
		o.Addrs = func() []string { return nil }
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().Round(0) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func (t *Trust) now() time.Time { return t.o.Now() }

func (t *Trust) orgDir() string { return filepath.Join(t.o.Dir, "org") }

// open reads the organization, the partners, and the logs and lists that were stored.
func (t *Trust) open() (err error) {
	if t.invites, err = invitation.OpenStore(filepath.Join(t.o.Dir, "invitations.json"), t.o.Now); err != nil {
		return fmt.Errorf("read the invitations: %w", err)
	}
	if t.book, err = readBook(filepath.Join(t.o.Dir, "trust.json")); err != nil {
		return fmt.Errorf("read trust.json: %w", err)
	}
	switch t.org, err = organization.Open(t.orgDir(), t.self, organization.Options{Now: t.o.Now}); {
	case errors.Is(err, fs.ErrNotExist):
		t.org = nil
	case err != nil:
		return fmt.Errorf("open the organization: %w", err)
	default:
		t.addOwnLocked()
	}
	for _, p := range t.book.Partners {
		scid := webvh.SCID(p.DID)
		l, err := t.storedLog(scid)
		if err != nil || l == nil { // one damaged file costs one partner
			t.o.Log.Error("partner not loaded: its log cannot be read", "name", p.Name, "err", err)
			continue
		}
		t.addAuthorityLocked(newAuthority(scid, l, p))
		if p.removed() {
			t.dismissLocked(scid)
		}
	}
	return nil
}

// dismissLocked ends the standing of an organization. Whom it revoked stays barred.
func (t *Trust) dismissLocked(scid string) {
	if a := t.authorities[scid]; a != nil {
		delete(t.authorities, scid)
		t.former = append(t.former, a)
	}
}

// addOwnLocked makes the own organization an authority.
func (t *Trust) addOwnLocked() { t.addAuthorityLocked(newAuthority(t.org.SCID(), t.org.Log(), nil)) }

// addAuthorityLocked adds an organization with its stored lists, and the own list of an issuer.
func (t *Trust) addAuthorityLocked(a *authority) {
	t.authorities[a.scid] = a
	for method := range a.keys {
		raw, err := os.ReadFile(t.file(a.scid, listName(method)))
		if err != nil {
			continue // none was received yet
		}
		l, err := vc.VerifyList(context.Background(), raw, vc.Check{Resolver: a, Now: t.now()})
		if l != nil && (err == nil || errors.Is(err, vc.ErrExpired)) && l.Method == method {
			a.lists[method] = l
		}
	}
	if a.partner == nil {
		t.refreshOwnListLocked(a)
	}
}

// refreshOwnListLocked takes the list of this issuer, signed again if it is due, and reports whether it is new.
func (t *Trust) refreshOwnListLocked(a *authority) bool {
	if !t.org.IsIssuer() {
		return false
	}
	l, err := t.org.List(false)
	if err != nil {
		t.o.Log.Warn("status list not signed", "err", err)
		return false
	}
	if old := a.lists[l.Method]; old != nil && old.Version >= l.Version {
		return false
	}
	a.lists[l.Method] = l
	return true
}

// ownLocked returns the own organization as an authority, or nil.
func (t *Trust) ownLocked() *authority {
	if t.org == nil {
		return nil
	}
	return t.authorities[t.org.SCID()]
}

// file returns the path of a stored document of an organization.
func (t *Trust) file(scid, name string) string { return filepath.Join(t.o.Dir, "trust", scid, name) }

// store stores a document of an organization durably.
func (t *Trust) store(scid, name string, data []byte) error {
	if err := os.MkdirAll(filepath.Join(t.o.Dir, "trust", scid), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(t.file(scid, name), data, 0o600)
}

// resolverLocked returns the documents of the organizations that count here.
func (t *Trust) resolverLocked() did.Resolver {
	logs := make(map[did.DID]*webvh.Log, len(t.authorities))
	for _, a := range t.authorities {
		logs[a.log.DID()] = a.log
	}
	return resolver(logs)
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

// Named returns the organization that rules call name: "own", the name of a partner, or of a former one (policy.Rules.Organization).
func (t *Trust) Named(name string) (did.DID, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if name == "own" || t.org != nil && name == nameOf(t.org.DID()) {
		if t.org == nil {
			return "", false
		}
		return t.org.DID(), true
	}
	if p := t.book.find(name); p != nil {
		return p.DID, true
	}
	return "", false
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
	t.maintain()
	last, pause := time.Now(), quick
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
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
	for _, n := range t.nodes {
		if n.hello != nil && n.principal.Pending != "" {
			return true
		}
	}
	return false
}

// maintain does once what Run does.
func (t *Trust) maintain() {
	t.mu.Lock()
	now := t.now()
	own := t.ownLocked()
	issued := own != nil && t.refreshOwnListLocked(own)
	for _, a := range t.authorities {
		a.contact(t.contactsLocked(a), now)
	}
	t.mu.Unlock()
	if issued {
		t.announce(own.scid, "")
	}
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

// contactsLocked returns the connected nodes that could report a revocation of an organization: members of the own organization, and
// witnesses.
func (t *Trust) contactsLocked(a *authority) (all []did.DID) {
	for id, n := range t.nodes {
		_, witness := a.evidence[id]
		if n.hello != nil && n.principal.Barred == "" && (witness || n.principal.Relation == did.Own && id != t.self) {
			all = append(all, id)
		}
	}
	return all
}

// Close ends the protocol and returns after the last goroutine.
func (t *Trust) Close() error {
	t.mu.Lock()
	t.closed = true
	t.end()
	t.mu.Unlock()
	t.o.Host.RemoveStreamHandler(Protocol(t.o.Network))
	t.server.Close()
	t.work.Wait()
	return nil
}

// peersLocked returns the connected nodes that satisfy want.
func (t *Trust) peersLocked(want func(*did.Principal) bool) []did.DID {
	var all []did.DID
	for id, n := range t.nodes {
		if n.hello != nil && id != t.self && want(n.principal) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// methods returns the issuing keys of an organization, sorted.
func (a *authority) methods() []string { return slices.Sorted(maps.Keys(a.keys)) }

// peerOf returns the libp2p id of a node.
func peerOf(id did.DID) (peer.ID, error) {
	raw, err := id.Peer()
	return peer.ID(raw), err
}
