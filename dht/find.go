package dht

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

const (
	findTimeout          = 2 * time.Second // of Find, if ctx has no deadline
	peerTimeout          = time.Second     // per peer
	maxConcurrentQueries = 16              // peers queried concurrently
	maxQueried           = 128             // peers queried per search
	maxConnected         = 16              // connected peers queried if the query has no key
	maxFirstProviders    = 4               // up to this limit, as many providers are queried first
	resultBuffer         = 64              // results that wait for the reader
)

// Find queries the nodes that provide terms of q, and yields their results. Each branch of q is looked up, and each node that is
// found is queried once, with the whole q. A branch with id and owner is a [DHT.Get]; one with a capability, action or id queries
// the providers of its most selective term; one with a host, that host. Others query nodes with the role index, then connected
// ones. This node is not queried. For a small limit, as many providers are queried first, and others only if these were not enough.
//
// Results match q as far as a record shows it, and their records are valid; the TD is not verified, and may have to be fetched with
// [DHT.Body]. A record is yielded once; a Thing may have several. The sequence ends when all queried nodes have answered, at
// q.Limit, or at the deadline, by default 2 s; q.Counter then has the final result. A failing peer is counted and does not end the
// sequence. Errors are a query that is too large, and a cancelled ctx.
func (d *DHT) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error] {
	return func(yield func(*td.Signed, error) bool) {
		s := newSearch(d, q)
		if err := s.check(); err != nil {
			yield(nil, fmt.Errorf("find: %w", err))
			return
		}
		outer := ctx
		ctx, cancel := withDefault(ctx, findTimeout)
		go s.run(ctx)
		// The goroutines end before this returns.
		defer func() {
			cancel()
			for range s.results {
			}
		}()
		if s.deliver(yield) && errors.Is(outer.Err(), context.Canceled) {
			yield(nil, fmt.Errorf("find: %w", context.Cause(outer)))
		}
	}
}

// A search is a running Find.
type search struct {
	d       *DHT
	q       td.Query
	request *recordsRequest
	tally   *td.CoverageCounter
	results chan *td.Signed // closed after the last query
	queries sync.WaitGroup

	// The following fields are used by run only.
	queried   map[peer.ID]bool // queried peers, and this node
	truncated bool             // there are more providers than the limit

	mu   sync.Mutex
	sent map[[32]byte]bool // results so far, by hash; owned by mu
}

func newSearch(d *DHT, q td.Query) *search {
	q.Limit = q.Max()
	return &search{
		d: d, q: q, request: newFindRequest(q), tally: q.Counter, results: make(chan *td.Signed, resultBuffer),
		queried: map[peer.ID]bool{d.host.ID(): true}, sent: map[[32]byte]bool{},
	}
}

// check returns an error if q cannot be sent to others.
func (s *search) check() error {
	if err := s.request.Query.check(); err != nil {
		return err
	}
	_, err := encodeMessage(s.request, maxRecordsRequest)
	return err
}

// deliver yields results, up to the limit. It reports whether the reader has not left.
func (s *search) deliver(yield func(*td.Signed, error) bool) bool {
	n := 0
	for r := range s.results {
		if !yield(r, nil) {
			return false
		}
		if n++; n == s.q.Limit {
			s.tally.SetMore() // there may be more; the reader does not wait for it
			return true
		}
	}
	return true
}

// run runs the search, and closes the results after the last query.
func (s *search) run(ctx context.Context) {
	defer close(s.results)
	w := lookupsOf(&s.q)
	for _, q := range w.exact {
		s.queries.Go(func() { s.get(ctx, q) })
	}
	if few := s.q.Limit; few <= maxFirstProviders && len(w.keys) > 0 {
		s.stage(ctx, s.providers(ctx, w, few))
	}
	s.stage(ctx, s.providers(ctx, w, 0))
	if w.open || s.truncated {
		s.stage(ctx, slices.Values(s.d.indexPeers(ctx)))
	}
	if w.open {
		s.stage(ctx, s.d.connectedPeers(maxConnected))
	}
	s.countUnreachedMesh(ctx, w)
}

// lookups are the lookups of a query.
type lookups struct {
	exact []*td.Query  // Things by id and owner
	keys  []provideKey // provider keys to look up, without duplicates
	hosts []did.DID    // nodes that are queried directly
	open  bool         // a branch has no key: query index nodes and neighbors
}

func lookupsOf(q *td.Query) (w lookups) {
	for one := range q.Branches() {
		key, ok := keyFor(one)
		switch {
		case one.ID != "" && one.Owner != "":
			w.exact = append(w.exact, one)
		case !ok:
			w.open = true
		case !slices.Contains(w.keys, key):
			w.keys = append(w.keys, key)
		}
		if one.Host != "" && !slices.Contains(w.hosts, one.Host) {
			w.hosts = append(w.hosts, one.Host)
		}
	}
	return w
}

