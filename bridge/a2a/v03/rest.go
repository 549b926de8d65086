package v03

import (
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// RESTRequest converts an operation to the REST of 0.3: paths below /v1, bodies in the JSON of the 0.3 proto, no tenants.
func RESTRequest(op *protocol.Operation) (*protocol.Route, *protocol.Error) {
	v, err := decode(protocol.Normal(op.Params))
	p := asObject(v)
	if err != nil || v != nil && p == nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "the params are not an object")
	}
	delete(p, "tenant")
	if s := asText(p["status"]); s != "" && op.Method == protocol.ListTasks {
		p["status"] = REST.oldState(s)
	}
	route, e := protocol.ToREST(&protocol.Operation{Method: op.Method, Params: protocol.Encode(p)})
	if e != nil {
		return nil, e
	}
	switch op.Method {
	case protocol.SendMessage, protocol.SendStreamingMessage:
		route.Body = protocol.Encode(REST.oldParams(op.Method, p))
	case protocol.CreatePush:
		route.Body = protocol.Encode(REST.oldTaskPush(p))
	case protocol.CancelTask:
		route.Body = json.RawMessage("{}") // 0.3 has no metadata here
	case protocol.ExtendedCard:
		route.Path = "/card"
	}
	route.Path = "/v1" + route.Path
	return route, nil
}

// NewRESTResult converts a REST result of 0.3, or an event of a stream, to 1.0.
func NewRESTResult(method string, result json.RawMessage) (json.RawMessage, error) {
	v, err := decode(result)
	m := asObject(v)
	if err != nil || m == nil {
		return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's result is not a JSON object")
	}
	switch method {
	case protocol.SendMessage, protocol.SendStreamingMessage, protocol.SubscribeToTask:
		event := REST.newProtoEvent(m)
		if event == nil {
			return nil, protocol.Errorf(protocol.InvalidAgentResponse, "the agent's event is not defined by A2A 0.3")
		}
		return protocol.Encode(event), nil
	case protocol.GetTask, protocol.CancelTask:
		return protocol.Encode(REST.newTask(m)), nil
	case protocol.ListTasks:
		out := keep(m, "nextPageToken", "pageSize", "totalSize")
		out["tasks"] = each(m["tasks"], REST.newTask)
		return protocol.Encode(out), nil
	case protocol.CreatePush, protocol.GetPush:
		return protocol.Encode(newNamedPush(m)), nil
	case protocol.ListPush:
		return protocol.Encode(object{"configs": each(m["configs"], newNamedPush)}), nil
	case protocol.DeletePush:
		return json.RawMessage("{}"), nil
	}
	return result, nil
}

// newProtoEvent converts an event of REST to 1.0; nil if its type is unknown. Some servers use the proto field name for a message.
func (d Dialect) newProtoEvent(e object) object {
	if m := asObject(e["msg"]); m != nil {
		e = object{"message": m}
	}
	switch {
	case asObject(e["task"]) != nil:
		return object{"task": d.newTask(asObject(e["task"]))}
	case asObject(e["message"]) != nil:
		return object{"message": d.newMessage(asObject(e["message"]))}
	case asObject(e["statusUpdate"]) != nil:
		return d.newStatusUpdate(asObject(e["statusUpdate"]))
	case asObject(e["artifactUpdate"]) != nil:
		return d.newArtifactUpdate(asObject(e["artifactUpdate"]))
	}
	return nil
}

// newNamedPush converts a webhook of REST, whose name contains the task id: tasks/ID/pushNotificationConfigs/ID.
func newNamedPush(p object) object {
	out := newPush(asObject(p["pushNotificationConfig"]))
	if parts := strings.Split(asText(p["name"]), "/"); len(parts) == 4 && parts[0] == "tasks" {
		out["taskId"] = parts[1]
		if asText(out["id"]) == "" {
			out["id"] = parts[3]
		}
	}
	return out
}
