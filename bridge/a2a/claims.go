package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"iter"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/wire"
	"github.com/lmosd/lmosd/interact"
)

// claims remember whose the tasks and the contexts of an agent are. A context holds what was said in it, so whoever sends a
// message to it hears of that: it is of the principal who was first in it. It is safe for concurrent use.
type claims struct{ tasks, contexts bridge.Names }

// ownClaims are those on an agent that has them for itself.
func ownClaims() claims { return claims{new(bridge.Claims).Of(""), new(bridge.Claims).Of("")} }

// notFound is what a principal hears of a task that is another's, and of one that is not there: the same, so that nobody learns which
// (A2A 1.0 §13.1).
func notFound(task string) *wire.Error {
	task = interact.Clip(task, 64)
	return wire.Errorf(wire.TaskNotFound, "task %q not found", task).With(map[string]string{"taskId": task})
}

// guard lets a principal see its own tasks and go on in its own contexts: those that it began here, and one whose id it knows and
// nobody else began.
func (c claims) guard(a wire.Agent, principal string) wire.Agent {
	return wire.Func(func(ctx context.Context, op *wire.Operation) iter.Seq2[json.RawMessage, error] {
		task, e := taskOf(op)
		if e == nil && task != "" && !c.tasks.Allows(task, principal) {
			e = notFound(task)
		}
		if e == nil {
			e = c.mayRefer(op, principal)
		}
		in, fresh := "", false
		if e == nil {
			in, fresh, e = c.enter(op, principal)
		}
		if e != nil {
			return wire.Once(nil, e)
		}
		return func(yield func(json.RawMessage, error) bool) {
			for result, err := range a.Do(ctx, op) {
				var said *wire.Error
				switch {
				case err == nil:
					result, fresh = c.seen(op, task, in, result, principal), false
				case errors.As(err, &said) && said.Code == wire.TaskNotFound:
					err = notFound(task)
				}
				unread := errors.As(err, &said) && said.Code == wire.InvalidAgentResponse // the agent has taken the message
				if fresh && !unread && bridge.Refused(err) {                              // nobody is in the context
					c.contexts.Release(in, principal)
				}
				if !yield(result, err) {
					return
				}
			}
		}
	})
}

// enter has a principal go on in the context that a message names, or that a list is asked of. Fresh says that nobody has been in
// it before, as far as is known: it is the principal's from now on, before the agent answers, so that two cannot be the first.
// Clients may choose ids of contexts; one that cannot be had is refused, and never replaced (A2A 1.0 §3.4).
func (c claims) enter(op *wire.Operation, principal string) (in string, fresh bool, e *wire.Error) {
	switch op.Method {
	case wire.ListTasks:
		in, e = wire.FieldText(op.Params, "contextId")
		return in, false, e
	case wire.SendMessage, wire.SendStreamingMessage:
	default:
		return "", false, nil
	}
	if in, e = wire.FieldText(op.Params, "message", "contextId"); e != nil {
		return "", false, e
	}
	own, fresh := c.contexts.Claim(in, principal)
	if !own {
		return "", false, wire.Errorf(wire.InvalidParams, "nobody can go on in this context here: leave contextId out to begin another").
			At("message.contextId")
	}
	return in, fresh, nil
}

// mayRefer refuses a message that refers to a task of another: the agent, to whom all are this node, would tell of it.
func (c claims) mayRefer(op *wire.Operation, principal string) *wire.Error {
	if op.Method != wire.SendMessage && op.Method != wire.SendStreamingMessage {
		return nil
	}
	raw, e := wire.Field(op.Params, "message", "referenceTaskIds")
	var tasks []string
	if raw == nil || e != nil || json.Unmarshal(raw, &tasks) != nil {
		return e // what are no ids refers to nothing
	}
	for _, task := range tasks {
		if !c.tasks.Allows(task, principal) {
			return notFound(task)
		}
	}
	return nil
}

// seen notes the task and the context in a result, and takes the tasks of others out of a list. The operation was about a task,
// in a context, if it said so.
func (c claims) seen(op *wire.Operation, task, in string, result json.RawMessage, principal string) json.RawMessage {
	switch op.Method {
	case wire.SendMessage, wire.SendStreamingMessage, wire.SubscribeToTask:
		id, _ := wire.TaskOf(result)
		c.tasks.Claim(id, principal)
		c.contexts.Claim(wire.ContextOf(result), principal)
	case wire.GetTask, wire.CancelTask:
		c.tasks.Claim(task, principal)
		id, _ := wire.FieldText(result, "contextId")
		c.contexts.Claim(id, principal)
	case wire.ListTasks:
		return c.own(result, principal, c.contexts.Allows(in, principal))
	}
	return result
}

// own keeps of a list the tasks of a principal. Of a context that is not its own, there are no more pages either.
func (c claims) own(list json.RawMessage, principal string, more bool) json.RawMessage {
	var members map[string]json.RawMessage
	var tasks []json.RawMessage
	if json.Unmarshal(list, &members) != nil || json.Unmarshal(members["tasks"], &tasks) != nil {
		return list
	}
	kept := []json.RawMessage{}
	for _, t := range tasks {
		var task struct{ ID string }
		if json.Unmarshal(t, &task) == nil && c.tasks.Owns(task.ID, principal) {
			kept = append(kept, t)
		}
	}
	if len(kept) == len(tasks) && more {
		return list
	}
	members["tasks"], members["totalSize"] = wire.Encode(kept), wire.Encode(len(kept)) // how many others have is theirs to know
	if !more {
		members["nextPageToken"] = wire.Encode("")
	}
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
