// Package tdd implements the HTTP API of a W3C Thing Description Directory (WoT Discovery §6 and §7).
//
// The things are those of the node and of the whole mesh, in one list. What is served stays what its owner signed: a single TD is
// byte for byte that, unless ?enriched=true asks for the registration with it, and lists, collections and answers to queries have
// the registration unless ?enriched=false refuses it. The proof of a TD does not cover the member "registration", so that a
// verifier that takes it out sees what was signed (docs/decisions/0018). Names in comments such as tdd-http-head are the ids of
// the assertions of that specification.
package tdd

import (
	"context"
	"errors"
	"hash/maphash"
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

// A Scope says which things are listed.
type Scope string

// What a list may be limited to.
const (
	All   Scope = ""
	Local Scope = "local" // offered by this node
	Mesh  Scope = "mesh"  // offered by others
	// Discovered things are neither: others introduced them to this node, and they are in no other list.
	Discovered Scope = "discovered"
)

// An Item is a thing of a list.
type Item struct {
	Record   *td.Record
	TD       []byte // as its owner signed it; nobody changes it
	Describe func() *td.Description
}

// A Page is a part of a list, in the order of ids and owners, in code points.
type Page struct {
	Items []Item
	Total int    // things that the list has
	Tag   string // of the list's state, without quotes: it changes whenever its membership or order does
}

// Things is where the things are: the node's index. Its methods are called concurrently, and ask nobody else, but for Get.
type Things interface {
	// Page returns what follows the first offset things of a scope: up to limit of them, or all if limit is 0.
	Page(s Scope, offset, limit int) Page
	// Lookup returns what has an id: first what this node has, then what others have, or some of it.
	Lookup(id string) []Item
	// Get returns the thing that ref names, also from elsewhere (directory.Directory.Get).
	Get(ctx context.Context, ref string) (*td.Description, error)
	// Watch yields changes (directory.Directory.Watch).
	Watch(ctx context.Context, q td.Query, after uint64) iter.Seq2[directory.Change, error]
}

// An Index is the [Things] of a directory.
type Index struct {
	*directory.Directory
	// Self is the node, whose things are local.
	Self did.DID
}

// Page implements [Things].
func (x Index) Page(s Scope, offset, limit int) Page {
	if limit <= 0 {
		limit = math.MaxInt
	}
	var p directory.Page
	switch s {
	case Local:
		p = x.Directory.PageOwn(td.Query{}, offset, limit)
	case Mesh:
		p = x.Directory.Page(td.Query{Not: []td.Query{{Owner: x.Self}}}, offset, limit)
	default:
		p = x.Directory.Page(td.Query{}, offset, limit)
	}
	return Page{Items: items(p), Total: p.Total, Tag: strconv.FormatUint(p.Version, 36)}
}

// Lookup implements [Things]. What this node has comes first, however many others have the id.
func (x Index) Lookup(id string) []Item {
	q := td.Query{ID: id}
	return append(items(x.Directory.PageOwn(q, 0, 1)), items(x.Directory.Page(q, 0, 1))...)
}

func items(p directory.Page) []Item {
	all := make([]Item, len(p.Items))
	for i, item := range p.Items {
		all[i] = Item{Record: item.Record(), TD: item.TD(), Describe: item.Description}
	}
	return all
}

// A Publisher changes what this node offers. Its errors are those that the client is told.
type Publisher interface {
	// Registered returns the registration of a thing that this node offers in its own name; false for all others, which nobody may
	// change here.
	Registered(r *td.Record) (publication.Registration, bool)
	// Enter signs, stores and announces a TD, with or without proof. Of r it takes TTL and Expires.
	Enter(ctx context.Context, raw []byte, r publication.Registration) (id string, created bool, err error)
	// Register changes TTL and Expires of a thing of this node, by its id, and nothing else.
	Register(ctx context.Context, id string, r publication.Registration) error
	// Withdraw ends a thing of this node, by its id.
	Withdraw(ctx context.Context, id string) error
}

// Access is what a route needs of its caller.
type Access uint8

// What routes need.
const (
	Open   Access = iota // nothing
	Read                 // to see what is known
	Change               // to be the administrator of the node
)

// A Handler answers a request, or returns why not before it wrote anything.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Options configure a [Server]. Things is needed; the zero values of the others work.
type Options struct {
	Things Things
	// Publisher takes changes. Nil makes a directory that is read only: what would change it is 405.
	Publisher Publisher
	// Resembles returns the name that the name of a thing looks like and is not, or "" (directory.Directory.Resembles); nil knows none.
	Resembles func(*td.Record) string
	// Guard makes of a route what asks for the rights of its caller and writes its error. Nil lets everybody do everything.
	Guard func(a Access, h Handler) http.Handler
	// Describe returns the directory's own TD; nil, or an empty TD, is 503.
	Describe func() []byte
	// RewriteForms writes a TD with the forms of this node, for ?forms=node; nil refuses that.
	RewriteForms func(r *http.Request, d *td.Description) ([]byte, error)
	// MaxTD bounds a TD, in bytes; zero or more than td.MaxTD means td.MaxTD.
	MaxTD int
	// QueryTime bounds a query; zero means 5 s. Raising it lets one caller keep a core busy for longer.
	QueryTime time.Duration
	// Queries is how many run at once, more wait for QueryTime; zero means one for each core. One host that asks may have all but one
	// of them, and one at least.
	Queries int
	// Cache bounds the memory for decoded TDs, in bytes; zero means 128 MiB. What does not fit is decoded for each query.
	Cache int
	// Watchers is how many clients may listen to events at once; zero means 256.
	Watchers int
	// Log may be nil.
	Log *slog.Logger

	beat  time.Duration // between signs of life on an idle stream; zero means 15 s
	write time.Duration // for an event to be taken; zero means 30 s
}

func (o Options) withDefaults() Options {
	set := func(p *int, otherwise int) {
		if *p <= 0 {
			*p = otherwise
		}
	}
	wait := func(p *time.Duration, otherwise time.Duration) {
		if *p <= 0 {
			*p = otherwise
		}
	}
	if o.MaxTD = min(o.MaxTD, td.MaxTD); o.MaxTD <= 0 {
		o.MaxTD = td.MaxTD
	}
	set(&o.Queries, runtime.GOMAXPROCS(0))
	set(&o.Cache, 128<<20)
	set(&o.Watchers, 256)
	wait(&o.QueryTime, 5*time.Second)
	wait(&o.beat, 15*time.Second)
	wait(&o.write, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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
	o       Options
	routes  map[string]map[string]http.Handler // by pattern and method
	decoded decoded
	queries *queries
	large   chan struct{} // one for the query that has all things in memory
	began   func(*budget) // of tests: a query begins
	poke    chan struct{} // a registration may end earlier than purge thinks

	// turns are held while a thing changes, by the hash of its id: what a condition saw, or a patch was merged with, is what is
	// changed then.
	turns [64]sync.Mutex
	seed  maphash.Seed

	life context.Context // ends with Drain
	stop context.CancelFunc

	mu       sync.Mutex
	watchers int // owned by mu
}

// New returns a server. [Server.Run] purges what expires; [Server.Drain] ends its streams.
func New(o Options) *Server {
	o = o.withDefaults()
	s := &Server{o: o, queries: newQueries(o.Queries), large: make(chan struct{}, 1), poke: make(chan struct{}, 1),
		decoded: decoded{most: o.Cache}, seed: maphash.MakeSeed()}
	s.life, s.stop = context.WithCancel(context.Background())
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

// guard puts the guard before h, and answers for what has no code in the catalogue.
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

// rooted names the whole TD in validationErrors as WoT Discovery §7.3.2.1.7 does. Elsewhere that is an empty JSON pointer, which
// clients of directories take for none.
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

// hold has changes of a thing wait for each other until it is released.
func (s *Server) hold(id string) (release func()) {
	turn := &s.turns[maphash.String(s.seed, id)%uint64(len(s.turns))]
	turn.Lock()
	return turn.Unlock
}

// Drain ends the streams of events. It may be called more than once.
func (s *Server) Drain() { s.stop() }

// Pattern returns which route a request is for, without what its caller chose, or "" if it is none of this server's. What is
// below a thing is none.
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

// ServeHTTP implements [http.Handler]. HEAD is answered wherever GET is (tdd-http-head), another method is 405 and another path
// 404 (tdd-http-unsupported-feature), each with a problem document (tdd-http-error-response).
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
				clip(r.URL.Path))
		}
		allow := []string{http.MethodHead}
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return interact.Errorf(interact.NotAllowed, "use "+strings.Join(allow, ", "), "%s is not possible at %s", clip(r.Method),
			clip(r.URL.Path))
	}).ServeHTTP(w, r)
}

// clip keeps what a caller sent from filling an error.
func clip(s string) string { return interact.Clip(interact.Readable(s), 200) }
