package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
)

// An old speaks with a server of the old era for callers of the new one. A server of the old era asks its client for things while
// it answers, and does not say for which request it asks. So a caller that can be asked has a session of its own until it has its
// answer, and those that cannot share one, with those who listen.
//
// Sources: MCP 2026-07-28, "Multi round-trip requests", "Subscriptions"; MCP 2025-11-25, "Client features".
type old struct {
	b *Backend

	mu     sync.Mutex           // taken after Backend.mu, where both are
	shared *upstream            // nil: there is none now
	free   map[string]*upstream // one for each set of capabilities
	parked map[string]*run      // by the state that the caller has
}

// An upstream is a session with the server.
type upstream struct {
	*lane
	o    *old
	caps string // what the client can be asked for
	info *Info

	subscribing sync.Mutex     // held while uris and what the server knows of them change
	uris        map[string]int // how many listen to each

	mu    sync.Mutex
	asked func(*wire.Message) // of the run that has the session; nil if it is shared, or free
	ears  map[*ear]bool
}

func newOld(b *Backend) *old {
	return &old{b: b, free: map[string]*upstream{}, parked: map[string]*run{}}
}

// session reads a connection whose server is being, or was, initialized by a client with these capabilities.
func (o *old) session(conn wire.Conn, caps string, info *Info) (*upstream, error) {
	u := &upstream{o: o, caps: caps, info: info, uris: map[string]int{}, ears: map[*ear]bool{}}
	var err error
	u.lane, err = o.b.run(conn, u.take, func(*lane) { o.ended(u) })
	return u, err
}

// ended forgets a session. The backend is locked.
func (o *old) ended(u *upstream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shared == u {
		o.shared, o.b.info = nil, nil
	}
	if o.free[u.caps] == u {
		delete(o.free, u.caps)
	}
}

// adopt takes up the session that was begun to find out what the server is, as the one that callers share.
func (o *old) adopt(conn wire.Conn, info *Info) error {
	u, err := o.session(conn, "{}", info)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(o.b.ctx, o.b.o.Start)
	defer cancel()
	if err := u.Write(ctx, wire.Request("", wire.Initialized, nil)); err != nil {
		u.Close()
		return err
	}
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !u.gone {
		o.shared, o.b.info = u, info
	}
	return nil
}

// open begins a session whose client can be asked for what caps says, a JSON object. The caller uses it.
func (o *old) open(ctx context.Context, caps string) (*upstream, error) {
	conn, err := o.b.dial(o.b.ctx)
	if err != nil {
		return nil, err
	}
	u, err := o.session(conn, caps, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.b.o.Start)
	defer cancel()
	r, err := u.Call(ctx, wire.Request(initializeID, wire.Initialize, map[string]any{
		"protocolVersion": wire.Legacy, "capabilities": json.RawMessage(caps), "clientInfo": self}), ignore)
	if err == nil && r.Error() != nil {
		err = r.Error()
	}
	if err == nil {
		u.info, err = initialized(r.Result())
	}
	if err == nil {
		err = u.Write(ctx, wire.Request("", wire.Initialized, nil))
	}
	if err == nil && !o.b.use(u.lane) {
		err = errEnds
	}
	if err != nil {
		u.Close()
		return nil, o.b.broken(ctx, fmt.Errorf("begin a session: %w", err))
	}
	return u, nil
}

func ignore(*wire.Message) error { return nil }

// take gets what belongs to no call. It must not wait: what it has to say itself goes beside.
func (u *upstream) take(m *wire.Message) {
	u.tell(m)
	u.o.mu.Lock()
	shared := u.o.shared
	u.o.mu.Unlock()
	if shared != nil && shared != u {
		shared.tell(m) // a caller with a session of its own changed something
	}
	u.mu.Lock()
	asked := u.asked
	u.mu.Unlock()
	switch {
	case m.Method() == "ping" && m.IsRequest():
		u.say(wire.Respond(m.ID(), struct{}{}))
	case asked != nil:
		asked(m)
	case m.IsRequest():
		u.say(wire.Refuse(m.ID(), wire.Errorf(wire.UnknownMethod, "nobody here can be asked for %s", m.Method())))
	}
}

// tell tells those who listen.
func (u *upstream) tell(m *wire.Message) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for e := range u.ears {
		e.hear(m)
	}
}

// say answers a request of the server. A server that does not read what it is told is one that need not be told.
func (u *upstream) say(m *wire.Message) {
	_ = u.o.b.start(func() {
		ctx, cancel := context.WithTimeout(u.o.b.ctx, sayFor)
		defer cancel()
		_ = u.Write(ctx, m)
	})
}

