package features

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/lmosd/lmosd/td"
)

const (
	// MaxName bounds tool names, in bytes: model APIs accept no more. MCP itself allows 128.
	MaxName = 64
	// maxAlias leaves room for the name after it.
	maxAlias = 28
	// separator is between an alias and a name. No alias contains it, or starts or ends with an underscore.
	separator = "__"
	hashLen   = 8
)

// plain returns name if it has only letters, digits, underscores and hyphens and at most maxLen of them. Otherwise the result ends with a
// hash of name, so that different names stay different and a name does not depend on others.
func plain(name string, maxLen int) string {
	fits := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
	}
	out := strings.Map(func(r rune) rune {
		if fits(r) {
			return r
		}
		return '_'
	}, name)
	if out == name && out != "" && len(out) <= maxLen {
		return out
	}
	return hashed(out, name, maxLen)
}

// hashed returns the beginning of text with the hash of key.
func hashed(text, key string, maxLen int) string {
	sum := sha256.Sum256([]byte(key))
	text = strings.TrimRight(text[:min(len(text), maxLen-hashLen-1)], "_-")
	return strings.TrimLeft(text+"-"+hex.EncodeToString(sum[:hashLen/2]), "-_")
}

// aliasOf returns the alias of a Thing. It is unique and depends only on the title, the id and the owner.
func aliasOf(d *td.Description) string {
	return hashed(ascii(d.Thing.Name()), d.Ref(), maxAlias)
}

// AliasOfPin returns the alias of a pinned Thing. It depends only on the configured reference.
func AliasOfPin(ref string) string {
	if out := ascii(ref); out == ref && out != "" && len(out) <= maxAlias && !strings.Contains(out, separator) && strings.Trim(out, "_") == out {
		return out
	}
	r := td.ParseRef(ref)
	name := r.Name[strings.LastIndexAny(r.Name, ":/#")+1:]
	return hashed(ascii(td.Slug(name)), ref, maxAlias)
}

// ascii removes all characters except ASCII letters, digits, underscores and hyphens.
func ascii(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return -1
	}, s)
	for strings.Contains(s, separator) {
		s = strings.ReplaceAll(s, separator, "_")
	}
	return s
}

// joined returns the name of a feature in the aggregate of several Things.
func joined(alias, name string) string {
	return plain(alias+separator+name, MaxName)
}
