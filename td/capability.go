package td

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Normal returns the normal form of a capability id: NFC, lower case, no empty level, no space around a level; ok is
// false if nothing is left, the id is longer than [MaxCapability], or it has control characters. Normal forms are for
// comparing and finding; what people see stays as it was written. Normal(Normal(x)) is Normal(x).
func Normal(capability string) (id string, ok bool) {
	if len(capability) > MaxCapability || !utf8.ValidString(capability) ||
		strings.ContainsFunc(capability, unicode.IsControl) {
		return "", false
	}
	// Lower case may compose anew, and composing may give something that has a lower case.
	s := norm.NFC.String(strings.ToLower(norm.NFC.String(strings.ToLower(capability))))
	var b strings.Builder
	for level, separator := range levels(s) {
		if b.Len() > 0 {
			b.WriteByte(separator)
		}
		b.WriteString(level)
	}
	id = b.String()
	return id, id != "" && id != "urn" && len(id) <= MaxCapability
}

// levels yields the levels of s that are not empty, each with the first separator of those that stand before it.
func levels(s string) func(yield func(level string, separator byte) bool) {
	return func(yield func(string, byte) bool) {
		separator := byte(0)
		for s != "" {
			end := strings.IndexAny(s, ":/")
			if end < 0 {
				end = len(s)
			}
			if level := strings.TrimSpace(s[:end]); level != "" {
				if !yield(level, separator) {
					return
				}
				separator = 0
			}
			if end == len(s) {
				return
			}
			if separator == 0 {
				separator = s[end]
			}
			s = s[end+1:]
		}
	}
}

// split returns the levels of a normal capability id, without a leading "urn", or several: the levels of a prefix of
// an id are then the first levels of the id.
func split(capability string) []string {
	var parts []string
	for level := range levels(capability) {
		parts = append(parts, level)
	}
	for len(parts) > 1 && parts[0] == "urn" {
		parts = parts[1:]
	}
	return parts
}

// maxLevels is how many prefixes of a capability have a key in the DHT.
const maxLevels = 4

// Levels returns the prefixes of a normal capability id by levels, at most four, shortest first, joined by ":". Levels
// end at ":" and "/", after a leading "urn:" is dropped: "urn:telekom:capability:billing" gives "telekom",
// "telekom:capability", "telekom:capability:billing".
func Levels(capability string) []string {
	parts := split(capability)
	parts = parts[:min(len(parts), maxLevels)]
	prefixes := make([]string, len(parts))
	for i := range parts {
		prefixes[i] = strings.Join(parts[:i+1], ":")
	}
	return prefixes
}

// Shard returns the capability shard of a normal id, 0 to 15: the low four bits of the first byte of SHA-256 of its
// first level. All levels of a capability are in one shard.
func Shard(capability string) byte {
	first := append(split(capability), "")[0]
	sum := sha256.Sum256([]byte(first))
	return sum[0] & 15
}

// hasLevels reports whether the levels of asked are the first levels of has; both are normal ids.
func hasLevels(has, asked string) bool {
	a, h := split(asked), split(has)
	return len(a) <= len(h) && slices.Equal(a, h[:len(a)])
}

// Terms returns what a thing can be found by as a capability: the ids of lmos:capabilities, the names of its actions
// and its types; normalised, sorted, unique, at most [MaxCaps]. If there are more, capabilities stay and types go. The
// types that every agent or tool has are left out: they would put all things on one key. [Query.Type] asks for those.
func (t *Thing) Terms() []string {
	if t.terms != nil {
		return t.terms
	}
	return t.makeTerms()
}

func (t *Thing) makeTerms() []string {
	terms := make([]string, 0, len(t.Capabilities)+len(t.Actions)+len(t.Types))
	add := func(s string) {
		if id, ok := Normal(s); ok && len(terms) < MaxCaps && !slices.Contains(terms, id) {
			terms = append(terms, id)
		}
	}
	for _, c := range t.Capabilities {
		add(c.ID)
	}
	for _, name := range sortedKeys(t.Actions) {
		add(name)
	}
	for _, typ := range t.Types {
		if !isGeneric(typ) {
			add(typ)
		}
	}
	slices.Sort(terms)
	return terms
}

func isGeneric(typ string) bool {
	switch typeKey(typ) {
	case "agent", "tool", "thing":
		return true
	}
	return false
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
