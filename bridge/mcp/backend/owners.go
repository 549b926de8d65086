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

// maxOwned bounds what is remembered of whose tasks and states there are. The oldest of whoever has most is forgotten: then the server's
// own words for them, which nobody can guess, are all that protects them.
const maxOwned = 4096

// owners remember which callers a server gave the id of a task or a state to, since the server cannot tell one caller of a relay from
// another (2026-07-28, "Security": both are bound to who they were made for). The server's words themselves stay as they are: they
// are good at another node, too, if the server takes them there. A word that a server gives to several is good for each of them.
type owners struct {
	mu  sync.Mutex
	by  map[word][]string // callers
	of  map[string][]word // the oldest first
	sum int               // of all words in of
}

// A word is the hash of one, with what it is of.
type word [sha256.Size]byte

func newOwners() *owners { return &owners{by: map[word][]string{}, of: map[string][]word{}} }

func (o *owners) add(what, said, caller string) {
	key := word(sha256.Sum256([]byte(what + said)))
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

// forgetLocked forgets the oldest word of the caller that has most.
func (o *owners) forgetLocked() {
	most := ""
	for caller, words := range o.of {
		if len(words) > len(o.of[most]) {
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

// foreign reports whether what has the word was made for others.
func (o *owners) foreign(ctx context.Context, what, said string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	callers, known := o.by[sha256.Sum256([]byte(what+said))]
	return known && !slices.Contains(callers, protocol.CallerOf(ctx))
}

// What is owned.
const (
	aTask  = "task "
	aState = "state "
)

// check refuses a request that uses what is another's: it is as if it were not there. What m listens to is left out in the same way.
func (o *owners) check(ctx context.Context, m *protocol.Message) (*protocol.Message, *protocol.Error) {
	switch {
	case strings.HasPrefix(m.Method(), "tasks/") && o.foreign(ctx, aTask, m.Text("taskId")):
		return m, protocol.Errorf(protocol.InvalidParams, "there is no such task")
	case rounds[m.Method()]:
		if state := m.Text("requestState"); state != "" && o.foreign(ctx, aState, state) {
			return m, protocol.Errorf(protocol.InvalidParams, "the requestState is not of this request: ask anew without it")
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
	want["taskIds"], _ = json.Marshal(own)
	changed, _ := json.Marshal(want)
	return m.WithParam(changed, "notifications")
}

// note remembers whose the task or the state is that r gives to the caller of m.
func (o *owners) note(ctx context.Context, m, r *protocol.Message) {
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
	var said string
	if raw, _ := r.InResult(member); raw != nil && json.Unmarshal(raw, &said) == nil && said != "" {
		o.add(what, said, protocol.CallerOf(ctx))
	}
}
