package task

import (
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A part is one message of an output that comes as a stream.
type part struct {
	data  []byte
	media string
}

// whole is the completed state final with the output of the task, also where the output came in parts.
func (t *task) whole(final *interact.Message) *interact.Message {
	if len(final.Data) > 0 || len(t.parts) == 0 {
		return final
	}
	c := *final
	c.Data, c.ContentType = together(t.parts)
	return &c
}

// together makes one output of parts. Values of JSON and CBOR become an array in JSON; texts among them, if there is nothing
// else, become one text. Bytes of any other kind are put one after the other, and are of the kind of the first.
func together(parts []part) (data []byte, media string) {
	if len(parts) == 1 {
		return parts[0].data, parts[0].media
	}
	values, ok := asJSON(parts)
	if !ok {
		for _, p := range parts {
			data = append(data, p.data...)
		}
		return data, parts[0].media
	}
	if text, ok := asText(values); ok {
		return text, interact.JSON
	}
	data = append(data, '[')
	for i, v := range values {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, v...)
	}
	return append(data, ']'), interact.JSON
}

// asJSON returns the parts as JSON values, unless one is none. Rows of values (RFC 7464, NDJSON) are none: they are put one after
// the other as they are.
func asJSON(parts []part) (values [][]byte, ok bool) {
	for _, p := range parts {
		data, media, err := interact.Transcode(p.data, p.media, interact.JSON)
		if err != nil || !td.IsJSON(media) || !json.Valid(data) {
			return nil, false
		}
		values = append(values, data)
	}
	return values, true
}

func asText(values [][]byte) ([]byte, bool) {
	var whole strings.Builder
	for _, v := range values {
		var text *string
		if json.Unmarshal(v, &text) != nil || text == nil {
			return nil, false
		}
		whole.WriteString(*text)
	}
	data, err := jcs.Append(nil, whole.String())
	return data, err == nil
}
