package backend

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/internal/backoff"
)

const (
	// maxRounds bounds the rounds of input requests per request.
	maxRounds = 64
	// maxPending bounds the pending requests of one session.
	maxPending = 128
	// relistenDelay is the delay before an ended listen request is sent again.
	relistenDelay = time.Second
)

// A legacySession serves a 2025-11-25 session from a server that supports only 2026-07-28. It responds to initialize, ping,
// logging/setLevel and subscriptions itself. Input requests of the server become requests to the client, and the original request is
// repeated with the responses.
//
// Sources: MCP 2025-11-25, "Lifecycle", "Logging", "Resources"; MCP 2026-07-28, "Multi round-trip requests", "Subscriptions".
type legacySession struct {
	b             *Backend
	info          *Info
	ctx           context.Context
	cancel        context.CancelFunc
	out           chan *protocol.Message // to the client
	calls         *pendingCalls
	subscriptions chan subscription // to runListen

	mu        sync.Mutex
	meta      map[string]json.RawMessage // of each request: capabilities and clientInfo of the client
	level     string
	pending   map[protocol.ID]chan *protocol.Message // pending requests to the client, by their id
	last      int                                    // number in the latest id of a request to the client
	listening bool                                   // runListen is running
}

// A subscription is a request to subscribe to a resource or unsubscribe. done receives whether it is subscribed.
type subscription struct {
	uri  string
	on   bool
	done chan bool
}

// legacySession starts a session. It ends with ctx and with the backend.
func (b *Backend) legacySession(ctx context.Context, info *Info) protocol.Conn {
	s := &legacySession{b: b, info: info, out: make(chan *protocol.Message), calls: newPendingCalls(maxPending),
		subscriptions: make(chan subscription), meta: map[string]json.RawMessage{}, pending: map[protocol.ID]chan *protocol.Message{}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	forget := context.AfterFunc(b.ctx, s.cancel)
	context.AfterFunc(s.ctx, func() { forget() })
	return s
}

func (s *legacySession) Read(ctx context.Context) (*protocol.Message, error) {
	return protocol.Receive(ctx, s.out, s.ctx)
}

func (s *legacySession) Close() error {
	s.cancel()
	return nil
}

// send sends a message to the client.
func (s *legacySession) send(ctx context.Context, m *protocol.Message) error {
	select {
	case s.out <- m:
		return nil
	case <-s.ctx.Done():
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Write implements [protocol.Conn]. It handles a message of the client.
func (s *legacySession) Write(_ context.Context, m *protocol.Message) error {
	if s.ctx.Err() != nil {
		return io.ErrClosedPipe
	}
	switch {
	case m.IsResponse():
		s.mu.Lock()
		waits := s.pending[m.ID()]
		delete(s.pending, m.ID())
		s.mu.Unlock()
		if waits != nil {
			waits <- m
		}
		return nil
	case m.IsNotification():
		s.notified(m)
		return nil
	}
	ctx, e := s.calls.enter(s.ctx, m.ID())
	if e != nil {
		return s.send(s.ctx, protocol.RespondError(m.ID(), e))
	}
	answer := func() *protocol.Message { return s.answer(ctx, m) }
	if m.Method() == protocol.Initialize { // before later messages: a client may not wait for the response
		response := s.initialize(m)
		answer = func() *protocol.Message { return response }
	}
	err := s.b.start(func() {
		defer s.calls.release()
		r := answer()
		if !s.calls.complete(ctx, m.ID()) {
			_ = s.send(s.ctx, r)
		}
	})
	if err != nil {
		s.calls.complete(ctx, m.ID())
		s.calls.release()
	}
	return err
}

// notified handles a notification of the client.
func (s *legacySession) notified(m *protocol.Message) {
	switch m.Method() {
	case protocol.Cancelled:
		s.calls.cancel(m)
	case protocol.Initialized:
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.listening {
			s.listening = s.b.start(s.runListen) == nil
		}
	}
}

// answer handles a request.
func (s *legacySession) answer(ctx context.Context, m *protocol.Message) *protocol.Message {
	switch m.Method() {
	case protocol.Ping:
		return protocol.Respond(m.ID(), struct{}{})
	case protocol.SetLevel:
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Contains(levels, m.Text("level")) {
			return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "unknown log level %q", m.Text("level")))
		}
		s.level = m.Text("level")
		return protocol.Respond(m.ID(), struct{}{})
	case protocol.Subscribe, protocol.Unsubscribe:
		return s.subscribe(ctx, m)
	case protocol.Discover, protocol.Listen:
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "method %s does not exist in %s", m.Method(), protocol.Legacy))
	}
	r, err := s.call(ctx, m)
	if err != nil {
		return protocol.RespondError(m.ID(), protocol.FromError(err))
	}
	return r
}

