package publication

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/did/proof"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/keylock"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/td"
)

const (
	// firstEntries is the number of stored publications that Open loads, at 0.5 ms each.
	firstEntries = 64
	// loaders is the number of publications that are loaded at once. It exceeds that of processors, because new records wait for the disk.
	loaders = 16
	// soon is the rest of the life of a record that is replaced before it is used.
	soon = time.Minute
)

// A loading publishes what the store has again. The node may run meanwhile: what is asked for before its turn is loaded at once.
type loading struct {
	p     *Publisher
	ctx   context.Context // of the node
	now   time.Time
	turns keylock.Locks // of the Things that are being loaded
	ended chan struct{} // closed when all are loaded, or the load has failed
	err   error         // of the load; valid when ended is closed

	mu    sync.Mutex
	seen  map[string]bool // Things that were loaded, or that the store does not have; owned by mu
	stale []string        // Things whose records are replaced when all are loaded; owned by mu
}

func (p *Publisher) newLoading(ctx context.Context, now time.Time) *loading {
	return &loading{p: p, ctx: ctx, now: now, ended: make(chan struct{}), seen: map[string]bool{}}
}

// Open publishes again the first entries of the store; [Publisher.Load] publishes the others. Until then the [Index] loads what it is asked for,
// with ctx. The callers of a publication are in the access rules before it is in the index. An unreadable entry is an error of code
// StoreCorrupt: what was acknowledged must not vanish silently. The directory gets tombstones too: its own store may have lost the last
// seconds before a crash.
func (p *Publisher) Open(ctx context.Context) error {
	l := p.newLoading(ctx, time.Now())
	p.o.Index.loading.Store(l)
	limit := firstEntries
	if p.o.Rotation.Other(p.o.Signer.DID()) != "" {
		limit = 0 // the entries of the other key are deleted before the replacement is complete
	}
	more, err := l.all(ctx, limit)
	if more && err == nil {
		return nil
	}
	return l.end(ctx, err)
}

// Load publishes again what Open has left. [Publisher.Run] returns its error, too.
func (p *Publisher) Load(ctx context.Context) error {
	l := p.o.Index.loading.Load()
	if l == nil {
		return nil
	}
	_, err := l.all(ctx, 0)
	if err == nil {
		p.o.Log.Info("publications loaded", "took", time.Since(l.now))
	}
	return l.end(ctx, err)
}

// end ends the load with its result. After a failure the index continues to load what it is asked for, until the node ends. Otherwise end replaces
// records that are valid, but name other hosts than today's, or half of whose life is over.
func (l *loading) end(ctx context.Context, err error) error {
	if err == nil {
		err = l.nameRules()
	}
	if l.err = err; err == nil {
		l.p.o.Index.loading.Store(nil)
	}
	close(l.ended)
	if err != nil {
		return err
	}
	return l.renewStale(ctx)
}

// AwaitLoad waits for the end of the load, and returns its error, or that of ctx.
func (p *Publisher) AwaitLoad(ctx context.Context) error { return p.o.Index.awaitAll(ctx) }

// renewStale replaces the records of the Things in stale.
func (l *loading) renewStale(ctx context.Context) error {
	l.mu.Lock()
	stale := l.stale
	l.mu.Unlock()
	return parallel(ctx, stale, func(ctx context.Context, thing string) error { return l.p.renewStale(ctx, thing, l.now) })
}

// Restore publishes again what is not published yet: entries that could not be stored when the disk was full.
func (p *Publisher) Restore(ctx context.Context) error {
	if err := p.o.Index.awaitAll(ctx); err != nil {
		return err
	}
	return p.load(ctx, time.Now())
}

// load is Restore at now.
func (p *Publisher) load(ctx context.Context, now time.Time) error {
	l := p.newLoading(ctx, now)
	p.turn.Lock() // the node may run: a concurrent publication must not be taken for an older state
	_, err := l.all(ctx, 0)
	p.turn.Unlock()
	if err == nil {
		err = l.nameRules()
	}
	if err != nil {
		return err
	}
	return l.renewStale(ctx)
}

