package tdd

import (
	"context"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/rest/server"
)

// A SPARQL answers queries in SPARQL 1.1 over TDs.
type SPARQL interface {
	// Answer returns what a query finds in the RDF of things, which yields Enriched TDs: SPARQL JSON results as application/json for
	// SELECT and ASK, JSON-LD as application/ld+json for CONSTRUCT and DESCRIBE. It ends soon after ctx does. The error is an
	// [*interact.Error], of code Usage for what is no such query, updates included (tdd-search-sparql-error).
	Answer(ctx context.Context, query string, things iter.Seq[[]byte]) (media string, body []byte, err error)
}

// sparql answers a query as the SPARQL 1.1 Protocol has it (§2.1; tdd-search-sparql-version): by GET, by POST of the query, or by
// POST of a form. Without an engine there is no such endpoint (WoT Discovery §7.3.3).
func (s *Server) sparql(w http.ResponseWriter, r *http.Request) error {
	if s.o.SPARQL == nil {
		return interact.Errorf(interact.NoAffordance, "ask /search/jsonpath or /search/xpath", "this node was built without SPARQL")
	}
	query, err := sparqlOf(w, r)
	if err != nil {
		return err
	}
	return s.search(w, r, inSPARQL, query, func(b *budget, query string) (out found, err error) {
		ctx, cancel := context.WithDeadline(b.ctx, b.until)
		defer cancel()
		out.media, out.body, err = s.o.SPARQL.Answer(ctx, query, func(yield func([]byte) bool) {
			for _, d := range s.everything() {
				if b.step(1); !yield(s.enrich(nil, d.TD, s.of(d.Record), time.Time{})) {
					return
				}
			}
		})
		if ctx.Err() != nil {
			b.check()
		}
		return out, err
	})
}

// sparqlOf reads the query.
func sparqlOf(w http.ResponseWriter, r *http.Request) (string, error) {
	if r.Method != http.MethodPost {
		return queryOf(r)
	}
	const plain, form = "application/sparql-query", "application/x-www-form-urlencoded"
	if _, err := params(r); err != nil {
		return "", err
	}
	if err := server.CheckContentType(r, plain, form); err != nil {
		return "", err
	}
	body, err := readBody(w, r, 3*maxQuery+64) // percent-encoded
	if err != nil {
		return "", err
	}
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media == plain {
		return string(body), nil
	}
	values, err := url.ParseQuery(string(body))
	if err != nil || len(values) > 1 || len(values["query"]) > 1 {
		return "", interact.Errorf(interact.Usage, "query=…, percent-encoded", "the form has to have a query and nothing else")
	}
	return values.Get("query"), nil
}
