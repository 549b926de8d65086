package backend

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"sync"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
)

// maxOwned bounds what is remembered of whose tasks and states there are. The oldest is forgotten: then the server's own words for
// them, which nobody can guess, are all that protects them.
const maxOwned = 4096

// owners remember which caller a server gave the id of a task or a state to, since the server cannot tell one caller of a relay from
// another (2026-07-28, "Security": both are bound to who they were made for).
type owners struct {
	mu    sync.Mutex
	by    map[[sha256.Size]byte]string
	order [][sha256.Size]byte
}

func newOwners() *owners { return &owners{by: map[[sha256.Size]byte]string{}} }

func (o *owners) add(what, word, caller string) {
	key := sha256.Sum256([]byte(what + word))
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, there := o.by[key]; !there {
		o.order = append(o.order, key)
	}
	o.by[key] = caller
	if len(o.order) > maxOwned {
		delete(o.by, o.order[0])
		o.order = o.order[1:]
	}
}

// foreign reports whether what has the word was made for another caller.
func (o *owners) foreign(ctx context.Context, what, word string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	owner, known := o.by[sha256.Sum256([]byte(what+word))]
	return known && owner != wire.CallerOf(ctx)
}

// What is owned.
const (
	aTask  = "task "
	aState = "state "
)

// check refuses a request that uses what is another's: it is as if it were not there. What m listens to is left out in the same way.
func (o *owners) check(ctx context.Context, m *wire.Message) (*wire.Message, *wire.Error) {
	switch {
	case strings.HasPrefix(m.Method(), "tasks/") && o.foreign(ctx, aTask, m.Text("taskId")):
		return m, wire.Errorf(wire.InvalidParams, "there is no such task")
	case rounds[m.Method()]:
		if state := m.Text("requestState"); state != "" && o.foreign(ctx, aState, state) {
			return m, wire.Errorf(wire.InvalidParams, "the requestState is not of this request: ask anew without it")
		}
	case m.Method() == wire.Listen:
		return o.ownTasks(ctx, m), nil
	}
	return m, nil
}

func (o *owners) ownTasks(ctx context.Context, m *wire.Message) *wire.Message {
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
	want["taskIds"], _ = json.Marshal(own)
	changed, _ := json.Marshal(want)
	return m.WithParam(changed, "notifications")
}

// note remembers whose the task or the state is that r gives to the caller of m.
func (o *owners) note(ctx context.Context, m, r *wire.Message) {
	if !rounds[m.Method()] {
		return
	}
	what, member := aTask, "taskId"
	switch kind(r) {
	case "task":
	case "input_required":
		what, member = aState, "requestState"
	default:
		return
	}
	var word string
	if raw, _ := r.InResult(member); raw != nil && json.Unmarshal(raw, &word) == nil && word != "" {
		o.add(what, word, wire.CallerOf(ctx))
	}
}
