package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"mime"
	"strings"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// Terms of a result besides its structured data.
const (
	contentTerm = "lmosd:content" // content blocks, verbatim
	metaTerm    = "lmosd:meta"    // _meta without serverInfo
)

// plainText is the default media type of text.
const plainText = "text/plain"

// A value is the output of an action, or the value of a property.
type value struct {
	data  []byte
	media string // empty: JSON
}

// A block is a content block (MCP 2026-07-28, "Content"), or one of the contents of a resource, which has no type.
type block struct {
	Type     string          `json:"type"`
	Text     *string         `json:"text"`
	Data     *string         `json:"data"`
	Blob     *string         `json:"blob"`
	Media    string          `json:"mimeType"`
	Resource json.RawMessage `json:"resource"`

	more bool // it has members besides its data
}

// output converts the result of a tool to the output of the action:
//
//	structuredContent                 the output; an object also gets lmosd:content and lmosd:meta
//	one text                          a JSON string
//	one image, audio or blob          its bytes, with its media type
//	anything else, or with _meta      {"lmosd:content":[…],"lmosd:meta":{…}} with the blocks verbatim
//	nothing                           null
func output(r *protocol.Message) value {
	structured, _ := r.InResult("structuredContent")
	content, _ := r.InResult("content")
	meta := ownMeta(r)
	blocks := blocksOf(content)
	if structured != nil && string(structured) != "null" {
		if repeats(blocks, structured) {
			content = nil
		}
		return value{data: withTerms(structured, content, meta)}
	}
	if len(blocks) == 1 && meta == nil && !blocks[0].more {
		if v, ok := blocks[0].value(); ok {
			return v
		}
	}
	if len(blocks) == 0 && meta == nil {
		return value{data: []byte("null")}
	}
	return value{data: withTerms([]byte("{}"), content, meta)}
}

// withTerms adds content and meta to an object. Other values stay unchanged.
func withTerms(object, content, meta json.RawMessage) []byte {
	members := map[string]json.RawMessage{}
	if object[0] != '{' || json.Unmarshal(object, &members) != nil {
		return object
	}
	object = bytes.TrimSpace(object)
	out := bytes.Clone(bytes.TrimRight(object[:len(object)-1], " \t\r\n"))
	n := len(members)
	for _, m := range []struct {
		name  string
		value json.RawMessage
	}{{contentTerm, content}, {metaTerm, meta}} {
		if _, there := members[m.name]; there || len(m.value) == 0 || string(m.value) == "null" || string(m.value) == "[]" {
			continue
		}
		if n++; n > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), m.name...), `":`...)
		out = append(out, m.value...)
	}
	return append(out, '}')
}

// blocksOf parses the blocks of a content; malformed content has none.
func blocksOf(content json.RawMessage) (all []block) {
	var raws []json.RawMessage
	if json.Unmarshal(content, &raws) != nil {
		return nil
	}
	for _, raw := range raws {
		all = append(all, blockOf(raw))
	}
	return all
}

// blockOf parses a block. A malformed block has no type and is passed on verbatim.
func blockOf(raw json.RawMessage) block {
	b := block{}
	members := map[string]json.RawMessage{}
	if json.Unmarshal(raw, &members) != nil || json.Unmarshal(raw, &b) != nil {
		return block{more: true}
	}
	for name := range members {
		switch name {
		case "type", "text", "data", "blob", "mimeType", "resource", "uri":
		default:
			b.more = true
		}
	}
	return b
}

// value returns the data of a block that has no other members.
func (b *block) value() (value, bool) {
	switch {
	case b.Type == "text" && b.Text != nil:
		data, err := json.Marshal(*b.Text)
		return value{data: data}, err == nil
	case (b.Type == "image" || b.Type == "audio") && b.Data != nil:
		return decoded(*b.Data, b.Media)
	}
	return value{}, false
}

// repeats reports whether the blocks only contain the structured content as text, which servers send for older clients.
func repeats(blocks []block, structured json.RawMessage) bool {
	var want bytes.Buffer
	if json.Compact(&want, structured) != nil {
		return false
	}
	for _, b := range blocks {
		var got bytes.Buffer
		if b.Type != "text" || b.Text == nil || b.more || json.Compact(&got, []byte(*b.Text)) != nil || !same(got.Bytes(), want.Bytes()) {
			return false
		}
	}
	return true
}

// same compares JSON values without regard to the order of members.
func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	one, _, errA := interact.Transcode(a, interact.JSON, interact.CBOR)
	other, _, errB := interact.Transcode(b, interact.JSON, interact.CBOR)
	return errA == nil && errB == nil && bytes.Equal(one, other)
}

func decoded(text, media string) (value, bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return value{}, false
	}
	return value{raw, mediaOf(media, "application/octet-stream")}, true
}

// mediaOf returns a valid media type of a server, or the default.
func mediaOf(media, otherwise string) string {
	if t, _, err := mime.ParseMediaType(media); err != nil || !strings.Contains(t, "/") || len(media) > 200 {
		return otherwise
	}
	return media
}

// reading converts the contents of a resource to the value of a property: one text or blob with its media type, otherwise
// {"lmosd:content":[…]}.
func reading(r *protocol.Message) (value, error) {
	contents, _ := r.InResult("contents")
	blocks := blocksOf(contents)
	meta := ownMeta(r)
	if len(blocks) == 0 {
		return value{}, interact.Errorf(interact.AgentFailed, "the server is at fault", "the server returned a resource without contents")
	}
	if b := blocks[0]; len(blocks) == 1 && !b.more && meta == nil {
		switch {
		case b.Text != nil:
			return textOf(*b.Text, mediaOf(b.Media, plainText)), nil
		case b.Blob != nil:
			if v, ok := decoded(*b.Blob, b.Media); ok {
				return v, nil
			}
		}
	}
	return value{data: withTerms([]byte("{}"), contents, meta)}, nil
}

// textOf returns text with a media type. Malformed JSON becomes plain text.
func textOf(text, media string) value {
	if _, known, err := interact.Value([]byte(text), media); known && (err != nil || text == "") || interact.IsCBOR(media) {
		media = plainText
	}
	return value{[]byte(text), media}
}

// ownMeta returns the _meta of a result without serverInfo; nil if it is empty.
func ownMeta(r *protocol.Message) json.RawMessage {
	raw, _ := r.WithResult(nil, "_meta", protocol.MetaServer).InResult("_meta")
	if len(raw) == 0 || raw[0] != '{' || string(raw) == "{}" {
		return nil
	}
	return raw
}

// messages converts the result of prompts/get: description and messages, verbatim.
func messages(r *protocol.Message) value {
	for _, name := range []string{"resultType", "ttlMs", "cacheScope"} {
		r = r.WithResult(nil, name)
	}
	meta := ownMeta(r)
	return value{data: withTerms(r.WithResult(nil, "_meta").Result(), nil, meta)}
}

// failureText returns the text of a failed tool, and whether the result contains nothing else.
func failureText(r *protocol.Message) (text string, whole bool) {
	content, _ := r.InResult("content")
	structured, _ := r.InResult("structuredContent")
	whole = structured == nil && ownMeta(r) == nil
	var words []string
	for _, b := range blocksOf(content) {
		if b.Type == "text" && b.Text != nil {
			words = append(words, *b.Text)
		}
		whole = whole && b.Type == "text" && !b.more
	}
	text = interact.Readable(strings.Join(words, " "))
	return interact.Clip(text, maxFailureText), whole && len(text) <= maxFailureText
}

// maxFailureText bounds the text of an error.
const maxFailureText = 1 << 10
