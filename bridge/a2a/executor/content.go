package executor

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Metadata members of parts and artifacts for data without a member in A2A.
const (
	// progressTerm is the progress of an action: "progress", "total", "message".
	progressTerm = "lmosd:progress"
	// The others are members of an MCP content block, verbatim.
	annotationsTerm = "mcp:annotations"
	metaTerm        = "mcp:meta"
	blockTerm       = "mcp:block" // the block without its data, if more than that remains
)

// Members of an output that has MCP content besides its data (package bridge/mcp, output).
const (
	contentMember = "lmosd:content"
	metaMember    = "lmosd:meta"
)

// partsOf converts an output to parts, and returns the metadata of its artifact. JSON is repeated as text for users.
func partsOf(data []byte, contentType string) (parts []protocol.Part, meta json.RawMessage) {
	if out, media, err := interact.Transcode(data, contentType, interact.JSON); err == nil {
		data, contentType = out, media
	}
	media := interact.MediaType(contentType)
	switch {
	case td.IsJSON(contentType) && json.Valid(data):
		var text string
		if json.Unmarshal(data, &text) == nil && string(data) != "null" {
			return textParts(text, ""), nil
		}
		if parts, meta, ok := contents(data); ok {
			return parts, meta
		}
		parts = []protocol.Part{{Data: data, MediaType: media}}
		if len(data) <= maxPart {
			parts = append(parts, protocol.TextPart(string(data)))
		}
		return parts, nil
	case strings.HasPrefix(media, "text/"):
		return textParts(string(data), media), nil
	}
	for chunk := range slices.Chunk(data, maxPart) {
		parts = append(parts, protocol.RawPart(chunk, media))
	}
	return parts, nil
}

// contents converts the output of an MCP tool: its data, its content blocks and its _meta.
func contents(data []byte) (parts []protocol.Part, meta json.RawMessage, ok bool) {
	if !bytes.Contains(data, []byte(contentMember)) && !bytes.Contains(data, []byte(metaMember)) {
		return nil, nil, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return nil, nil, false
	}
	var blocks []json.RawMessage
	if json.Unmarshal(members[contentMember], &blocks) != nil && len(members[contentMember]) > 0 {
		return nil, nil, false
	}
	if members[metaMember] != nil {
		meta = protocol.Encode(map[string]json.RawMessage{metaTerm: members[metaMember]})
	}
	delete(members, contentMember)
	delete(members, metaMember)
	hasText := false
	for _, raw := range blocks {
		converted := blockParts(raw)
		hasText = hasText || converted[0].Text != nil
		parts = append(parts, converted...)
	}
	if len(members) > 0 { // the structured content comes first
		all := []protocol.Part{protocol.DataPart(protocol.Encode(members))}
		if text := string(all[0].Data); !hasText && len(text) <= maxPart {
			all = append(all, protocol.TextPart(text))
		}
		parts = append(all, parts...)
	}
	if len(parts) == 0 {
		parts = []protocol.Part{protocol.DataPart(json.RawMessage("{}"))}
	}
	return parts, meta, true
}

// A block is an MCP content block (MCP 2026-07-28, "Content").
type block struct {
	Type, Text, Data, MimeType, URI, Name string
	Annotations                           json.RawMessage
	Meta                                  json.RawMessage `json:"_meta"`
	Resource                              *struct {
		URI, MimeType string
		Text, Blob    *string
		Meta          json.RawMessage `json:"_meta"`
	}
}