// all loads the entries of the store that are not loaded yet: at most limit, without one if that is 0. It reports whether there are more.
// Publications with callers come last, so that the access rules are compiled once. The list of keys is complete before the first write: a store
// that is being read cannot be opened again when the disk has room.
func (l *loading) all(ctx context.Context, limit int) (more bool, err error) {
	var keys []string
	for e, err := range storage.Entries(ctx, l.p.o.Store, query.Query{KeysOnly: true}) {
		if err != nil {
			return false, l.p.o.Disk.Failed(err)
		}
		keys = append(keys, e.Key)
	}
	if more = limit > 0 && len(keys) > limit; more {
		keys = keys[:limit]
	}
	var mu sync.Mutex
	var granted []query.Entry
	err = parallel(ctx, keys, func(ctx context.Context, key string) error {
		value, err := l.p.o.Store.Get(ctx, ds.RawKey(key))
		switch {
		case errors.Is(err, ds.ErrNotFound):
			return nil // it was deleted in between
		case err != nil:
			return l.p.o.Disk.Failed(err)
		case !bytes.Contains(value, []byte(`"for":[`)):
			return l.entry(ctx, query.Entry{Key: key, Value: value})
		}
		mu.Lock()
		defer mu.Unlock()
		granted = append(granted, query.Entry{Key: key, Value: value})
		return nil
	})
	if err != nil || len(granted) == 0 {
		return more, err
	}
	if err := l.grant(granted); err != nil {
		return more, err
	}
	return more, parallel(ctx, granted, l.entry)
}

// parallel calls f for all elements, for several at once, until one returns an error.
func parallel[T any](ctx context.Context, all []T, f func(ctx context.Context, one T) error) error {
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(loaders)
	for _, one := range all {
		if group.Err() != nil {
			break
		}
		g.Go(func() error { return f(group, one) })
	}
	if err := g.Wait(); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	return ctx.Err()
}

// grant puts the callers of stored publications in force.
func (l *loading) grant(entries []query.Entry) error {
	x := l.p.o.Index
	for _, e := range entries {
		var pub struct {
			Thing     string
			For       []string
			Withdrawn time.Time
			Attached  bool
		}
		if json.Unmarshal(e.Value, &pub) == nil && pub.Withdrawn.IsZero() && !pub.Attached { // an unreadable one is an error later
			x.expect(pub.Thing, pub.For)
		}
	}
	if l.p.o.Access == nil {
		return nil
	}
	return l.p.o.Access.Refresh()
}

// nameRules gives the rules of the callers the names of the Things, which were not known before.
func (l *loading) nameRules() error {
	if !l.p.o.Index.expectNone() || l.p.o.Access == nil {
		return nil
	}
	return l.p.o.Access.Refresh()
}

// entry publishes an entry of the store again.
func (l *loading) entry(ctx context.Context, e query.Entry) error {
	p := l.p
	if isOthers, err := p.isOthers(ctx, e.Key, e.Value); err != nil || isOthers {
		return err
	}
	pub, err := p.read(e)
	if err != nil {
		return err
	}
	defer l.turns.Lock(pub.Thing)()
	if l.isSeen(pub.Thing) {
		return nil // and may have changed since
	}
	return l.publish(ctx, pub)
}

// thing publishes a Thing again that is asked for before its turn, if the store has it. An error is logged, too; the node ends when it is its turn.
func (l *loading) thing(thing string) error {
	if l.isSeen(thing) {
		return nil
	}
	defer l.turns.Lock(thing)()
	if l.isSeen(thing) {
		return nil
	}
	key := l.p.storeKey(thing)
	value, err := l.p.o.Store.Get(l.ctx, key)
	switch {
	case errors.Is(err, ds.ErrNotFound):
		l.see(thing)
		return nil
	case err != nil:
		err = l.p.o.Disk.Failed(err)
	default:
		e := query.Entry{Key: key.String(), Value: value}
		var pub *Publication
		if pub, err = l.p.read(e); err == nil && len(pub.For) > 0 {
			err = l.grant([]query.Entry{e})
		}
		if err == nil {
			err = l.publish(l.ctx, pub)
		}
	}
	if err != nil && l.ctx.Err() == nil {
		l.p.o.Log.Error("publication not loaded", "thing", thing, "err", err)
	}
	return err
}

