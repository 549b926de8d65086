package tdd

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
)

// A found is what a query gave.
type found struct {
	media string
	body  []byte
}

// search answers a query: r's, with what run makes of it (tdd-search-large-tdds). It bounds how many run and how long.
func (s *Server) search(w http.ResponseWriter, r *http.Request, lang language, query string,
	run func(b *budget, query string) (found, error)) (err error) {
	if err := checkQuery(lang, query); err != nil {
		return err
	}
	b := newBudget(r.Context(), s.o.QueryTime)
	if s.began != nil {
		s.began(b)
	}
	done, err := s.queries.take(r, b.until)
	if err != nil {
		return err
	}
	defer done()
	out, err := attempt(b, query, run)
	if err != nil {
		return err
	}
	w.Header().Add("Vary", "Accept-Encoding")
	if len(out.body) < 1<<10 || !takesGzip(r) {
		writeBytes(w, http.StatusOK, out.media, out.body)
		return nil
	}
	w.Header().Set("Content-Type", out.media)
	body, done := compressed(w, r)
	defer done()
	if r.Method != http.MethodHead {
		_, _ = body.Write(out.body) // a client that went away needs no answer
	}
	return nil
}

// attempt runs a query. What panics in it is over budget, or is something that the library can do no better with.
func attempt(b *budget, query string, run func(b *budget, query string) (found, error)) (out found, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *stop:
			err = v.err
		case runtime.Error:
			err = interact.Errorf(interact.Usage, "write it in another way", "the query cannot be run")
		default:
			err = interact.Errorf(interact.Usage, "correct the query", "%s", clip(fmt.Sprint(v)))
		}
	}()
	return run(b, query)
}

// queryOf reads the parameter query, percent-decoded once.
func queryOf(r *http.Request) (string, error) {
	q, err := params(r, "query")
	return q.Get("query"), err
}

// sparql rejects SPARQL queries: WoT Discovery §7.3.3 does not require an engine, and lmosd has none.
func (s *Server) sparql(http.ResponseWriter, *http.Request) error {
	return interact.Errorf(interact.NoAffordance, "use /search/jsonpath or /search/xpath", "SPARQL is not supported")
}

// decoded keeps TDs as values, so that a query need not read them again: those that fit. It is safe for concurrent use.
type decoded struct {
	most  int // bytes
	mu    sync.Mutex
	docs  map[[32]byte]*doc // by the hash of the TD; owned by mu
	bytes int               // of all; owned by mu
}

type doc struct {
	value any // with the registration; nobody changes it
	reg   entry
	bytes int
}

// What decoded JSON takes, by its text: maps and strings.
const decodedPart = 8

// value returns the Enriched TD of d as a value.
func (s *Server) value(d Item) any {
	c, reg := &s.decoded, s.of(d.Record)
	c.mu.Lock()
	known := c.docs[d.Record.Hash]
	c.mu.Unlock()
	if known != nil && known.reg == reg {
		return known.value
	}
	raw := s.enrich(nil, d.TD, reg, time.Time{})
	v, err := jcs.Decode(raw, len(raw))
	if err != nil { // no TD that was verified
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
	if c.bytes+fresh.bytes <= c.most {
		c.docs[d.Record.Hash] = fresh
		c.bytes += fresh.bytes
	}
	return v
}

// forget drops the values of what is not there any more. It is called with everything that is there.
func (c *decoded) forget(all []Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.docs) <= len(all) {
		return
	}
	there := make(map[[32]byte]bool, len(all))
	for _, d := range all {
		there[d.Record.Hash] = true
	}
	for hash, d := range c.docs {
		if !there[hash] {
			c.bytes -= d.bytes
			delete(c.docs, hash)
		}
	}
}

// everything returns what a query runs over.
func (s *Server) everything() []Item {
	all := s.o.Things.Page(All, 0, 0).Items
	s.decoded.forget(all)
	return all
}
