package server

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// Options are the settings of a [Server]. Mesh and Find are required.
type Options struct {
	// Mesh handles the messages. The caller is in the context of a request (did.PrincipalOf); an Authorization header is ignored.
	Mesh interact.Thing
	// Find returns the Thing of a path: by an id, a short name, or an exact reference. Its error is sent unchanged if it is an
	// [*interact.Error], else as "internal error".
	Find func(ctx context.Context, ref string) (*td.Description, error)
	// Log receives log records; nil discards them.
	Log *slog.Logger
	// Base returns the address of the API for the caller of r, "https://node.example", without a slash at its end. It is the prefix of
	// the addresses in descriptions. Nil means the scheme and the Host of the request.
	Base func(r *http.Request) string
	// Socket is the path of the WebSocket endpoint of the same server, "/ws", for descriptions. Empty means none.
	Socket string
	// Bearer declares in descriptions that callers require a token.
	Bearer bool
	// CallbackDial connects to the webhook addresses of consumers. Nil connects only to addresses of the public internet, or with
	// PrivateCallbacks to all addresses.
	CallbackDial     func(ctx context.Context, network, addr string) (net.Conn, error)
	PrivateCallbacks bool
	// MaxCallbacks limits the webhooks; zero means 256, a negative value none.
	MaxCallbacks int
	// MaxWatchers limits the requests that wait for events; zero means 512.
	MaxWatchers int
	// Count is called for each event that was delivered, or dropped because its consumer was too slow or not reachable. The kind is
	// "sse", "longpoll" or "webhook". Nil counts nothing.
	Count func(kind string, dropped bool)

	pace pace // zero means defaultPace
}

// A pace has the times and intervals of a server.
type pace struct {
	hold      time.Duration // a long poll
	keepAlive time.Duration // between comments in a stream of events
	commit    time.Duration // until a stream of events starts, also without an event
	write     time.Duration // for one write, and until a slow consumer is disconnected
	read      time.Duration // for one read of a request stream
	poll      time.Duration // between the first two queries of a task; later pauses are longer
	retry     time.Duration // before the second delivery of an event; later pauses are longer
	deliver   time.Duration // for one delivery
	back      time.Duration // before a lost observation is started again; later pauses are longer
	lease     time.Duration // of a webhook that is not renewed
}

// Known clients hold a long poll for one hour, and treat its end as the end of the subscription.
var defaultPace = pace{hold: 61 * time.Minute, keepAlive: 15 * time.Second, commit: 150 * time.Millisecond,
	write: 10 * time.Second, read: time.Minute, poll: 50 * time.Millisecond, retry: 500 * time.Millisecond,
	deliver: 10 * time.Second, back: time.Second, lease: 24 * time.Hour}

// A Server serves the Things of a mesh to HTTP consumers (WoT Profile: HTTP Basic, HTTP SSE, HTTP Webhook; long poll as in the known
// clients). Paths are those of [ThingID], below /things/{id}:
//
//	GET /td                                       the TD of the Thing with forms of this server
//	GET PUT /properties/{name}                    200 with the value; 204
//	GET PUT /properties                           200 with an object of values; ?names=a,b reads some; 204; ?all writes all
//	POST /properties                              200: reads the properties in an array of names
//	POST /actions/{name}                          200 with the output, 204, or 201 with Location for a detached action
//	GET DELETE /actions/{name}/{run}              200 with the state (ActionStatus); 204: cancels. Without a run, the latest
//	GET /actions                                  200 with the states of all runs
//	GET /properties/{name}/observable             long poll: 200 with one value, when there is one
//	GET /events/{name}, /events                   long poll: 200 with one event
//	GET /properties/{name}, /properties, /events… server-sent events, with Accept: text/event-stream
//	POST with {"callbackURL": …}                  to each of these: 201 with Location; values are posted to the URL for 24 h after
//	                                              the last identical request; "expires" in the body is the end
//	GET DELETE /subscriptions/{id}                200 with the state of a webhook and the reason of its end; 204: ends it
//
// HEAD is supported where GET is, and does not wait. Each failure is a problem document. There are no redirects. Requests are checked
// against the description before the mesh is called. A body has at most 4 MiB. Its Content-Type is JSON, CBOR (RFC 8949) instead of JSON,
// or a type of a form of the affordance. The body of an action that is neither JSON nor CBOR, and has no length or more than 1 MiB, is a
// stream, which is forwarded as it arrives. An output in parts is sent in parts; if it is incomplete, the connection is closed.
//
// Headers (or parameters of the query): Prefer wait=SECONDS (timeout=5s) is the timeout of the consumer, 30 s by default and at most
// 10 min; Prefer respond-async detaches an action; Idempotency-Key makes an action repeatable; Lmos-Via (via) selects the path to the
// Thing; Lmos-Timing (timing) requests a Server-Timing header; Last-Event-ID (lastEventId, after) continues after the last received
// event; Lmos-Hops is the number of nodes that relayed the request (more than [interact.MaxHops] are a loop, 508). Variables of the
// address of an affordance may be in the query, or in the body as for [rest.Client.Thing]. A consumer that disconnects cancels its
// request.
//
// A Server is safe for concurrent use.
type Server struct {
	o Options
	// ending ends when the server is drained: it ends subscriptions, but not calls.
	ending   context.Context
	end      context.CancelFunc
	watchers atomic.Int64
	hooks    hooks
}

