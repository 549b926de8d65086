package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// asks takes a request of the server, which does not say for which request of its client it asks. All who use a process whose client
// can be asked are one caller: whichever of its runs is asked, it is the same who answers. The last to begin of those that do not wait
// for their caller already is it most likely.
func (u *upstream) asks(m *protocol.Message) {
	if !declared(u.caps, m) {
		u.say(protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "nobody here can be asked for %s", m.Method())))
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var likely *run
	for _, r := range u.runs {
		if likely == nil || likely.waits || !r.waits {
			likely = r
		}
	}
	if likely == nil {
		u.decline(m) // it belongs to no call
		return
	}
	likely.add(m)
}

// declared reports whether a client that can be asked for what caps says can be asked m.
func declared(caps string, m *protocol.Message) bool {
	var can map[string]map[string]json.RawMessage
	_ = json.Unmarshal([]byte(caps), &can) // it was made here
	switch m.Method() {
	case "elicitation/create":
		mode := cmp.Or(m.Text("mode"), "form")
		return can["elicitation"][mode] != nil
	case "sampling/createMessage":
		return can["sampling"] != nil
	case "roots/list":
		return can["roots"] != nil
	}
	return false
}

func (u *upstream) enter(r *run) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.runs = append(u.runs, r)
}

func (u *upstream) exit(r *run) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.runs = slices.DeleteFunc(u.runs, func(o *run) bool { return o == r })
}

// pause says that a run waits for its caller, or no more.
func (u *upstream) pause(r *run, waits bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r.waits = waits
}

// decline answers a request of the server when nobody is asked.
func (u *upstream) decline(m *protocol.Message) {
	switch m.Method() {
	case "elicitation/create":
		u.say(protocol.Respond(m.ID(), map[string]string{"action": "cancel"}))
	case "roots/list":
		u.say(protocol.Respond(m.ID(), map[string]any{"roots": []any{}}))
	default:
		u.say(protocol.RespondError(m.ID(), protocol.Errorf(protocol.UnknownMethod, "nobody here can be asked for %s", m.Method())))
	}
}

// levelOf is the least level of the log messages that the caller of m wants.
func levelOf(m *protocol.Message) int {
	if i := slices.Index(levels, m.Text("_meta", protocol.MetaLogLevel)); i >= 0 {
		return i
	}
	return len(levels)
}

// verbose tells the server to say what somebody wants to hear. What others hear is not less for it.
func (u *upstream) verbose(ctx context.Context, level int) {
	u.mu.Lock()
	more := level < u.level
	u.level = min(u.level, level)
	u.mu.Unlock()
	if more { // a server that has no log messages refuses, and that is all
		_, _ = u.Call(ctx, protocol.Request(`"lmosd"`, "logging/setLevel", map[string]string{"level": levels[level]}), ignore)
	}
}

// logs passes a log message on, which does not say either for which request it is: to the first run that wants it, unless it may
// be for another caller's, or another user's of a relay.
func (u *upstream) logs(m *protocol.Message) {
	level := slices.Index(levels, m.Text("level"))
	u.mu.Lock()
	defer u.mu.Unlock()
	var to *run
	for _, r := range u.runs {
		if r.caller != u.runs[0].caller || r.user != u.runs[0].user {
			return
		}
		if to == nil && r.level <= level {
			to = r
		}
	}
	if to != nil {
		to.add(m)
	}
}