// levels are the log levels (RFC 5424 §6.2.1).
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// initialize responds to initialize.
func (s *legacySession) initialize(m *protocol.Message) *protocol.Message {
	version := protocol.Legacy
	if v := m.Text("protocolVersion"); slices.Contains(protocol.LegacyRevisions, v) {
		version = v
	}
	var discovered struct {
		Capabilities json.RawMessage            `json:"capabilities"`
		Instructions string                     `json:"instructions,omitempty"`
		Meta         map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(s.info.Discovered, &discovered)
	caps, _ := m.Param("capabilities")
	client, _ := m.Param("clientInfo")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meta[protocol.MetaVersion], s.meta[protocol.MetaCapabilities] = protocol.Encode(protocol.Modern), orEmpty(caps)
	if client != nil {
		s.meta[protocol.MetaClient] = client
	}
	server := cmp.Or(string(discovered.Meta[protocol.MetaServer]), `{"name":"mcp","version":"0"}`)
	result := map[string]any{"protocolVersion": version, "capabilities": orEmpty(discovered.Capabilities), "serverInfo": json.RawMessage(server)}
	if discovered.Instructions != "" {
		result["instructions"] = discovered.Instructions
	}
	return protocol.Respond(m.ID(), result)
}

func orEmpty(object json.RawMessage) json.RawMessage {
	if len(object) == 0 || object[0] != '{' {
		return json.RawMessage("{}")
	}
	return object
}

// withMeta adds the required _meta members to a request.
func (s *legacySession) withMeta(m *protocol.Message) (*protocol.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.meta) == 0 {
		return nil, protocol.Errorf(protocol.InvalidRequest, "the first request of a session must be initialize")
	}
	for name, value := range s.meta {
		m = m.WithParam(value, "_meta", name)
	}
	if s.level != "" && m.Method() != protocol.Listen {
		m = m.WithParam(protocol.Encode(s.level), "_meta", protocol.MetaLogLevel)
	}
	return m, nil
}

// call sends a request to the server, and repeats it while the server requires input.
func (s *legacySession) call(ctx context.Context, m *protocol.Message) (*protocol.Message, error) {
	m, err := s.withMeta(m)
	if err != nil {
		return nil, err
	}
	request := m
	for range maxRounds {
		r, err := s.b.Call(ctx, request, func(n *protocol.Message) error { return s.send(ctx, n) })
		if err != nil {
			return nil, err
		}
		if r.ResultType() != "input_required" {
			return toLegacyResult(m, r), nil
		}
		if request, err = s.nextRound(ctx, m, r); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the server required input more than %d times", maxRounds)
}

// nextRound sends the input requests in r to the client and returns m with the responses.
func (s *legacySession) nextRound(ctx context.Context, m, r *protocol.Message) (*protocol.Message, error) {
	var input struct {
		Requests map[string]struct {
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		} `json:"inputRequests"`
		State json.RawMessage `json:"requestState"`
	}
	if err := json.Unmarshal(r.Result(), &input); err != nil || len(input.Requests) > maxPending {
		return nil, fmt.Errorf("malformed input request of the server: %w", err)
	}
	waits := map[string]chan *protocol.Message{}
	for key, one := range input.Requests {
		id, answered := s.await()
		defer s.forget(id)
		waits[key] = answered
		var params any
		if one.Params != nil {
			params = one.Params
		}
		q := protocol.Request(id, one.Method, params)
		if q.Text("mode") == "url" && q.Text("elicitationId") == "" { // not in 2026-07-28, required in 2025-11-25 ("URL mode elicitation")
			q = q.WithParam(json.RawMessage(strconv.Quote(rand.Text())), "elicitationId")
		}
		if err := s.send(ctx, q); err != nil {
			return nil, err
		}
	}
	answers := map[string]json.RawMessage{}
	for key, answered := range waits {
		select {
		case a := <-answered:
			var err error
			if answers[key], err = answerTo(input.Requests[key].Method, a); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if len(answers) > 0 {
		m = m.WithParam(protocol.Encode(answers), "inputResponses")
	}
	if input.State != nil {
		m = m.WithParam(input.State, "requestState")
	}
	return m, nil
}

// answerTo converts a response of the client for the server. An error response to an elicitation is a cancellation.
func answerTo(method string, a *protocol.Message) (json.RawMessage, error) {
	switch e := a.Error(); {
	case e == nil:
		return a.Result(), nil
	case method == protocol.Elicit:
		return json.RawMessage(`{"action":"cancel"}`), nil
	default:
		return nil, protocol.Errorf(e.Code, "client error for %s: %s", method, e.Message)
	}
}

// await registers a request to the client and returns its id and the channel for its response.
func (s *legacySession) await() (protocol.ID, chan *protocol.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	id := protocol.ID(strconv.Quote("lmosd-" + strconv.Itoa(s.last)))
	s.pending[id] = make(chan *protocol.Message, 1)
	return id, s.pending[id]
}

func (s *legacySession) forget(id protocol.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

// toLegacyResult removes the members of a response that earlier revisions do not have.
func toLegacyResult(m, r *protocol.Message) *protocol.Message {
	if e := r.Error(); e != nil {
		if m.Method() == protocol.ReadResource && e.Code == protocol.InvalidParams && e.Data != nil {
			return protocol.RespondError(r.ID(), &protocol.Error{Code: protocol.ResourceNotFound, Message: e.Message, Data: e.Data})
		}
		return r
	}
	for _, name := range []string{"resultType", "ttlMs", "cacheScope"} {
		r = r.WithResult(nil, name)
	}
	return r
}

// subscribe subscribes to a resource or unsubscribes.
func (s *legacySession) subscribe(ctx context.Context, m *protocol.Message) *protocol.Message {
	w := subscription{uri: m.Text("uri"), on: m.Method() == protocol.Subscribe, done: make(chan bool, 1)}
	select {
	case s.subscriptions <- w:
	case <-ctx.Done():
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InternalError, "cancelled"))
	}
	select {
	case ok := <-w.done:
		if ok {
			return protocol.Respond(m.ID(), struct{}{})
		}
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InvalidParams, "%s is not observable: the server sends no notifications", w.uri))
	case <-ctx.Done():
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.InternalError, "cancelled"))
	}
}

