package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/td"
)

// An Agent is an agent that is served under a name.
type Agent struct {
	// Card returns the signed card, whose interfaces are at the endpoint.
	Card func(at Endpoint) (*card.Card, error)
	// For returns the agent for a caller at an endpoint.
	For func(c Caller, at Endpoint) protocol.Agent
}

// A Caller is the sender of a request. Its tasks belong to its principal; callers that the node cannot distinguish share one.
type Caller struct {
	Principal string
	// From is the authenticated principal.
	From *did.Principal
	// Operator reports that the node authenticated the caller as its operator.
	Operator bool
}

// Shared reports whether the principal stands for callers that are not one person.
func (c Caller) Shared() bool { return c.From.Anonymous() && c.Principal == c.From.ID() }

// An Endpoint is the URL of the root and the agent name of a request.
type Endpoint struct{ Base, Name string }

// Options configure a [Handler].
type Options struct {
	// Find returns the agent of a name; empty means the default agent. The error is an *interact.Error. It is required.
	Find func(ctx context.Context, name string) (*Agent, error)
	// Base is the public URL of the node, without a path. Empty means the scheme and Host of each request.
	Base string
	// KeepAlive is the interval of comments in an idle stream; 0 means 15 s.
	KeepAlive time.Duration
	Log       *slog.Logger
}

// A Handler serves A2A. It is safe for concurrent use.
type Handler struct{ o Options }

const (
	jsonType      = "application/json"
	a2aType       = "application/a2a+json"
	root          = "/a2a"
	wellKnownPath = "/.well-known/"
)

// Paths are the paths of a Handler, as patterns of [http.ServeMux].
var Paths = []string{root, root + "/", wellKnownPath + "agent-card.json", wellKnownPath + "agent.json"}

