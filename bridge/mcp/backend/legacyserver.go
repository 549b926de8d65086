package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/opaque"
)

// An old speaks with a server of the old era for callers of the new one, which have no sessions. A caller that can be asked for
// something has a process, for everything: lists, calls, prompts, what it listens to. So it finds again what it did before, nobody else
// is asked what the server wants to know of it, and the server never hears that somebody can be asked who cannot. Those that cannot be
// asked share one.
//
// Sources: MCP 2026-07-28, "Multi round-trip requests", "Subscriptions"; MCP 2025-11-25, "Client features".
type old struct {
	b       *Backend
	sealer  *opaque.Sealer
	opening chan struct{} // holds a token while somebody begins a session

	mu     sync.Mutex          // taken after Backend.mu, where both are
	ups    map[owner]*upstream // by whose they are
	parked map[string]*run     // by what is sealed in the state that the caller has
}

// An upstream is a session with the server: a process of its own.
type upstream struct {
	*lane
	o    *old
	caps string // what the client can be asked for
	of   owner
	info *Info

	subscribing chan struct{}  // holds a token while uris and what the server knows of them change
	uris        map[string]int // how many listen to each

	saying chan struct{} // holds a token for each answer that is being said

	mu    sync.Mutex
	level int    // of log messages, an index of levels: that which the server was told
	runs  []*run // in the order in which they began
	ears  map[*ear]bool
}

// An owner is whose a session is: what the client can be asked for and, if that is something, who the client is.
type owner struct{ caps, caller, user string }

func ownerOf(ctx context.Context, caps string) owner {
	if caps == "{}" {
		return owner{caps: caps}
	}
	return owner{caps, protocol.CallerOf(ctx), protocol.UserOf(ctx)}
}

// maxUps bounds the sessions, beside that of callers that cannot be asked, and maxUpsEach those of one caller, which may be a relay
// with users of its own.
const (
	maxUps     = 32
	maxUpsEach = 8
)

func newOld(b *Backend) *old {
	return &old{b: b, sealer: opaque.New(""), opening: make(chan struct{}, 1), ups: map[owner]*upstream{}, parked: map[string]*run{}}
}

// session reads a connection whose server is being, or was, initialized by a client with these capabilities.
func (o *old) session(conn protocol.Conn, of owner, info *Info) (*upstream, error) {
	u := &upstream{o: o, caps: of.caps, of: of, info: info, uris: map[string]int{}, ears: map[*ear]bool{}, level: len(levels),
		subscribing: make(chan struct{}, 1), saying: make(chan struct{}, maxSaying)}
	var err error
	u.lane, err = o.b.run(conn, u.take, func(*lane) { o.ended(u) })
	return u, err
}

// ended forgets a session; with the last, what the server said of itself, which it may say anew. The backend is locked.
func (o *old) ended(u *upstream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ups[u.of] == u {
		delete(o.ups, u.of)
	}
	if len(o.ups) == 0 {
		o.b.info = nil
	}
}

// enter makes a session one that callers share, unless it has ended.
func (o *old) enter(u *upstream, info *Info) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !u.gone {
		o.ups[u.of], o.b.info = u, info
	}
}

// adopt takes up the session that was begun to find out what the server is.
func (o *old) adopt(conn protocol.Conn, of owner, info *Info) error {
	u, err := o.session(conn, of, info)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(o.b.ctx, o.b.o.Start)
	defer cancel()
	if err := u.Write(ctx, protocol.Request("", protocol.Initialized, nil)); err != nil {
		u.Close()
		return err
	}
	o.enter(u, info)
	return nil
}

// open begins a session. The caller uses it.
func (o *old) open(ctx context.Context, of owner) (*upstream, error) {
	if err := o.room(of); err != nil {
		return nil, err
	}
	conn, err := o.b.dial(o.b.ctx)
	if err != nil {
		return nil, err
	}
	u, err := o.session(conn, of, nil)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, o.b.o.Start)
	defer cancel()
	r, err := u.Call(limited, protocol.Request(initializeID, protocol.Initialize, map[string]any{
		"protocolVersion": protocol.Legacy, "capabilities": json.RawMessage(of.caps), "clientInfo": protocol.Self(o.b.o.Version)}), ignore)
	if err == nil && r.Error() != nil {
		err = r.Error()
	}
	if err == nil {
		u.info, err = initialized(r.Result())
	}
	if err == nil {
		err = u.Write(limited, protocol.Request("", protocol.Initialized, nil))
	}
	if err == nil && !o.b.use(u.lane) {
		err = errEnds
	}
	if err != nil {
		u.Close()
		return nil, o.b.broken(ctx, fmt.Errorf("begin a session: %w", err))
	}
	o.enter(u, u.info)
	return u, nil
}

// room makes room for one session more: it ends one that nobody uses.
func (o *old) room(of owner) error {
	if of.caps == "{}" {
		return nil
	}
	var idle *upstream
	o.b.mu.Lock()
	o.mu.Lock()
	own := 0
	for _, u := range o.ups {
		if u.of.caller == of.caller {
			own++
		}
	}
	full := len(o.ups) >= maxUps || own >= maxUpsEach
	for _, u := range o.ups {
		if u.calls == 0 && (own < maxUpsEach || u.of.caller == of.caller) {
			idle = u
		}
	}
	o.mu.Unlock()
	if full && idle != nil {
		idle.endLocked()
	}
	o.b.mu.Unlock()
	switch {
	case !full:
		return nil
	case idle == nil:
		return overloaded("too many callers that can be asked for something use the server")
	}
	return idle.Close()
}

