// Package v03 converts requests, results and errors between A2A 1.0 and A2A 0.3.
//
// 0.3 has two JSON formats: JSON-RPC has objects with a "kind", REST has the JSON of the 0.3 proto. Fields without an equivalent are
// omitted; application-defined content (metadata, data) stays unchanged.
//
// Sources: A2A 0.3.0, "specification.md" and "a2a.proto"; spec §5 of 1.0's "whats-new-v1.md".
package v03

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// A Dialect is one of the two formats of 0.3.
type Dialect struct{ rest bool }

// The formats of 0.3.
var (
	RPC  = Dialect{}
	REST = Dialect{rest: true}
)

// methods maps methods of 1.0 to those of the JSON-RPC of 0.3.
var methods = map[string]string{
	protocol.SendMessage: "message/send", protocol.SendStreamingMessage: "message/stream", protocol.GetTask: "tasks/get",
	protocol.CancelTask:      "tasks/cancel",
	protocol.SubscribeToTask: "tasks/resubscribe", protocol.CreatePush: "tasks/pushNotificationConfig/set",
	protocol.GetPush:  "tasks/pushNotificationConfig/get",
	protocol.ListPush: "tasks/pushNotificationConfig/list", protocol.DeletePush: "tasks/pushNotificationConfig/delete",
	protocol.ExtendedCard: "agent/getAuthenticatedExtendedCard",
}

// methodOf returns the method of 1.0 for a method of 0.3; empty if there is none.
func methodOf(old string) string {
	for modern, name := range methods {
		if name == old {
			return modern
		}
	}
	return ""
}

type object = map[string]any

// decode decodes JSON and keeps numbers as text.
func decode(raw json.RawMessage) (any, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("unexpected text after the value")
	}
	return v, nil
}

func asObject(v any) object { m, _ := v.(object); return m }
func asArray(v any) []any   { a, _ := v.([]any); return a }
func asText(v any) string   { s, _ := v.(string); return s }

// keep copies the members that both versions have.
func keep(from object, names ...string) object {
	to := object{}
	for _, name := range names {
		if v, ok := from[name]; ok && v != nil {
			to[name] = v
		}
	}
	return to
}

// each converts the elements of an array.
func each(v any, f func(object) object) []any {
	out := []any{}
	for _, e := range asArray(v) {
		if m := asObject(e); m != nil {
			out = append(out, f(m))
		}
	}
	return out
}

// set sets a member to a non-empty value.
func set(to object, name string, v any) {
	if v != nil && v != "" {
		to[name] = v
	}
}

// Request converts an operation to the method and params of the JSON-RPC of 0.3.
func Request(op *protocol.Operation) (method string, params json.RawMessage, e *protocol.Error) {
	method, known := methods[op.Method]
	if !known {
		return "", nil, protocol.Errorf(protocol.UnsupportedOperation, "the agent uses A2A 0.3, which has no %s", op.Method)
	}
	v, err := decode(protocol.Normal(op.Params))
	if err != nil {
		return "", nil, protocol.Errorf(protocol.InvalidParams, "the params are not JSON")
	}
	return method, protocol.Encode(RPC.oldParams(op.Method, asObject(v))), nil
}

// oldParams converts params from 1.0.
func (d Dialect) oldParams(method string, p object) object {
	out := keep(p, "metadata")
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		out["message"] = d.oldMessage(asObject(p["message"]))
		c := asObject(p["configuration"])
		to := keep(c, "acceptedOutputModes", "historyLength")
		if method == protocol.SendMessage {
			to["blocking"] = c["returnImmediately"] != true
		}
		if push := asObject(c["taskPushNotificationConfig"]); push != nil {
			to[d.pushName()] = oldPush(push)
		}
		out["configuration"] = to
	case protocol.CreatePush:
		return object{"taskId": p["taskId"], "pushNotificationConfig": oldPush(p)}
	case protocol.GetPush, protocol.DeletePush:
		return object{"id": p["taskId"], "pushNotificationConfigId": p["id"]}
	case protocol.ListPush:
		return object{"id": p["taskId"]}
	default:
		out = keep(p, "id", "historyLength", "metadata")
	}
	return out
}

// Operation converts a JSON-RPC request of 0.3 to 1.0.
func Operation(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	modern := methodOf(method)
	if modern == "" {
		return nil, protocol.Errorf(protocol.UnknownMethod, "A2A 0.3 has no method %q", method)
	}
	return RPC.operation(modern, params)
}

// OfREST converts a REST request of 0.3 to 1.0, given its method and the params from path, query and body.
func OfREST(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	return REST.operation(method, params)
}

func (d Dialect) operation(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	v, err := decode(protocol.Normal(params))
	p := asObject(v)
	if err != nil || v != nil && p == nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "the params are not an object")
	}
	return &protocol.Operation{Method: method, Params: protocol.Encode(d.newParams(method, p))}, nil
}

