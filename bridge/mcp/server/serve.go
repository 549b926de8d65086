// Package server serves MCP over Streamable HTTP: stateless requests (2026-07-28) and sessions (earlier revisions) at one URL. What
// a server says is passed on as it is; the package knows the transport and nothing of tools.
//
// Sources: MCP 2026-07-28 and 2025-11-25, "Transports", "Streamable HTTP".
package server

import (
	"bytes"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// Options are the settings of a [Handler].
type Options struct {
	// Server is what is served. It is needed.
	Server protocol.Server
	// Params returns the arguments of a tool that headers must repeat ([protocol.Params]); nil checks none.
	Params func(tool string) []protocol.Param
	// MaxBody bounds a request, in bytes; 0 means 16 MiB.
	MaxBody int64
	// MaxSessions bounds the sessions at once; 0 means 64. One more takes the place of the one that has been idle for the longest
	// time, of whoever has most, whose client begins another when it comes back; where none is idle it gets 503.
	MaxSessions int
	// Idle is how long a session may do nothing, without an open stream, before it ends; 0 means 30 min.
	Idle time.Duration
	// Caller names who sends a request, so that nobody uses the session of another; nil names nobody. The server learns it, too
	// ([protocol.CallerOf]).
	Caller func(*http.Request) string
	Log    *slog.Logger
}

// A Handler serves one MCP server. Close ends its sessions.
type Handler struct {
	o Options

	mu       sync.Mutex
	sessions map[string]*session
	closed   bool
	work     sync.WaitGroup
}

const (
	eventStream = "text/event-stream"
	jsonType    = "application/json"
	sessionID   = "Mcp-Session-Id"
	versionName = "Mcp-Protocol-Version"
	// keepAlive is how often a silent stream shows that it lives.
	keepAlive = 15 * time.Second
)

// New returns a handler, which the caller closes.
func New(o Options) *Handler {
	if o.MaxBody <= 0 {
		o.MaxBody = protocol.MaxMessage
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = 64
	}
	if o.Idle <= 0 {
		o.Idle = 30 * time.Minute
	}
	if o.Caller == nil {
		o.Caller = func(*http.Request) string { return "" }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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
		http.Error(w, "MCP is spoken with POST, and sessions with GET and DELETE, too", http.StatusMethodNotAllowed)
	}
}

// trusted is how much memory a body gets that only says how long it is.
const trusted = 64 << 10

// post takes one message.
func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != jsonType {
		http.Error(w, "the Content-Type must be "+jsonType, http.StatusUnsupportedMediaType)
		return
	}
	if !accepts(r, jsonType) || !accepts(r, eventStream) {
		http.Error(w, "Accept must list "+jsonType+" and "+eventStream, http.StatusNotAcceptable)
		return
	}
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), trusted)) + bytes.MinRead) // where that does not fit behind, it would grow again
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, "the message is too large", http.StatusRequestEntityTooLarge)
		return
	} else if err != nil {
		return // the client is gone
	}
	r = r.WithContext(protocol.WithCaller(r.Context(), h.o.Caller(r)))
	m, err := protocol.Parse(body.Bytes())
	if bad, ok := err.(*protocol.Error); ok {
		var id protocol.ID
		if m != nil {
			id = m.ID()
		}
		refuse(w, http.StatusBadRequest, id, bad)
		return
	}
	if m.IsModern() || modern(r) {
		h.single(w, r, m)
		return
	}
	h.inSession(w, r, m)
}

// modern reports whether the header of a request says that it is of the new era.
func modern(r *http.Request) bool { return r.Header.Get(versionName) >= protocol.Modern }

// accepts reports whether a client takes a media type.
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

// refuse answers with an error in JSON.
func refuse(w http.ResponseWriter, status int, id protocol.ID, e *protocol.Error) {
	answer(w, status, protocol.Refuse(id, e))
}

func answer(w http.ResponseWriter, status int, m *protocol.Message) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	_, _ = w.Write(m.Bytes())
}

// Close ends all sessions and waits for them.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	for _, s := range h.sessions {
		s.cancel() // pump ends it
	}
	h.mu.Unlock()
	h.work.Wait()
}
