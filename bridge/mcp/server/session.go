package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
	"github.com/lmosd/lmosd/internal/sse"
)

// A session is a session of 2025-11-25 or earlier: a connection to the server, and the queues of messages to the client.
//
// Only the goroutine of pump reads the connection. It adds each message to an event queue, from which the HTTP requests of the client are
// served, so that a client that loses its connection can resume.
type session struct {
	h          *Handler
	id, caller string
	conn       protocol.Conn
	cancel     context.CancelFunc // ends pump
	done       chan struct{}      // closed when pump has ended

	mu       sync.Mutex
	queues   []*eventQueue               // the first is the stream of no request
	open     map[protocol.ID]*eventQueue // by the id of the pending request
	idle     *time.Timer
	busy     int       // HTTP requests in progress
	idleFrom time.Time // when busy became 0
}

// serveSession handles a message of a session.
func (h *Handler) serveSession(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	if v := r.Header.Get(versionName); v != "" && !slices.Contains(protocol.LegacyRevisions, v) {
		http.Error(w, "unsupported MCP revision "+v, http.StatusBadRequest)
		return
	}
	id := r.Header.Get(sessionID)
	switch {
	case id == "" && m.Method() == protocol.Initialize && m.IsRequest():
		h.begin(w, r, m)
		return
	case id == "":
		respondError(w, http.StatusBadRequest, m.ID(), protocol.Errorf(protocol.InvalidRequest,
			"missing %s: start a session with initialize, or name revision %s or later in params._meta", sessionID, protocol.Modern))
		return
	}
	s := h.session(w, r)
	if s == nil {
		return
	}
	defer s.leave()
	s.forward(w, r, m)
}

// session returns the session of a request and marks it as busy; the caller must leave it. If there is none, session sends the error and
// returns nil.
func (h *Handler) session(w http.ResponseWriter, r *http.Request) *session {
	id := r.Header.Get(sessionID)
	if id == "" {
		http.Error(w, "missing header "+sessionID, http.StatusBadRequest)
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.conn == nil || s.caller != h.o.Caller(r) { // a session is invisible to other callers
		http.Error(w, "session not found: start another", http.StatusNotFound)
		return nil
	}
	s.enter()
	return s
}

// begin starts a session with its first message.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	s := &session{h: h, id: rand.Text(), caller: h.o.Caller(r), done: make(chan struct{}), open: map[protocol.ID]*eventQueue{},
		queues: []*eventQueue{newEventQueue(0)}, busy: 1}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	if !h.admit(s) {
		s.cancel()
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many sessions", http.StatusServiceUnavailable)
		return
	}
	conn, err := h.o.Server.Session(ctx)
	if err != nil {
		s.cancel()
		h.remove(s)
		respondError(w, http.StatusBadGateway, m.ID(), protocol.FromError(err))
		return
	}
	h.mu.Lock()
	s.conn, s.idle = conn, time.AfterFunc(h.o.Idle, s.cancel)
	s.idle.Stop()
	h.mu.Unlock()
	go s.pump(ctx)
	defer s.leave()
	w.Header().Set(sessionID, s.id)
	s.forward(w, r, m)
}

// admit registers a session if there is room, or if an idle session can be ended.
func (h *Handler) admit(s *session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.sessions) >= h.o.MaxSessions && !h.evictLocked() {
		return false
	}
	h.sessions[s.id] = s
	h.work.Add(1)
	return true
}

// evictLocked ends the longest idle session, of the caller with most sessions among those with an idle one. It reports whether it ended
// one.
func (h *Handler) evictLocked() bool {
	many := map[string]int{}
	for _, s := range h.sessions {
		many[s.caller]++
	}
	var oldest *session
	var at time.Time
	for _, s := range h.sessions {
		since, idle := s.idleSince()
		if !idle {
			continue
		}
		if oldest == nil || cmp.Or(many[oldest.caller]-many[s.caller], since.Compare(at)) < 0 {
			oldest, at = s, since
		}
	}
	if oldest == nil {
		return false
	}
	delete(h.sessions, oldest.id)
	oldest.cancel()
	return true
}

