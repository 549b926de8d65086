package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"iter"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// owners records which principals own the tasks and contexts of an agent. A message to a context may reveal earlier messages in it, so a
// context belongs to the first principal that used it. It is safe for concurrent use.
type owners struct {
	tasks, contexts bridge.AgentOwners
	shared          bool // the principal stands for callers that are not one person: it lists no tasks
}

// newOwners returns separate owner registries for one agent.
func newOwners() owners {
	return owners{tasks: new(bridge.Owners).OfAgent(""), contexts: new(bridge.Owners).OfAgent("")}
}

// guard restricts a principal to its own tasks and contexts: those that it created here, and those without an owner whose id it knows.
func (c owners) guard(a protocol.Agent, principal string) protocol.Agent {
	return protocol.Func(func(ctx context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		task, e := taskOf(op)
		if e == nil && task != "" && !c.tasks.Allows(task, principal) {
			e = protocol.NoSuchTask(task)
		}
		if e == nil {
			e = c.checkReferences(op, principal)
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
				var remote *protocol.Error
				switch {
				case err == nil:
					result, fresh = c.record(op, task, in, result, principal), false
				case errors.As(err, &remote) && remote.Code == protocol.TaskNotFound:
					err = protocol.NoSuchTask(task)
				}
				unread := errors.As(err, &remote) && remote.Code == protocol.InvalidAgentResponse // the agent has accepted the message
				if fresh && !unread && bridge.Refused(err) {                                      // the context was not used
					c.contexts.Release(in, principal)
				}
				if !yield(result, err) {
					return
				}
			}
		}
	})
}

// enter claims the context of a message for a principal, or returns the context of a list. The claim precedes the agent's response, so
// that two principals cannot both be first; fresh reports that the context had no owner. Clients may choose context ids; a context of
// another principal is refused and never replaced (A2A 1.0 §3.4).
func (c owners) enter(op *protocol.Operation, principal string) (in string, fresh bool, e *protocol.Error) {
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
		return "", false, protocol.Errorf(protocol.InvalidParams, "this context cannot be continued: omit contextId to start another").
			At("message.contextId")
	}
	return in, fresh, nil
}

// checkReferences rejects a message that refers to a task of another principal, which the agent would reveal.
func (c owners) checkReferences(op *protocol.Operation, principal string) *protocol.Error {
	if op.Method != protocol.SendMessage && op.Method != protocol.SendStreamingMessage {
		return nil
	}
	raw, e := protocol.Field(op.Params, "message", "referenceTaskIds")
	var tasks []string
	if raw == nil || e != nil || json.Unmarshal(raw, &tasks) != nil {
		return e // not a list of ids
	}
	for _, task := range tasks {
		if !c.tasks.Allows(task, principal) {
			return protocol.NoSuchTask(task)
		}
	}
	return nil
}

// record records the task and the context of a result, and removes tasks of others from a list. task and in are those of the operation,
// if it has them.
func (c owners) record(op *protocol.Operation, task, in string, result json.RawMessage, principal string) json.RawMessage {
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
		return c.filter(result, principal, !c.shared && c.contexts.Allows(in, principal))
	}
	return result
}

// filter reduces a list to the tasks of a principal, and without more to its first page.
func (c owners) filter(list json.RawMessage, principal string, more bool) json.RawMessage {
	var members map[string]json.RawMessage
	var tasks []json.RawMessage
	if json.Unmarshal(list, &members) != nil || json.Unmarshal(members["tasks"], &tasks) != nil {
		return list
	}
	kept := []json.RawMessage{}
	for _, t := range tasks {
		var task struct{ ID string }
		if json.Unmarshal(t, &task) == nil && !c.shared && c.tasks.Owns(task.ID, principal) {
			kept = append(kept, t)
		}
	}
	if len(kept) == len(tasks) && more {
		return list
	}
	members["tasks"], members["totalSize"] = protocol.Encode(kept), protocol.Encode(len(kept)) // the number of others' tasks is private
	if !more {
		members["nextPageToken"] = protocol.Encode("")
	}
	return protocol.Encode(members)
}

// taskOf returns the task of an operation; empty if it creates one. Params with a duplicate field are an error.
func taskOf(op *protocol.Operation) (string, *protocol.Error) {
	switch op.Method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		return protocol.FieldText(op.Params, "message", "taskId")
	case protocol.GetTask, protocol.CancelTask, protocol.SubscribeToTask:
		return protocol.FieldText(op.Params, "id")
	}
	return protocol.FieldText(op.Params, "taskId")
}
