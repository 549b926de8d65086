package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

// A legacyServer serves stateless callers from a server with sessions. Each caller that supports input requests has a process of its own
// for all its requests: it keeps its state there, it alone gets the input requests of the server, and the server learns exactly its
// capabilities. Callers without input requests share one process.
//
// Sources: MCP 2026-07-28, "Multi round-trip requests", "Subscriptions"; MCP 2025-11-25, "Client features".
type legacyServer struct {
	b       *Backend
	opening chan struct{} // holds a token while a session is opened
	// subscribers get the notifications of all upstreams, since the changed state may be common to all of them.
	subscribers subscribers
	suspended   protocol.Suspended[*run]

	mu  sync.Mutex          // taken after Backend.mu
	ups map[owner]*upstream // by owner
}

// An upstream is a session at the server, with a process of its own.
type upstream struct {
	*sharedConn
	legacy *legacyServer
	caps   string // declared client capabilities
	of     owner
	info   *Info

	subscribing chan struct{}  // holds a token during changes of uris and of the subscriptions at the server
	uris        map[string]int // number of subscribers by URI

	responding chan struct{} // holds a token per response in progress

	mu    sync.Mutex
	level int    // log level at the server, an index of levels
	runs  []*run // in the order of their start
}

// An owner identifies the callers of an upstream: by capabilities and, if there are any, by caller and user.
type owner struct{ caps, caller, user string }

func ownerOf(ctx context.Context, caps string) owner {
	if caps == "{}" {
		return owner{caps: caps}
	}
	return owner{caps, protocol.CallerOf(ctx), protocol.UserOf(ctx)}
}

// maxUps bounds the upstreams of callers with capabilities, and maxUpsEach those of one caller, which may be a relay with several users.
const (
	maxUps     = 32
	maxUpsEach = 8
)

func newLegacyServer(b *Backend) *legacyServer {
	return &legacyServer{b: b, opening: make(chan struct{}, 1), ups: map[owner]*upstream{}, suspended: protocol.Suspended[*run]{
		Sealer: opaque.New(""), Timeout: suspendTimeout, Expired: (*run).abandon, Max: maxSuspended, MaxEach: maxSuspendedEach}}
}

// session returns the upstream of a connection whose client has the capabilities of its owner.
func (s *legacyServer) session(conn protocol.Conn, of owner, info *Info) (*upstream, error) {
	u := &upstream{legacy: s, caps: of.caps, of: of, info: info, uris: map[string]int{}, level: len(levels),
		subscribing: make(chan struct{}, 1), responding: make(chan struct{}, maxResponding)}
	var err error
	u.sharedConn, err = s.b.run(conn, u.take, func(*sharedConn) { s.ended(u) })
	return u, err
}

// ended removes an upstream; with the last one, the info becomes invalid. The backend is locked.
func (s *legacyServer) ended(u *upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ups[u.of] == u {
		delete(s.ups, u.of)
	}
	if len(s.ups) == 0 {
		s.b.info = nil
	}
}

// enter makes an upstream available to callers, unless it has ended.
func (s *legacyServer) enter(u *upstream, info *Info) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !u.gone {
		s.ups[u.of], s.b.info = u, info
	}
}

// adopt completes the session that the probe started.
func (s *legacyServer) adopt(conn protocol.Conn, of owner, info *Info) error {
	u, err := s.session(conn, of, info)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.b.ctx, s.b.o.Start)
	defer cancel()
	if err := u.Write(ctx, protocol.Request("", protocol.Initialized, nil)); err != nil {
		u.Close()
		return err
	}
	s.enter(u, info)
	return nil
}

