// Package introduce has the local network and lmosd introduce things to each other.
//
// What others introduce there by DNS-SD (package mdns), and what the DID documents name that the operator has listed
// (listed.go), is explored at once and every ten minutes. What is found are discovered things: their TDs
// are nobody's word but this node's, which signs what it read with a key that ends with the process. They are apart from the
// directory, so that nothing of them is stored, announced, reconciled or answered to peers.
//
// Sources: WoT Discovery §6 (introductions) and §7.1 (exploration).
package explore

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// Anybody on the local network can introduce anything, so all of it is bounded.
const (
	maxThings     = 256 // discovered things of the local network
	maxPerSource  = 16  // of them by one host
	triesPerVisit = 64  // TDs of one exploration that are looked at
	visitsAtOnce  = 4   // explorations, and one to each host, with a pause after it
	visitPause    = time.Second
	visitEvery    = 10 * time.Minute
	keptFor       = 3 * visitEvery // of a description, unless an exploration brings it again
)

// Mark is the member of the TD of a discovered thing that says where it was found.
const Mark = "lmosd:discovered"

// A Source tells of the local network: an [dnssd.Service].
type Source interface {
	Watch(ctx context.Context) iter.Seq[dnssd.Change]
	Run(ctx context.Context) error
}

// A Way asks the things of one introduction, over connections of its own: what one may reach, another may not.
type Way interface {
	// Agent returns what asks d; nil if none of its forms can be asked.
	Agent(d *td.Description) interact.Thing
	Close() error
}

