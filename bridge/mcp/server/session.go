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
)

// A session is one of the old era: a connection to the server, and the streams on which its messages go to the client.
//
// Only the goroutine of pump reads the connection. It gives each message to an outlet, from which requests of the client take it,
// so that a client that loses its HTTP connection can take up where it was.
type session struct {
	h          *Handler
	id, caller string
	conn       protocol.Conn
	cancel     context.CancelFunc // makes pump end
	over       chan struct{}      // closed when pump has ended

	mu      sync.Mutex
	outlets []*outlet               // the first is for what belongs to no request
	open    map[protocol.ID]*outlet // by the id of the request that waits
	idle    *time.Timer
	busy    int       // HTTP requests that are being answered
	since   time.Time // it is not busy
}

// inSession takes a message of the old era.
func (h *Handler) inSession(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	if v := r.Header.Get(versionName); v != "" && !slices.Contains(protocol.LegacyRevisions, v) {
		http.Error(w, "the revision "+v+" of MCP is not served", http.StatusBadRequest)
		return
	}
	id := r.Header.Get(sessionID)
	switch {
	case id == "" && m.Method() == protocol.Initialize && m.IsRequest():
		h.begin(w, r, m)
		return
	case id == "":
		refuse(w, http.StatusBadRequest, m.ID(), protocol.Errorf(protocol.InvalidRequest,
			"there is no %s: begin a session with initialize, or name a revision of %s or later in params._meta", sessionID, protocol.Modern))
		return
	}
	s := h.session(w, r)
	if s == nil {
		return
	}
	defer s.leave()
	s.take(w, r, m)
}

// session returns the one that a request names, which the caller leaves; or has answered.
func (h *Handler) session(w http.ResponseWriter, r *http.Request) *session {
	id := r.Header.Get(sessionID)
	if id == "" {
		http.Error(w, "there is no "+sessionID, http.StatusBadRequest)
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.conn == nil || s.caller != h.o.Caller(r) { // to another a session is as if it were not there
		http.Error(w, "the session is over: begin another", http.StatusNotFound)
		return nil
	}
	s.enter()
	return s
}

// begin begins a session with its first message.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	s := &session{h: h, id: rand.Text(), caller: h.o.Caller(r), over: make(chan struct{}), open: map[protocol.ID]*outlet{},
		outlets: []*outlet{newOutlet(0)}, busy: 1}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	if !h.admit(s) {
		s.cancel()
		w.Header().Set("Retry-After", "10")
		http.Error(w, "there are too many sessions", http.StatusServiceUnavailable)
		return
	}
	conn, err := h.o.Server.Session(ctx)
	if err != nil {
		s.cancel()
		h.forget(s)
		refuse(w, http.StatusBadGateway, m.ID(), protocol.Fault(err))
		return
	}
	h.mu.Lock()
	s.conn, s.idle = conn, time.AfterFunc(h.o.Idle, s.cancel)
	s.idle.Stop()
	h.mu.Unlock()
	go s.pump(ctx)
	defer s.leave()
	w.Header().Set(sessionID, s.id)
	s.take(w, r, m)
}

// admit takes a session up, if there is room. An idle one makes room.
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

// evictLocked ends the session that has been idle for the longest time, of the caller that has most sessions of those that have an idle
// one; and reports whether there is one.
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

func (h *Handler) forget(s *session) {
	h.mu.Lock()
	delete(h.sessions, s.id)
	h.mu.Unlock()
	h.work.Done()
}

// pump reads what the server says, to the end of the session.
func (s *session) pump(ctx context.Context) {
	defer s.h.forget(s)
	defer close(s.over)
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
			m, err = protocol.Refuse(m.ID(), protocol.Errorf(protocol.InternalError, "the server's response cannot be read: %s", bad.Message)), nil
		}
		if err != nil {
			s.h.o.Log.Debug("a session of an MCP server has ended", "err", err)
			return
		}
		if m.Chats() && !rate.Take(protocol.ProgressLimit, 1, time.Now()) {
			continue
		}
		if !s.put(m) && ctx.Err() == nil {
			s.h.o.Log.Warn("a session of MCP is ended: its client does not read")
			s.cancel() // and then what it still waits for is refused
		}
	}
}

// end ends the streams.
func (s *session) end() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Stop()
	for _, o := range s.outlets {
		o.end()
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
	s.since = time.Now()
	select {
	case <-s.over:
	default:
		s.idle.Reset(s.h.o.Idle)
	}
}

func (s *session) idleSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.busy == 0
}

