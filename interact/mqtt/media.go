package mqtt

import (
	"mime"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lmosd/lmosd/interact"
)

// maxProperty limits properties of messages, in bytes.
const maxProperty = 1 << 10

// maxText is how much of a stranger's own words an error carries, in bytes.
const maxText = 1 << 10

// mediaOf is the type that a message says it has, else the one that is promised.
func mediaOf(declared, promised string) string {
	if _, _, err := mime.ParseMediaType(declared); declared == "" || err != nil || !isProperty(declared) {
		return promised
	}
	return declared
}

// isProperty reports whether s may stand in a property of a message: a text as MQTT defines it (MQTT 5 §1.5.4), and not a long
// one. A peer ends the connection that brings another, and others share it.
func isProperty(s string) bool {
	return len(s) <= maxProperty && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

func quoted(s string) string { return strconv.Quote(interact.Clip(interact.Readable(s), 200)) }