func (u *upstream) give(asked func(*wire.Message)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked = asked
}

// common returns the session that callers share who cannot be asked. The caller leaves it.
func (o *old) common(ctx context.Context) (*upstream, error) {
	for range maxTries {
		o.mu.Lock()
		u := o.shared
		o.mu.Unlock()
		if u != nil && o.b.use(u.lane) {
			return u, nil
		}
		if _, err := o.b.Info(ctx); err != nil { // begins it
			return nil, err
		}
	}
	return nil, o.b.broken(ctx, errEnds)
}

// own returns a session for one caller, who leaves it with release.
func (o *old) own(ctx context.Context, caps string) (*upstream, error) {
	o.mu.Lock()
	u := o.free[caps]
	delete(o.free, caps)
	o.mu.Unlock()
	if u != nil && o.b.use(u.lane) {
		return u, nil
	}
	return o.open(ctx, caps)
}

// maxFree bounds the sessions that wait for their next caller.
const maxFree = 8

// release takes a session back. One is kept for each set of capabilities, of a few sets, unless nobody knows what its server still
// waits for.
func (o *old) release(u *upstream, sound bool) {
	u.give(nil)
	o.b.leave(u.lane)
	o.mu.Lock()
	keep := sound && o.free[u.caps] == nil && len(o.free) < maxFree && !u.Ended()
	if keep {
		o.free[u.caps] = u
	}
	o.mu.Unlock()
	if !keep {
		u.Close()
	}
}

// call answers a request of the new era.
func (o *old) call(ctx context.Context, m *wire.Message, notify func(*wire.Message) error) (*wire.Message, error) {
	switch m.Method() {
	case wire.Discover:
		info, err := o.b.Info(ctx)
		if err != nil {
			return nil, err
		}
		return wire.Respond(m.ID(), info.Discovered), nil
	case wire.Listen:
		return o.listen(ctx, m, notify)
	}
	if strings.HasPrefix(m.Method(), "tasks/") {
		return wire.Refuse(m.ID(), wire.Errorf(wire.UnknownMethod, "the server has no tasks")), nil
	}
	if state := m.Text("requestState"); state != "" && rounds[m.Method()] {
		return o.resume(ctx, m, state, notify)
	}
	caps, level := capabilities(m), m.Text("_meta", wire.MetaLogLevel)
	if rounds[m.Method()] && (caps != "{}" || level != "") {
		return o.begin(ctx, m, caps, level, notify)
	}
	u, err := o.common(ctx)
	if err != nil {
		return nil, err
	}
	defer o.b.leave(u.lane)
	r, err := u.Call(ctx, older(m), notify)
	if err != nil {
		return nil, o.b.broken(ctx, err)
	}
	return newer(m, r), nil
}

// rounds are the methods that may be answered with what the server wants to know first.
var rounds = map[string]bool{wire.CallTool: true, wire.GetPrompt: true, wire.ReadRes: true}

// capabilities are what the caller can be asked for, in the words of the old era, always spelled alike.
func capabilities(m *wire.Message) string {
	raw, _ := m.Param("_meta", wire.MetaCapabilities)
	var caps map[string]json.RawMessage
	_ = json.Unmarshal(raw, &caps)
	out := map[string]json.RawMessage{}
	for _, name := range []string{"elicitation", "sampling", "roots"} {
		if v := caps[name]; len(v) > 0 && v[0] == '{' && len(v) < 1<<10 {
			out[name] = v
		}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return "{}"
	}
	return string(text)
}

// older takes out of a request what the old era does not know.
func older(m *wire.Message) *wire.Message {
	for _, name := range []string{wire.MetaVersion, wire.MetaCapabilities, wire.MetaClient, wire.MetaLogLevel} {
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
	wire.ReadRes: true}

// newer puts into a response what the new era asks for. What an old server does not say is said in the most careful way.
func newer(m, r *wire.Message) *wire.Message {
	if e := r.Error(); e != nil {
		if e.Code == wire.ResourceNotFound {
			return wire.Refuse(r.ID(), wire.Errorf(wire.InvalidParams, "%s", e.Message).With(map[string]string{"uri": m.Text("uri")}))
		}
		return r
	}
	if raw := r.Result(); len(raw) == 0 || raw[0] != '{' {
		return wire.Refuse(r.ID(), wire.Errorf(wire.InternalError, "the server's result is no object"))
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