// Options of [Discoveries]. Self and Verifier are needed.
type Options struct {
	Self     did.DID // this node
	Verifier *td.Verifier
	// Source introduces; nil is a network that introduces nothing.
	Source Source
	// Network is this node's mesh: what a node of it has comes by the mesh. Known reports the same of a thing, by its id. Nil knows
	// nothing.
	Network string
	Known   func(id string) bool
	// Offers reports whether this node offers a thing itself: then that is meant by the id. Nil offers nothing.
	Offers func(id string) bool
	// Listed are what the operator introduces: did:webs, whose documents name things and directories, and https URLs of TDs. See
	// [CheckListed].
	Listed []string
	// Resolver, Lookup and TLS serve them: what has DID documents, names of hosts, and whom to trust (nil: as the system does). Public
	// judges the addresses of hosts that a document names, other than its own; nil refuses all of them.
	Resolver *web.Resolver
	Lookup   func(ctx context.Context, network, host string) ([]netip.Addr, error)
	TLS      *tls.Config
	Public   func(netip.Addr) error
	// Connect makes what asks the things of an introduction; dial is the only way to connect, and secure asks for TLS. Nil has nobody
	// asked.
	Connect func(dial Dialer, secure bool) Way
	// Tell is told what comes, changes and goes. It must be quick. Nil tells nobody.
	Tell func(kind directory.ChangeKind, thing, was *td.Description)
	// Pause is how long a host is left alone after an exploration, whatever it says meanwhile; zero means a second.
	Pause time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Discoveries are the things that others introduce, and what asks them. They are safe for concurrent use.
type Discoveries struct {
	o      Options
	things *store

	// what follows belongs to Run.
	all  map[string]*introduction // by name
	busy map[netip.Addr]bool      // hosts whose introductions are explored now
}

// An introduction is one that holds, and what asks its things.
type introduction struct {
	dnssd.Introduction
	home   string    // see change
	way    Way       // nil if nobody is asked over their own addresses
	due    time.Time // of the next exploration
	cancel context.CancelFunc
}

// New returns discoveries of nothing yet.
func New(o Options) (*Discoveries, error) {
	// It is not the node's key: a description with the node's own signature could be told on as a thing of this node.
	signer, err := keystore.New()
	if err != nil {
		return nil, err
	}
	nothing := func(string) bool { return false }
	if o.Known == nil {
		o.Known = nothing
	}
	if o.Offers == nil {
		o.Offers = nothing
	}
	if o.Tell == nil {
		o.Tell = func(directory.ChangeKind, *td.Description, *td.Description) {}
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupNetIP
	}
	if o.Public == nil {
		o.Public = func(a netip.Addr) error { return fmt.Errorf("%s is not the host that was listed", a) }
	}
	o.Pause = cmp.Or(o.Pause, visitPause)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Discoveries{o: o, all: map[string]*introduction{}, busy: map[netip.Addr]bool{},
		things: &store{offers: o.Offers, tell: o.Tell, signer: signer, all: map[string]*Discovered{}}}, nil
}

// Owner is whose the discovered things are: a key that only this process has.
func (d *Discoveries) Owner() did.DID { return d.things.signer.DID() }

// Run explores what is introduced, at once and every ten minutes, until ctx ends, and returns when the last of its goroutines has. A
// network without multicast ends nothing else.
func (d *Discoveries) Run(ctx context.Context) error {
	changes, done := make(chan change), make(chan *introduction)
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, where := range d.o.Listed {
		work.Go(func() { d.follow(ctx, where, changes) })
	}
	if d.o.Source != nil {
		d.listen(ctx, &work, changes)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := d.begin(ctx, &work, done, time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			for name := range d.all {
				d.drop(name, &work)
			}
			return ctx.Err()
		case c := <-changes:
			d.drop(c.Name, &work)
			if !c.Gone && (c.Network == "" || c.Network != d.o.Network) { // what a node of our mesh has comes by the mesh
				d.all[c.Name] = &introduction{Introduction: c.Introduction, home: c.home, due: time.Now(), way: d.connect(c)}
			}
		case in := <-done:
			delete(d.busy, in.From)
		case <-timer.C:
		}
	}
}

// listen tells of what the local network introduces, until ctx ends.
func (d *Discoveries) listen(ctx context.Context, work *sync.WaitGroup, changes chan<- change) {
	work.Go(func() {
		if err := d.o.Source.Run(ctx); err != nil && ctx.Err() == nil {
			d.o.Log.Warn("nothing is introduced on the local network", "err", err)
		}
	})
	work.Go(func() {
		for c := range d.o.Source.Watch(ctx) {
			select {
			case changes <- change{c, ""}:
			case <-ctx.Done():
				return
			}
		}
	})
}

// begin explores what is due, and returns when more will be, as far as it is known; done says when a place has become free.
func (d *Discoveries) begin(ctx context.Context, work *sync.WaitGroup, done chan<- *introduction, now time.Time) (next time.Time) {
	all := slices.SortedFunc(maps.Values(d.all), func(a, b *introduction) int {
		return cmp.Or(a.due.Compare(b.due), strings.Compare(a.Name, b.Name))
	})
	for _, in := range all {
		switch {
		case in.due.After(now):
			return in.due
		case !d.busy[in.From] && len(d.busy) < visitsAtOnce:
			d.busy[in.From], in.due = true, now.Add(visitEvery)
			visit, cancel := context.WithCancel(ctx)
			in.cancel = cancel
			work.Go(func() {
				defer cancel()
				d.explore(visit, in)
				_ = backoff.Sleep(ctx, d.o.Pause)
				select {
				case done <- in:
				case <-ctx.Done():
				}
			})
		}
	}
	return next
}

// drop ends an introduction.
func (d *Discoveries) drop(name string, work *sync.WaitGroup) {
	in := d.all[name]
	if in == nil {
		return
	}
	delete(d.all, name)
	if in.cancel != nil {
		in.cancel() // first: then nothing more of it is taken
	}
	if k := d.things.keep(in, nil); k > 0 {
		d.o.Log.Debug("no longer on the local network", "introduction", in.Instance, "things", k)
	}
	if in.way != nil {
		work.Go(func() { _ = in.way.Close() })
	}
}
