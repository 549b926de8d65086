package interact

import (
	"encoding/base64"
	"fmt"
	"math"
	"mime"
	"strings"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// CBOR is the media type of RFC 8949.
const CBOR = "application/cbor"

// IsCBOR reports whether contentType is CBOR or based on it (RFC 8949 §9.5).
func IsCBOR(contentType string) bool {
	if !strings.Contains(strings.ToLower(contentType), "cbor") {
		return false // most types are not parsed
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == CBOR || strings.HasSuffix(t, "+cbor"))
}

// MediaType returns a content type in lower case without parameters; empty means JSON (TD 1.1 §5.4).
func MediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	if media = strings.ToLower(strings.TrimSpace(media)); media == "" {
		return JSON
	}
	return media
}

// Value decodes JSON or CBOR strictly: one value, no duplicate names, no number that float64 cannot hold. The types are those of
// [td.Schema.Check]. Strings may share memory with data. ok is false for other media types. Empty data is nil. The error is an
// [*Error] of code [Invalid].
func Value(data []byte, contentType string) (v any, ok bool, err error) {
	switch {
	case len(data) == 0:
		return nil, td.IsJSON(contentType) || IsCBOR(contentType), nil
	case td.IsJSON(contentType):
		v, err := jcs.View(data)
		if err != nil {
			return nil, true, &Error{Code: Invalid, Title: "the input is not JSON", Hint: "text needs quotes: '\"text\"'", Err: err}
		}
		return v, true, nil
	case IsCBOR(contentType):
		v, err := fromCBOR(data)
		if err != nil {
			return nil, true, &Error{Code: Invalid, Title: "unsupported CBOR input",
				Hint: "send one item with text keys, definite lengths and no tags", Err: err}
		}
		return v, true, nil
	}
	return nil, false, nil
}

// Transcode converts data between JSON and CBOR. Data of other types, or of the wanted type, is returned unchanged; media is the
// type of out. CBOR byte strings become base64url text (RFC 8949 §6.1). The error is an [*Error] of code [Invalid].
func Transcode(data []byte, from, to string) (out []byte, media string, err error) {
	toCBOR, toJSON := td.IsJSON(from) && IsCBOR(to), IsCBOR(from) && to != "" && td.IsJSON(to)
	if len(data) == 0 || !toCBOR && !toJSON {
		return data, from, nil
	}
	v, _, err := Value(data, from)
	if err != nil {
		return nil, "", err
	}
	if toCBOR {
		out, err = cbor.Marshal(integers(v))
	} else {
		out, err = jcs.Append(nil, v)
	}
	if err != nil {
		return nil, "", &Error{Code: Invalid, Title: "the data cannot be encoded as " + to, Hint: "check the size of its numbers", Err: err}
	}
	return out, to, nil
}

// fromCBOR decodes an item to values of JSON.
func fromCBOR(data []byte) (any, error) {
	var v any
	if err := cbor.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return asJSON(v)
}

func asJSON(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, nil
	case []byte:
		return base64.RawURLEncoding.EncodeToString(v), nil
	case uint64:
		return exact(float64(v), uint64(float64(v)) == v && float64(v) < 1<<64, v)
	case int64:
		return exact(float64(v), int64(float64(v)) == v, v)
	case float64:
		return v, nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = asJSON(v[i]); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			name, ok := k.(string)
			if !ok {
				return nil, fmt.Errorf("expected a text as map key, got %T", k)
			}
			var err error
			if m[name], err = asJSON(e); err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	return nil, fmt.Errorf("unsupported item of type %T", v)
}

// exact returns f if it equals the integer n, as JSON requires (RFC 7493 §2.2).
func exact(f float64, same bool, n any) (any, error) {
	if !same {
		return nil, fmt.Errorf("the number %v has more digits than a float64 holds", n)
	}
	return f, nil
}

// integers replaces each integral float64 by an integer, which CBOR encodes as such (RFC 8949 §4.2.2).
func integers(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<63 {
			return int64(v)
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	}
	return v
}
