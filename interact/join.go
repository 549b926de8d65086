package interact

import (
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// A Part is the data of one running state of an action with a response stream.
type Part struct {
	Data        []byte
	ContentType string
}

// Join joins the parts of a response stream. JSON and CBOR values become a JSON array, or one string if all are strings. Other
// parts are concatenated, with the media type of the first.
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

// asValues returns the parts as JSON values; ok is false if one is not a value, such as RFC 7464 or NDJSON sequences.
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
