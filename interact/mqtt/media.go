package mqtt

import (
	"mime"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// maxProperty limits properties of messages, in bytes.
const maxProperty = 1 << 10

// maxText is how much of a stranger's own words an error carries, in bytes.
const maxText = 1 << 10

// encode returns the data of m as the form takes it, and its media type. The error is that of [form.Convert].
func encode(m *interact.Message, f *td.Form, what string) (data []byte, media string, err error) {
	media = interact.MediaType(f.ContentType)
	if len(m.Data) > 0 && interact.MediaType(m.Media()) == media {
		media = m.Media() // with its parameters
	}
	data, err = form.Convert(m.Data, m.Media(), f.ContentType, what)
	return data, media, err
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

func quoted(s string) string { return strconv.Quote(interact.Clip(interact.Readable(s), 200)) }