func ignore(*protocol.Message) error { return nil }

// take gets what belongs to no call. It must not wait: what it has to say itself goes beside.
func (u *upstream) take(m *protocol.Message) {
	u.o.tell(m)
	switch {
	case m.Method() == "ping" && m.IsRequest():
		u.say(protocol.Respond(m.ID(), struct{}{}))
	case m.IsRequest():
		u.asks(m)
	case m.Method() == protocol.LogMessage:
		u.logs(m)
	}
}

// tell tells those who listen, in whichever session: what changed may be the same for all.
func (o *old) tell(m *protocol.Message) {
	if !m.IsNotification() {
		return
	}
	o.mu.Lock()
	all := slices.Collect(maps.Values(o.ups))
	o.mu.Unlock()
	for _, u := range all {
		u.mu.Lock()
		for e := range u.ears {
			e.hear(m)
		}
		u.mu.Unlock()
	}
}

// maxSaying bounds the answers that a server does not read.
const maxSaying = 64

// say answers a request of the server. A server that does not read what it is told is one that need not be told.
func (u *upstream) say(m *protocol.Message) {
	select {
	case u.saying <- struct{}{}:
	default:
		return
	}
	err := u.o.b.start(func() {
		defer func() { <-u.saying }()
		ctx, cancel := context.WithTimeout(u.o.b.ctx, sayFor)
		defer cancel()
		_ = u.Write(ctx, m)
	})
	if err != nil {
		<-u.saying
	}
}

// shared returns the session of a caller that can be asked for what caps says, a JSON object, begun if there is none. The caller
// leaves it.
func (o *old) shared(ctx context.Context, caps string) (*upstream, error) {
	of := ownerOf(ctx, caps)
	if u := o.there(of); u != nil {
		return u, nil
	}
	select {
	case o.opening <- struct{}{}:
		defer func() { <-o.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if u := o.there(of); u != nil { // somebody was quicker
		return u, nil
	}
	return o.open(ctx, of)
}

// there returns a session that can be used, and uses it; nil if there is none.
func (o *old) there(of owner) *upstream {
	o.mu.Lock()
	u := o.ups[of]
	o.mu.Unlock()
	if u == nil || !o.b.use(u.lane) {
		return nil
	}
	return u
}

// call answers a request of the new era.
func (o *old) call(ctx context.Context, m *protocol.Message, notify func(*protocol.Message) error) (*protocol.Message, error) {
	switch m.Method() {
	case protocol.Discover:
		u, err := o.shared(ctx, capabilities(m))
		if err != nil {
			return nil, err
		}
		defer o.b.leave(u.lane)
		return protocol.Respond(m.ID(), u.info.Discovered), nil
	case protocol.Listen:
		return o.listen(ctx, m, notify)
	}
	if strings.HasPrefix(m.Method(), "tasks/") {
		return protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "the server has no tasks")), nil
	}
	if state := m.Text("requestState"); state != "" && rounds[m.Method()] {
		return o.resume(ctx, m, state, notify)
	}
	u, err := o.shared(ctx, capabilities(m))
	if err != nil {
		return nil, err
	}
	if rounds[m.Method()] {
		return o.begin(ctx, u, m, notify)
	}
	defer o.b.leave(u.lane)
	r, err := u.Call(ctx, older(m), notify)
	if err != nil {
		return nil, o.b.broken(ctx, err)
	}
	return newer(m, r), nil
}

// rounds are the methods that may be answered with what the server wants to know first.
var rounds = map[string]bool{protocol.CallTool: true, protocol.GetPrompt: true, protocol.ReadRes: true}

// Common is what consumers of the mesh can be asked for, as capabilities says it: they are nobody's clients, and have no folders.
const Common = `{"elicitation":{"form":{},"url":{}},"sampling":{}}`

// capabilities are what the caller can be asked for, in the words of the old era. What is the same is spelled alike.
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
	_ = json.Unmarshal(raw, &caps) // what cannot be read is not there
	if e := caps.Elicitation; e != nil && e.Form == nil && e.URL == nil {
		e.Form = &struct{}{} // 2026-07-28, "Elicitation": one that says nothing is by forms
	}
	text, err := json.Marshal(caps)
	if err != nil {
		return "{}"
	}
	return string(text)
}

// older takes out of a request what the old era does not know.
func older(m *protocol.Message) *protocol.Message {
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

// cacheable are methods whose results say how long they may be kept.
var cacheable = map[string]bool{"tools/list": true, "resources/list": true, "resources/templates/list": true, "prompts/list": true,
	protocol.ReadRes: true}

// newer puts into a response what the new era asks for. What an old server does not say is said in the most careful way.
func newer(m, r *protocol.Message) *protocol.Message {
	if e := r.Error(); e != nil {
		if e.Code == protocol.ResourceNotFound {
			return protocol.RespondError(r.ID(), protocol.Errorf(protocol.InvalidParams, "%s", e.Message).With(map[string]string{"uri": m.Text("uri")}))
		}
		return r
	}
	if raw := r.Result(); len(raw) == 0 || raw[0] != '{' {
		return protocol.RespondError(r.ID(), protocol.Errorf(protocol.InternalError, "the server's result is no object"))
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