func (h *Handler) remove(s *session) {
	h.mu.Lock()
	delete(h.sessions, s.id)
	h.mu.Unlock()
	h.work.Done()
}

// pump reads the messages of the server until the session ends.
func (s *session) pump(ctx context.Context) {
	defer s.h.remove(s)
	defer close(s.done)
	defer s.conn.Close()
	defer s.end()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	var rate ratelimit.Bucket
	for {
		m, err := s.conn.Read(ctx)
		if bad, ok := err.(*protocol.Error); ok {
			if m == nil {
				continue
			}
			m, err = protocol.RespondMalformed(m.ID(), bad), nil
		}
		if err != nil {
			s.h.o.Log.Debug("MCP session ended", "err", err)
			return
		}
		if m.Droppable() && !rate.Take(protocol.ProgressLimit, 1, time.Now()) {
			continue
		}
		if !s.enqueue(m) && ctx.Err() == nil {
			s.h.o.Log.Warn("MCP session ended: client does not read")
			s.cancel() // the pending requests then get an error
		}
	}
}

// end closes the queues.
func (s *session) end() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Stop()
	for _, q := range s.queues {
		q.end()
	}
}

func (s *session) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.idle.Stop()
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy--; s.busy > 0 {
		return
	}
	s.idleFrom = time.Now()
	select {
	case <-s.done:
	default:
		s.idle.Reset(s.h.o.Idle)
	}
}

func (s *session) idleSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idleFrom, s.busy == 0
}

