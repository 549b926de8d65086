package server

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/sse"
)

// removed are the methods that 2026-07-28 removed.
var removed = map[string]bool{protocol.Initialize: true, protocol.Initialized: true, protocol.Ping: true, protocol.SetLevel: true,
	protocol.Subscribe: true, protocol.Unsubscribe: true, "tasks/result": true, "tasks/list": true}

// serveStateless handles one request of 2026-07-28: the response is JSON if it is the first message of the server, otherwise an event
// stream.
func (h *Handler) serveStateless(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	switch {
	case m.IsResponse():
		respondError(w, http.StatusBadRequest, m.ID(), protocol.Errorf(protocol.InvalidRequest,
			"unexpected response: clients send only requests and notifications"))
		return
	case m.IsNotification():
		w.WriteHeader(http.StatusAccepted) // no notification has an effect over HTTP: closing the response cancels the request
		return
	case removed[m.Method()]:
		respondError(w, http.StatusNotFound, m.ID(), protocol.Errorf(protocol.UnknownMethod, "method %s does not exist in %s",
			m.Method(), protocol.Modern))
		return
	}
	if e := h.check(r, m); e != nil {
		respondError(w, http.StatusBadRequest, m.ID(), e)
		return
	}
	out := &liveStream{stream: newStream(w, r)}
	out.start()
	ended := false
	response, err := h.o.Server.Call(r.Context(), m, func(n *protocol.Message) error {
		if n.Method() == protocol.Cancelled { // the server has ended the request
			ended = true
			return errEnded
		}
		out.notify(n)
		return r.Context().Err()
	})
	out.stop()
	switch {
	case ended:
		response = cancelledBy(m)
	case err != nil && r.Context().Err() != nil: // the client has disconnected, and this write has no effect, or the node shuts down
		response = protocol.RespondError(m.ID(), protocol.FromError(protocol.ErrShutdown))
	case err != nil:
		h.o.Log.Debug("no response from MCP server", "err", err)
		response = protocol.RespondError(m.ID(), protocol.FromError(err))
	}
	out.last(response)
}

var errEnded = errors.New("request ended by the server")

// A liveStream is the response to one request, with comments as keep-alive while the server is silent.
type liveStream struct {
	stream

	mu    sync.Mutex // guards the stream and the fields below
	alive *time.Timer
	done  bool // only the response may still be written
}

func (a *liveStream) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive = time.AfterFunc(keepAlive, a.sendKeepAlive)
}

func (a *liveStream) notify(n *protocol.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send("", n)
}

func (a *liveStream) sendKeepAlive() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.done {
		_ = a.Comment("") // a failed write has ended the context of the request
		a.alive.Reset(keepAlive)
	}
}

// stop ends the keep-alive and waits for writes in progress.
func (a *liveStream) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive.Stop()
	a.done = true
}

// cancelledBy is the response to a request that the server cancelled: the result that ends a listen request (2026-07-28,
// "Subscriptions"), otherwise an error.
func cancelledBy(m *protocol.Message) *protocol.Message {
	if m.Method() != protocol.Listen {
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InternalError, "request cancelled by the server"))
	}
	return m.EndSubscription()
}

// A stream is the HTTP response to a request: JSON, or an event stream if a message precedes the response.
type stream struct {
	*sse.Writer
	w http.ResponseWriter
	r *http.Request
}

func newStream(w http.ResponseWriter, r *http.Request) stream {
	return stream{sse.NewWriter(w, 0), w, r}
}

// send sends one message as an event. An empty id is omitted.
func (s *stream) send(id string, m *protocol.Message) {
	_ = s.Send("message", id, m.Bytes()) // a failed write has ended the context of the request
}

// last sends the response.
func (s *stream) last(m *protocol.Message) {
	if s.Started() {
		s.send("", m)
		return
	}
	status := http.StatusOK
	if e := m.Error(); e != nil {
		status = e.Status()
	}
	writeJSON(s.w, status, m)
}
