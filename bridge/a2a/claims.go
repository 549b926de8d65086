package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"iter"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
)

// claims remember whose the tasks and the contexts of an agent are. A context holds what was said in it, so whoever sends a
// message to it hears of that: it is of the principal who was first in it. It is safe for concurrent use.
type claims struct{ tasks, contexts bridge.AgentOwners }

// ownClaims are those on an agent that has them for itself.
func ownClaims() claims {
	return claims{new(bridge.Owners).OfAgent(""), new(bridge.Owners).OfAgent("")}
}

// notFound is what a principal hears of a task that is another's, and of one that is not there: the same, so that nobody learns which
// (A2A 1.0 §13.1).
func notFound(task string) *protocol.Error {
	task = interact.Clip(task, 64)
	return protocol.Errorf(protocol.TaskNotFound, "task %q not found", task).With(map[string]string{"taskId": task})
}

// guard lets a principal see its own tasks and go on in its own contexts: those that it began here, and one whose id it knows and
// nobody else began.
func (c claims) guard(a protocol.Agent, principal string) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
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
			return protocol.Once(nil, e)
		}
		return func(yield func(json.RawMessage, error) bool) {
			for result, err := range a.Do(ctx, op) {
				var said *protocol.Error
				switch {
				case err == nil:
					result, fresh = c.seen(op, task, in, result, principal), false
				case errors.As(err, &said) && said.Code == protocol.TaskNotFound:
					err = notFound(task)
				}
				unread := errors.As(err, &said) && said.Code == protocol.InvalidAgentResponse // the agent has taken the message
				if fresh && !unread && bridge.Refused(err) {                                  // nobody is in the context
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
func (c claims) enter(op *protocol.Operation, principal string) (in string, fresh bool, e *protocol.Error) {
	switch op.Method {
	case protocol.ListTasks:
		in, e = protocol.FieldText(op.Params, "contextId")
		return in, false, e
	case protocol.SendMessage, protocol.SendStreamingMessage:
	default:
		return "", false, nil
	}
	if in, e = protocol.FieldText(op.Params, "message", "contextId"); e != nil {
		return "", false, e
	}
	own, fresh := c.contexts.Claim(in, principal)
	if !own {
		return "", false, protocol.Errorf(protocol.InvalidParams, "nobody can go on in this context here: leave contextId out to begin another").
			At("message.contextId")
	}
	return in, fresh, nil
}

// mayRefer refuses a message that refers to a task of another: the agent, to whom all are this node, would tell of it.
func (c claims) mayRefer(op *protocol.Operation, principal string) *protocol.Error {
	if op.Method != protocol.SendMessage && op.Method != protocol.SendStreamingMessage {
		return nil
	}
	raw, e := protocol.Field(op.Params, "message", "referenceTaskIds")
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
func (c claims) seen(op *protocol.Operation, task, in string, result json.RawMessage, principal string) json.RawMessage {
	switch op.Method {
	case protocol.SendMessage, protocol.SendStreamingMessage, protocol.SubscribeToTask:
		id, _ := protocol.TaskOf(result)
		c.tasks.Claim(id, principal)
		c.contexts.Claim(protocol.ContextOf(result), principal)
	case protocol.GetTask, protocol.CancelTask:
		c.tasks.Claim(task, principal)
		id, _ := protocol.FieldText(result, "contextId")
		c.contexts.Claim(id, principal)
	case protocol.ListTasks:
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
	members["tasks"], members["totalSize"] = protocol.Encode(kept), protocol.Encode(len(kept)) // how many others have is theirs to know
	if !more {
		members["nextPageToken"] = protocol.Encode("")
	}
	return protocol.Encode(members)
}

// taskOf is the task that an operation is about; empty if it begins one. Params in which readers could find different tasks are
// an error.
func taskOf(op *protocol.Operation) (string, *protocol.Error) {
	switch op.Method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		return protocol.FieldText(op.Params, "message", "taskId")
	case protocol.GetTask, protocol.CancelTask, protocol.SubscribeToTask:
		return protocol.FieldText(op.Params, "id")
	}
	return protocol.FieldText(op.Params, "taskId")
}