// forward sends a message to the server and responds to the client.
func (s *session) forward(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	if !m.IsRequest() {
		if s.conn.Write(r.Context(), m) != nil {
			http.Error(w, "session not found: start another", http.StatusNotFound)
			return
		}
		if m.Method() == protocol.Cancelled {
			s.cancelled(m)
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	q, e := s.newQueue(m)
	if e != nil {
		respondError(w, http.StatusBadRequest, m.ID(), e)
		return
	}
	if err := s.conn.Write(r.Context(), m); err != nil {
		s.enqueue(protocol.RespondError(m.ID(), protocol.FromError(err)))
	}
	s.respond(w, r, m, q)
}

// maxQueues bounds the streams of a session. Beyond it the oldest ended stream is removed.
const maxQueues = 128

// newQueue adds the queue of a request.
func (s *session) newQueue(m *protocol.Message) (*eventQueue, *protocol.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[m.ID()] != nil {
		return nil, protocol.DuplicateID(m.ID())
	}
	if len(s.queues) >= maxQueues && !s.dropLocked() {
		return nil, protocol.Errorf(protocol.InvalidRequest, "the session already has %d pending requests", maxQueues)
	}
	q := newEventQueue(s.queues[len(s.queues)-1].number + 1)
	q.request, q.token = m.ID(), m.ProgressToken()
	s.queues = append(s.queues, q)
	s.open[m.ID()] = q
	return q, nil
}

// dropLocked removes the queue of the oldest ended request, and reports whether there was one.
func (s *session) dropLocked() bool {
	i := slices.IndexFunc(s.queues[1:], (*eventQueue).ended)
	if i >= 0 {
		s.queues = slices.Delete(s.queues, i+1, i+2)
	}
	return i >= 0
}

// cancelled closes the stream of a cancelled request.
func (s *session) cancelled(m *protocol.Message) {
	raw, _ := m.Param("requestId")
	id := protocol.IDOf(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.open[id]; q != nil {
		delete(s.open, id)
		q.end()
	}
}

// enqueue adds a message to its stream, and reports whether the session is within its bounds. Beyond maxReplayBytes it removes ended
// streams.
func (s *session) enqueue(m *protocol.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queueLocked(m); q != nil {
		q.add(m)
	}
	for {
		size := 0
		for _, q := range s.queues {
			size += q.bytes()
		}
		if size <= maxReplayBytes {
			return true
		}
		if !s.dropLocked() {
			return size <= maxUnreadBytes
		}
	}
}

// queueLocked returns the stream of a message; nil if there is none. A response belongs to its request, and progress to the request with
// its token. Other messages do not name a request. If one request is pending, they belong to it. If several are pending, they belong to the
// stream of no request if the client reads it, and otherwise to the latest request, preferably one with a reader.
func (s *session) queueLocked(m *protocol.Message) *eventQueue {
	common := s.queues[0]
	if m.IsResponse() {
		q := s.open[m.ID()]
		if q != nil {
			delete(s.open, m.ID())
			q.finish()
		}
		return q
	}
	var latest *eventQueue
	token := m.ProgressToken()
	for _, q := range s.open {
		if token != nil && string(q.token) == string(token) {
			return q
		}
		if latest == nil || q.hasReader() && !latest.hasReader() || q.hasReader() == latest.hasReader() && q.number > latest.number {
			latest = q
		}
	}
	switch {
	case m.Method() == protocol.Progress:
		return nil // its request has ended
	case latest == nil, isUnrelated[m.Method()] && common.hasReader(), len(s.open) > 1 && common.hasReader():
		return common
	}
	return latest
}

// isUnrelated has the methods of the notifications that belong to no request.
var isUnrelated = map[string]bool{protocol.ToolsChanged: true, protocol.PromptsChanged: true, protocol.ResourcesChanged: true,
	protocol.ResourceUpdated: true}

// respond sends the messages of a request to the client: a response alone as JSON, otherwise a stream.
func (s *session) respond(w http.ResponseWriter, r *http.Request, m *protocol.Message, q *eventQueue) {
	out := newStream(w, r)
	if !s.follow(&out, q, q.attach(), -1) && !out.Started() {
		respondError(w, http.StatusOK, m.ID(), protocol.Errorf(protocol.InternalError, "no response: the request was cancelled, or its session ended"))
	}
}

// follow sends the events of q after event n, until q or the HTTP request ends, or another reader takes over. It reports whether anything
// was sent.
func (s *session) follow(out *stream, q *eventQueue, reader chan struct{}, n int) (sent bool) {
	defer q.detach(reader)
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		events, done, changed := q.after(reader, n)
		if !out.Started() && n < 0 && done && len(events) == 1 && q.number > 0 {
			writeJSON(out.w, http.StatusOK, events[0].m)
			return true
		}
		for _, e := range events {
			out.send(e.id(q), e.m)
			sent, n = true, e.n
		}
		if done {
			return sent
		}
		select {
		case <-changed:
		case <-reader:
			return true
		case <-alive.C:
			_ = out.Comment("") // a failed write has ended the context of the request
		case <-out.r.Context().Done():
			if q.request != "" { // the client has disconnected, and this write has no effect, or the node shuts down
				out.last(protocol.RespondError(q.request, protocol.FromError(protocol.ErrShutdown)))
				sent = true
			}
			return sent
		}
	}
}

// get opens the stream of no request, or resumes a stream. A second request for a stream takes it over, because the server may not have
// noticed that the connection of the first is broken.
func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	if !accepts(r, sse.MediaType) {
		http.Error(w, "expected Accept with "+sse.MediaType, http.StatusNotAcceptable)
		return
	}
	if modern(r) {
		w.Header().Set("Allow", "POST")
		http.Error(w, "revision "+protocol.Modern+" has no GET: use "+protocol.Listen, http.StatusMethodNotAllowed)
		return
	}
	s := h.session(w, r)
	if s == nil {
		return
	}
	defer s.leave()
	s.mu.Lock()
	q := s.queues[0]
	s.mu.Unlock()
	n := q.lastSent()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if q, n = s.resume(last); q == nil {
			http.Error(w, "no events after "+interact.Clip(last, 64)+": the session no longer has them", http.StatusNotFound)
			return
		}
	}
	out, reader := newStream(w, r), q.attach() // attached before the header is sent: later messages go to this stream
	_ = out.Begin()                            // as in send
	s.follow(&out, q, reader, n)
}

// delete ends a session.
func (h *Handler) delete(w http.ResponseWriter, r *http.Request) {
	if s := h.session(w, r); s != nil {
		defer s.leave()
		s.cancel()
		<-s.done
		w.WriteHeader(http.StatusNoContent)
	}
}
