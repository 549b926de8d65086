package mqtt

import (
	"encoding/json"
	"mime"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// maxProperty limits properties of messages, in bytes.
const maxProperty = 1 << 10

// maxText is how much of a stranger's own words an error carries, in bytes.
const maxText = 1 << 10

// encode returns the data of m as the form takes it, and its media type. The error is an [*interact.Error] of code Invalid or
// UnsupportedType.
func encode(m *interact.Message, f *td.Form) (data []byte, media string, err error) {
	have, want := interact.MediaType(m.Media()), interact.MediaType(f.ContentType)
	switch {
	case len(m.Data) == 0:
		return nil, want, nil
	case have == want:
		return m.Data, m.Media(), nil
	case td.IsJSON(have) && td.IsJSON(want):
		return m.Data, want, nil
	case td.IsJSON(have) && strings.HasPrefix(want, "text/"):
		if text, ok := textOf(m.Data); ok {
			return []byte(text), want, nil
		}
	default:
		if data, media, err = interact.Transcode(m.Data, have, want); err != nil || media == want {
			return data, media, err
		}
	}
	return nil, "", interact.Errorf(interact.UnsupportedType, "send "+want, "%s is taken there, not %s", want, have)
}

// textOf returns the string, number or boolean that data is as JSON, as text.
func textOf(data []byte) (string, bool) {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case float64, bool:
		return strings.TrimSpace(string(data)), true
	}
	return "", false
}

// mediaOf is the type that a message says it has, else the one that is promised.
func mediaOf(said, promised string) string {
	if _, _, err := mime.ParseMediaType(said); said == "" || err != nil || !isProperty(said) {
		return promised
	}
	return said
}

// isProperty reports whether s may stand in a property of a message: a text as MQTT defines it (MQTT 5 §1.5.4), and not a long
// one. A peer ends the connection that brings another, and others share it.
func isProperty(s string) bool {
	return len(s) <= maxProperty && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// plain returns an address as it may be shown: without user, query and fragment, on one line, bounded.
func plain(href string) string {
	href, _, _ = strings.Cut(href, "#")
	href, _, _ = strings.Cut(href, "?")
	if scheme, rest, ok := strings.Cut(href, "://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		href = scheme + "://" + authority[strings.LastIndex(authority, "@")+1:] + "/" + path
	}
	return interact.Clip(interact.Readable(href), 200)
}

func quoted(s string) string { return strconv.Quote(interact.Clip(interact.Readable(s), 200)) }
