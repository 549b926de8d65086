package tdd

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// A queryResult is the result of a query.
type queryResult struct {
	media string
	body  []byte
}

// search responds with the result of run, within the limits (tdd-search-large-tdds).
func (s *Server) search(w http.ResponseWriter, r *http.Request, lang language, query string,
	run func(b *budget, query string) (queryResult, error)) (err error) {
	if err := checkQuery(lang, query); err != nil {
		return err
	}
	b := newBudget(r.Context(), s.o.QueryTime)
	if s.onQuery != nil {
		s.onQuery(b)
	}
	done, err := s.queries.acquire(r, b.deadline)
	if err != nil {
		return err
	}
	defer done()
	out, err := runQuery(b, query, run)
	if err != nil {
		return err
	}
	WriteCompressed(w, r, http.StatusOK, out.media, out.body)
	return nil
}

// runQuery runs a query. Its panics are exceeded budgets, or errors of the library.
func runQuery(b *budget, query string, run func(b *budget, query string) (queryResult, error)) (out queryResult, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *abort:
			err = v.err
		case runtime.Error:
			err = interact.Errorf(interact.Usage, "rewrite it", "the query cannot be evaluated")
		default:
			err = interact.Errorf(interact.Usage, "correct the query", "%s", Clip(fmt.Sprint(v)))
		}
	}()
	return run(b, query)
}

// queryOf reads the parameter query, percent-decoded once.
func queryOf(r *http.Request) (string, error) {
	q, err := Params(r, "query")
	return q.Get("query"), err
}

// sparql rejects SPARQL queries: WoT Discovery §7.3.3 does not require an engine, and lmosd has none.
func (s *Server) sparql(http.ResponseWriter, *http.Request) error {
	return interact.Errorf(interact.NoAffordance, "use /search/jsonpath or /search/xpath", "SPARQL is not supported")
}

// decoded caches TDs as values, up to a size. It is safe for concurrent use.
type decoded struct {
	limit int // in bytes
	mu    sync.Mutex
	docs  map[[32]byte]*doc // by the hash of the TD; owned by mu
	bytes int               // in total; owned by mu
}

type doc struct {
	value any // with the registration; read-only
	reg   entry
	bytes int
}

// decodedPart is the assumed ratio of the size of decoded JSON to its text.
const decodedPart = 8

// value returns the Enriched TD of d.
func (s *Server) value(d Item) any {
	c, reg := &s.decoded, s.entryOf(d.Record)
	c.mu.Lock()
	known := c.docs[d.Record.Hash]
	c.mu.Unlock()
	if known != nil && known.reg == reg {
		return known.value
	}
	raw := s.enrich(nil, d.TD, reg, time.Time{})
	v, err := jcs.Decode(raw, len(raw))
	if err != nil { // verified TDs are valid
		return nil
	}
	fresh := &doc{value: v, reg: reg, bytes: decodedPart * len(raw)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.docs == nil {
		c.docs = map[[32]byte]*doc{}
	}
	if old := c.docs[d.Record.Hash]; old != nil {
		c.bytes -= old.bytes
		delete(c.docs, d.Record.Hash)
	}
	if c.bytes+fresh.bytes <= c.limit {
		c.docs[d.Record.Hash] = fresh
		c.bytes += fresh.bytes
	}
	return v
}

// prune drops the values of Things that are not in all.
func (c *decoded) prune(all []Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.docs) <= len(all) {
		return
	}
	present := make(map[[32]byte]bool, len(all))
	for _, d := range all {
		present[d.Record.Hash] = true
	}
	for hash, d := range c.docs {
		if !present[hash] {
			c.bytes -= d.bytes
			delete(c.docs, hash)
		}
	}
}

// allThings returns all Things that the caller of a query sees.
func (s *Server) allThings(ctx context.Context) []Item {
	all := s.o.Things.Page(ctx, All, 0, 0).Items
	s.decoded.prune(all)
	return all
}
