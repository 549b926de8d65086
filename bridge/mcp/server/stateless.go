package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// removed are methods that 2026-07-28 took away.
var removed = map[string]bool{protocol.Initialize: true, protocol.Initialized: true, "ping": true, "logging/setLevel": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "tasks/result": true, "tasks/list": true}

// single answers one request of the new era: with JSON if the server says nothing before its response, else with a stream.
func (h *Handler) single(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	switch {
	case m.IsResponse():
		refuse(w, http.StatusBadRequest, m.ID(), protocol.Errorf(protocol.InvalidRequest, "clients send no responses"))
		return
	case m.IsNotification():
		w.WriteHeader(http.StatusAccepted) // none means anything over HTTP: who closes the response has cancelled
		return
	case removed[m.Method()]:
		refuse(w, http.StatusNotFound, m.ID(), protocol.Errorf(protocol.UnknownMethod, "%s is no method of %s", m.Method(), protocol.Modern))
		return
	}
	if e := h.check(r, m); e != nil {
		refuse(w, http.StatusBadRequest, m.ID(), e)
		return
	}
	out := &answering{stream: stream{w: w, r: r}}
	out.start()
	ended := false
	response, err := h.o.Server.Call(r.Context(), m, func(n *protocol.Message) error {
		if n.Method() == protocol.Cancelled { // the server has ended it, and says no more
			ended = true
			return errEnded
		}
		out.say(n)
		return r.Context().Err()
	})
	out.stop()
	switch {
	case ended:
		response = over(m)
	case err != nil && r.Context().Err() != nil: // the client has left, and this goes nowhere, or we are being ended
		response = protocol.Refuse(m.ID(), protocol.Fault(errEnding))
	case err != nil:
		h.o.Log.Debug("an MCP server gave no response", "err", err)
		response = protocol.Refuse(m.ID(), protocol.Fault(err))
	}
	out.last(response)
}

var errEnded = errors.New("the server has ended the request")

// An answering is the answer to one request, which shows that it lives while nothing is said.
type answering struct {
	stream

	mu    sync.Mutex // held while something is written, and owns what follows
	alive *time.Timer
	done  bool // nothing more is written but the response
}

func (a *answering) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive = time.AfterFunc(keepAlive, a.beat)
}

func (a *answering) say(n *protocol.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send("", n)
}

func (a *answering) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.done {
		a.comment()
		a.alive.Reset(keepAlive)
	}
}

// stop waits until nobody else writes.
func (a *answering) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive.Stop()
	a.done = true
}

// over is the response to a request that the server cancelled: the graceful end of a listen (2026-07-28, "Subscriptions"), else an
// error.
func over(m *protocol.Message) *protocol.Message {
	if m.Method() != protocol.Listen {
		return protocol.Refuse(m.ID(), protocol.Errorf(protocol.InternalError, "the server cancelled the request"))
	}
	return protocol.Respond(m.ID(), map[string]any{"resultType": "complete",
		"_meta": map[string]any{protocol.MetaSubscription: json.RawMessage(m.ID())}})
}

// A stream is the answer to a request: JSON, or events once something comes before the response.
type stream struct {
	w     http.ResponseWriter
	r     *http.Request
	begun bool
}

func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

// send sends one message as an event. An empty id is left out.
func (s *stream) send(id string, m *protocol.Message) {
	s.begin()
	event := make([]byte, 0, len(m.Bytes())+64)
	if id != "" {
		event = append(append(append(event, "id: "...), id...), '\n')
	}
	event = append(append(event, "event: message\ndata: "...), m.Bytes()...)
	s.write(append(event, "\n\n"...))
}

func (s *stream) comment() {
	s.begin()
	s.write([]byte(":\n\n"))
}

func (s *stream) write(b []byte) {
	_, _ = s.w.Write(b) // who is gone has ended the request's context
	_ = http.NewResponseController(s.w).Flush()
}

// last sends the response, and is the end.
func (s *stream) last(m *protocol.Message) {
	if s.begun {
		s.send("", m)
		return
	}
	status := http.StatusOK
	if e := m.Error(); e != nil {
		status = e.Status()
	}
	answer(s.w, status, m)
}
