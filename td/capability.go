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

// Normal returns the normal form of a capability id: NFC, lower case, no empty level, no space around a level. ok is false if the result
// is empty, the id is longer than [MaxCapability], or it has control characters. Normal forms are compared and indexed; ids are displayed
// as written. Normal(Normal(x)) is Normal(x).
func Normal(capability string) (id string, ok bool) {
	if len(capability) > MaxCapability || !utf8.ValidString(capability) ||
		strings.ContainsFunc(capability, unicode.IsControl) {
		return "", false
	}
	// Lower case may need composition, and composition may result in a letter that has a lower case.
	s := norm.NFC.String(strings.ToLower(norm.NFC.String(strings.ToLower(capability))))
	var b strings.Builder
	for level, separator := range levels(s) {
		if b.Len() > 0 {
			b.WriteByte(separator)
		}
		b.WriteString(level)
	}
	if id = b.String(); id == capability {
		id = capability // one copy is enough
	}
	return id, id != "" && id != "urn" && len(id) <= MaxCapability
}

// levels yields the levels of s that are not empty, each with the first of the separators before it.
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

// split returns the levels of a normal capability id, without leading levels "urn", so that the levels of a prefix of an id are the first
// levels of the id.
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

// maxLevels is the number of prefixes of a capability that have a key in the DHT.
const maxLevels = 4

// Levels returns the prefixes of a normal capability id by levels, at most four, shortest first, joined by ":". Levels end at ":" and "/", and
// a leading "urn:" is dropped: the levels of "urn:telekom:capability:billing" are "telekom", "telekom:capability",
// "telekom:capability:billing".
func Levels(capability string) []string {
	parts := split(capability)
	parts = parts[:min(len(parts), maxLevels)]
	prefixes := make([]string, len(parts))
	for i := range parts {
		prefixes[i] = strings.Join(parts[:i+1], ":")
	}
	return prefixes
}

// Prefixes returns the normal form of a capability id and of all those above it, with ":" for "/". An id with a leading "urn:" is also
// returned without it, because it is optional.
func Prefixes(capability string) (all []string) {
	id, _ := Normal(capability)
	parts := split(id)
	for i := range parts {
		prefix := strings.Join(parts[:i+1], ":")
		if prefix == id {
			prefix = id // one copy is enough
		}
		if all = append(all, prefix); strings.HasPrefix(id, "urn:") {
			all = append(all, "urn:"+prefix)
		}
	}
	return all
}

// Shard returns the capability shard of a normal id, 0 to 15: the low four bits of the first byte of SHA-256 of its first level. All levels
// of a capability are in one shard.
func Shard(capability string) byte {
	first := append(split(capability), "")[0]
	sum := sha256.Sum256([]byte(first))
	return sum[0] & 15
}

// hasLevels reports whether the levels of prefix are the first levels of id; both are normal ids.
func hasLevels(id, prefix string) bool {
	p, all := split(prefix), split(id)
	return len(p) <= len(all) && slices.Equal(p, all[:len(p)])
}

// Terms returns the terms that a capability query matches: the ids of lmos:capabilities, the names of actions and the types; normalized,
// sorted, unique, at most [MaxCaps]. Beyond the limit, types are dropped first, then actions. Types that every agent or tool has are
// omitted, because all Things would share one key of the DHT; [Query.Type] matches them.
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
	switch TypeKey(typ) {
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