// full reports whether the results reach the limit.
func (s *search) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent) >= s.q.Limit
}

// get is the search for one exact thing.
func (s *search) get(ctx context.Context, q *td.Query) {
	s.tally.CountAsked(1)
	r, err := s.d.Get(ctx, q.Owner, q.ID)
	switch {
	case err == nil:
		s.tally.CountAnswer()
		s.send(ctx, r)
	case errors.Is(err, did.ErrNotFound) && !errors.Is(err, ErrNoPeers):
		s.tally.CountAnswer() // no such record
	default:
		s.tally.CountUnreachable()
	}
}

// stage queries peers, each once, and waits for their responses. It does nothing if the earlier results are enough.
func (s *search) stage(ctx context.Context, peers iter.Seq[peer.AddrInfo]) {
	if s.full() || ctx.Err() != nil {
		return
	}
	queried, slots := 0, make(chan struct{}, maxConcurrentQueries)
	for ai := range peers { // to the end, see providers
		if s.queried[ai.ID] || !s.d.admits(ai.ID) {
			continue
		}
		if queried == maxQueried {
			s.truncated = true
			s.tally.SetTruncated()
			continue
		}
		queried++
		s.queried[ai.ID] = true
		s.tally.CountAsked(1)
		if s.d.isDown(ai.ID) {
			s.tally.CountUnreachable() // its provider records live for a day; do not dial it in each search
			continue
		}
		s.startQuery(ctx, ai, slots)
	}
	s.queries.Wait()
}

// startQuery queries a peer when a slot is free. Connected peers need no slot: provider records of nonexistent nodes must not delay
// them.
func (s *search) startQuery(ctx context.Context, ai peer.AddrInfo, slots chan struct{}) {
	if s.d.host.Network().Connectedness(ai.ID) == network.Connected {
		s.queries.Go(func() { s.queryPeer(ctx, ai) })
		return
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		s.tally.CountUnreachable()
		return
	}
	s.queries.Go(func() {
		defer func() { <-slots }()
		s.queryPeer(ctx, ai)
	})
}

// countUnreachedMesh records in the counter why the search is incomplete, apart from single peers.
func (s *search) countUnreachedMesh(ctx context.Context, w lookups) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.tally.SetTruncated()
	}
	if len(s.queried) == 1 && len(w.exact) == 0 && s.d.Size() == 0 && len(s.d.o.BootstrapPeers()) > 0 {
		// This node has not joined the mesh.
		s.tally.CountAsked(1)
		s.tally.CountUnreachable()
	}
}

// providers yields the named hosts, and the providers of the keys: up to few of each key, or all if few is 0. All keys are looked
// up concurrently. The loop must not be left early: the goroutines of the library would block without a limit.
func (s *search) providers(ctx context.Context, w lookups, few int) iter.Seq[peer.AddrInfo] {
	return func(yield func(peer.AddrInfo) bool) {
		found := make(chan peer.AddrInfo)
		var looking sync.WaitGroup
		looking.Go(func() {
			for _, h := range w.hosts {
				if id, err := h.Peer(); err == nil {
					found <- peer.AddrInfo{ID: peer.ID(id)}
				}
			}
		})
		for _, key := range w.keys {
			looking.Go(func() {
				for ai := range s.d.kad.FindProvidersAsync(ctx, key.cid(), few) {
					found <- ai
				}
			})
		}
		go func() {
			looking.Wait()
			close(found)
		}()
		for ai := range found {
			yield(ai)
		}
	}
}

// keyFor returns the provider key to look up for q: that of its id, its name, or the deepest level of its most selective term. ok
// is false if q has none: types have many prefixes, and text has no key.
func keyFor(q *td.Query) (key provideKey, ok bool) {
	switch {
	case q.ID != "":
		return thingKey(q.ID), true
	case q.Name != "":
		return nameKey(q.Name), true
	}
	level := deepest(terms(q))
	return capabilityKey(level), level != ""
}

// terms returns the terms of q that records list as capabilities.
func terms(q *td.Query) []string {
	if q.Action == "" {
		return q.Capability
	}
	return append(slices.Clone(q.Capability), q.Action)
}

// deepest returns the deepest level of the term with the most levels, the longest of several.
func deepest(terms []string) (level string) {
	depth := 0
	for _, t := range terms {
		id, ok := td.Normal(t)
		if !ok {
			continue
		}
		levels := td.Levels(id) // one at least
		if last := levels[len(levels)-1]; len(levels) > depth || len(levels) == depth && len(last) > len(level) {
			depth, level = len(levels), last
		}
	}
	return level
}

// connectedPeers yields connected peers that support the protocol, at most limit.
func (d *DHT) connectedPeers(limit int) iter.Seq[peer.AddrInfo] {
	return func(yield func(peer.AddrInfo) bool) {
		n := 0
		for _, p := range d.host.Network().Peers() {
			if ids, err := d.host.Peerstore().SupportsProtocols(p, d.records); err != nil || len(ids) == 0 {
				continue
			}
			if n++; n > limit || !yield(peer.AddrInfo{ID: p}) {
				return
			}
		}
	}
}

