package a2a

import (
	"context"
	"encoding/json"
	"iter"
	"sync"

	"github.com/lmosd/lmosd/bridge/a2a/wire"
)

// maxClaims is how many tasks are remembered.
const maxClaims = 20_000

// claims remember whose the tasks of an agent are that sees all of its callers as one: this node. The zero value is ready. It is
// safe for concurrent use.
type claims struct {
	mu    sync.Mutex
	whose map[string]string // principals by tasks
	order []string          // in which they came
}

// claim notes that a task is of a principal, unless it is another's already. It reports whether it is.
func (c *claims) claim(task, principal string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner, known := c.whose[task]; known {
		return owner == principal
	}
	if c.whose == nil {
		c.whose = map[string]string{}
	}
	if len(c.order) >= maxClaims {
		delete(c.whose, c.order[0])
		c.order = c.order[1:]
	}
	c.whose[task] = principal
	c.order = append(c.order, task)
	return true
}

func (c *claims) owns(task, principal string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	owner, known := c.whose[task]
	return known && owner == principal
}

// guard lets a principal see its own tasks: those that it began here, and one whose id it knows and nobody else began.
func (c *claims) guard(a wire.Agent, principal string) wire.Agent {
	return wire.Func(func(ctx context.Context, op *wire.Operation) iter.Seq2[json.RawMessage, error] {
		if task := taskOf(op); task != "" && !c.mayAsk(task, principal) {
			return wire.Once(nil, wire.Errorf(wire.TaskNotFound, "there is no such task"))
		}
		return func(yield func(json.RawMessage, error) bool) {
			for result, err := range a.Do(ctx, op) {
				if err == nil {
					result = c.seen(op, result, principal)
				}
				if !yield(result, err) {
					return
				}
			}
		}
	})
}

func (c *claims) mayAsk(task, principal string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	owner, known := c.whose[task]
	return !known || owner == principal
}

// seen notes the tasks in a result, and takes those of others out of a list.
func (c *claims) seen(op *wire.Operation, result json.RawMessage, principal string) json.RawMessage {
	switch op.Method {
	case wire.SendMessage, wire.SendStreamingMessage, wire.SubscribeToTask:
		if id, _ := wire.TaskOf(result); id != "" {
			c.claim(id, principal)
		}
	case wire.GetTask, wire.CancelTask:
		c.claim(taskOf(op), principal)
	case wire.ListTasks:
		return c.own(result, principal)
	}
	return result
}

// own keeps of a list the tasks of a principal.
func (c *claims) own(list json.RawMessage, principal string) json.RawMessage {
	var members map[string]json.RawMessage
	var tasks []json.RawMessage
	if json.Unmarshal(list, &members) != nil || json.Unmarshal(members["tasks"], &tasks) != nil {
		return list
	}
	kept := []json.RawMessage{}
	for _, t := range tasks {
		var task struct{ ID string }
		if json.Unmarshal(t, &task) == nil && c.owns(task.ID, principal) {
			kept = append(kept, t)
		}
	}
	if len(kept) == len(tasks) {
		return list
	}
	members["tasks"], members["totalSize"] = wire.Encode(kept), wire.Encode(len(kept)) // how many others have is theirs to know
	return wire.Encode(members)
}

// taskOf is the task that an operation is about; empty if it begins one.
func taskOf(op *wire.Operation) string {
	var p struct {
		ID      string
		TaskID  string
		Message *struct{ TaskID string }
	}
	if wire.Read(op.Params, &p) != nil {
		return ""
	}
	switch op.Method {
	case wire.SendMessage, wire.SendStreamingMessage:
		if p.Message == nil {
			return ""
		}
		return p.Message.TaskID
	case wire.GetTask, wire.CancelTask, wire.SubscribeToTask:
		return p.ID
	}
	return p.TaskID
}
