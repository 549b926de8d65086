// Package paging records the results that searches have returned. Each next page has the best of the remaining ones, so that no result is
// repeated or missing.
package paging

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/td"
)

// Limits of paged searches.
const (
	maxPages    = 256              // next pages; the oldest is dropped
	maxShown    = 10_000           // Things shown before a page
	maxAllShown = 1 << 18          // the same for all searches, of 32 bytes each
	pageLife    = 10 * time.Minute // of a cursor
)

// Pages has the next pages of searches. Its methods are safe for concurrent use.
type Pages struct {
	sealer *opaque.Sealer
	mu     sync.Mutex // owns the following fields
	all    map[string]*nextPage
	order  []string // oldest first
	shown  int      // of all
}

// A nextPage is the state of a next page, which can be requested repeatedly.
type nextPage struct {
	query td.Query
	with  any
	shown [][32]byte
}

// A Search is the search for one page.
type Search struct {
	// Query is the query. Its Counter and Except are those of this page.
	Query td.Query
	// With is the value of [Pages.Begin].
	With any

	pages *Pages
	shown [][32]byte
}

var forPages = opaque.For{Purpose: "next page of a search"}

// New returns an empty Pages.
func New() *Pages { return &Pages{sealer: opaque.New(""), all: map[string]*nextPage{}} }

// Begin returns the first page of a search.
func (p *Pages) Begin(q td.Query, with any) *Search {
	q.Counter, q.Except = new(td.CoverageCounter), nil
	return &Search{Query: q, With: with, pages: p}
}

// Resume returns the page of a cursor of [Search.Next]. The error is an [*interact.Error].
func (p *Pages) Resume(cursor string) (*Search, error) {
	var id string
	err := p.sealer.Open(forPages, cursor, &id)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.all[id]
	if err != nil || s == nil {
		return nil, interact.Errorf(interact.Usage, "search again; a search is kept for 10 minutes, until the node stops",
			"the page does not exist or has expired")
	}
	one := &Search{Query: s.query, With: s.with, pages: p, shown: slices.Clone(s.shown)}
	one.Query.Counter, one.Query.Except = new(td.CoverageCounter), make(map[[32]byte]bool, len(s.shown))
	for _, key := range one.shown {
		one.Query.Except[key] = true
	}
	return one, nil
}

// Cut returns the best ranked results, one page of them, and the cursor of the next page: empty if there is none.
func Cut[T any](s *Search, ranked []T, of func(T) *td.Description) (page []T, next string) {
	page = ranked[:min(len(ranked), s.Query.Max())]
	if len(page) < len(ranked) {
		s.Query.Counter.SetMore()
	}
	if len(page) == 0 || !s.Query.Counter.Coverage().More {
		return page, ""
	}
	for _, one := range page {
		s.shown = append(s.shown, of(one).Record.Key())
	}
	return page, s.pages.keep(s)
}

// keep records the returned results and returns the cursor; empty if a limit is exceeded.
func (p *Pages) keep(s *Search) string {
	if len(s.shown) > maxShown {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q, id := s.Query, rand.Text()
	q.Counter, q.Except = nil, nil
	p.all[id], p.shown = &nextPage{q, s.With, s.shown}, p.shown+len(s.shown)
	p.order = append(p.order, id)
	for len(p.all) > maxPages || p.shown > maxAllShown {
		p.shown -= len(p.all[p.order[0]].shown)
		delete(p.all, p.order[0])
		p.order = p.order[1:]
	}
	return p.sealer.Seal(forPages, pageLife, id)
}

// Len returns the number of recorded next pages.
func (p *Pages) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}
