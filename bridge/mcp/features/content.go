package features

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A Result is the result of tools/call (MCP 2026-07-28, "Tools").
type Result struct {
	Type       string          `json:"resultType"`
	Content    []block         `json:"content"`
	Structured json.RawMessage `json:"structuredContent,omitempty"`
	IsError    bool            `json:"isError,omitempty"`
	Meta       map[string]any  `json:"_meta,omitempty"`

	// Task and Context are the ids of the agent for a turn. The client gets them in the content.
	Task    string `json:"-"`
	Context string `json:"-"`
}

// A block is a content block.
type block struct {
	Type     string    `json:"type"`
	Text     *string   `json:"text,omitempty"`
	Data     []byte    `json:"data,omitempty"`
	Media    string    `json:"mimeType,omitempty"`
	Resource *contents `json:"resource,omitempty"`
	// URI and Name belong to a resource link.
	URI         string          `json:"uri,omitempty"`
	Name        string          `json:"name,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Meta        map[string]any  `json:"_meta,omitempty"`
}

// contents are the contents of a resource.
type contents struct {
	URI   string  `json:"uri"`
	Media string  `json:"mimeType,omitempty"`
	Text  *string `json:"text,omitempty"`
	Blob  *string `json:"blob,omitempty"`
}

func textBlock(s string) block { return block{Type: "text", Text: &s} }

// Result returns the result of a call with the given output.
func (t *Tool) Result(parts []interact.Part) Result { return t.result(parts, t.uri) }

// TaskResult is [Tool.Result] for a task, whose tool may no longer exist: t may be nil.
func (t *Tool) TaskResult(parts []interact.Part) Result {
	if t == nil {
		t = &Tool{}
	}
	return t.result(parts, scheme+"task/output")
}

// result returns a result. The URI identifies embedded resources, that is, output other than text, image or audio.
func (t *Tool) result(parts []interact.Part, uri string) Result {
	if len(parts) == 1 && interact.MediaType(parts[0].ContentType) == bridge.TurnType {
		return outcomeOf(parts[0].Data, uri)
	}
	r := Result{Type: "complete", Content: []block{}}
	if len(parts) > 1 && sameType(parts) {
		data, media := interact.Join(parts)
		parts = []interact.Part{{Data: data, ContentType: media}}
	}
	for _, p := range parts {
		b, value := blockOf(p, uri)
		r.Content = append(r.Content, b)
		if len(parts) == 1 {
			r.Structured = t.structured(value)
		}
	}
	return r
}

// structured returns the structured content for an output: an object, or the output as a member of one.
func (t *Tool) structured(value json.RawMessage) json.RawMessage {
	switch {
	case value == nil:
		return nil
	case t.isWrapped:
		return protocol.Encode(map[string]json.RawMessage{valueMember: value})
	case value[0] == '{':
		return value
	}
	return nil
}

// sameType reports whether all parts have the same media type, so that they form one output.
func sameType(parts []interact.Part) bool {
	first := interact.MediaType(parts[0].ContentType)
	return !slices.ContainsFunc(parts, func(p interact.Part) bool { return interact.MediaType(p.ContentType) != first })
}

// blockOf converts a part to a content block. The value is the part as JSON; nil if it has no JSON form.
func blockOf(p interact.Part, uri string) (b block, value json.RawMessage) {
	data, media, err := interact.Transcode(p.Data, cmp.Or(p.ContentType, interact.JSON), interact.JSON)
	kind := interact.MediaType(media)
	major, _, _ := strings.Cut(kind, "/")
	switch {
	case err == nil && td.IsJSON(media) && json.Valid(data):
		var compact bytes.Buffer
		_ = json.Compact(&compact, data) // cannot fail: data is valid
		var text string
		if value = compact.Bytes(); json.Unmarshal(value, &text) != nil || value[0] != '"' {
			text = string(value)
		}
		return textBlock(text), value
	case major == "text" && utf8.Valid(p.Data):
		return textBlock(string(p.Data)), protocol.Encode(string(p.Data))
	case major == "image" || major == "audio":
		return block{Type: major, Data: p.Data, Media: kind}, nil
	}
	return block{Type: "resource", Resource: contentsOf(p.Data, kind, uri)}, nil
}

// contentsOf returns data as the contents of a resource, as text if possible.
func contentsOf(data []byte, media, uri string) *contents {
	c := &contents{URI: uri, Media: media}
	major, _, _ := strings.Cut(media, "/")
	if (major == "text" || td.IsJSON(media) || strings.HasSuffix(media, "+xml")) && utf8.Valid(data) {
		text := string(data)
		c.Text = &text
		return c
	}
	blob := base64.StdEncoding.EncodeToString(data)
	c.Blob = &blob
	return c
}

// Contents returns the result of resources/read, converted to JSON if possible.
func Contents(data []byte, media, uri string) map[string]any {
	if out, as, err := interact.Transcode(data, media, interact.JSON); err == nil {
		data, media = out, as
	}
	all := []*contents{contentsOf(data, interact.MediaType(media), uri)}
	return map[string]any{"resultType": "complete", "contents": all, "ttlMs": 0, "cacheScope": "private"}
}

// ReadResult converts a response to resources/read to the result of a tool. Other responses stay unchanged.
func ReadResult(r *protocol.Message) *protocol.Message {
	raw, _ := r.InResult("contents")
	var all []json.RawMessage
	if raw == nil || json.Unmarshal(raw, &all) != nil {
		return r
	}
	blocks := []any{}
	for _, one := range all {
		blocks = append(blocks, map[string]any{"type": "resource", "resource": one})
		var c contents
		if json.Unmarshal(one, &c) == nil && c.Text != nil {
			blocks[len(blocks)-1] = textBlock(*c.Text)
		}
	}
	return protocol.Respond(r.ID(), map[string]any{"resultType": "complete", "content": blocks})
}

// Document returns the result of a tool that returns doc, which must be encodable as JSON.
func Document(doc any) Result {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		panic(err)
	}
	encoded := strings.TrimSpace(text.String())
	return Result{Type: "complete", Content: []block{textBlock(encoded)}, Structured: json.RawMessage(encoded)}
}

// Event returns an event as an entry of the recent events. now is its time if the event has none.
func Event(n *interact.Message, now time.Time) json.RawMessage {
	at := n.Time
	if at.IsZero() {
		at = now
	}
	out := map[string]any{"time": at.UTC()}
	if len(n.Data) > 0 {
		b, value := blockOf(interact.Part{Data: n.Data, ContentType: n.ContentType}, "")
		if out["data"] = any(value); value == nil {
			out["data"] = b
		}
	}
	return protocol.Encode(out)
}

// Text returns a reply as text of at most [MaxText] bytes; empty if it has no textual form.
func Text(r *interact.Message) string {
	if len(r.Data) == 0 {
		return ""
	}
	b, _ := blockOf(interact.Part{Data: r.Data, ContentType: r.ContentType}, "")
	if b.Text == nil {
		return ""
	}
	return interact.Clip(*b.Text, MaxText)
}