// take sends a message to the server, and answers the client.
func (s *session) take(w http.ResponseWriter, r *http.Request, m *protocol.Message) {
	if !m.IsRequest() {
		if s.conn.Write(r.Context(), m) != nil {
			http.Error(w, "the session is over: begin another", http.StatusNotFound)
			return
		}
		if m.Method() == protocol.Cancelled {
			s.cancelled(m)
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	o, e := s.newOutlet(m)
	if e != nil {
		refuse(w, http.StatusBadRequest, m.ID(), e)
		return
	}
	if err := s.conn.Write(r.Context(), m); err != nil {
		s.put(protocol.Refuse(m.ID(), protocol.Fault(err)))
	}
	s.answer(w, r, m, o)
}

// maxOutlets bounds the streams that a session remembers; of those that have ended, the oldest is forgotten.
const maxOutlets = 128

// newOutlet is where what belongs to a request goes.
func (s *session) newOutlet(m *protocol.Message) (*outlet, *protocol.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[m.ID()] != nil {
		return nil, protocol.Errorf(protocol.InvalidRequest, "a request with the id %s is being answered", m.ID())
	}
	if len(s.outlets) >= maxOutlets && !s.forgetLocked() {
		return nil, protocol.Errorf(protocol.InvalidRequest, "the session has %d requests that wait", maxOutlets)
	}
	o := newOutlet(s.outlets[len(s.outlets)-1].number + 1)
	o.of, o.token = m.ID(), m.ProgressToken()
	s.outlets = append(s.outlets, o)
	s.open[m.ID()] = o
	return o, nil
}

// forgetLocked forgets the oldest stream of a request that has ended, and reports whether there is one.
func (s *session) forgetLocked() bool {
	i := slices.IndexFunc(s.outlets[1:], (*outlet).ended)
	if i >= 0 {
		s.outlets = slices.Delete(s.outlets, i+1, i+2)
	}
	return i >= 0
}

// cancelled ends the stream of a request that the client does not wait for any more.
func (s *session) cancelled(m *protocol.Message) {
	raw, _ := m.Param("requestId")
	id := protocol.IDOf(raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[id]; o != nil {
		delete(s.open, id)
		o.end()
	}
}

// errEnding is why a request has no other answer when its HTTP exchange is ended here.
var errEnding = interact.Errorf(interact.ShuttingDown, "try again later", "the node was ended before there was an answer")

// put gives a message to the stream that it is for, and reports whether the session still has room. Streams that ended make some.
func (s *session) put(m *protocol.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.outletLocked(m); o != nil {
		o.add(m)
	}
	for {
		size := 0
		for _, o := range s.outlets {
			size += o.bytes()
		}
		if size <= maxKept {
			return true
		}
		if !s.forgetLocked() {
			return size <= maxWaiting
		}
	}
}

// outletLocked returns where a message of the server goes; nil for nowhere. A response goes to its request. All else does not say
// which request it belongs to, but for progress: it goes to the only request that waits; or, if there are more, to the stream for
// what belongs to none, if the client reads that; or to the latest request, best to one whose client reads.
func (s *session) outletLocked(m *protocol.Message) *outlet {
	common := s.outlets[0]
	if m.IsResponse() {
		o := s.open[m.ID()]
		if o != nil {
			delete(s.open, m.ID())
			o.finish()
		}
		return o
	}
	var latest *outlet
	token := m.ProgressToken()
	for _, o := range s.open {
		if token != nil && string(o.token) == string(token) {
			return o
		}
		if latest == nil || o.read() && !latest.read() || o.read() == latest.read() && o.number > latest.number {
			latest = o
		}
	}
	switch {
	case m.Method() == protocol.Progress:
		return nil // of a request that was answered
	case latest == nil, aboutAll[m.Method()] && common.read(), len(s.open) > 1 && common.read():
		return common
	}
	return latest
}

// aboutAll are notifications that belong to no request.
var aboutAll = map[string]bool{protocol.ToolsChanged: true, protocol.PromptsChanged: true, protocol.ResourcesChanged: true, protocol.ResourceUpdated: true}

// answer gives the client what comes for its request: the response alone as JSON, or a stream.
func (s *session) answer(w http.ResponseWriter, r *http.Request, m *protocol.Message, o *outlet) {
	out := &stream{w: w, r: r}
	if !s.follow(out, o, o.attach(), -1) && !out.begun {
		refuse(w, http.StatusOK, m.ID(), protocol.Errorf(protocol.InternalError, "there is no response: the request was cancelled, or its session is over"))
	}
}

// follow sends the events of o after the event n, until o or the request ends, or another request takes it over. It reports whether
// anything was sent. reader is that of o.
func (s *session) follow(out *stream, o *outlet, reader chan struct{}, n int) (sent bool) {
	defer o.detach(reader)
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		events, done, news := o.after(reader, n)
		if !out.begun && n < 0 && done && len(events) == 1 && o.number > 0 {
			answer(out.w, http.StatusOK, events[0].m)
			return true
		}
		for _, e := range events {
			out.send(e.id(o), e.m)
			sent, n = true, e.n
		}
		if done {
			return sent
		}
		select {
		case <-news:
		case <-reader:
			return true
		case <-alive.C:
			out.comment()
		case <-out.r.Context().Done():
			if o.of != "" { // either the client has left, and this goes nowhere, or we are being ended
				out.last(protocol.Refuse(o.of, protocol.Fault(errEnding)))
				sent = true
			}
			return sent
		}
	}
}

// get opens the stream for what belongs to no request, or takes up one that broke. Who opens it again takes it over: the server
// may learn late that a connection is gone.
func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	if !accepts(r, eventStream) {
		http.Error(w, "Accept must list "+eventStream, http.StatusNotAcceptable)
		return
	}
	if modern(r) {
		w.Header().Set("Allow", "POST")
		http.Error(w, "there is no stream to get in "+protocol.Modern+": ask "+protocol.Listen, http.StatusMethodNotAllowed)
		return
	}
	s := h.session(w, r)
	if s == nil {
		return
	}
	defer s.leave()
	s.mu.Lock()
	o := s.outlets[0]
	s.mu.Unlock()
	n := o.seen()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if o, n = s.resume(last); o == nil {
			http.Error(w, "the events after "+interact.Clip(last, 64)+" are not kept any more", http.StatusNotFound)
			return
		}
	}
	out, reader := &stream{w: w, r: r}, o.attach() // before the client learns that its stream is open: what comes then goes there
	out.begin()
	out.write(nil)
	s.follow(out, o, reader, n)
}

// delete ends a session.
func (h *Handler) delete(w http.ResponseWriter, r *http.Request) {
	if s := h.session(w, r); s != nil {
		defer s.leave()
		s.cancel()
		<-s.over
		w.WriteHeader(http.StatusNoContent)
	}
}
