// Package directory indexes verified Thing Descriptions: it stores, expires, searches, ranks and watches them.
//
// The index is in memory (package index). Descriptions are stored compactly and decoded on use. Searches with words return the best match
// first ([Directory.Rank]). Records arrive from gossip ([Directory.Enqueue]), from queries ([Directory.Find], [Directory.Get]) and from this
// node ([Directory.Add]). All are verified first, and an older record never replaces a newer one. A description is removed when its record
// expires or its owner withdraws it; its sequence number is kept as long as an older record could be valid.
package directory

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/eviction"
	"github.com/lmosd/lmosd/directory/fetch"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/directory/lookalike"
	"github.com/lmosd/lmosd/directory/persist"
	"github.com/lmosd/lmosd/directory/reachability"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/backoff"
	"github.com/lmosd/lmosd/internal/heap"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/td"
)

// Options configure a [Directory]. The zero value works: an index in memory without sources.
type Options struct {
	// Store persists the directory. The directory owns the keys below "/directory" in it; the caller closes it after
	// [Directory.Close]. Nil persists nothing.
	Store ds.Batching
	// Verifier verifies descriptions. Sharing one within the node avoids verifying twice. Nil means a verifier for did:key.
	Verifier *td.Verifier
	// Sources are queried concurrently for what the index may lack.
	Sources []Source
	// Fetch fetches the TD of a record by hash from one of its hosts. The result is verified. Nil fetches nothing: then only
	// records that contain their TD are added.
	Fetch func(ctx context.Context, r *td.Record) ([]byte, error)
	// Bind returns the Thing for a description, see [Directory.Locate]. It must not block. The result is cached until the
	// description changes, or 4096 others were bound.
	Bind func(d *td.Description) interact.Thing
	// Self is this node. It is always reachable.
	Self did.DID
	// Timeout limits queries to sources; zero means 2 s.
	Timeout time.Duration
	// Max limits the descriptions of others, and separately the tombstones and last sequence numbers. At the limit the most valuable
	// ones are kept: those of trusted owners, then those that callers of this node requested, then connected ones; among the others each
	// owner and each forwarding peer has a share. Zero means 100,000; the maximum is 8 million. A higher value costs memory, see Bytes.
	Max int
	// PerOwner limits the descriptions of one owner; zero means 4096.
	PerOwner int
	// Bytes limits the approximate memory of the descriptions of others. The share of one owner is PerOwner/Max of it, or 32 MiB if
	// that is more. A Thing takes its TD and about 5 kB. In addition, recently used descriptions take up to 32 MiB, or a quarter of
	// Bytes, and the log of changes 16 MiB. Zero means 16 kB per Max, and at least 32 MiB.
	Bytes int
	// Trust returns the trust in an owner, 0 to 1, with a short reason, for ranking. It must not block. Nil trusts all equally.
	Trust func(owner did.DID) (amount float64, why string)
	// Admits returns an error for the owners and hosts whose records from other nodes are not accepted, except the withdrawal of a known Thing: a key
	// that was revoked may be that of a node which has a new one. It must not block. Nil accepts all.
	Admits func(owner did.DID) error
	// Latency returns the latency to a node, for ranking; 0 is unknown. It must not block. Nil knows none.
	Latency func(node did.DID) time.Duration
	// Connected reports whether a node is connected. It must not block. Nil means unknown.
	Connected func(node did.DID) bool
	// Share returns the name of the share to which the records of a peer are charged when the index is full. Peers with the same name
	// have one share. It must not block. Nil gives each peer its own.
	Share func(peer did.DID) string
	// Probe tries to reach a node that counts as down. [Directory.Run] calls it after about 5 s, then at growing intervals of at most 5
	// minutes, for at most 8 nodes at a time and 10 s each. Nil probes nothing: then a node counts as up again after 10 minutes.
	Probe func(ctx context.Context, node did.DID) error
	// OnDown is called once for each node that goes down and hosts a known Thing, until it is reached again. It must not block. May be
	// nil.
	OnDown func(node did.DID)
	// Embedder computes embeddings of Things and queries. Run requests a vector for each Thing, which takes one byte per dimension in
	// addition to Bytes. If it has a method Model() string, Store persists the vectors of that model. Nil: lexical search.
	Embedder embedding.Embedder
	// OnChange is called when the newest record of a Thing, or of a host of it, changes, with its key (td.Record.CarrierKey) and sequence number, and whether [Directory.Signed]
	// returns the record, which is then public. It is called under the directory's lock, so it must be quick and must not call back.
	OnChange func(key [32]byte, seq uint64, here bool)
	// Sees reports whether a caller may receive a description; p is nil without a caller. All methods that give descriptions out call it for
	// the principal of the context (did.PrincipalOf), and treat a Thing that the caller may not see as unknown. It is not called
	// for Things that Scope decides about. It is called under the directory's lock, so it must be quick and must not call back.
	// Nil lets all callers receive everything. The principal of this process (did.AsProcess) receives everything.
	Sees func(p *did.Principal, d *td.Description) bool
	// Scope returns what a caller sees without asking Sees for each Thing, which is slower. Nil means that all callers see all public Things,
	// and that Sees is asked for the others. It must agree with Sees.
	Scope func(p *did.Principal) td.Scope
	// Own loads what this node publishes, which [Directory.Add] adds. Nil: all of it is loaded.
	Own Own
	// Organizations knows the organizations of owners. Nil knows none.
	Organizations Organizations
	// Log may be nil.
	Log *slog.Logger
}

