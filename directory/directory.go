// Package directory remembers verified descriptions and finds them again.
//
// Its centre is an index in memory (package index); what it knows of a thing is packed, and unpacked to be looked at. What has
// words is answered best first ([Directory.Rank]). What gossip brings comes in by [Directory.Offer], what a question of ours
// brings comes in by [Directory.Find] and [Directory.Get], what this node publishes by [Directory.Add]; all of it is verified
// first, and nobody can go back to an older record. A description leaves when its record expires, or when its owner withdraws
// it, which is remembered for as long as an older record could come back.
package directory

import (
	"context"
	"iter"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory/embedding"
	"github.com/lmosd/lmosd/directory/index"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Options configure a [Directory]. The zero value works: an index in memory that asks nobody.
type Options struct {
	// Store keeps what is known across restarts. The directory owns the keys below "/directory" in it; the caller
	// closes it after [Directory.Close]. Nil keeps nothing.
	Store ds.Batching
	// Verifier verifies what comes in. Sharing one with the rest of the node saves verifying twice. Nil means one of
	// its own that knows did:key.
	Verifier *td.Verifier
	// Sources are asked for what the index may lack, all at once.
	Sources []Source
	// Fetch gets the TD of a record from one of its hosts by hash. What it returns is verified. Nil fetches nothing:
	// then only records that carry their TD are learned.
	Fetch func(ctx context.Context, r *td.Record) ([]byte, error)
	// Bind makes a thing that can be asked out of a description, see [Directory.Locate]. It must not block. The result
	// is kept until the description changes, or 4096 others were asked for.
	Bind func(d *td.Description) interact.Thing
	// Self is this node. It is always reachable.
	Self did.DID
	// Timeout bounds how long sources are waited for; zero means 2 s.
	Timeout time.Duration
	// Max is how many descriptions of others are kept, and again how many tombstones and last seqs. When there are more, those stay
	// that are worth most: of trusted owners, then what was asked for here, then what is connected; of the others, each owner
	// and each peer that brought them has a share.
	// Zero means 100,000; 8 million is the most. Raising it costs memory, see Bytes.
	Max int
	// PerOwner is how many of them one owner may have; zero means 4096.
	PerOwner int
	// Bytes is about how much memory the descriptions of others may take; one owner's, as large a part of it as PerOwner is of
	// Max, or 32 MiB. A thing takes its TD and some 5 kB. Those that were looked at last take up to 32 MiB beside it, or a
	// quarter of Bytes, and what is remembered of changes 16 MiB. Zero means 16 kB for each of Max, and 32 MiB at least.
	Bytes int
	// Trust says how much an owner is trusted, 0 to 1, and why in a word or two, for ranking. It must not block. Nil trusts all alike.
	Trust func(owner did.DID) (amount float64, why string)
	// Latency says how long a message to a node takes, for ranking; 0 is not known. It must not block. Nil knows nothing.
	Latency func(node did.DID) time.Duration
	// Connected reports whether there is a connection to a node now. It must not block. Nil means that nobody knows.
	Connected func(node did.DID) bool
	// Share names the share that a peer's records are charged to when the index is full: peers with one name have one together. It
	// must not block. Nil gives each peer its own.
	Share func(peer did.DID) string
	// Probe tries to reach a node that could not be reached. [Directory.Run] calls it: first after about 5 s, then ever more
	// seldom, at least every 5 minutes, for at most 8 nodes at a time and 10 s each. Nil probes nothing: then a node counts
	// as up again after 10 minutes.
	Probe func(ctx context.Context, node did.DID) error
	// Lost is told of each node that is found to be down and hosts a known thing, once until it is reached again. It must not
	// block. Nil is told nothing.
	Lost func(node did.DID)
	// Embedder tells what things and questions mean. Run asks it for a vector of each thing, which takes a byte for each
	// dimension beside Bytes. If it says which model it asks (a method Model() string), Store keeps the vectors of that model.
	// Nil compares words.
	Embedder embedding.Embedder
	// Changed is told of each thing whose newest record is another one than before, by key: its seq, and whether the record is
	// here, for [Directory.Signed] to return. It is called under the directory's lock, so it must be quick and not call back.
	Changed func(key [32]byte, seq uint64, here bool)
	// Log may be nil.
	Log *slog.Logger
}

// A Source knows descriptions that the index may lack. Both methods must end soon after ctx does. What a source returns
// is believed only after it was verified.
type Source interface {
	// Get returns the newest record of a thing, tombstones included. The error wraps [did.ErrNotFound] if there is
	// none.
	Get(ctx context.Context, owner did.DID, thing string) (*td.Signed, error)
	// Find yields what may match q, and counts in q.Counter whom it asked. It yields nothing if it cannot be asked q.
	Find(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error]
}

// Directory is a node's view of all things in the mesh. Its methods are safe for concurrent use.
type Directory struct {
	opts    Options
	log     *slog.Logger
	reach   reach
	flaps   flaps
	looks   lookalikes // owned by mu
	fetch   fetcher
	meaning *embedding.Reader
	queue   chan *td.Signed // of Offer
	// queued is how many bytes of TDs are in the queue.
	queued atomic.Int64
	// pending counts the goroutines of Run that complete an offer.
	pending atomic.Int64
	wake    chan struct{} // the next expiry has changed
	count   counts
	changed changeLog
	views   views

	mu      sync.RWMutex
	entries map[[32]byte]*entry // all of these are owned by mu
	routes  map[string]*entry
	bound   []*entry // that Options.Bind was asked for, the eldest first
	index   index.Index
	slots   []*entry            // by their place in index; nil: free
	own     index.List          // what this node publishes
	hashes  map[[32]byte]*entry // living entries by the hash of their TD
	hosts   map[did.DID]int     // how many living entries a node hosts
	graves  graves
	forks   forks
	room    room
	// lackUntil is until when the index may lack what did not fit.
	lackUntil time.Time
	weight    int               // of the living that others publish, in bytes
	weights   map[did.DID]int   // the same by owner
	living    expiries          // entries with a description, the next to expire first
	gone      expiries          // entries without, the next to be forgotten first
	asleep    time.Time         // until then expire sleeps, unless it is woken
	dirty     map[[32]byte]bool // what differs from the store, by key
	// dirtyForks and dirtyVectors are the same of the forks and the vectors of things.
	dirtyForks, dirtyVectors map[[32]byte]bool

	loading atomic.Bool // the store has more than is here yet
	saving  sync.Mutex  // held by whoever writes to the store; taken before mu
}

// New returns a directory with what Options.Store kept. If that is much, [Directory.Run] loads the rest in the
// background.
func New(o Options) (*Directory, error) {
	o.complete()
	d := &Directory{
		opts:    o,
		log:     o.Log,
		queue:   make(chan *td.Signed, 1024),
		wake:    make(chan struct{}, 1),
		entries: map[[32]byte]*entry{},
		hashes:  map[[32]byte]*entry{},
		hosts:   map[did.DID]int{},
		weights: map[did.DID]int{},
		dirty:   map[[32]byte]bool{},

		dirtyForks:   map[[32]byte]bool{},
		dirtyVectors: map[[32]byte]bool{},
	}
	d.room = newRoom(o.Max)
	d.fetch.get = o.Fetch
	d.views.most = min(maxOpen, o.Bytes/4)
	now := time.Now()
	d.changed.start(now)
	d.index.Version = uint64(now.UnixMicro()) // beyond those of earlier runs
	d.reach.start(o.Probe != nil)
	d.flaps.start()
	d.looks.start()
	d.meaning = embedding.New(o.Embedder, o.Log)
	if err := d.load(context.Background()); err != nil {
		return nil, interact.Errorf(interact.StoreCorrupt, "see the log; the directory can be deleted, it fills again",
			"read the directory's store: %v", err)
	}
	return d, nil
}

func (o *Options) complete() {
	if o.Verifier == nil {
		o.Verifier = td.NewVerifier(did.Keys())
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Max <= 0 {
		o.Max = 100_000
	}
	o.Max = min(o.Max, index.MaxSlots/2)
	if o.PerOwner <= 0 {
		o.PerOwner = 4096
	}
	if o.Bytes <= 0 {
		o.Bytes = max(o.Max*16_000, leastBytes)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// leastBytes leaves room for a few large things where Max is small.
const leastBytes = 32 << 20

// share returns how much memory the descriptions of one owner may take.
func (o *Options) share() int { return min(o.Bytes, max(o.Bytes/o.Max*o.PerOwner, leastBytes)) }

// Run expires, learns what was offered, and writes to the store, until ctx ends. It returns after the last of its
// goroutines, with the error of the last write if that failed.
func (d *Directory) Run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { d.expire(ctx) })
	g.Go(func() { d.save(ctx) })
	g.Go(func() { d.loadRest(ctx) })
	g.Go(func() { d.probe(ctx) })
	g.Go(func() { d.tellLater(ctx) })
	g.Go(func() { d.meaning.Run(ctx, d.unread) })
	for range max(2, runtime.GOMAXPROCS(0)) {
		g.Go(func() { d.learn(ctx, &g) })
	}
	<-ctx.Done()
	g.Wait()
	return d.flushLast()
}

// Close writes what was not written. It must not be called while [Directory.Run] runs.
func (d *Directory) Close() error { return d.flushLast() }

// Len returns how many of the known things this node publishes, and how many things are known in all.
func (d *Directory) Len() (local, known int) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.own.Len(), len(d.living)
}