// open starts a session and reserves it.
func (s *legacyServer) open(ctx context.Context, of owner) (*upstream, error) {
	if err := s.room(of); err != nil {
		return nil, err
	}
	conn, err := s.b.dial(s.b.ctx)
	if err != nil {
		return nil, err
	}
	u, err := s.session(conn, of, nil)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, s.b.o.Start)
	defer cancel()
	r, err := u.Call(limited, protocol.Request(initializeID, protocol.Initialize, map[string]any{
		"protocolVersion": protocol.Legacy, "capabilities": json.RawMessage(of.caps), "clientInfo": protocol.Self(s.b.o.Version)}), protocol.Ignore)
	if err == nil && r.Error() != nil {
		err = r.Error()
	}
	if err == nil {
		u.info, err = initialized(r.Result())
	}
	if err == nil {
		err = u.Write(limited, protocol.Request("", protocol.Initialized, nil))
	}
	if err == nil && !s.b.use(u.sharedConn) {
		err = errEnds
	}
	if err != nil {
		u.Close()
		return nil, s.b.broken(ctx, fmt.Errorf("start session: %w", err))
	}
	s.enter(u, u.info)
	return u, nil
}

// room ensures room for another upstream. It ends an unused one if necessary.
func (s *legacyServer) room(of owner) error {
	if of.caps == "{}" {
		return nil
	}
	var idle *upstream
	s.b.mu.Lock()
	s.mu.Lock()
	own := 0
	for _, u := range s.ups {
		if u.of.caller == of.caller {
			own++
		}
	}
	full := len(s.ups) >= maxUps || own >= maxUpsEach
	for _, u := range s.ups {
		if u.calls == 0 && (own < maxUpsEach || u.of.caller == of.caller) {
			idle = u
		}
	}
	s.mu.Unlock()
	if full && idle != nil {
		idle.endLocked()
	}
	s.b.mu.Unlock()
	switch {
	case !full:
		return nil
	case idle == nil:
		return overloaded("too many callers with client features use the server")
	}
	return idle.Close()
}

// take handles a message that belongs to no call. It must not block: its own responses are sent in other goroutines.
func (u *upstream) take(m *protocol.Message) {
	u.legacy.subscribers.publish(m)
	switch {
	case m.Method() == protocol.Ping && m.IsRequest():
		u.send(protocol.Respond(m.ID(), struct{}{}))
	case m.IsRequest():
		u.dispatch(m)
	case m.Method() == protocol.LogMessage:
		u.logs(m)
	}
}

// maxResponding bounds the responses to a server that does not read.
const maxResponding = 64

// send responds to a request of the server. Beyond maxResponding the response is dropped.
func (u *upstream) send(m *protocol.Message) {
	select {
	case u.responding <- struct{}{}:
	default:
		return
	}
	err := u.legacy.b.start(func() {
		defer func() { <-u.responding }()
		ctx, cancel := context.WithTimeout(u.legacy.b.ctx, sendTimeout)
		defer cancel()
		_ = u.Write(ctx, m)
	})
	if err != nil {
		<-u.responding
	}
}

// shared returns the upstream of a caller with the capabilities caps, a JSON object. It opens one if necessary. The caller must leave it.
func (s *legacyServer) shared(ctx context.Context, caps string) (*upstream, error) {
	of := ownerOf(ctx, caps)
	if u := s.reserved(of); u != nil {
		return u, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if u := s.reserved(of); u != nil { // a concurrent caller was faster
		return u, nil
	}
	return s.open(ctx, of)
}

// reserved reserves and returns the upstream of an owner; nil if there is none.
func (s *legacyServer) reserved(of owner) *upstream {
	s.mu.Lock()
	u := s.ups[of]
	s.mu.Unlock()
	if u == nil || !s.b.use(u.sharedConn) {
		return nil
	}
	return u
}

// call handles a stateless request.
func (s *legacyServer) call(ctx context.Context, m *protocol.Message, notify protocol.Notify) (*protocol.Message, error) {
	switch m.Method() {
	case protocol.Discover:
		u, err := s.shared(ctx, capabilities(m))
		if err != nil {
			return nil, err
		}
		defer s.b.leave(u.sharedConn)
		return protocol.Respond(m.ID(), u.info.Discovered), nil
	case protocol.Listen:
		return s.listen(ctx, m, notify)
	}
	if strings.HasPrefix(m.Method(), "tasks/") {
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "the server does not support tasks")), nil
	}
	if state := m.Text("requestState"); state != "" && rounds[m.Method()] {
		return s.resume(ctx, m, state, notify)
	}
	u, err := s.shared(ctx, capabilities(m))
	if err != nil {
		return nil, err
	}
	if rounds[m.Method()] {
		return s.begin(ctx, u, m, notify)
	}
	defer s.b.leave(u.sharedConn)
	r, err := u.Call(ctx, toLegacy(m), notify)
	if err != nil {
		return nil, s.b.broken(ctx, err)
	}
	return toModern(m, r), nil
}

