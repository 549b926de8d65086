package features

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// turnInput and turnOutput are the schemas of a tool for a turn of a conversation (bridge.Turn).
const (
	turnProperties = `"message":{"type":"string","description":"the message to the agent"},` +
		`"data":{"type":"object","description":"JSON to send with it"},` +
		`"contextId":{"type":"string","description":"continues a conversation: the contextId of an earlier result"},` +
		`"taskId":{"type":"string","description":"continues a task or provides its input: the taskId of an earlier result"}`
	turnInput  = `{"type":"object","properties":{` + turnProperties + `},"additionalProperties":false}`
	askInput   = `{"type":"object","properties":{` + turnProperties + `},"required":["message"],"additionalProperties":false}`
	turnOutput = `{"type":"object","properties":{"contextId":{"type":"string"},"taskId":{"type":"string"},` +
		`"state":{"type":"string","enum":["completed","input-required","auth-required"]},` +
		`"data":{"description":"the data that the agent returned; several are an array"}},"required":["state"]}`
)

// Members of _meta for values without a member in MCP content blocks.
const (
	metaPart     = "dev.lmosd/part"     // filename, mediaType and metadata of a part
	metaArtifact = "dev.lmosd/artifact" // id, name, description and metadata of the artifact that starts with the block
	metaTask     = "dev.lmosd/metadata" // metadata of a task or message
)

// turn parses the arguments of a turn. It sets the kinds of input that the client supports.
func turn(m *protocol.Message, can capabilities) (*bridge.Turn, *protocol.Error) {
	raw, err := m.Param("arguments")
	t := &bridge.Turn{}
	switch {
	case err != nil:
		return nil, protocol.Errorf(protocol.InvalidParams, "duplicate member in arguments")
	case raw != nil && json.Unmarshal(raw, t) != nil:
		return nil, protocol.Errorf(protocol.InvalidParams, "expected strings as message, contextId and taskId")
	}
	if string(t.Data) == "null" {
		t.Data = nil
	}
	t.Kinds = []string{}
	if can.form() {
		t.Kinds = append(t.Kinds, interact.InputForm, interact.InputMessage)
	}
	if can.url() {
		t.Kinds = append(t.Kinds, interact.InputURL)
	}
	if can.Sampling != nil {
		t.Kinds = append(t.Kinds, interact.InputModel)
	}
	if can.Roots != nil {
		t.Kinds = append(t.Kinds, interact.InputRoots)
	}
	return t, nil
}

// outcomeOf converts the outcome of a turn: artifacts, last message, and the ids to continue with.
func outcomeOf(raw []byte, uri string) Result {
	var o bridge.Outcome
	if err := json.Unmarshal(raw, &o); err != nil {
		return Failed(interact.Errorf(interact.AgentFailed, "see the log of its host", "malformed output of the agent"))
	}
	r := Result{Type: "complete", Content: []block{}, Task: o.Task, Context: o.Context}
	var data []json.RawMessage
	add := func(parts []bridge.Part, meta map[string]any) {
		for i, p := range parts {
			b := partBlock(p, uri)
			if i == 0 && len(meta) > 0 {
				b.with(metaArtifact, meta)
			}
			if r.Content = append(r.Content, b); p.Data != nil {
				data = append(data, p.Data)
			}
		}
	}
	for _, a := range o.Artifacts {
		add(a.Parts, artifactMeta(a))
	}
	add(o.Message, nil)
	if len(o.Metadata) > 0 {
		r.Meta = map[string]any{metaTask: o.Metadata}
	}
	next := map[string]any{"state": o.State}
	for name, id := range map[string]string{"contextId": o.Context, "taskId": o.Task} {
		if id != "" {
			next[name] = id
		}
	}
	if len(next) > 1 { // also as text, since many clients do not show structured content to models
		b := textBlock(string(protocol.Encode(next)))
		b.Annotations = json.RawMessage(`{"audience":["assistant"]}`)
		r.Content = append(r.Content, b)
	}
	if len(data) == 1 {
		next["data"] = data[0]
	} else if len(data) > 1 {
		next["data"] = data
	}
	r.Structured = protocol.Encode(next)
	return r
}

func artifactMeta(a bridge.Artifact) map[string]any {
	meta := map[string]any{}
	for name, text := range map[string]string{"artifactId": a.ID, "name": a.Name, "description": a.Description} {
		if text != "" {
			meta[name] = text
		}
	}
	if len(a.Metadata) > 0 {
		meta["metadata"] = a.Metadata
	}
	return meta
}

// partBlock converts a part to a content block.
func partBlock(p bridge.Part, uri string) (b block) {
	kind := interact.MediaType(cmp.Or(p.MediaType, "application/octet-stream"))
	major, _, _ := strings.Cut(kind, "/")
	if p.Filename != "" {
		uri += "/" + strings.TrimLeft(p.Filename, "/")
	}
	more := map[string]any{}
	switch {
	case p.Text != nil:
		b = textBlock(*p.Text)
		if p.MediaType != "" && kind != "text/plain" {
			more["mediaType"] = p.MediaType
		}
	case p.Data != nil:
		b, _ = blockOf(interact.Part{Data: p.Data}, uri)
		if p.MediaType != "" && !td.IsJSON(kind) {
			more["mediaType"] = p.MediaType
		}
	case p.URL != nil:
		b = block{Type: "resource_link", URI: *p.URL, Name: cmp.Or(p.Filename, path.Base(*p.URL)), Media: p.MediaType}
	case major == "image" || major == "audio":
		b = block{Type: major, Data: p.Raw, Media: kind}
	default:
		b = block{Type: "resource", Resource: contentsOf(p.Raw, kind, uri)}
	}
	if p.Filename != "" && b.Name != p.Filename {
		more["filename"] = p.Filename
	}
	b.restore(p.Metadata, more)
	return b
}

// restore sets the members of a content block that are in the metadata of a part (package bridge/a2a/executor). Other metadata go into
// _meta.
func (b *block) restore(metadata json.RawMessage, more map[string]any) {
	var known map[string]json.RawMessage
	if json.Unmarshal(metadata, &known) == nil {
		if raw := known["mcp:annotations"]; len(raw) > 0 && raw[0] == '{' {
			b.Annotations = raw
			delete(known, "mcp:annotations")
		}
		var meta map[string]any
		if json.Unmarshal(known["mcp:meta"], &meta) == nil {
			b.Meta = meta
			delete(known, "mcp:meta")
		}
		metadata = nil
		if len(known) > 0 {
			metadata = protocol.Encode(known)
		}
	}
	if len(bytes.TrimSpace(metadata)) > 0 {
		more["metadata"] = metadata
	}
	if len(more) > 0 {
		b.with(metaPart, more)
	}
}

// with sets a member of the _meta of a block.
func (b *block) with(name string, value any) {
	if b.Meta == nil {
		b.Meta = map[string]any{}
	}
	b.Meta[name] = value
}
