package features

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/lmosd/lmosd/td"
)

const (
	// MaxName is how many bytes models take for the name of a tool. MCP itself allows 128.
	MaxName = 64
	// maxAlias leaves room for names behind it.
	maxAlias = 28
	// between stands between an alias and a name. No alias has it, or begins or ends with a part of it.
	between = "__"
	hashLen = 8
)

// plain is a name of letters, digits, underscores and hyphens, at most most of them. What is no such name has its hash behind it, so
// that names that differ stay different, and no name depends on what others there are.
func plain(name string, most int) string {
	fits := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
	}
	out := strings.Map(func(r rune) rune {
		if fits(r) {
			return r
		}
		return '_'
	}, name)
	if out == name && out != "" && len(out) <= most {
		return out
	}
	return hashed(out, name, most)
}

// hashed is a beginning of text, and the hash of what.
func hashed(text, what string, most int) string {
	sum := sha256.Sum256([]byte(what))
	text = strings.TrimRight(text[:min(len(text), most-hashLen-1)], "_-")
	return strings.TrimLeft(text+"-"+hex.EncodeToString(sum[:hashLen/2]), "-_")
}

// aliasOf is the short name of a thing, which no other has: it depends on nothing but the thing's title, id and owner.
func aliasOf(d *td.Description) string {
	return hashed(ascii(d.Thing.Name()), d.Ref(), maxAlias)
}

// AliasOfPin is the short name of a pinned thing, which depends on nothing but what is written in the configuration.
func AliasOfPin(ref string) string {
	if out := ascii(ref); out == ref && out != "" && len(out) <= maxAlias && !strings.Contains(out, between) && strings.Trim(out, "_") == out {
		return out
	}
	r := td.ParseRef(ref)
	name := r.Name[strings.LastIndexAny(r.Name, ":/#")+1:]
	return hashed(ascii(td.Slug(name)), ref, maxAlias)
}

// ascii drops what is not a letter, a digit, an underscore or a hyphen of ASCII.
func ascii(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return -1
	}, s)
	for strings.Contains(s, between) {
		s = strings.ReplaceAll(s, between, "_")
	}
	return s
}

// joined is the name of what a thing offers among those of others.
func joined(alias, name string) string {
	return plain(alias+between+name, MaxName)
}
