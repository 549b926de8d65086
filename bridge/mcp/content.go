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

// What a result has beside the data that its schema speaks of.
const (
	contentTerm = "lmosd:content" // content blocks, as the server wrote them
	metaTerm    = "lmosd:meta"    // _meta, without what says who the server is
)

// plainText is the media type of a text of no other.
const plainText = "text/plain"

// A value is what an action gives, or a property is.
type value struct {
	data  []byte
	media string // empty: JSON
}

// A block is one of the parts of a content (MCP 2026-07-28, "Content"); and of the contents of a resource, which have no type.
type block struct {
	Type     string          `json:"type"`
	Text     *string         `json:"text"`
	Data     *string         `json:"data"`
	Blob     *string         `json:"blob"`
	Media    string          `json:"mimeType"`
	Resource json.RawMessage `json:"resource"`

	raw  json.RawMessage
	more bool // it has members that its data alone would lose
}

// output is what an action gives whose tool gave a result:
//
//	structuredContent                 it; an object has what else there is as lmosd:content and lmosd:meta
//	one text                          a JSON string
//	one image, audio or blob          its bytes, of its media type
//	anything else, or with _meta      {"lmosd:content":[…],"lmosd:meta":{…}}, the blocks byte for byte as the server wrote them
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
		return value{data: beside(structured, content, meta)}
	}
	if len(blocks) == 1 && meta == nil && !blocks[0].more {
		if v, ok := blocks[0].value(); ok {
			return v
		}
	}
	if len(blocks) == 0 && meta == nil {
		return value{data: []byte("null")}
	}
	return value{data: beside([]byte("{}"), content, meta)}
}

// beside adds content and meta to an object. What is no object stays as it is.
func beside(object, content, meta json.RawMessage) []byte {
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

// blocksOf reads a content. What is none has no blocks.
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

// blockOf reads one; one that cannot be read is of no type, and passed on as it is.
func blockOf(raw json.RawMessage) block {
	b := block{}
	members := map[string]json.RawMessage{}
	if json.Unmarshal(raw, &members) != nil || json.Unmarshal(raw, &b) != nil {
		return block{raw: raw, more: true}
	}
	b.raw = raw
	for name := range members {
		switch name {
		case "type", "text", "data", "blob", "mimeType", "resource", "uri":
		default:
			b.more = true
		}
	}
	return b
}

// value is the data of a block, if that is all there is to it.
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

// repeats reports whether all that blocks say is the text of what is structured: servers say it so to older clients.
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

// same compares JSON, the order of members aside.
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

// mediaOf is a media type of a server, if it is one; else otherwise.
func mediaOf(media, otherwise string) string {
	if t, _, err := mime.ParseMediaType(media); err != nil || !strings.Contains(t, "/") || len(media) > 200 {
		return otherwise
	}
	return media
}

// reading is what a property is whose resource has these contents: one text or blob of its media type; else {"lmosd:content":[…]}.
func reading(r *protocol.Message) (value, error) {
	contents, _ := r.InResult("contents")
	blocks := blocksOf(contents)
	meta := ownMeta(r)
	if len(blocks) == 0 {
		return value{}, interact.Errorf(interact.AgentFailed, "the server is at fault", "the server gives a resource without contents")
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
	return value{data: beside([]byte("{}"), contents, meta)}, nil
}

// textOf is a text of a media type. One that says it is JSON, and is none that all can read, is a text.
func textOf(text, media string) value {
	if _, known, err := interact.Value([]byte(text), media); known && (err != nil || text == "") || interact.IsCBOR(media) {
		media = plainText
	}
	return value{[]byte(text), media}
}

// ownMeta is the _meta of a result, without what says who the server is; nil for none.
func ownMeta(r *protocol.Message) json.RawMessage {
	raw, _ := r.WithResult(nil, "_meta", protocol.MetaServer).InResult("_meta")
	if len(raw) == 0 || raw[0] != '{' || string(raw) == "{}" {
		return nil
	}
	return raw
}

// messages is what a prompt gives: description and messages, as the server wrote them.
func messages(r *protocol.Message) value {
	for _, name := range []string{"resultType", "ttlMs", "cacheScope"} {
		r = r.WithResult(nil, name)
	}
	meta := ownMeta(r)
	return value{data: beside(r.WithResult(nil, "_meta").Result(), nil, meta)}
}

// complaint is what a failed tool says in words, and whether that is all it says.
func complaint(r *protocol.Message) (text string, whole bool) {
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
	return interact.Clip(text, maxComplaint), whole && len(text) <= maxComplaint
}

// maxComplaint bounds the words of an error.
const maxComplaint = 1 << 10
