package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/sse"
)

// Options are the settings of a [Handler].
type Options struct {
	// Server receives the messages. It is required.
	Server protocol.Server
	// Params returns the arguments of a tool that headers must repeat ([protocol.Params]), for the caller of ctx; nil disables the check.
	Params func(ctx context.Context, tool string) []protocol.Param
	// MaxBody bounds the body of a request, in bytes; 0 means 16 MiB.
	MaxBody int64
	// MaxSessions bounds the concurrent sessions; 0 means 64. At the limit a new session replaces the longest idle session of the caller
	// with most sessions, whose client starts another when it returns. If no session is idle, the request fails with 503.
	MaxSessions int
	// Idle is the time after which a session without open requests ends; 0 means 30 min.
	Idle time.Duration
	// Caller returns the name of the caller of a request. A session belongs to its caller, and the server gets the name
	// ([protocol.CallerOf]). If Caller is nil, all requests have the empty name.
	Caller func(*http.Request) string
	Log    *slog.Logger
}

// A Handler serves one MCP server over HTTP. Close ends its sessions.
type Handler struct {
	o Options

	mu       sync.Mutex
	sessions map[string]*session
	closed   bool
	work     sync.WaitGroup
}

const (
	jsonType    = "application/json"
	sessionID   = "Mcp-Session-Id"
	versionName = "Mcp-Protocol-Version"
	// keepAlive is the interval of comments on a silent stream.
	keepAlive = 15 * time.Second
)

// New returns a handler, which the caller must close.
func New(o Options) *Handler {
	o.MaxBody = cmp.Or(max(o.MaxBody, 0), protocol.MaxMessage)
	o.MaxSessions = cmp.Or(max(o.MaxSessions, 0), 64)
	o.Idle = cmp.Or(max(o.Idle, 0), 30*time.Minute)
	if o.Caller == nil {
		o.Caller = func(*http.Request) string { return "" }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Handler{o: o, sessions: map[string]*session{}}
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		h.post(w, r)
	case http.MethodGet:
		h.get(w, r)
	case http.MethodDelete:
		h.delete(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "expected POST, or for sessions also GET or DELETE", http.StatusMethodNotAllowed)
	}
}

// post handles one message.
func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != jsonType {
		http.Error(w, "expected Content-Type "+jsonType, http.StatusUnsupportedMediaType)
		return
	}
	if !accepts(r, jsonType) || !accepts(r, sse.MediaType) {
		http.Error(w, "expected Accept with "+jsonType+" and "+sse.MediaType, http.StatusNotAcceptable)
		return
	}
	body, err := httpbody.Read(w, r, h.o.MaxBody)
	if errors.Is(err, httpbody.ErrTooLarge) {
		http.Error(w, "message too large", http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		return // the client has disconnected
	}
	r = r.WithContext(protocol.WithCaller(r.Context(), h.o.Caller(r)))
	m, err := protocol.Parse(body)
	if bad, ok := err.(*protocol.Error); ok {
		respondError(w, http.StatusBadRequest, protocol.IDOfInvalid(m), bad)
		return
	}
	if m.IsModern() || modern(r) {
		h.serveStateless(w, r, m)
		return
	}
	h.serveSession(w, r, m)
}

// modern reports whether the header of a request names revision 2026-07-28 or later.
func modern(r *http.Request) bool { return r.Header.Get(versionName) >= protocol.Modern }

// accepts reports whether the Accept header matches a media type.
func accepts(r *http.Request, media string) bool {
	kind, _, _ := strings.Cut(media, "/")
	for _, value := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			part, _, _ = strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(part)) {
			case media, kind + "/*", "*/*":
				return true
			}
		}
	}
	return false
}

// respondError responds with an error as JSON.
func respondError(w http.ResponseWriter, status int, id protocol.ID, e *protocol.Error) {
	writeJSON(w, status, protocol.RespondError(id, e))
}

func writeJSON(w http.ResponseWriter, status int, m *protocol.Message) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_, _ = w.Write(m.Bytes())
}

// Close ends all sessions and waits for them.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	for _, s := range h.sessions {
		s.cancel() // ends pump
	}
	h.mu.Unlock()
	h.work.Wait()
}
