package form

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Alike reports whether data of media type a is of type b without conversion.
func Alike(a, b string) bool {
	a, b = interact.MediaType(a), interact.MediaType(b)
	return a == b || td.IsJSON(a) && td.IsJSON(b) || interact.IsCBOR(a) && interact.IsCBOR(b)
}

// IsStructured reports whether data of a media type can be converted to JSON.
func IsStructured(media string) bool { return td.IsJSON(media) || interact.IsCBOR(media) }

// rankOf returns a lower number for better media types of a form: the type that the consumer accepts counts more than that of the body.
func rankOf(contentType, responseType string, hasBody bool, media, accept string) int {
	rank := 0
	if accept != "" && !strings.Contains(accept, "*") && !Alike(responseType, accept) {
		rank += 2
	}
	if hasBody && !Alike(contentType, media) {
		rank++
	}
	return rank
}

// convert returns body, of media type have, as the media type want: JSON as CBOR and the reverse, and a JSON string, number or
// boolean as text. The error is an [*interact.Error] of code UnsupportedType or Invalid, with what as the name of the recipient.
func convert(body []byte, have, want, what string) ([]byte, error) {
	switch {
	case len(body) == 0, Alike(have, want):
		return body, nil
	case IsStructured(have) && IsStructured(want):
		out, _, err := interact.Transcode(body, have, want)
		return out, err
	case IsStructured(have) && strings.HasPrefix(interact.MediaType(want), "text/"):
		out, _, err := interact.Transcode(body, have, interact.JSON)
		if err != nil {
			return nil, err
		}
		if text, ok := textOf(out); ok {
			return text, nil
		}
	}
	return nil, unsupported(have, want, what)
}

// unsupported returns the error of a body of media type have for a recipient that accepts the media type want.
func unsupported(have, want, what string) error {
	want = interact.MediaType(want)
	return interact.Errorf(interact.UnsupportedType, "send "+want, "%s accepts %s, got %s", what, want, interact.MediaType(have))
}

// textOf returns a JSON string, number or boolean as text. ok is false for other JSON.
func textOf(data []byte) (text []byte, ok bool) {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return nil, false
	}
	switch v := v.(type) {
	case string:
		return []byte(v), true
	case float64, bool:
		return bytes.TrimSpace(data), true
	}
	return nil, false
}