// An Own loads the Things of this node after its start (publication.Index).
type Own interface {
	// IsLoading reports whether some are not loaded yet.
	IsLoading() bool
	// Await waits until those that ref may name are loaded; the zero reference names all. The error is that of ctx.
	Await(ctx context.Context, ref td.Ref) error
}

// A Source provides descriptions that the index may lack. Both methods must return soon after ctx ends. Results are verified before they
// are used.
type Source interface {
	// Get returns the newest record of a Thing, also a tombstone. The error wraps [did.ErrNotFound] if there is none.
	Get(ctx context.Context, owner did.DID, thing string) (*td.Signed, error)
	// Find yields possible matches of q, and counts the queried peers in q.Counter. It yields nothing if it does not support q.
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error]
}

// Directory is a node's index of the Things in the mesh, with the reachability of their hosts. Its methods are safe for concurrent use.
type Directory struct {
	*reachability.Tracker

	opts       Options
	log        *slog.Logger
	lookalikes *lookalike.Names // owned by mu
	fetcher    *fetch.Fetcher
	embeddings *embedding.Embeddings
	store      *persist.Store  // its mutex is acquired after mu
	queue      chan *td.Signed // of Enqueue
	// queued is the size of the TDs in the queue, in bytes.
	queued atomic.Int64
	// pending is the number of goroutines of Run that complete a queued record.
	pending atomic.Int64
	wake    backoff.Waker // the next expiry has changed
	count   counters
	changed changeLog
	views   views

	mu            sync.RWMutex
	entries       map[[32]byte]*entry // all of these are owned by mu
	resolved      map[string]*entry
	bound         []*entry // with a result of Options.Bind, oldest first
	index         index.Index
	slots         []*entry            // labels slot in index; nil: free
	own           index.List          // published by this node
	restricted    index.List          // not public
	unnamed       index.List          // whose name the index does not have, see isUnnamed
	audiences     []td.Visibility     // by slot
	byAudience    [td.Private + 1]int // number of live entries
	publicVersion uint64              // changes with each addition and removal of a public Thing
	hashes        map[[32]byte]*entry // live entries by the hash of their TD
	hosts         map[did.DID]int     // number of live entries per host
	hostKeys      map[[32]byte]hostAt // by td.HostKey
	retired       map[[32]byte]retired
	tombstones    tombstones
	equivocations equivocations
	room          *eviction.Room
	// incompleteUntil is the time until which the index may lack Things that did not fit.
	incompleteUntil time.Time
	bytes           int               // memory of live entries of others, in bytes
	ownerBytes      map[did.DID]int   // the same by owner
	live            heap.Heap[*entry] // entries with a description, by expiration
	removed         heap.Heap[*entry] // entries without one, by the time when they can be dropped
	wakeAt          time.Time         // until when expire sleeps

	loading atomic.Bool // the store is not completely loaded
}