// queryPeer sends the whole query to one peer, and forwards valid matching results.
func (s *search) queryPeer(ctx context.Context, ai peer.AddrInfo) {
	d := s.d
	d.stats.queried.Add(1)
	inner, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	d.locate(inner, ai)
	gave, matched := false, 0
	truncated, err := d.queryRecords(inner, ai.ID, s.request, func(r *td.Signed) (bool, error) {
		ok, err := s.fits(r)
		if err != nil || !ok {
			return err == nil, err
		}
		matched++
		gave = s.send(inner, r)
		return gave, nil
	})
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		// The limit is reached. A peer that sent a result has answered; the others have not.
		if gave {
			s.tally.CountAnswer()
		}
	case err != nil:
		switch gone := d.host.Network().Connectedness(ai.ID) == network.NotConnected; {
		case gone && inner.Err() != nil:
			d.o.OnTimeout(ai.ID)
		case gone:
			d.o.OnResult(ai.ID, false)
		}
		d.stats.queriesFailed.Add(1)
		d.indexes.drop(ai.ID)
		s.tally.CountUnreachable()
		d.log.Debug("peer did not answer", "peer", did.ShortPeer(ai.ID), "err", err)
	default:
		d.o.OnResult(ai.ID, true)
		s.tally.CountAnswer()
	}
	switch {
	case truncated && matched >= s.q.Limit:
		s.tally.SetMore()
	case truncated:
		s.tally.SetTruncated()
	}
}

// locate adds the addresses of a provider to the address book. Those in provider records expire earlier than the records; then the
// DHT is queried.
func (d *DHT) locate(ctx context.Context, ai peer.AddrInfo) {
	if d.host.Network().Connectedness(ai.ID) != network.NotConnected {
		return
	}
	d.host.Peerstore().AddAddrs(ai.ID, d.o.filterAddrs(ai.Addrs), peerstore.TempAddrTTL)
	if len(d.host.Peerstore().Addrs(ai.ID)) == 0 {
		_, _ = d.kad.FindPeer(ctx, ai.ID) // if it fails, so does the dial
	}
}

// fits reports whether r can match the query. An error means that the peer violates the protocol.
func (s *search) fits(r *td.Signed) (bool, error) {
	rec, err := s.d.o.Verifier.Record(r.Record, time.Now())
	switch {
	case errors.Is(err, td.ErrExpired), errors.Is(err, td.ErrFuture), errors.Is(err, td.ErrVersion):
		return false, nil // clocks and versions differ
	case err != nil:
		return false, err
	}
	if r.TD != nil {
		if err := checkBody(rec, r.TD); err != nil {
			return false, err
		}
	}
	return plausible(&s.q, rec), nil
}

// plausible reports whether a record can match a branch of q, as far as the record shows it. Otherwise a provider could fill the
// limit with irrelevant Things.
func plausible(q *td.Query, r *td.Record) bool {
	for one := range q.Branches() {
		if plausibleBranch(one, r) {
			return true
		}
	}
	return false
}

// plausibleBranch reports whether the fields of q itself can match.
func plausibleBranch(q *td.Query, r *td.Record) bool {
	if q.ID != "" && q.ID != r.Thing || q.Name != "" && !r.HasName(q.Name) || q.Owner != "" && q.Owner != r.Owner {
		return false
	}
	if q.Host != "" && !slices.ContainsFunc(r.Hosts, func(h td.Host) bool { return h.Node == q.Host }) {
		return false
	}
	for _, t := range terms(q) {
		if !hasTerm(r, t) {
			return false
		}
	}
	return true
}

// hasTerm reports whether the first levels of a capability of r are those of term.
func hasTerm(r *td.Record, term string) bool {
	id, ok := td.Normal(term)
	return ok && slices.ContainsFunc(r.Capabilities, func(c string) bool {
		rest, under := strings.CutPrefix(normalizeLevels(c), normalizeLevels(id))
		return under && (rest == "" || rest[0] == ':')
	})
}

// normalizeLevels normalizes the level separators of a capability id: ":" and "/" are equal.
func normalizeLevels(id string) string {
	return strings.ReplaceAll(strings.TrimPrefix(id, "urn:"), "/", ":")
}

// send yields r, each record once, unless ctx ends first.
func (s *search) send(ctx context.Context, r *td.Signed) bool {
	if !s.isNew(r) {
		return true
	}
	select {
	case s.results <- r:
		return true
	case <-ctx.Done():
		return false
	}
}

// isNew reports whether r was not sent, and records it.
func (s *search) isNew(r *td.Signed) bool {
	id := sha256.Sum256(r.Record)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent[id] {
		return false
	}
	s.sent[id] = true
	return true
}
