package directory

import (
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
	"github.com/lmosd/lmosd/td"
)

// Bounds of searches that may go on.
const (
	maxPages    = 256              // next pages; the eldest is forgotten
	maxShown    = 10_000           // things shown before one; who wants more asks for less
	maxAllShown = 1 << 18          // the same of all together, of 32 bytes each
	pageLife    = 10 * time.Minute // of a cursor
)

// Pages remembers what searches have shown, so that each next page has the best of what was not: whatever comes and goes
// meanwhile, nothing is shown twice, and what stays is not missed. Its methods are safe for concurrent use.
type Pages struct {
	sealer *opaque.Sealer
	mu     sync.Mutex // owns what follows
	all    map[string]*searched
	line   []string // the eldest first
	shown  int      // of all
}

// A searched is what is remembered for a next page, which so is the same however often it is asked for.
type searched struct {
	query td.Query
	with  any
	shown [][32]byte
}

// A Search is one page of a search at work.
type Search struct {
	// Query is what to ask. Its Tally and Except are of this page.
	Query td.Query
	// With is what was given to [Pages.Begin].
	With any

	pages *Pages
	shown [][32]byte
}

var forPages = opaque.For{Purpose: "next page of a search"}

// NewPages returns an empty memory of searches.
func NewPages() *Pages { return &Pages{sealer: opaque.New(""), all: map[string]*searched{}} }

// Begin returns the first page of a search.
func (p *Pages) Begin(q td.Query, with any) *Search {
	q.Counter, q.Except = new(td.CoverageCounter), nil
	return &Search{Query: q, With: with, pages: p}
}

// Resume returns the page that a cursor of [Search.Next] stands for. The error is an [*interact.Error].
func (p *Pages) Resume(word string) (*Search, error) {
	var id string
	err := p.sealer.Open(forPages, word, &id)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.all[id]
	if err != nil || s == nil {
		return nil, interact.Errorf(interact.Usage, "search again; a search is kept for ten minutes, and ends with the node",
			"there is no such page any more")
	}
	one := &Search{Query: s.query, With: s.with, pages: p, shown: slices.Clone(s.shown)}
	one.Query.Counter, one.Query.Except = new(td.CoverageCounter), make(map[[32]byte]bool, len(s.shown))
	for _, key := range one.shown {
		one.Query.Except[key] = true
	}
	return one, nil
}

// Cut takes the best of what was found and ranked, as many as a page has. It returns the cursor of the next page too: empty if there is none.
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

// keep remembers what was shown and returns the cursor behind it; empty if that is too much.
func (p *Pages) keep(s *Search) string {
	if len(s.shown) > maxShown {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q, id := s.Query, rand.Text()
	q.Counter, q.Except = nil, nil
	p.all[id], p.shown = &searched{q, s.With, s.shown}, p.shown+len(s.shown)
	p.line = append(p.line, id)
	for len(p.all) > maxPages || p.shown > maxAllShown {
		p.shown -= len(p.all[p.line[0]].shown)
		delete(p.all, p.line[0])
		p.line = p.line[1:]
	}
	return p.sealer.Seal(forPages, pageLife, id)
}

// Len returns how many next pages are remembered.
func (p *Pages) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}