// New returns a Handler.
func New(o Options) *Handler {
	o.KeepAlive = cmp.Or(o.KeepAlive, 15*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Handler{o}
}

// callerOf returns the caller of a request: the one that the node authenticated, distinguished further by the hash of an Authorization
// header that did not authenticate it. Callers of this machine without credentials share one principal.
func callerOf(r *http.Request) Caller {
	c, from := bridge.CallerOf(r), did.PrincipalOf(r.Context())
	var names []string
	if from != nil && from.Relation != did.Local || from.Scoped() {
		names = append(names, from.ID())
	}
	if c.Operator {
		names = append(names, "operator")
	}
	if c.Authorization != "" {
		sum := sha256.Sum256([]byte(c.Authorization))
		names = append(names, hex.EncodeToString(sum[:]))
	}
	return Caller{Principal: strings.Join(names, " "), From: from, Operator: c.Operator}
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if file, ok := strings.CutPrefix(path, wellKnownPath); ok {
		h.card(w, r, cardRequest{file: file})
		return
	}
	path = strings.TrimPrefix(path, root)
	if of, ok := cardPath(path); ok {
		if of.name == "" {
			noCard(w, r)
			return
		}
		h.card(w, r, of)
		return
	}
	if match, ok := protocol.FindREST(r.Method, path); ok {
		h.rest(w, r, match)
		return
	}
	name := strings.Trim(path, "/")
	if strings.Contains(name, "/") {
		refuse(w, r, protocol.Errorf(protocol.UnknownMethod, "nothing is served at %s", interact.Clip(r.URL.Path, 128)))
		return
	}
	name, _ = url.PathUnescape(name) // an escaped path is always valid
	h.rpc(w, r, name)
}

// A cardRequest is a request for a card: the agent name and the file. v03: at the path of 0.3.
type cardRequest struct {
	name, file string
	v03        bool
}

// oldFile is the file of cards before 0.3.0.
const oldFile = "agent.json"

// cardPath returns the card that a path below the root identifies.
func cardPath(path string) (of cardRequest, ok bool) {
	for _, file := range []string{"agent-card.json", oldFile} {
		name, ok := strings.CutSuffix(path, wellKnownPath+file)
		if !ok {
			continue
		}
		of = cardRequest{file: file}
		name, of.v03 = strings.CutSuffix(strings.Trim(name, "/"), "/v1")
		var err error
		of.name, err = url.PathUnescape(name)
		return of, err == nil
	}
	return cardRequest{}, false
}

// noCard rejects a request for a card directly below the root. A client sends it if it resolves the card relative to /a2a/NAME without a
// trailing slash (RFC 3986 §5.2). The card of another agent there would receive that client's messages.
func noCard(w http.ResponseWriter, r *http.Request) {
	refuse(w, r, protocol.Errorf(protocol.UnknownMethod, "no card at this path: the card of an agent is at %s/NAME%sagent-card.json, so use the "+
		"URL %s/NAME/ with a trailing slash; the card of the node is at %sagent-card.json", root, wellKnownPath, root, wellKnownPath))
}

// base returns the URL of the root for clients.
func (h *Handler) base(r *http.Request) string {
	if h.o.Base != "" {
		return strings.TrimSuffix(h.o.Base, "/") + root
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + root
}

// cardVerbs are the allowed methods for a card.
const cardVerbs = "GET, HEAD, OPTIONS"

// card serves a card: that of 1.0; to clients that request 0.3, or a path of 0.3, one with the members of both (A2A 1.0 §8.2, decision
// 32). Pages of any origin may read it.
func (h *Handler) card(w http.ResponseWriter, r *http.Request, of cardRequest) {
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", "*")
	header.Set("Access-Control-Expose-Headers", "ETag")
	header.Add("Vary", protocol.VersionParam)
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions: // Fetch §3.3.5
		header.Set("Allow", cardVerbs)
		header.Set("Access-Control-Allow-Methods", cardVerbs)
		header.Set("Access-Control-Allow-Headers", "Authorization, If-None-Match, "+protocol.VersionParam+", "+protocol.ExtensionsParam)
		header.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		header.Set("Allow", cardVerbs)
		refuse(w, r, protocol.Errorf(protocol.UnknownMethod, "the method for a card is GET"))
		return
	}
	body, err := h.cardBytes(r, of)
	if err != nil {
		refuse(w, r, notFound(err))
		return
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	header.Set("ETag", tag)
	header.Set("Cache-Control", "public, max-age=60")
	if r.Header.Get("Authorization") != "" { // such a response must not be shared (RFC 9111 §3.5)
		header.Set("Cache-Control", "private, max-age=60")
	}
	if known := r.Header.Get("If-None-Match"); known == "*" || strings.Contains(known, tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", jsonType)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

func (h *Handler) cardBytes(r *http.Request, of cardRequest) ([]byte, error) {
	a, err := h.o.Find(r.Context(), of.name)
	if err != nil {
		return nil, err
	}
	c, err := a.Card(Endpoint{h.base(r), of.name})
	if err != nil {
		return nil, err
	}
	if v, _ := versionOf(r); v == version03 || v == unspecified && (of.v03 || of.file == oldFile) {
		return card.Union(c)
	}
	return c.Bytes()
}

// A clientVersion is the A2A version of a client.
type clientVersion int

const (
	unspecified clientVersion = iota
	version03                 // 0.3
	version10                 // 1.0
)

// versionOf decodes A2A-Version (A2A 1.0 §3.6); the patch number is ignored.
func versionOf(r *http.Request) (clientVersion, *protocol.Error) {
	version := r.Header.Get(protocol.VersionParam)
	if version == "" && r.URL.RawQuery != "" {
		for name, values := range r.URL.Query() {
			if strings.EqualFold(name, protocol.VersionParam) && len(values) > 0 {
				version = values[0]
			}
		}
	}
	version = strings.TrimSpace(version)
	parts := strings.SplitN(version, ".", 3)
	switch {
	case version == "":
		return unspecified, nil
	case len(parts) >= 2 && parts[0] == "1" && parts[1] == "0":
		return version10, nil
	case len(parts) >= 2 && parts[0] == "0" && parts[1] == "3":
		return version03, nil
	}
	return unspecified, protocol.Errorf(protocol.VersionUnsupported, "unsupported A2A version %s", interact.Clip(version, 16)).
		With(map[string]string{"supportedVersions": "1.0, 0.3"})
}

// service returns the service parameters of a request for the agent.
func service(r *http.Request, v clientVersion) map[string]string {
	all := map[string]string{protocol.VersionParam: "1.0"}
	if ext := strings.Join(r.Header.Values(protocol.ExtensionsParam), ","); ext != "" {
		all[protocol.ExtensionsParam] = ext
	} else if ext := strings.Join(r.Header.Values("X-A2A-Extensions"), ","); ext != "" && v == version03 { // A2A 0.3.0 §3.2.5
		all[protocol.ExtensionsParam] = ext
	}
	return all
}

// tenantOf returns the tenant of params, and the params without it.
func tenantOf(params json.RawMessage) (string, json.RawMessage) {
	var members map[string]json.RawMessage
	var tenant string
	if json.Unmarshal(params, &members) != nil || json.Unmarshal(members["tenant"], &tenant) != nil || tenant == "" {
		return "", params
	}
	delete(members, "tenant")
	return tenant, protocol.Encode(members)
}

// agent returns the agent of an operation.
func (h *Handler) agent(r *http.Request, name string, op *protocol.Operation) (protocol.Agent, *protocol.Error) {
	if name == "" {
		name, op.Params = tenantOf(op.Params)
	}
	a, err := h.o.Find(r.Context(), name)
	if err != nil {
		return nil, notFound(err)
	}
	return a.For(callerOf(r), Endpoint{h.base(r), name}), nil
}

// notFound returns the error for an unknown or ambiguous name, for which A2A has no code.
func notFound(err error) *protocol.Error {
	e := interact.AsError(err)
	if e.Code != interact.NotFound && e.Code != interact.Ambiguous && e.Code != interact.Withdrawn {
		return protocol.AsError(err)
	}
	return protocol.FromInteract(protocol.UnknownMethod, e)
}

// read reads a JSON body.
func read(w http.ResponseWriter, r *http.Request, empty bool) ([]byte, *protocol.Error) {
	body, err := httpbody.Read(w, r, protocol.MaxMessage)
	if errors.Is(err, httpbody.ErrTooLarge) {
		return nil, protocol.Errorf(protocol.InvalidRequest, "the request exceeds %d bytes", protocol.MaxMessage)
	} else if err != nil {
		return nil, protocol.Errorf(protocol.ParseError, "incomplete request body")
	}
	if empty && len(body) == 0 {
		return nil, nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || !td.IsJSON(media) {
		return nil, protocol.Errorf(protocol.ContentTypeUnsupported, "expected Content-Type: %s", jsonType)
	}
	return body, nil
}

// one returns the result of an operation without a stream.
func one(ctx context.Context, a protocol.Agent, op *protocol.Operation) result {
	raw, err := protocol.Call(ctx, a, op)
	if err != nil {
		return result{err: protocol.AsError(err)}
	}
	return result{raw: raw}
}

// results runs an operation in its own goroutine, so that the receiver can send keep-alives in between.
func (h *Handler) results(ctx context.Context, a protocol.Agent, op *protocol.Operation) (<-chan result, func()) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan result)
	send := func(r result) bool {
		select {
		case out <- r:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var work sync.WaitGroup
	work.Go(func() {
		defer close(out)
		defer func() { // net/http recovers panics of its own goroutines only
			if p := recover(); p != nil {
				h.o.Log.Error("A2A operation panicked", "method", op.Method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				send(result{err: protocol.Errorf(protocol.InternalError, "the operation failed")})
			}
		}()
		for raw, err := range a.Do(ctx, op) {
			r := result{raw: raw}
			if err != nil {
				r.err = protocol.AsError(err)
			}
			if !send(r) {
				return
			}
		}
	})
	return out, func() { cancel(); work.Wait() }
}

type result struct {
	raw json.RawMessage
	err *protocol.Error
}

// noResult is the result for an agent that returns none.
var noResult = result{err: protocol.Errorf(protocol.InvalidAgentResponse, "the agent returned no result")}

// events writes results as server-sent events: first, if it is not nil, and then the others. The stream has at least one event unless
// the client disconnects. The function encode returns the name and the data of an event.
func (h *Handler) events(w http.ResponseWriter, r *http.Request, first *result, from <-chan result,
	encode func(result) (name string, data []byte)) {
	out := sse.NewWriter(w, 0)
	send := func(e result) bool {
		name, data := encode(e)
		return out.Send(name, "", oneLine(data)) == nil
	}
	if first != nil && !send(*first) || out.Begin() != nil {
		return
	}
	alive := time.NewTicker(h.o.KeepAlive)
	defer alive.Stop()
	for {
		select {
		case e, more := <-from:
			if !more && first == nil {
				send(noResult)
			}
			if !more || !send(e) {
				return
			}
			first = &e
		case <-alive.C:
			if out.Comment("keep-alive") != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// oneLine replaces the line ends between the tokens of a JSON text: some clients read only the first line of an event.
func oneLine(text []byte) []byte {
	if !bytes.ContainsAny(text, "\r\n") {
		return text
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r"), []byte(" ")), []byte("\n"), []byte(" "))
}

// first returns the first result within the keep-alive interval, so that an early error can have an HTTP status. It reports whether further
// results may follow.
func (h *Handler) first(out <-chan result) (first *result, more bool) {
	late := time.NewTimer(h.o.KeepAlive)
	defer late.Stop()
	select {
	case r, ok := <-out:
		if !ok {
			return nil, false
		}
		return &r, true
	case <-late.C:
		return nil, true
	}
}

// answer writes a response.
func answer(w http.ResponseWriter, status int, media string, body []byte) {
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}