// blockParts converts a block to at least one part. An unknown block is a data part.
func blockParts(raw json.RawMessage) []protocol.Part {
	var b block
	as := func(parts ...protocol.Part) []protocol.Part { return parts }
	if json.Unmarshal(raw, &b) != nil {
		return as(protocol.DataPart(raw))
	}
	var parts []protocol.Part
	switch {
	case b.Type == "text":
		parts = textParts(b.Text, "")
	case b.Type == "image" || b.Type == "audio":
		parts = bytesParts(b.Data, b.MimeType, "")
	case b.Type == "resource_link" && b.URI != "":
		parts = as(protocol.Part{URL: &b.URI, MediaType: b.MimeType, Filename: cmp.Or(b.Name, filename(b.URI))})
	case b.Type == "resource" && b.Resource != nil && b.Resource.Text != nil:
		parts = textParts(*b.Resource.Text, cmp.Or(b.Resource.MimeType, "text/plain"))
		for i := range parts {
			parts[i].Filename, parts[i].MediaType = filename(b.Resource.URI), b.Resource.MimeType
		}
	case b.Type == "resource" && b.Resource != nil && b.Resource.Blob != nil:
		parts = bytesParts(*b.Resource.Blob, b.Resource.MimeType, filename(b.Resource.URI))
	}
	if parts == nil {
		return as(protocol.DataPart(raw))
	}
	parts[0].Metadata = b.metadata(raw)
	return parts
}

// bytesParts decodes base64 into parts that do not exceed maxPart; nil if it is invalid.
func bytesParts(text, media, filename string) (parts []protocol.Part) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	for chunk := range slices.Chunk(data, maxPart) {
		parts = append(parts, protocol.RawPart(chunk, media))
	}
	if parts == nil {
		parts = []protocol.Part{protocol.RawPart(nil, media)}
	}
	for i := range parts {
		parts[i].Filename = filename
	}
	return parts
}

// filename returns the last segment of a URI, if it is a file name.
func filename(uri string) string {
	uri, _, _ = strings.Cut(uri, "?")
	if name := path.Base(uri); name != "." && name != "/" && !strings.Contains(name, ":") {
		return name
	}
	return ""
}

// metadata returns the members of a block that its part does not contain.
func (b *block) metadata(raw json.RawMessage) json.RawMessage {
	meta := map[string]json.RawMessage{}
	if len(b.Annotations) > 0 {
		meta[annotationsTerm] = b.Annotations
	}
	if len(b.Meta) > 0 {
		meta[metaTerm] = b.Meta
	}
	var rest map[string]json.RawMessage
	_ = json.Unmarshal(raw, &rest) // the caller has decoded it before
	for _, member := range []string{"text", "data", "annotations", "_meta"} {
		delete(rest, member)
	}
	var resource map[string]json.RawMessage
	if json.Unmarshal(rest["resource"], &resource) == nil {
		delete(resource, "text")
		delete(resource, "blob")
		rest["resource"] = protocol.Encode(resource)
	}
	if b.Type != "text" || len(rest) > 1 {
		meta[blockTerm] = protocol.Encode(rest)
	}
	if len(meta) == 0 {
		return nil
	}
	return protocol.Encode(meta)
}

// A Schema has the schemas of an MCP tool, as the server sent them.
type Schema struct {
	Input  json.RawMessage `json:"mcp:inputSchema"`
	Output json.RawMessage `json:"mcp:outputSchema"`
}

// Schemas returns the schemas of the actions that have some.
func Schemas(t *td.Thing) map[string]Schema {
	var doc struct {
		Actions map[string]Schema `json:"actions"`
	}
	if !bytes.Contains(t.Raw, []byte("mcp:inputSchema")) || json.Unmarshal(t.Raw, &doc) != nil {
		return nil
	}
	for name, s := range doc.Actions {
		if len(s.Input) == 0 && len(s.Output) == 0 {
			delete(doc.Actions, name)
		}
	}
	return doc.Actions
}

// schema returns the input schema of the tool, or else that of the description.
func (s Schema) schema(described *td.Schema) *td.Schema {
	v, err := decoded(s.Input)
	if _, is := v.(map[string]any); err != nil || !is {
		return described
	}
	return td.ParseSchema(v)
}

// InputModes returns the media types that an action accepts: JSON, and text if text alone can be its input (see inputFromText).
func InputModes(a *td.Action) []string {
	modes := []string{interact.JSON}
	if s := a.Input; s == nil || s.Type() == "" || s.Type() == "string" || s.Property("messages").Type() == "array" || textMember(s) != "" ||
		takesNothing(s) {
		modes = append(modes, "text/plain")
	}
	for _, f := range a.Forms {
		if media := interact.MediaType(f.ContentType); !slices.Contains(modes, media) {
			modes = append(modes, media)
		}
	}
	return modes
}
