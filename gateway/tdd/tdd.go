// Package tdd implements the HTTP API of a W3C Thing Description Directory (WoT Discovery §6 and §7).
//
// Things of the node and of the mesh are in one list. A single TD has the bytes that its owner signed, unless ?enriched=true adds its
// registration. Lists, collections and results of queries include the registration, unless ?enriched=false. The proof of a TD does not
// cover the member "registration": a verifier removes it first (docs/decisions/0018). Names such as tdd-http-head are the ids of assertions
// of the specification.
package tdd

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/interact/rest/server"
	"github.com/lmosd/lmosd/internal/keylock"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
)

// Media types.
const (
	typeTD    = "application/td+json"
	typeLD    = "application/ld+json"
	typeJSON  = interact.JSON
	typePatch = "application/merge-patch+json" // RFC 7396 §4
	typeLinks = "application/link-format"      // RFC 6690 §7.3
)

// A Scope selects the Things of a list.
type Scope string

// The scopes.
const (
	All   Scope = ""
	Local Scope = "local" // published by this node
	Mesh  Scope = "mesh"  // published by other nodes
	// Discovered Things were introduced to this node. They are in no other list.
	Discovered Scope = "discovered"
)

// An Item is a Thing in a list.
type Item struct {
	Record   *td.Record
	TD       []byte // as signed; read-only
	Describe func() *td.Description
}

// A Page is a part of a list, ordered by id and owner, in code points.
type Page struct {
	Items []Item
	Total int    // in the list
	Tag   string // changes with the content or order of the list; without quotes
}

// Things is the index of the node, as the caller of the context sees it (directory.Options.Sees). Its methods are called concurrently; only
// Get sends requests.
type Things interface {
	// Page returns up to limit Things of a scope after the first offset ones; 0 means no limit.
	Page(ctx context.Context, s Scope, offset, limit int) Page
	// Lookup returns the Things of an id: that of this node first, then others, possibly not all.
	Lookup(ctx context.Context, id string) []Item
	// Get returns the Thing of a reference, also from other hosts (directory.Directory.Get).
	Get(ctx context.Context, ref string) (*td.Description, error)
	// Watch yields changes (directory.Directory.Watch).
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
}

// An Index is the [Things] of a directory.
type Index struct {
	*directory.Directory
	// Self is the node, whose Things are local.
	Self did.DID
}

// Page implements [Things].
func (x Index) Page(ctx context.Context, s Scope, offset, limit int) Page {
	limit = cmp.Or(max(limit, 0), math.MaxInt)
	var p directory.Page
	switch s {
	case Local:
		p = x.Directory.PageOwn(ctx, td.Query{}, offset, limit)
	case Mesh:
		p = x.Directory.Page(ctx, td.Query{Not: []td.Query{{Owner: x.Self}}}, offset, limit)
	default:
		p = x.Directory.Page(ctx, td.Query{}, offset, limit)
	}
	return Page{Items: items(p), Total: p.Total, Tag: strconv.FormatUint(p.Version, 36)}
}

// Lookup implements [Things].
func (x Index) Lookup(ctx context.Context, id string) []Item {
	q := td.Query{ID: id}
	return append(items(x.Directory.PageOwn(ctx, q, 0, 1)), items(x.Directory.Page(ctx, q, 0, 1))...)
}

func items(p directory.Page) []Item {
	all := make([]Item, len(p.Items))
	for i, item := range p.Items {
		all[i] = Item{Record: item.Record(), TD: item.TD(), Describe: item.Description}
	}
	return all
}

// A Publisher changes the publications of this node. Its errors are sent to clients.
type Publisher interface {
	// Registered returns the registration of a Thing that this node owns; false for other Things, which clients may not change.
	Registered(r *td.Record) (publication.Registration, bool)
	// Enter signs, stores and announces a TD, with or without a proof. It uses TTL and Expires of r.
	Enter(ctx context.Context, raw []byte, r publication.Registration) (id string, created bool, err error)
	// Register changes only TTL and Expires of a Thing of this node, by its id.
	Register(ctx context.Context, id string, r publication.Registration) error
	// Withdraw withdraws a Thing of this node.
	Withdraw(ctx context.Context, id string) error
}

// Access is the right that a route requires of its caller.
type Access uint8

const (
	Open   Access = iota // no right
	Read                 // to read the directory
	Change               // to administer the node
)

// A Handler responds to a request, or returns an error before it wrote anything.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Options are the settings of a [Server]. Things and Describe are required.
type Options struct {
	Things Things
	// Publisher makes changes. Nil makes the directory read-only: changes are 405.
	Publisher Publisher
	// Resembles returns the similar name of another Thing, or "" (directory.Directory.Resembles); it may be nil.
	Resembles func(*td.Record) string
	// Affiliation returns the organization of the owner of a Thing (directory.Directory.Affiliation); it may be nil.
	Affiliation func(ctx context.Context, d *td.Description) *directory.Affiliation
	// Guard adds the authorization of a route, and writes its error. Nil authorizes all requests.
	Guard func(a Access, h Handler) http.Handler
	// Describe returns the TD of the directory.
	Describe func() []byte
	// RewriteForms returns a TD with forms of this node, for ?forms=node; nil rejects that.
	RewriteForms func(r *http.Request, d *td.Description) ([]byte, error)
	// MaxTD limits a TD, in bytes; zero or more than td.MaxTD means td.MaxTD.
	MaxTD int
	// QueryTime limits a query with its wait for a core; zero means 5 s. With a higher value, one caller can occupy a core for longer.
	QueryTime time.Duration
	// Cache limits the memory of decoded TDs, in bytes; zero means 128 MiB. Other TDs are decoded for each query.
	Cache int
	// Watchers limits the clients that receive events; zero means 256.
	Watchers int
	// Log may be nil.
	Log *slog.Logger

	beat  time.Duration // between keep-alives on an idle stream; zero means 15 s
	write time.Duration // write timeout of an event; zero means 30 s
}