// publish publishes a stored publication again, for a caller that has the turn of its Thing.
func (l *loading) publish(ctx context.Context, pub *Publication) error {
	p := l.p
	if p.o.Index.known(pub.Thing) == nil { // else it was loaded at the start, when others had to wait for room on the disk
		var err error
		if pub.Owner == "" && !pub.Attached && pub.Withdrawn.IsZero() {
			err = l.reviveOwn(ctx, pub)
		} else {
			err = p.revive(ctx, pub, l.now)
		}
		if err != nil {
			return err
		}
	}
	if pub := p.o.Index.known(pub.Thing); pub != nil {
		if err := p.restore(ctx, pub, l.now); err != nil {
			return err
		}
	}
	l.see(pub.Thing)
	return nil
}

func (l *loading) isSeen(thing string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[thing]
}

func (l *loading) see(thing string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[thing] = true
}

// IsLoading reports whether stored publications are still to be published again.
func (x *Index) IsLoading() bool { return x.loading.Load() != nil }

// Await waits until the publications that ref may name are loaded: one by its id, or all by anything else. The error is that of ctx.
func (x *Index) Await(ctx context.Context, ref td.Ref) error {
	l := x.loading.Load()
	if l == nil {
		return nil
	}
	if ref.Exact() {
		if err := l.thing(ref.Name); err != nil {
			return err
		}
		if !strings.HasPrefix(ref.Name, "did:") { // else it may name an owner
			return nil
		}
	}
	return x.awaitAll(ctx)
}

// awaitAll waits until all publications are loaded. The error is that of ctx.
func (x *Index) awaitAll(ctx context.Context) error {
	l := x.loading.Load()
	if l == nil {
		return nil
	}
	select {
	case <-l.ended:
		return l.err
	case <-l.ctx.Done():
		return l.ctx.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait until the Things of this node are loaded: %w", context.Cause(ctx))
	}
}

// orphans are the publications that had an attached agent when the node last stopped. It is safe for concurrent use.
type orphans struct {
	mu  sync.Mutex
	all map[string]*Publication // by thing id; owned by mu
}

func (o *orphans) add(p *Publication) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]*Publication{}
	}
	o.all[p.Thing] = p
}

// get returns the orphan of a Thing, or nil.
func (o *orphans) get(thing string) *Publication {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[thing]
}

// things returns the ids of all, sorted.
func (o *orphans) things() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.all))
}

// restore adds a publication of the store to the directory.
func (p *Publisher) restore(ctx context.Context, pub *Publication, now time.Time) error {
	d, err := pub.describe(ctx, p.o.Verifier, now)
	if err == nil {
		_, err = p.o.Directory.Add(d)
	}
	wrongTime := errors.Is(err, td.ErrExpired) || errors.Is(err, td.ErrFuture)
	switch {
	case err == nil, pub.Owner != "":
	case codeIs(err, interact.RolledBack): // Another process with this key published it again, or it has changed in between.
	case codeIs(err, interact.Expired): // It gets a new record, or is a withdrawal that is not needed any longer.
	case wrongTime && pub.Description == nil:
		p.o.Log.Warn("withdrawal not repeated: the clock may be wrong", "thing", pub.Thing, "err", err)
	default:
		return p.o.Disk.Failed(fmt.Errorf("publish %s again: %w", pub.Thing, err))
	}
	return nil
}

// read decodes an entry of the store. An entry of another key than the node's is an error: the node cannot sign for it.
func (p *Publisher) read(e query.Entry) (*Publication, error) {
	var pub Publication
	err := json.Unmarshal(e.Value, &pub)
	if err == nil {
		err = pub.validate()
	}
	if err == nil && ds.RawKey(e.Key) != p.storeKey(pub.Thing) {
		err = fmt.Errorf("it is not %s's: was identity.pem replaced?", p.o.Signer.DID().Short())
	}
	if err != nil {
		return nil, p.o.Disk.Failed(fmt.Errorf("read the publication %s: %w", e.Key, err))
	}
	return &pub, nil
}