// New returns a directory with the contents of Options.Store. [Directory.Run] loads the rest of a large store in the background.
func New(o Options) (*Directory, error) {
	o.complete()
	d := &Directory{
		opts:       o,
		log:        o.Log,
		queue:      make(chan *td.Signed, 1024),
		wake:       backoff.NewWaker(),
		entries:    map[[32]byte]*entry{},
		hashes:     map[[32]byte]*entry{},
		hosts:      map[did.DID]int{},
		hostKeys:   map[[32]byte]hostAt{},
		ownerBytes: map[did.DID]int{},
	}
	d.room = eviction.New(o.Max, func(e *eviction.Item) bool { return d.entries[e.Key].view.shown.Load() })
	d.fetcher = fetch.New(o.Fetch)
	d.store = persist.New(persist.Options{Datastore: o.Store, Snapshot: d.snapshot, OnCorrupt: func() { d.count.inc(&d.count.Corrupt) }, Log: o.Log})
	d.views.most = min(maxOpen, o.Bytes/4)
	now := time.Now()
	d.changed.start(now)
	d.index.Version = uint64(now.UnixMicro()) // greater than in earlier runs
	d.publicVersion = d.index.Version
	d.Tracker = reachability.New(reachability.Options{Self: o.Self, Connected: o.Connected, Probe: o.Probe, Hosts: d.Hosts,
		ConnectionMatters: d.linkChanged, OnChange: d.reportHost, OnDown: o.OnDown})
	d.lookalikes = lookalike.New()
	d.embeddings = embedding.New(o.Embedder, o.Log)
	if err := d.load(context.Background()); err != nil {
		return nil, interact.Errorf(interact.StoreCorrupt, "see the log; the directory can be deleted: the node fills it again from the mesh",
			"read the directory's store: %v", err)
	}
	return d, nil
}

func (o *Options) complete() {
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	o.Timeout = cmp.Or(max(o.Timeout, 0), 2*time.Second)
	o.Max = cmp.Or(max(o.Max, 0), 100_000)
	o.Max = min(o.Max, index.MaxSlots/2)
	o.PerOwner = cmp.Or(max(o.PerOwner, 0), 4096)
	o.Bytes = cmp.Or(max(o.Bytes, 0), max(o.Max*16_000, leastBytes))
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// leastBytes is enough for a few large Things if Max is small.
const leastBytes = 32 << 20

// share returns the memory limit for the descriptions of one owner.
func (o *Options) share() int { return min(o.Bytes, max(o.Bytes/o.Max*o.PerOwner, leastBytes)) }

// Run expires entries, processes queued records and writes to the store, until ctx ends. It returns after its last goroutine, with the
// error of the last write.
func (d *Directory) Run(ctx context.Context) error {
	var g sync.WaitGroup
	loop := heartbeat.StartVital(ctx, "directory", maxSleep)
	g.Go(func() {
		d.wake.Loop(ctx, func() time.Duration {
			loop.Beat()
			return d.dropDue(time.Now())
		})
	})
	g.Go(func() { d.store.Run(ctx) })
	g.Go(func() { d.loadRest(ctx) })
	g.Go(func() { d.Tracker.Run(ctx) })
	g.Go(func() { d.embeddings.Run(ctx, d.withoutVector) })
	for range workers() {
		g.Go(func() { d.processQueue(ctx, &g) })
	}
	<-ctx.Done()
	g.Wait()
	return d.store.FlushLast()
}

// Close writes pending changes. It must not be called while [Directory.Run] runs.
func (d *Directory) Close() error { return d.store.FlushLast() }

// Len returns the number of Things that this node publishes, and the number of all known Things.
func (d *Directory) Len() (local, known int) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.own.Len(), len(d.live)
}