// New returns a server with options o. Close it when it is done.
func New(o Options) *Server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Base == nil {
		o.Base = baseOf
	}
	o.MaxWatchers = cmp.Or(o.MaxWatchers, 512)
	if o.Count == nil {
		o.Count = func(string, bool) {}
	}
	if o.pace == (pace{}) {
		o.pace = defaultPace
	}
	s := &Server{o: o}
	s.ending, s.end = context.WithCancel(context.Background())
	s.hooks.open(s.ending, &s.o)
	return s
}

func baseOf(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// Drain ends event streams, long polls and webhooks with an error of code ShuttingDown, and rejects new ones. Calls continue.
func (s *Server) Drain() { s.end() }

// Close drains the server and waits for its goroutines. Running requests continue.
func (s *Server) Close() {
	s.Drain()
	s.hooks.close()
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, below := ThingID(r, "/things/")
	v := &visit{Server: s, w: w, r: r, ref: id, began: time.Now()}
	if err := v.serve(below); err != nil {
		problem.Write(w, r, err)
	}
}

// A visit is one request of a consumer. Its methods return an error only if nothing was written yet.
type visit struct {
	*Server
	w     http.ResponseWriter
	r     *http.Request
	began time.Time
	ref   string // the reference of the consumer
	at    resource
	desc  *td.Description

	callID [1]string // the value of a header field
}

// A resource is the part of a path after the id of a Thing.
type resource struct {
	kind string // td, properties, actions, events or subscriptions
	name string // of the affordance; empty: all affordances
	id   string // of a run of an action, or of a webhook
	poll bool   // observable
}

// methods are the handlers of a resource by method. HEAD uses that of GET.
type methods map[string]func(*visit) error

// The methods of each resource.
var (
	tdMethods         = methods{"GET": (*visit).getTD}
	propertiesMethods = methods{"GET": (*visit).getProperties, "PUT": (*visit).putProperties, "POST": (*visit).postProperties}
	propertyMethods   = methods{"GET": (*visit).getProperty, "PUT": (*visit).putProperty, "POST": (*visit).postProperty}
	observableMethods = methods{"GET": (*visit).getObservable, "DELETE": (*visit).endWatch}
	actionsMethods    = methods{"GET": (*visit).getActions}
	actionMethods     = methods{"GET": (*visit).getTask, "POST": (*visit).postAction, "DELETE": (*visit).deleteTask}
	taskMethods       = methods{"GET": (*visit).getTask, "POST": (*visit).postAnswers, "DELETE": (*visit).deleteTask}
	eventMethods      = methods{"GET": (*visit).getEvents, "POST": (*visit).postEvents, "DELETE": (*visit).endWatch}
	hookMethods       = methods{"GET": (*visit).getHook, "DELETE": (*visit).deleteHook}
)

// parseResource parses the rest of a path that [ThingID] returns; methods is nil for an unknown resource.
func parseResource(below string) (resource, methods) {
	kind, names, _ := strings.Cut(below, "/")
	name, id, _ := strings.Cut(names, "/")
	s := resource{kind: kind, name: unescape(name), id: unescape(id)}
	switch {
	case !isRest(below):
		return s, nil
	case s.kind == "td":
		return s, tdMethods
	case s.kind == "properties" && s.id != "":
		s.id, s.poll = "", true
		return s, observableMethods
	case s.kind == "properties" && s.name != "":
		return s, propertyMethods
	case s.kind == "properties":
		return s, propertiesMethods
	case s.kind == "actions" && s.id != "":
		return s, taskMethods
	case s.kind == "actions" && s.name != "":
		return s, actionMethods
	case s.kind == "actions":
		return s, actionsMethods
	case s.kind == "events":
		return s, eventMethods
	case s.name != "": // subscriptions
		s.id, s.name = s.name, ""
		return s, hookMethods
	}
	return s, nil
}

func (v *visit) serve(below string) error {
	at, supported := parseResource(below)
	if v.at = at; supported == nil {
		return interact.Errorf(interact.NotFound,
			"things have /things/{id}/td, /properties, /actions and /events, and names below these",
			"no resource at %s", interact.Excerpt(v.r.URL.Path, 200))
	}
	method := v.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	do := supported[method]
	if do == nil {
		allow := supported.allow()
		v.w.Header().Set("Allow", allow) // RFC 9110 §10.2.1
		return interact.Errorf(interact.NotAllowed, "use "+allow, "%s is not supported here", interact.Excerpt(v.r.Method, 20))
	}
	if at.kind != "subscriptions" { // a webhook can be ended after its Thing was removed
		if err := v.find(); err != nil {
			return err
		}
	}
	return do(v)
}

// allow lists the methods.
func (m methods) allow() string {
	all := slices.Collect(maps.Keys(m))
	if m["GET"] != nil {
		all = append(all, "HEAD")
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (v *visit) find() error {
	d, err := v.o.Find(v.r.Context(), v.ref)
	switch {
	case err != nil:
		return err
	case d == nil || d.Thing == nil:
		return interact.NoAgent(v.ref)
	}
	v.desc = d
	return nil
}
