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
	findTime      = 2 * time.Second // of Find, if ctx has no deadline
	askTime       = time.Second     // of one peer
	maxAsking     = 16              // peers asked at once
	maxAsked      = 128             // peers asked in all
	maxNeighbours = 16              // peers asked when nothing of the query has a key
	resultRoom    = 64              // results that wait for a slow reader
)

// Find asks nodes that provide something of what q asks for, and yields what they host. A query with id and owner is a
// [DHT.Get]. One with a capability, action or id asks the providers of its most telling term; any other asks connected
// nodes, which in a small mesh are all. It never asks this node.
//
// What it yields fits q as far as a record shows it, and its record is valid; the TD is not verified yet, and may have to be
// fetched with [DHT.Body]. The same record comes once; a thing may come with several. The sequence ends when all who were
// asked have answered, at q.Limit, or at the deadline, two seconds if ctx has none; q.Tally says which, and is final then. A
// failing peer is counted and never ends it. It is an error only that q is too large to be asked, or that the caller has
// cancelled ctx.
func (d *DHT) Find(ctx context.Context, q td.Query) iter.Seq2[*td.Signed, error] {
	return func(yield func(*td.Signed, error) bool) {
		d.stats.finds.Add(1)
		s := newSearch(d, q)
		if err := findQuestion(s.q).Query.check(); err != nil {
			yield(nil, fmt.Errorf("find: %w", err))
			return
		}
		outer := ctx
		ctx, cancel := withDefault(ctx, findTime)
		go s.run(ctx)
		// Whatever ends the loop, the goroutines have ended when this returns.
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

// A search is one Find at work.
type search struct {
	d       *DHT
	q       td.Query
	tally   *td.Tally
	results chan *td.Signed // closed when nobody is asked any more
	asking  sync.WaitGroup
}

func newSearch(d *DHT, q td.Query) *search {
	q.Limit = q.Max()
	return &search{d: d, q: q, tally: q.Tally, results: make(chan *td.Signed, resultRoom)}
}

// deliver yields results, each once, up to the limit. It reports whether the reader is still there at the end.
func (s *search) deliver(yield func(*td.Signed, error) bool) bool {
	seen := map[[32]byte]bool{}
	for r := range s.results {
		id := sha256.Sum256(r.Record)
		if seen[id] {
			continue
		}
		seen[id] = true
		if !yield(r, nil) {
			return false
		}
		if len(seen) == s.q.Limit {
			s.tally.Truncate() // there may be more; waiting for it would keep the reader
			return true
		}
	}
	return true
}

// run does the search, and closes the results when nobody is asked any more.
func (s *search) run(ctx context.Context) {
	defer close(s.results)
	if s.q.ID != "" && s.q.Owner != "" {
		s.get(ctx)
		return
	}
	asked := s.askAll(ctx)
	s.asking.Wait()
	s.conclude(ctx, asked)
}

// get is the search for one exact thing.
func (s *search) get(ctx context.Context) {
	s.tally.Ask(1)
	r, err := s.d.Get(ctx, s.q.Owner, s.q.ID)
	switch {
	case err == nil:
		s.tally.Answer()
		s.send(ctx, r)
	case errors.Is(err, did.ErrNotFound) && !errors.Is(err, ErrNoPeers):
		s.tally.Answer() // there is none
	default:
		s.tally.Fail()
	}
}

// askAll begins to ask every candidate once, and returns how many there were.
func (s *search) askAll(ctx context.Context) (asked int) {
	places := make(chan struct{}, maxAsking)
	seen := map[peer.ID]bool{s.d.host.ID(): true}
	for ai := range s.candidates(ctx) {
		if seen[ai.ID] || !s.d.admits(ai.ID) {
			continue
		}
		if asked == maxAsked {
			s.tally.Truncate()
			continue // the candidates are read to the end
		}
		seen[ai.ID] = true
		asked++
		s.tally.Ask(1)
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			s.tally.Fail()
			continue
		}
		s.asking.Go(func() {
			defer func() { <-places }()
			s.ask(ctx, ai)
		})
	}
	return asked
}

// conclude says in the tally what kept the search from being complete, besides single peers.
func (s *search) conclude(ctx context.Context, asked int) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.tally.Truncate()
	}
	if asked == 0 && s.d.Size() == 0 && len(s.d.o.Seeds()) > 0 {
		// There is a mesh, and this node is not in it.
		s.tally.Ask(1)
		s.tally.Fail()
	}
}

