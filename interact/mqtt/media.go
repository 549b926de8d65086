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

// maxText limits the text of a peer in an error, in bytes.
const maxText = 1 << 10

// mediaOf returns the declared media type of a message, else the promised one.
func mediaOf(declared, promised string) string {
	if _, _, err := mime.ParseMediaType(declared); declared == "" || err != nil || !isProperty(declared) {
		return promised
	}
	return declared
}

// isProperty reports whether s can be a property of a message: an MQTT string (MQTT 5 §1.5.4) of at most maxProperty bytes.
// A peer would end the shared connection because of any other.
func isProperty(s string) bool {
	return len(s) <= maxProperty && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

func quoted(s string) string { return strconv.Quote(interact.Excerpt(s, 200)) }
