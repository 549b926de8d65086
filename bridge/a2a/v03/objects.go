package v03

import (
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
)

// partsName is the field of the parts of a message.
func (d Dialect) partsName() string {
	if d.rest {
		return "content"
	}
	return "parts"
}

// pushName is the field of the webhook in the configuration of a message.
func (d Dialect) pushName() string {
	if d.rest {
		return "pushNotification"
	}
	return "pushNotificationConfig"
}

func (d Dialect) oldMessage(m object) object {
	out := keep(m, "messageId", "contextId", "taskId", "metadata", "extensions", "referenceTaskIds")
	out[d.partsName()] = each(m["parts"], d.oldPart)
	out["role"] = m["role"]
	if !d.rest {
		out["kind"], out["role"] = "message", "user"
		if m["role"] == string(protocol.AgentRole) {
			out["role"] = "agent"
		}
	}
	return out
}

func (d Dialect) newMessage(m object) object {
	out := keep(m, "messageId", "contextId", "taskId", "metadata", "extensions", "referenceTaskIds")
	parts := m["parts"]
	if c, ok := m["content"]; ok && d.rest {
		parts = c
	}
	out["parts"] = each(parts, d.newPart)
	switch m["role"] {
	case "user":
		out["role"] = string(protocol.User)
	case "agent":
		out["role"] = string(protocol.AgentRole)
	default:
		set(out, "role", m["role"])
	}
	return out
}

func (d Dialect) oldPart(p object) object {
	out := keep(p, "metadata")
	kind := func(k string) {
		if !d.rest {
			out["kind"] = k
		}
	}
	switch {
	case p["text"] != nil:
		kind("text")
		out["text"] = p["text"]
	case p["raw"] != nil || p["url"] != nil:
		kind("file")
		out["file"] = d.oldFile(p)
	default:
		kind("data")
		data, isObject := p["data"].(object)
		if !isObject { // 0.3 allows objects only
			data = object{"value": p["data"]}
		}
		if out["data"] = data; d.rest {
			out["data"] = object{"data": data}
		}
	}
	return out
}

func (d Dialect) oldFile(p object) object {
	file := object{}
	set(file, "name", p["filename"])
	set(file, "mimeType", p["mediaType"])
	bytes, uri := "bytes", "uri"
	if d.rest {
		bytes, uri = "fileWithBytes", "fileWithUri"
	}
	set(file, bytes, p["raw"])
	set(file, uri, p["url"])
	return file
}

func (d Dialect) newPart(p object) object {
	out := keep(p, "metadata")
	file := asObject(p["file"])
	switch {
	case p["text"] != nil:
		out["text"] = p["text"]
	case file != nil:
		set(out, "filename", file["name"])
		set(out, "mediaType", file["mimeType"])
		for _, name := range []string{"bytes", "fileWithBytes"} {
			set(out, "raw", file[name])
		}
		for _, name := range []string{"uri", "fileWithUri"} {
			set(out, "url", file[name])
		}
	default:
		data := p["data"]
		if inner := asObject(data); d.rest && inner != nil && inner["data"] != nil {
			data = inner["data"]
		}
		out["data"] = data
		if inner := asObject(data); len(inner) == 1 && inner["value"] != nil { // see oldPart
			if _, wrapped := inner["value"].(object); !wrapped {
				out["data"] = inner["value"]
			}
		}
	}
	return out
}

func (d Dialect) oldStatus(s object) object {
	out := keep(s, "timestamp")
	out["state"] = d.oldState(asText(s["state"]))
	if m := asObject(s["message"]); m != nil {
		out["message"] = d.oldMessage(m)
	}
	return out
}

func (d Dialect) newStatus(s object) object {
	out := keep(s, "timestamp")
	out["state"] = d.newState(asText(s["state"]))
	m := asObject(s["message"])
	if d.rest && m == nil {
		m = asObject(s["update"]) // the field of the proto
	}
	if m != nil {
		out["message"] = d.newMessage(m)
	}
	return out
}

func (d Dialect) oldTask(t object) object {
	out := keep(t, "id", "contextId", "metadata")
	out["status"] = d.oldStatus(asObject(t["status"]))
	if !d.rest {
		out["kind"] = "task"
	}
	if t["artifacts"] != nil {
		out["artifacts"] = each(t["artifacts"], d.oldArtifact)
	}
	if t["history"] != nil {
		out["history"] = each(t["history"], d.oldMessage)
	}
	return out
}