// candidates yields the peers to ask, some of them more than once. The loop over it must not be left early: the library's
// goroutine would wait for ever.
func (s *search) candidates(ctx context.Context) iter.Seq[peer.AddrInfo] {
	return func(yield func(peer.AddrInfo) bool) {
		key, ok := keyFor(s.q)
		if !ok {
			for _, p := range s.d.neighbours(maxNeighbours) {
				yield(peer.AddrInfo{ID: p})
			}
			return
		}
		for ai := range s.d.kad.FindProvidersAsync(ctx, key.cid(), 0) {
			yield(ai)
		}
	}
}

// keyFor returns the provider key to look up for q: that of its id, else of the deepest level of its most telling term. ok
// is false if nothing of q has a key: a type is spelled with many prefixes, a text not at all.
func keyFor(q td.Query) (key provideKey, ok bool) {
	if q.ID != "" {
		return thingKey(q.ID), true
	}
	level := deepest(terms(&q))
	return capabilityKey(level), level != ""
}

// terms returns what of q records list as capabilities.
func terms(q *td.Query) []string {
	if q.Action == "" {
		return q.Capability
	}
	return append(slices.Clone(q.Capability), q.Action)
}

// deepest returns the deepest level of the term that has the most levels, and is the longest of these.
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

// neighbours returns connected peers that answer questions, at most limit.
func (d *DHT) neighbours(limit int) []peer.ID {
	var ps []peer.ID
	for _, p := range d.host.Network().Peers() {
		if ids, err := d.host.Peerstore().SupportsProtocols(p, d.records); err == nil && len(ids) > 0 {
			ps = append(ps, p)
		}
	}
	return ps[:min(len(ps), limit)]
}

// ask asks one peer the whole query, and passes on what is valid and fits.
func (s *search) ask(ctx context.Context, ai peer.AddrInfo) {
	d := s.d
	d.stats.asked.Add(1)
	inner, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	d.locate(inner, ai)
	truncated, err := d.ask(inner, ai.ID, findQuestion(s.q), func(r *td.Signed) (bool, error) {
		ok, err := s.fits(r)
		if err != nil || !ok {
			return err == nil, err
		}
		return s.send(inner, r), nil
	})
	switch {
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		// The reader has enough; this peer is asked and has not answered.
	case err != nil:
		d.stats.askFailed.Add(1)
		s.tally.Fail()
		d.log.Debug("peer did not answer", "peer", ai.ID, "err", err)
	default:
		s.tally.Answer()
	}
	if truncated {
		s.tally.Truncate()
	}
}

// locate makes the addresses of a provider known. Those in provider records go stale before the records do; then the DHT
// is asked for them.
func (d *DHT) locate(ctx context.Context, ai peer.AddrInfo) {
	if d.host.Network().Connectedness(ai.ID) != network.NotConnected {
		return
	}
	d.host.Peerstore().AddAddrs(ai.ID, d.o.filterAddrs(ai.Addrs), peerstore.TempAddrTTL)
	if len(d.host.Peerstore().Addrs(ai.ID)) == 0 {
		_, _ = d.kad.FindPeer(ctx, ai.ID) // if it fails, so does the dial
	}
}

// fits reports whether r belongs in the answer. It is an error that no honest node would send it.
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

// plausible reports whether a record may be what q asks for, as far as the record shows it. Without this a provider could
// fill up the limit with things of no relevance.
func plausible(q *td.Query, r *td.Record) bool {
	if q.ID != "" && q.ID != r.Thing || q.Owner != "" && q.Owner != r.Owner {
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
		rest, under := strings.CutPrefix(levelled(c), levelled(id))
		return under && (rest == "" || rest[0] == ':')
	})
}

// levelled writes a normal capability id so that equal levels are equal text: levels end at ":" and "/" alike.
func levelled(id string) string { return strings.ReplaceAll(strings.TrimPrefix(id, "urn:"), "/", ":") }

// send passes r on, unless ctx ends before there is room.
func (s *search) send(ctx context.Context, r *td.Signed) bool {
	select {
	case s.results <- r:
		return true
	case <-ctx.Done():
		return false
	}
}