// rounds are the methods with multiple rounds.
var rounds = map[string]bool{protocol.CallTool: true, protocol.GetPrompt: true, protocol.ReadResource: true}

// CommonCapabilities are the client capabilities of all consumers of the mesh. They have no folders, hence no roots.
const CommonCapabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{}}`

// capabilities returns the capabilities of the caller in the format of initialize. The encoding is canonical.
func capabilities(m *protocol.Message) string {
	type flag = *struct{}
	var caps struct {
		Elicitation *struct {
			Form flag `json:"form,omitempty"`
			URL  flag `json:"url,omitempty"`
		} `json:"elicitation,omitempty"`
		Sampling *struct {
			Context flag `json:"context,omitempty"`
			Tools   flag `json:"tools,omitempty"`
		} `json:"sampling,omitempty"`
		Roots flag `json:"roots,omitempty"`
	}
	raw, _ := m.Param("_meta", protocol.MetaCapabilities)
	_ = json.Unmarshal(raw, &caps) // malformed capabilities are absent ones
	if e := caps.Elicitation; e != nil && e.Form == nil && e.URL == nil {
		e.Form = &struct{}{} // 2026-07-28, "Elicitation": forms are the default
	}
	text, err := json.Marshal(caps)
	if err != nil {
		return "{}"
	}
	return string(text)
}

// toLegacy removes the members of a stateless request that earlier revisions do not have.
func toLegacy(m *protocol.Message) *protocol.Message {
	for _, name := range []string{protocol.MetaVersion, protocol.MetaCapabilities, protocol.MetaClient, protocol.MetaLogLevel} {
		m = m.WithParam(nil, "_meta", name)
	}
	if raw, _ := m.Param("_meta"); string(raw) == "{}" {
		m = m.WithParam(nil, "_meta")
	}
	for _, name := range []string{"requestState", "inputResponses"} {
		m = m.WithParam(nil, name)
	}
	return m
}

// cacheable are the methods whose results have caching hints.
var cacheable = map[string]bool{protocol.ListTools: true, protocol.ListResources: true, protocol.ListTemplates: true, protocol.ListPrompts: true,
	protocol.ReadResource: true}

// toModern adds the required members of 2026-07-28 to a response. Values that the legacy server does not provide get the most restrictive
// value.
func toModern(m, r *protocol.Message) *protocol.Message {
	if e := r.Error(); e != nil {
		if e.Code == protocol.ResourceNotFound {
			return protocol.RespondError(r.ID(), protocol.Errorf(protocol.InvalidParams, "%s", e.Message).With(map[string]string{"uri": m.Text("uri")}))
		}
		return r
	}
	if raw := r.Result(); len(raw) == 0 || raw[0] != '{' {
		return protocol.RespondError(r.ID(), protocol.Errorf(protocol.InternalError, "expected an object as the result of the server"))
	}
	add := func(name, value string) {
		if has, _ := r.InResult(name); has == nil {
			r = r.WithResult(json.RawMessage(value), name)
		}
	}
	add("resultType", `"complete"`)
	if cacheable[m.Method()] {
		add("ttlMs", "0")
		add("cacheScope", `"private"`)
	}
	return r
}

func overloaded(what string) error {
	return interact.Errorf(interact.Overloaded, "try again later", "%s", what)
}
