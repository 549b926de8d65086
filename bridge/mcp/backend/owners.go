package backend

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// maxOwned bounds the recorded tokens. Beyond it the oldest token of the caller with most is forgotten; then only the unguessability of
// the server's tokens protects them.
const maxOwned = 4096

// owners record the callers that received a task id or request state of the server, since the server cannot distinguish the callers of a
// relay (2026-07-28, "Security": both are bound to their caller). The tokens themselves stay unchanged: they may also be valid at another
// node. A token that several callers received is valid for each of them.
type owners struct {
	mu  sync.Mutex
	by  map[tokenHash][]string // callers
	of  map[string][]tokenHash // oldest first
	sum int                    // number of tokens in of
}

// A tokenHash is the hash of a token with its kind.
type tokenHash [sha256.Size]byte

func newOwners() *owners { return &owners{by: map[tokenHash][]string{}, of: map[string][]tokenHash{}} }

func (o *owners) add(kind, token, caller string) {
	key := tokenHash(sha256.Sum256([]byte(kind + token)))
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Contains(o.by[key], caller) {
		return
	}
	o.by[key] = append(o.by[key], caller)
	o.of[caller] = append(o.of[caller], key)
	if o.sum++; o.sum > maxOwned {
		o.forgetLocked()
	}
}

// forgetLocked removes the oldest token of the caller with most tokens.
func (o *owners) forgetLocked() {
	most := ""
	for caller, tokens := range o.of {
		if len(tokens) > len(o.of[most]) {
			most = caller
		}
	}
	key := o.of[most][0]
	if o.of[most] = o.of[most][1:]; len(o.of[most]) == 0 {
		delete(o.of, most)
	}
	o.by[key] = slices.DeleteFunc(o.by[key], func(caller string) bool { return caller == most })
	if len(o.by[key]) == 0 {
		delete(o.by, key)
	}
	o.sum--
}

// foreign reports whether a token was issued to other callers only.
func (o *owners) foreign(ctx context.Context, kind, token string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	callers, known := o.by[sha256.Sum256([]byte(kind+token))]
	return known && !slices.Contains(callers, protocol.CallerOf(ctx))
}

// Kinds of tokens.
const (
	aTask  = "task "
	aState = "state "
)

// check rejects a request with a token of another caller as unknown. It removes such tasks from a listen request.
func (o *owners) check(ctx context.Context, m *protocol.Message) (*protocol.Message, *protocol.Error) {
	switch {
	case strings.HasPrefix(m.Method(), "tasks/") && o.foreign(ctx, aTask, m.Text("taskId")):
		return m, protocol.UnknownTask()
	case rounds[m.Method()]:
		if state := m.Text("requestState"); state != "" && o.foreign(ctx, aState, state) {
			return m, protocol.ForeignStateError()
		}
	case m.Method() == protocol.Listen:
		return o.ownTasks(ctx, m), nil
	}
	return m, nil
}

func (o *owners) ownTasks(ctx context.Context, m *protocol.Message) *protocol.Message {
	raw, err := m.Param("notifications")
	var want map[string]json.RawMessage
	var ids []string
	if err != nil || json.Unmarshal(raw, &want) != nil || json.Unmarshal(want["taskIds"], &ids) != nil {
		return m
	}
	own := make([]string, 0, len(ids))
	for _, id := range ids {
		if !o.foreign(ctx, aTask, id) {
			own = append(own, id)
		}
	}
	if len(own) == len(ids) {
		return m
	}
	want["taskIds"] = protocol.Encode(own)
	return m.WithParam(protocol.Encode(want), "notifications")
}

// note records the task id or request state in r for the caller of m.
func (o *owners) note(ctx context.Context, m, r *protocol.Message) {
	if !rounds[m.Method()] {
		return
	}
	what, member := aTask, "taskId"
	switch r.ResultType() {
	case "task":
	case "input_required":
		what, member = aState, "requestState"
	default:
		return
	}
	var token string
	if raw, _ := r.InResult(member); raw != nil && json.Unmarshal(raw, &token) == nil && token != "" {
		o.add(what, token, protocol.CallerOf(ctx))
	}
}