// runListen keeps one listen request at the server during the session, for the lists and the subscribed resources. A change of the filter
// sends a new request before it ends the old one.
func (s *legacySession) runListen() {
	uris := map[string]bool{}
	var now *activeListen
	var over <-chan struct{} // nil after a refusal, until the next subscription
	defer func() { now.stop() }()
	begin := func() bool {
		next := s.listen(uris)
		ok := next.awaitAcknowledgment()
		now.stop()
		if now, over = next, nil; ok {
			over = next.over
		}
		return ok
	}
	begin()
	for {
		select {
		case w := <-s.subscriptions:
			if len(uris) >= protocol.MaxURIs && w.on && !uris[w.uri] {
				w.done <- false
				continue
			}
			had := uris[w.uri]
			if uris[w.uri] = w.on; !w.on {
				delete(uris, w.uri)
			}
			ok := had == w.on || begin() && (!w.on || now.has(w.uri))
			if w.on && !ok {
				delete(uris, w.uri)
			}
			w.done <- ok || !w.on
		case <-over:
			if backoff.Sleep(s.ctx, relistenDelay) != nil {
				return
			}
			begin()
		case <-s.ctx.Done():
			return
		}
	}
}

// An activeListen is one subscriptions/listen request.
type activeListen struct {
	cancel context.CancelFunc
	ack    chan struct{} // closed when the server has acknowledged uris
	uris   []string
	over   chan struct{}
}

// listen sends a listen request. Its notifications go to the client.
func (s *legacySession) listen(uris map[string]bool) *activeListen {
	l := &activeListen{ack: make(chan struct{}), over: make(chan struct{})}
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(s.ctx)
	want := map[string]any{"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true}
	if len(uris) > 0 {
		all := make([]string, 0, len(uris))
		for uri := range uris {
			all = append(all, uri)
		}
		want["resourceSubscriptions"] = all
	}
	m, err := s.withMeta(protocol.Request(`"lmosd-listen"`, protocol.Listen, map[string]any{"notifications": want}))
	if err == nil {
		err = s.b.start(func() {
			defer close(l.over)
			_, _ = s.b.Call(ctx, m, func(n *protocol.Message) error { return l.receive(ctx, s, n) })
		})
	}
	if err != nil {
		close(l.over)
	}
	return l
}

func (l *activeListen) receive(ctx context.Context, s *legacySession, n *protocol.Message) error {
	switch n.Method() {
	case protocol.Acknowledged:
		if l.uris != nil {
			return nil
		}
		raw, _ := n.Param("notifications", "resourceSubscriptions")
		_ = json.Unmarshal(raw, &l.uris)
		l.uris = append([]string{}, l.uris...)
		close(l.ack)
	case protocol.ToolsChanged, protocol.PromptsChanged, protocol.ResourcesChanged, protocol.ResourceUpdated:
		n = n.WithParam(nil, "_meta", protocol.MetaSubscription)
		if raw, _ := n.Param("_meta"); string(raw) == "{}" {
			n = n.WithParam(nil, "_meta")
		}
		return s.send(ctx, n)
	}
	return nil
}

// awaitAcknowledgment waits for the acknowledgment and reports whether it arrived in time.
func (l *activeListen) awaitAcknowledgment() bool {
	late := time.NewTimer(sendTimeout)
	defer late.Stop()
	select {
	case <-l.ack:
		return true
	case <-l.over:
	case <-late.C:
	}
	return false
}

func (l *activeListen) has(uri string) bool { return slices.Contains(l.uris, uri) }

// stop cancels the request and waits for its end.
func (l *activeListen) stop() {
	if l != nil {
		l.cancel()
		<-l.over
	}
}