// revive publishes a stored publication again that is not simply a Thing of this node: [Publisher.reviveOwn].
func (p *Publisher) revive(ctx context.Context, pub *Publication, now time.Time) error {
	switch {
	case pub.hasExpired(now):
		if err := p.remove(ctx, pub); !codeIs(err, interact.DiskFull) {
			return err
		}
		return nil
	case pub.Attached:
		if p.orphans.get(pub.Thing) != nil {
			return nil
		}
		if pub.Owner != "" {
			g, err := td.ParseGrant(pub.Grant)
			if err != nil {
				return p.o.Disk.Failed(fmt.Errorf("read the grant of %s: %w", pub.Thing, err))
			}
			pub.grant = g
		}
		p.orphans.add(pub)
		return nil
	case !pub.Withdrawn.IsZero():
		p.o.Index.set(pub)
		return nil
	}
	return p.reviveHosted(ctx, pub, now)
}

// reviveOwn publishes a stored Thing of this node again, with its record if that is valid. The TD gets another proof only if the present one is not
// valid.
func (l *loading) reviveOwn(ctx context.Context, pub *Publication) error {
	p, now := l.p, l.now
	d, err := pub.Signed.Verify(ctx, p.o.Verifier, now)
	if err == nil && (d.Record.Owner != p.o.Signer.DID() || d.Record.Thing != pub.Thing) {
		return p.o.Disk.Failed(fmt.Errorf("publish %s again: %w: it is %s of %s", pub.Thing, td.ErrOwner, d.Record.Thing, d.Record.Owner))
	}
	if err == nil {
		pub.Description, pub.Signed, pub.Audience = d, d.Signed, d.Visibility
		p.bind(pub, nil)
		p.o.Index.set(pub)
		switch {
		case p.known(pub.Thing) > d.Record.Seq, d.Record.Expires.Sub(now) < soon: // the store has lost the last writes, or it ends
			_, err = p.signRecord(ctx, pub, now)
		case !p.isCurrent(pub, now):
			l.mu.Lock()
			defer l.mu.Unlock()
			l.stale = append(l.stale, pub.Thing)
		}
	} else {
		t, unread := td.Parse(pub.Signed.TD)
		if unread != nil {
			return p.o.Disk.Failed(fmt.Errorf("read the TD of %s: %w", pub.Thing, unread))
		}
		_, err = p.signAgain(ctx, pub, t, now)
		if errors.Is(err, proof.ErrTime) {
			_, err = p.proveAgain(ctx, pub, now)
		}
	}
	if codeIs(err, interact.DiskFull) { // A record that could not be stored is not announced, and an expired one not published until renew signs it.
		return nil
	}
	if _, described := errors.AsType[*interact.Error](err); err == nil || described {
		return err
	}
	return p.o.Disk.Failed(fmt.Errorf("publish %s again: %w", pub.Thing, err))
}

// renewStale replaces the record of a Thing unless that is current. On a full disk the record remains.
func (p *Publisher) renewStale(ctx context.Context, thing string, now time.Time) error {
	defer p.lock(thing)()
	pub := p.o.Index.known(thing)
	if pub == nil || pub.Description == nil || pub.Owner != "" || p.isCurrent(pub, now) {
		return nil
	}
	next, err := p.signRecord(ctx, pub, now)
	if err == nil {
		_, err = p.o.Directory.Add(next.Description)
	}
	if err != nil && !codeIs(err, interact.DiskFull) && ctx.Err() == nil {
		p.o.Log.Error("record renewal failed", "thing", thing, "err", err) // the record is valid
	}
	return nil
}

// isCurrent reports whether the record of a stored publication need not be replaced.
func (p *Publisher) isCurrent(pub *Publication, now time.Time) bool {
	r, hosts := pub.Description.Record, p.o.Hosts()
	return r.Expires.Sub(now) > p.o.Lifetime/2 &&
		slices.EqualFunc(r.Hosts, hosts, func(a, b td.Host) bool { return a.Node == b.Node && slices.Equal(a.Addrs, b.Addrs) })
}