func (d Dialect) newTask(t object) object {
	out := keep(t, "id", "contextId", "metadata")
	out["status"] = d.newStatus(asObject(t["status"]))
	if t["artifacts"] != nil {
		out["artifacts"] = each(t["artifacts"], d.newArtifact)
	}
	if t["history"] != nil {
		out["history"] = each(t["history"], d.newMessage)
	}
	return out
}

func (d Dialect) oldArtifact(a object) object {
	out := keep(a, "artifactId", "name", "description", "metadata", "extensions")
	out["parts"] = each(a["parts"], d.oldPart)
	return out
}

func (d Dialect) newArtifact(a object) object {
	out := keep(a, "artifactId", "name", "description", "metadata", "extensions")
	out["parts"] = each(a["parts"], d.newPart)
	return out
}

// oldEvent converts a StreamResponse. In JSON-RPC the event itself is the result.
func (d Dialect) oldEvent(e object) object {
	name, out := "", object{}
	switch {
	case e["task"] != nil:
		name, out = "task", d.oldTask(asObject(e["task"]))
	case e["message"] != nil:
		name, out = "message", d.oldMessage(asObject(e["message"]))
	case e["statusUpdate"] != nil:
		u := asObject(e["statusUpdate"])
		name, out = "statusUpdate", keep(u, "taskId", "contextId", "metadata")
		out["status"] = d.oldStatus(asObject(u["status"]))
		state := protocol.State(asText(asObject(u["status"])["state"]))
		if out["final"] = state.Terminal() || state.Waits(); !d.rest {
			out["kind"] = "status-update"
		}
	case e["artifactUpdate"] != nil:
		u := asObject(e["artifactUpdate"])
		name, out = "artifactUpdate", keep(u, "taskId", "contextId", "metadata", "append", "lastChunk")
		if out["artifact"] = d.oldArtifact(asObject(u["artifact"])); !d.rest {
			out["kind"] = "artifact-update"
		}
	}
	if d.rest {
		return object{name: out}
	}
	return out
}

// newEvent converts an event of JSON-RPC to 1.0; nil if its kind is unknown.
func (d Dialect) newEvent(e object) object {
	switch e["kind"] {
	case "task":
		return object{"task": d.newTask(e)}
	case "message":
		return object{"message": d.newMessage(e)}
	case "status-update":
		return d.newStatusUpdate(e)
	case "artifact-update":
		return d.newArtifactUpdate(e)
	}
	return nil
}

func (d Dialect) newStatusUpdate(u object) object {
	out := keep(u, "taskId", "contextId", "metadata")
	out["status"] = d.newStatus(asObject(u["status"]))
	return object{"statusUpdate": out}
}

func (d Dialect) newArtifactUpdate(u object) object {
	out := keep(u, "taskId", "contextId", "metadata", "append", "lastChunk")
	out["artifact"] = d.newArtifact(asObject(u["artifact"]))
	return object{"artifactUpdate": out}
}

func oldPush(p object) object {
	out := keep(p, "id", "url", "token")
	if a := asObject(p["authentication"]); a != nil {
		to := keep(a, "credentials")
		to["schemes"] = []any{}
		if s := asText(a["scheme"]); s != "" {
			to["schemes"] = []any{s}
		}
		out["authentication"] = to
	}
	return out
}

func newPush(p object) object {
	out := keep(p, "id", "url", "token")
	if a := asObject(p["authentication"]); a != nil {
		to := keep(a, "credentials", "scheme")
		if schemes := asArray(a["schemes"]); len(schemes) > 0 {
			to["scheme"] = schemes[0]
		}
		out["authentication"] = to
	}
	return out
}

func (d Dialect) oldTaskPush(p object) object {
	if d.rest {
		return object{"name": "tasks/" + asText(p["taskId"]) + "/pushNotificationConfigs/" + asText(p["id"]),
			"pushNotificationConfig": oldPush(p)}
	}
	return object{"taskId": p["taskId"], "pushNotificationConfig": oldPush(p)}
}

func newTaskPush(p object) object {
	out := newPush(asObject(p["pushNotificationConfig"]))
	out["taskId"] = p["taskId"]
	return out
}
