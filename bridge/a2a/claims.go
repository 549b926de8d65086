package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"

	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/interact"
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

// notFound is what a principal hears of a task that is another's, and of one that is not there: the same, so that nobody learns which
// (A2A 1.0 §13.1).
func notFound(task string) *wire.Error {
	task = interact.Clip(task, 64)
	return wire.Errorf(wire.TaskNotFound, "task %q not found", task).With(map[string]string{"taskId": task})
}

// guard lets a principal see its own tasks: those that it began here, and one whose id it knows and nobody else began.
func (c *claims) guard(a wire.Agent, principal string) wire.Agent {
	return wire.Func(func(ctx context.Context, op *wire.Operation) iter.Seq2[json.RawMessage, error] {
		task, e := taskOf(op)
		if e == nil && task != "" && !c.mayAsk(task, principal) {
			e = notFound(task)
		}
		if e == nil {
			e = c.mayRefer(op, principal)
		}
		if e != nil {
			return wire.Once(nil, e)
		}
		return func(yield func(json.RawMessage, error) bool) {
			for result, err := range a.Do(ctx, op) {
				var said *wire.Error
				switch {
				case err == nil:
					result = c.seen(op.Method, task, result, principal)
				case errors.As(err, &said) && said.Code == wire.TaskNotFound:
					err = notFound(task)
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

// mayRefer refuses a message that refers to a task of another: the agent, to whom all are this node, would tell of it.
func (c *claims) mayRefer(op *wire.Operation, principal string) *wire.Error {
	if op.Method != wire.SendMessage && op.Method != wire.SendStreamingMessage {
		return nil
	}
	raw, e := wire.Field(op.Params, "message", "referenceTaskIds")
	var tasks []string
	if raw == nil || e != nil || json.Unmarshal(raw, &tasks) != nil {
		return e // what are no ids refers to nothing
	}
	for _, task := range tasks {
		if !c.mayAsk(task, principal) {
			return notFound(task)
		}
	}
	return nil
}

// seen notes the tasks in a result, and takes those of others out of a list. task is that which was asked for.
func (c *claims) seen(method, task string, result json.RawMessage, principal string) json.RawMessage {
	switch method {
	case wire.SendMessage, wire.SendStreamingMessage, wire.SubscribeToTask:
		if id, _ := wire.TaskOf(result); id != "" {
			c.claim(id, principal)
		}
	case wire.GetTask, wire.CancelTask:
		c.claim(task, principal)
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

// taskOf is the task that an operation is about; empty if it begins one. Params in which readers could find different tasks are
// an error.
func taskOf(op *wire.Operation) (string, *wire.Error) {
	switch op.Method {
	case wire.SendMessage, wire.SendStreamingMessage:
		return wire.FieldText(op.Params, "message", "taskId")
	case wire.GetTask, wire.CancelTask, wire.SubscribeToTask:
		return wire.FieldText(op.Params, "id")
	}
	return wire.FieldText(op.Params, "taskId")
}
