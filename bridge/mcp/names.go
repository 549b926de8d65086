package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName bounds the name of an affordance.
const maxName = 64

// An entry is a feature to be named.
type entry struct {
	kind string // distinguishes entries with the same name: "tool", "prompt"
	name string // name at the server
	id   string // stable identifier: the name of a tool, the URI of a resource
}

// keys assigns unique names to the entries of one kind of affordance: the name at the server if it is plain and unique, otherwise the
// name with a part of a hash. A name depends on other entries only in case of a conflict, so that names stay stable when a server
// changes. Of duplicates, the second gets "".
func keys(all []entry, taken ...string) []string {
	out := make([]string, len(all))
	owner, wanted := map[string]int{}, map[string]int{}
	for _, name := range taken {
		owner[name] = -1
	}
	seen := map[entry]bool{}
	for i, e := range all {
		same := entry{kind: e.kind, id: e.id}
		if seen[same] {
			continue
		}
		seen[same] = true
		out[i] = plainName(e.name)
		if _, there := owner[out[i]]; !there && e.kind == "tool" && out[i] == e.name {
			owner[out[i]] = i // exact match
		}
		wanted[out[i]]++
	}
	used := map[string]bool{}
	for i, e := range all {
		by, there := owner[out[i]]
		if out[i] != "" && !(there && by == i) && (there || wanted[out[i]] > 1) {
			sum := sha256.Sum256([]byte(e.kind + "\x00" + e.id))
			out[i] = out[i][:min(len(out[i]), maxName-9)] + "_" + hex.EncodeToString(sum[:4])
		}
	}
	for i := range out { // a name may equal another one with its hash
		if used[out[i]] {
			out[i] = ""
		}
		used[out[i]] = true
	}
	return out
}

// plainName replaces characters with a special meaning in URLs and terminals.
func plainName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-', r == '.':
			return r
		}
		return '_'
	}, name)
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		return name[:maxName-9] + "_" + hex.EncodeToString(sum[:4])
	}
	if strings.Trim(name, "._") == "" {
		return "unnamed"
	}
	return name
}