// newParams converts params to 1.0.
func (d Dialect) newParams(method string, p object) object {
	out := keep(p, "metadata", "tenant")
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		if m := asObject(p["message"]); m != nil {
			out["message"] = d.newMessage(m)
		}
		c := asObject(p["configuration"])
		to := keep(c, "acceptedOutputModes", "historyLength")
		_, given := c["blocking"]
		if c["blocking"] == false || d.rest && c != nil && !given { // proto JSON omits false
			to["returnImmediately"] = true
		}
		for _, name := range []string{"pushNotificationConfig", "pushNotification"} { // of JSON-RPC, of the proto
			if push := asObject(c[name]); push != nil {
				to["taskPushNotificationConfig"] = newPush(push)
			}
		}
		out["configuration"] = to
	case protocol.CreatePush:
		set(out, "taskId", p["taskId"])
		maps.Copy(out, newPush(asObject(p["pushNotificationConfig"])))
		if asText(out["id"]) == "" { // the default config of a task has the task's id (A2A 0.3.0 §6.9, as its libraries implement it)
			set(out, "id", out["taskId"])
		}
	case protocol.GetPush, protocol.DeletePush:
		if out["taskId"], out["id"] = p["taskId"], p["id"]; !d.rest {
			out["taskId"], out["id"] = p["id"], p["pushNotificationConfigId"]
		}
	case protocol.ListPush:
		if out["taskId"] = p["taskId"]; !d.rest {
			out["taskId"] = p["id"]
		}
	case protocol.ListTasks:
		out = keep(p, "tenant", "contextId", "status", "pageSize", "pageToken", "historyLength", "includeArtifacts",
			"statusTimestampAfter")
		if s := asText(out["status"]); s != "" {
			out["status"] = d.newState(s)
		}
	default:
		out = keep(p, "id", "historyLength", "metadata", "tenant")
	}
	return out
}

// Result converts a result of 1.0, or an event of a stream. Invalid JSON stays unchanged.
func (d Dialect) Result(method string, result json.RawMessage) json.RawMessage {
	if method == protocol.ExtendedCard {
		return oldCard(result)
	}
	v, err := decode(result)
	if err != nil {
		return result
	}
	return protocol.Encode(d.oldResult(method, v))
}

// oldCard adds the 0.3 members to an extended card.
func oldCard(raw json.RawMessage) json.RawMessage {
	c, err := card.Parse(raw)
	if err != nil {
		return raw
	}
	union, err := card.Union(c)
	if err != nil {
		return raw
	}
	return union
}

func (d Dialect) oldResult(method string, v any) any {
	m := asObject(v)
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage, protocol.SubscribeToTask:
		return d.oldEvent(m)
	case protocol.GetTask, protocol.CancelTask:
		return d.oldTask(m)
	case protocol.ListTasks:
		out := keep(m, "nextPageToken", "pageSize", "totalSize")
		out["tasks"] = each(m["tasks"], d.oldTask)
		return out
	case protocol.CreatePush, protocol.GetPush:
		return d.oldTaskPush(m)
	case protocol.ListPush:
		all := each(m["configs"], d.oldTaskPush)
		if d.rest {
			return object{"configs": all}
		}
		return all
	case protocol.DeletePush:
		if d.rest {
			return object{}
		}
		return nil
	}
	return v
}

// NewResult converts a result of 0.3's JSON-RPC to 1.0.
func NewResult(method string, result json.RawMessage) (json.RawMessage, error) {
	v, err := decode(result)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's result is not JSON")
	}
	m := asObject(v)
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage, protocol.SubscribeToTask:
		event := RPC.newEvent(m)
		if event == nil {
			return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's result has the kind %q, which A2A 0.3 does not define",
				asText(m["kind"]))
		}
		return protocol.Encode(event), nil
	case protocol.GetTask, protocol.CancelTask:
		return protocol.Encode(RPC.newTask(m)), nil
	case protocol.CreatePush, protocol.GetPush:
		return protocol.Encode(newTaskPush(m)), nil
	case protocol.ListPush:
		return protocol.Encode(object{"configs": each(v, newTaskPush)}), nil
	case protocol.DeletePush:
		return json.RawMessage("{}"), nil
	}
	return result, nil
}

// Error converts an error to 0.3, which lacks two codes of 1.0.
func Error(e *protocol.Error) *protocol.Error {
	switch e.Code {
	case protocol.ExtensionRequired, protocol.VersionUnsupported:
		return &protocol.Error{Code: protocol.InvalidRequest, Message: e.Message, Data: e.Data}
	}
	return e
}

// RESTError returns the body of a REST error for 0.3: some clients read the JSON-RPC form, others that of 1.0.
func RESTError(e *protocol.Error) []byte {
	e = Error(e)
	return protocol.Encode(struct {
		*protocol.Error
		REST json.RawMessage `json:"error"`
	}{e, errorMember(e.REST())})
}

// errorMember returns the error member of the body of an error.
func errorMember(body []byte) json.RawMessage {
	var b struct {
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(body, &b) // it was just encoded
	return b.Error
}

// oldState converts a state; JSON-RPC has the lower-case suffix of the 1.0 name, "input-required".
func (d Dialect) oldState(s string) string {
	if d.rest {
		if s == string(protocol.Canceled) {
			return "TASK_STATE_CANCELLED"
		}
		return s
	}
	word := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s, "TASK_STATE_"), "_", "-"))
	if word == "unspecified" {
		return "unknown"
	}
	return word
}

func (d Dialect) newState(s string) string {
	switch s {
	case "unknown":
		return string(protocol.Unspecified)
	case "TASK_STATE_CANCELLED", "cancelled":
		return string(protocol.Canceled)
	}
	if strings.HasPrefix(s, "TASK_STATE_") {
		return s
	}
	return "TASK_STATE_" + strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
}
