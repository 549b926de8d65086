package facade

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/wire"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// metaError is the member of _meta that says what an error of a tool is in lmosd's catalogue.
const metaError = "dev.lmosd/error"

// A result is that of a tool (MCP 2026-07-28, "Tools").
type result struct {
	Type       string          `json:"resultType"`
	Content    []block         `json:"content"`
	Structured json.RawMessage `json:"structuredContent,omitempty"`
	IsError    bool            `json:"isError,omitempty"`
	Meta       map[string]any  `json:"_meta,omitempty"`
}

// A block is a part of a content.
type block struct {
	Type     string    `json:"type"`
	Text     *string   `json:"text,omitempty"`
	Data     []byte    `json:"data,omitempty"`
	Media    string    `json:"mimeType,omitempty"`
	Resource *contents `json:"resource,omitempty"`
	// URI and Name are those of a link.
	URI         string          `json:"uri,omitempty"`
	Name        string          `json:"name,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Meta        map[string]any  `json:"_meta,omitempty"`
}

// contents are those of a resource.
type contents struct {
	URI   string  `json:"uri"`
	Media string  `json:"mimeType,omitempty"`
	Text  *string `json:"text,omitempty"`
	Blob  *string `json:"blob,omitempty"`
}

func textBlock(s string) block { return block{Type: "text", Text: &s} }

// resultOf makes the result of a tool of what came: parts of an output, or one value. The URI is for what is neither text nor a picture.
func (t *tool) resultOf(parts []interact.Part, uri string) result {
	r := result{Type: "complete", Content: []block{}}
	if len(parts) == 1 && interact.MediaType(parts[0].ContentType) == bridge.TurnType {
		r, _ = outcomeOf(parts[0].Data, uri)
		return r
	}
	if len(parts) > 1 && oneKind(parts) {
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

// structured is what the output has as structured content: an object, as it is or with the output as a member.
func (t *tool) structured(value json.RawMessage) json.RawMessage {
	switch {
	case value == nil:
		return nil
	case t.wraps:
		return written(map[string]json.RawMessage{valueMember: value})
	case value[0] == '{':
		return value
	}
	return nil
}

// oneKind reports whether all parts are of one kind, so that they are one output.
func oneKind(parts []interact.Part) bool {
	for _, p := range parts[1:] {
		if interact.MediaType(p.ContentType) != interact.MediaType(parts[0].ContentType) {
			return false
		}
	}
	return true
}

// blockOf makes a block of a part; value is what it is in JSON, if it is something.
func blockOf(p interact.Part, uri string) (b block, value json.RawMessage) {
	data, media, err := interact.Transcode(p.Data, orJSON(p.ContentType), interact.JSON)
	kind := interact.MediaType(media)
	major, _, _ := strings.Cut(kind, "/")
	switch {
	case err == nil && td.IsJSON(media) && json.Valid(data):
		var compact bytes.Buffer
		_ = json.Compact(&compact, data) // it is valid
		var words string
		if value = compact.Bytes(); json.Unmarshal(value, &words) != nil || value[0] != '"' {
			words = string(value)
		}
		return textBlock(words), value
	case major == "text" && utf8.Valid(p.Data):
		return textBlock(string(p.Data)), written(string(p.Data))
	case major == "image" || major == "audio":
		return block{Type: major, Data: p.Data, Media: kind}, nil
	}
	return block{Type: "resource", Resource: contentsOf(p.Data, kind, uri)}, nil
}

func orJSON(media string) string {
	if media == "" {
		return interact.JSON
	}
	return media
}

// contentsOf is data as the contents of a resource: text if it is some.
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

// failed is the result of a tool that failed, in words that a model can act on.
func failed(err error) result {
	e := interact.AsError(err)
	return result{Type: "complete", IsError: true, Content: []block{textBlock(inWords(e))}, Meta: map[string]any{metaError: about(e)}}
}

func about(e *interact.Error) map[string]any {
	return map[string]any{"code": e.Code.String(), "hint": e.Hint, "retryable": e.Code.Retryable()}
}

// inWords says what happened, which parts of an input are wrong, and what to do. The cause stays here.
func inWords(e *interact.Error) string {
	text := titleOf(e)
	for _, i := range e.Issues {
		text += "\n" + strings.TrimPrefix(i.Pointer+" ", " ") + i.Reason
	}
	if e.Hint != "" {
		text += "\n" + e.Hint
	}
	return interact.Clip(text, maxWords)
}

// maxWords bounds what is said of an error, or of progress.
const maxWords = 8 << 10

func titleOf(e *interact.Error) string {
	if e.Title != "" {
		return e.Title
	}
	return e.Code.Title()
}

// fault is the error of a request that is no tool's failure.
func fault(err error) *wire.Error {
	e := interact.AsError(err)
	code := wire.InternalError
	switch e.Code {
	case interact.Invalid, interact.NoAffordance, interact.NoTask, interact.NotAllowed:
		code = wire.InvalidParams
	}
	return wire.Errorf(code, "%s", interact.Clip(titleOf(e), maxWords)).With(about(e))
}
