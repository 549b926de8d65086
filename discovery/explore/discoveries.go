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
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/td"
)

// Limits, because any host of the local network can introduce Things.
const (
	maxThings           = 256 // discovered Things of the local network
	maxPerSource        = 16  // discovered Things of one host
	triesPerVisit       = 64  // TDs that are processed per exploration
	maxConcurrentVisits = 4   // concurrent explorations; at most one per host, with a pause after it
	visitPause          = time.Second
	visitInterval       = 10 * time.Minute
	validity            = 3 * visitInterval // of a description; each exploration renews it
)

// discoveredMember is the member of a discovered Thing's TD with the URL where it was found.
const discoveredMember = "lmosd:discovered"

// A Source yields the introductions of the local network: a [dnssd.Service].
type Source interface {
	Watch(ctx context.Context) iter.Seq[dnssd.Change]
	Run(ctx context.Context) error
}

// A Connection calls the Things of one introduction, over its own connections: introductions may reach different addresses.
type Connection interface {
	// Agent returns the agent for d; nil if no form is supported.
	Agent(d *td.Description) interact.Thing
	Close() error
}

// Options of [Discoveries]. Self and Verifier are required.
type Options struct {
	Self     did.DID // this node
	Verifier *td.Verifier
	// Source yields introductions; nil yields none.
	Source Source
	// Network is this node's mesh. Its nodes, and the Things of the mesh in Directory, are skipped. Directory may be nil.
	Network   string
	Directory *directory.Directory
	// Publishes reports whether this node publishes a Thing with an id, which then takes precedence. Nil means that it publishes none.
	Publishes func(id string) bool
	// Configured are the configured introductions: did:web DIDs, whose documents list Things and directories, and https URLs of TDs. See
	// [CheckConfigured].
	Configured []string
	// Resolver resolves their DID documents, Lookup their host names. If TLS is nil, the system's certificates are used. Public checks the
	// addresses of other hosts in a document; nil rejects all of them.
	Resolver *web.Resolver
	Lookup   func(ctx context.Context, network, host string) ([]netip.Addr, error)
	TLS      *tls.Config
	Public   func(netip.Addr) error
	// Connect returns the Connection for an introduction. It must connect through dial only, and with TLS if secure is set. If Connect is
	// nil, discovered Things cannot be called.
	Connect func(dial Dialer, secure bool) Connection
	// OnChange is called for each change. It must not block. Nil notifies the watchers of Directory.
	OnChange func(kind directory.ChangeKind, reason directory.Reason, thing, was *td.Description)
	// Pause is the shortest interval between explorations of one host; zero means 1 s.
	Pause time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Discoveries are the discovered Things with their agents. They are safe for concurrent use.
type Discoveries struct {
	o      Options
	things *store
	states states

	// The following fields belong to Run.
	all  map[string]*introduction // by name
	busy map[netip.Addr]bool      // hosts that are being explored
}

// An introduction is a current introduction.
type introduction struct {
	dnssd.Introduction
	configuredHost string     // see change
	conn           Connection // nil if its Things cannot be called
	due            time.Time  // of the next exploration
	cancel         context.CancelFunc
}

// New returns Discoveries without Things.
func New(o Options) (*Discoveries, error) {
	// Not the node's key: peers could forward descriptions with its signature as Things of this node.
	signer, err := keystore.New()
	if err != nil {
		return nil, err
	}
	if o.Publishes == nil {
		o.Publishes = func(string) bool { return false }
	}
	switch {
	case o.OnChange != nil:
	case o.Directory != nil:
		o.OnChange = o.Directory.Notify
	default:
		o.OnChange = func(directory.ChangeKind, directory.Reason, *td.Description, *td.Description) {}
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupNetIP
	}
	if o.Public == nil {
		o.Public = func(a netip.Addr) error { return fmt.Errorf("%s is not an address of the configured host", a) }
	}
	o.Pause = cmp.Or(o.Pause, visitPause)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Discoveries{o: o, all: map[string]*introduction{}, busy: map[netip.Addr]bool{},
		things: &store{publishes: o.Publishes, onChange: o.OnChange, signer: signer, all: map[string]*Discovered{}}}, nil
}

// isInMesh reports whether the mesh has the Thing with an id: a Thing of this node, or a node or Thing of the mesh whose id contains its
// key. Another Thing may have an id without a key.
func (d *Discoveries) isInMesh(id string) bool {
	owner := did.DID(td.ParseRef(id).Owner)
	if d.o.Publishes(id) || owner == d.o.Self {
		return true
	}
	return owner != "" && d.o.Directory != nil &&
		(d.o.Directory.Hosts(owner) || len(tdd.Index{Directory: d.o.Directory, Self: d.o.Self}.Lookup(did.AsProcess(context.Background()), id)) > 0)
}

// Owner returns the owner of the discovered Things: a key of this process.
func (d *Discoveries) Owner() did.DID { return d.things.signer.DID() }

// Run explores introductions, at once and every 10 minutes, until ctx ends and its goroutines have returned. Without multicast it explores
// only the configured ones.
func (d *Discoveries) Run(ctx context.Context) error {
	changes, done := make(chan change), make(chan *introduction)
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, where := range d.o.Configured {
		work.Go(func() { d.watchConfigured(ctx, where, changes) })
	}
	if d.o.Source != nil {
		d.watchSource(ctx, &work, changes)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := d.startDue(ctx, &work, done, time.Now()); !next.IsZero() {
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
			d.states.change(c, c.Network != "" && c.Network == d.o.Network, time.Now())
			if !c.Gone && (c.Network == "" || c.Network != d.o.Network) { // the mesh has the Things of its nodes
				d.all[c.Name] = &introduction{Introduction: c.Introduction, configuredHost: c.configuredHost, due: time.Now(),
					conn: d.connect(c)}
			}
		case in := <-done:
			delete(d.busy, in.From)
		case <-timer.C:
		}
	}
}

// watchSource forwards the introductions of the local network, until ctx ends.
func (d *Discoveries) watchSource(ctx context.Context, work *sync.WaitGroup, changes chan<- change) {
	work.Go(func() {
		if err := d.o.Source.Run(ctx); err != nil && ctx.Err() == nil {
			d.o.Log.Warn("DNS-SD introductions unavailable", "err", err)
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

// startDue starts the explorations that are due, and returns the time of the next one if it is known; done signals a free slot.
func (d *Discoveries) startDue(ctx context.Context, work *sync.WaitGroup, done chan<- *introduction, now time.Time) (next time.Time) {
	all := slices.SortedFunc(maps.Values(d.all), func(a, b *introduction) int {
		return cmp.Or(a.due.Compare(b.due), strings.Compare(a.Name, b.Name))
	})
	for _, in := range all {
		switch {
		case in.due.After(now):
			return in.due
		case !d.busy[in.From] && len(d.busy) < maxConcurrentVisits:
			d.busy[in.From], in.due = true, now.Add(visitInterval)
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

// drop removes an introduction.
func (d *Discoveries) drop(name string, work *sync.WaitGroup) {
	in := d.all[name]
	if in == nil {
		return
	}
	delete(d.all, name)
	if in.cancel != nil {
		in.cancel() // before the removal, so that the exploration adds no more Things
	}
	if k := d.things.removeExcept(in, nil); k > 0 {
		d.o.Log.Debug("introduction removed", "introduction", in.Instance, "things", k)
	}
	if in.conn != nil {
		work.Go(func() { _ = in.conn.Close() })
	}
}