func (o Options) withDefaults() Options {
	o.MaxTD = cmp.Or(max(min(o.MaxTD, td.MaxTD), 0), td.MaxTD)
	o.Cache = cmp.Or(max(o.Cache, 0), 128<<20)
	o.Watchers = cmp.Or(max(o.Watchers, 0), 256)
	o.QueryTime = cmp.Or(max(o.QueryTime, 0), 5*time.Second)
	o.beat = cmp.Or(max(o.beat, 0), 15*time.Second)
	o.write = cmp.Or(max(o.write, 0), 30*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Guard == nil {
		o.Guard = func(_ Access, h Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := h(w, r); err != nil {
					problem.Write(w, r, err)
				}
			})
		}
	}
	return o
}

// A Server serves the API. Its methods are safe for concurrent use.
type Server struct {
	o         Options
	routes    map[string]map[string]http.Handler // by pattern and method
	decoded   decoded
	queries   *queries
	wholeSlot chan struct{} // holds one while a query needs all Things in memory
	onQuery   func(*budget) // called at the start of a query, in tests

	// locks are held during changes of a Thing, by its id, so that its state stays the one that the condition and the patch read.
	locks keylock.Locks

	drainCtx context.Context // ends with Drain
	drain    context.CancelFunc

	mu       sync.Mutex
	watchers int // owned by mu
}

// New returns a server. [Server.Drain] ends the streams.
func New(o Options) *Server {
	o = o.withDefaults()
	s := &Server{o: o, queries: newQueries(runtime.GOMAXPROCS(0)), wholeSlot: make(chan struct{}, 1),
		decoded: decoded{limit: o.Cache}}
	s.drainCtx, s.drain = context.WithCancel(context.Background())
	s.routes = map[string]map[string]http.Handler{
		"/.well-known/wot":  {"GET": s.guard(Open, s.self)},
		"/.well-known/core": {"GET": s.core()},
		"/things":           {"GET": s.guard(Read, s.list)},
		"/things/{id}":      {"GET": s.guard(Read, s.retrieve)},
		"/events":           {"GET": s.guard(Read, s.events)},
		"/events/{type}":    {"GET": s.guard(Read, s.events)},
		"/search/jsonpath":  {"GET": s.guard(Read, s.jsonpath)},
		"/search/xpath":     {"GET": s.guard(Read, s.xpath)},
		"/search/sparql":    {"GET": s.guard(Read, s.sparql), "POST": s.guard(Read, s.sparql)},
	}
	if o.Publisher != nil {
		s.routes["/things"]["POST"] = s.guard(Change, s.create)
		s.routes["/things/{id}"]["PUT"] = s.guard(Change, s.put)
		s.routes["/things/{id}"]["PATCH"] = s.guard(Change, s.patch)
		s.routes["/things/{id}"]["DELETE"] = s.guard(Change, s.remove)
	}
	return s
}

// guard adds the authorization to h, and writes errors that have no code.
func (s *Server) guard(a Access, h Handler) http.Handler {
	return s.o.Guard(a, func(w http.ResponseWriter, r *http.Request) error {
		err := h(w, r)
		if unmet, ok := errors.AsType[*preconditionError](err); ok {
			unmet.write(w)
			return nil
		}
		return rooted(err)
	})
}

// rooted sets the pointer of issues about the whole TD to "(root)", as in WoT Discovery §7.3.2.1.7. Other APIs use an empty JSON pointer,
// which clients of a directory read as a missing one.
func rooted(err error) error {
	if err == nil {
		return nil
	}
	e := interact.AsError(err)
	if !slices.ContainsFunc(e.Issues, func(i td.Issue) bool { return i.Pointer == "" }) {
		return err
	}
	rooted := *e
	rooted.Issues = slices.Clone(e.Issues)
	for i := range rooted.Issues {
		if rooted.Issues[i].Pointer == "" {
			rooted.Issues[i].Pointer = "(root)"
		}
	}
	return &rooted
}

// Drain ends the event streams. It may be called again.
func (s *Server) Drain() { s.drain() }

// Pattern returns the route of a request without the values in it, or "" if this server has none, such as for paths below a Thing.
func Pattern(r *http.Request) string {
	if id, below := server.ThingID(r, "/things/"); id != "" {
		if below != "" {
			return ""
		}
		r.SetPathValue("id", id)
		return "/things/{id}"
	}
	switch p := r.URL.EscapedPath(); p {
	case "/.well-known/wot", "/.well-known/core", "/things", "/events", "/search/jsonpath", "/search/xpath", "/search/sparql":
		return p
	default:
		if t, ok := strings.CutPrefix(p, "/events/"); ok && t != "" && !strings.Contains(t, "/") {
			r.SetPathValue("type", t)
			return "/events/{type}"
		}
		return ""
	}
}

// ServeHTTP implements [http.Handler]. GET routes support HEAD (tdd-http-head); other methods are 405 and other paths 404
// (tdd-http-unsupported-feature), with a problem document (tdd-http-error-response).
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	methods := s.routes[Pattern(r)]
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if h := methods[method]; h != nil {
		h.ServeHTTP(w, r)
		return
	}
	s.o.Guard(Open, func(w http.ResponseWriter, r *http.Request) error {
		if methods == nil {
			return interact.Errorf(interact.NoAffordance, "GET /.well-known/wot describes the directory", "nothing is served at %s",
				Clip(r.URL.Path))
		}
		allow := []string{http.MethodHead}
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		return NotAllowed(w, r, strings.Join(allow, ", "))
	}).ServeHTTP(w, r)
}
