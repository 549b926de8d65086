package interact

import (
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A Part is one message of an output that comes as a stream: the data of an action's state that is running.
type Part struct {
	Data        []byte
	ContentType string
}

// Join makes one output of the parts of a response stream. Values of JSON and CBOR become an array in JSON; texts among them, if there is nothing
// else, become one text. Bytes of any other kind are put one after the other, and are of the kind of the first.
func Join(parts []Part) (data []byte, media string) {
	if len(parts) == 1 {
		return parts[0].Data, parts[0].ContentType
	}
	values, ok := asValues(parts)
	if !ok {
		for _, p := range parts {
			data = append(data, p.Data...)
		}
		return data, parts[0].ContentType
	}
	if text, ok := asText(values); ok {
		return text, JSON
	}
	data = append(data, '[')
	for i, v := range values {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, v...)
	}
	return append(data, ']'), JSON
}

// asJSON returns the parts as JSON values, unless one is none. Rows of values (RFC 7464, NDJSON) are none: they are put one after
// the other as they are.
func asValues(parts []Part) (values [][]byte, ok bool) {
	for _, p := range parts {
		data, media, err := Transcode(p.Data, p.ContentType, JSON)
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
