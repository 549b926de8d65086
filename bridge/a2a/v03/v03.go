// Package v03 translates between A2A 1.0 and A2A 0.3, for clients and agents that still speak that.
//
// There are two wires of 0.3, and their JSON differs: JSON-RPC has objects of its own with a "kind", REST has the JSON of the 0.3
// proto. What either cannot say in the other is left out; what belongs to the writer (metadata, data) stays.
//
// Sources: A2A 0.3.0, "specification.md" and "a2a.proto"; spec §5 of 1.0's "whats-new-v1.md".
package v03

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// A Dialect is one of the two wires of 0.3.
type Dialect struct{ rest bool }

// The wires of 0.3.
var (
	RPC  = Dialect{}
	REST = Dialect{rest: true}
)

// methods are those of JSON-RPC by those of 1.0.
var methods = map[string]string{
	protocol.SendMessage: "message/send", protocol.SendStreamingMessage: "message/stream", protocol.GetTask: "tasks/get",
	protocol.CancelTask:      "tasks/cancel",
	protocol.SubscribeToTask: "tasks/resubscribe", protocol.CreatePush: "tasks/pushNotificationConfig/set",
	protocol.GetPush:  "tasks/pushNotificationConfig/get",
	protocol.ListPush: "tasks/pushNotificationConfig/list", protocol.DeletePush: "tasks/pushNotificationConfig/delete",
	protocol.ExtendedCard: "agent/getAuthenticatedExtendedCard",
}

// Method returns the method of 1.0 for one of 0.3; empty if 0.3 has none of that name.
func Method(old string) string {
	for modern, name := range methods {
		if name == old {
			return modern
		}
	}
	return ""
}

type object = map[string]any

// decode reads JSON and keeps numbers as they are.
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
		return nil, errors.New("something stands behind the value")
	}
	return v, nil
}

func asObject(v any) object { m, _ := v.(object); return m }
func asArray(v any) []any   { a, _ := v.([]any); return a }
func asText(v any) string   { s, _ := v.(string); return s }

// keep copies members that both versions have.
func keep(from object, names ...string) object {
	to := object{}
	for _, name := range names {
		if v, ok := from[name]; ok && v != nil {
			to[name] = v
		}
	}
	return to
}

// each translates the elements of an array.
func each(v any, f func(object) object) []any {
	out := []any{}
	for _, e := range asArray(v) {
		if m := asObject(e); m != nil {
			out = append(out, f(m))
		}
	}
	return out
}

// set puts a member that is there.
func set(to object, name string, v any) {
	if v != nil && v != "" {
		to[name] = v
	}
}

// Request writes an operation for an agent of 0.3: the method and params of its JSON-RPC.
func Request(op *protocol.Operation) (method string, params json.RawMessage, e *protocol.Error) {
	method, known := methods[op.Method]
	if !known {
		return "", nil, protocol.Errorf(protocol.UnsupportedOperation, "the agent speaks A2A 0.3, which has no %s", op.Method)
	}
	v, err := decode(protocol.Normal(op.Params))
	if err != nil {
		return "", nil, protocol.Errorf(protocol.InvalidParams, "the params are no JSON")
	}
	return method, protocol.Encode(RPC.oldParams(op.Method, asObject(v))), nil
}

// oldParams translates params from 1.0.
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

// Operation makes an operation of 1.0 of a request of 0.3's JSON-RPC.
func Operation(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	modern := Method(method)
	if modern == "" {
		return nil, protocol.Errorf(protocol.UnknownMethod, "A2A 0.3 has no method %q", method)
	}
	return RPC.operation(modern, params)
}

// OfREST makes an operation of 1.0 of a request of 0.3's REST: its method, and the params made of the path, the query and the
// body.
func OfREST(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	return REST.operation(method, params)
}

func (d Dialect) operation(method string, params json.RawMessage) (*protocol.Operation, *protocol.Error) {
	v, err := decode(protocol.Normal(params))
	p := asObject(v)
	if err != nil || v != nil && p == nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "the params are no object")
	}
	return &protocol.Operation{Method: method, Params: protocol.Encode(d.newParams(method, p))}, nil
}

// newParams translates params to 1.0.
func (d Dialect) newParams(method string, p object) object {
	out := keep(p, "metadata", "tenant")
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		if m := asObject(p["message"]); m != nil {
			out["message"] = d.newMessage(m)
		}
		c := asObject(p["configuration"])
		to := keep(c, "acceptedOutputModes", "historyLength")
		_, said := c["blocking"]
		if c["blocking"] == false || d.rest && c != nil && !said { // in JSON of a proto what is false is left out
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
		for k, v := range newPush(asObject(p["pushNotificationConfig"])) {
			out[k] = v
		}
		if asText(out["id"]) == "" { // the webhook of a task that has but one (A2A 0.3.0 §6.9, as its libraries have it)
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

// Result translates a result of 1.0: of an event of a stream, too. What cannot be read stays.
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

// oldCard adds to an extended card what 0.3 reads of it.
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

// NewResult translates a result of 0.3's JSON-RPC to 1.0.
func NewResult(method string, result json.RawMessage) (json.RawMessage, error) {
	v, err := decode(result)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent answers with what is no JSON")
	}
	m := asObject(v)
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage, protocol.SubscribeToTask:
		event := RPC.newEvent(m)
		if event == nil {
			return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent answers with %q, which is nothing of A2A 0.3", asText(m["kind"]))
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

// Error is what 0.3 has of an error of 1.0: two codes are younger.
func Error(e *protocol.Error) *protocol.Error {
	switch e.Code {
	case protocol.ExtensionRequired, protocol.VersionUnsupported:
		return &protocol.Error{Code: protocol.InvalidRequest, Message: e.Message, Data: e.Data}
	}
	return e
}

// RESTError is the body of an error for clients of 0.3's REST: some read it as JSON-RPC writes it, others as REST of 1.0 does.
func RESTError(e *protocol.Error) []byte {
	e = Error(e)
	return protocol.Encode(struct {
		*protocol.Error
		REST json.RawMessage `json:"error"`
	}{e, asObjectOf(e.REST())})
}

// asObjectOf is the one member of the body of an error.
func asObjectOf(body []byte) json.RawMessage {
	var b struct {
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(body, &b) // it was just written
	return b.Error
}

// states of JSON-RPC are the last words of those of 1.0: "input-required".
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
