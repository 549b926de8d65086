package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is how long the name of an affordance is.
const maxName = 64

// An entry wants to be called something.
type entry struct {
	kind string // tells entries of one name apart: "tool", "prompt"
	name string // what the server calls it
	id   string // by which it stays the same: a tool's name, a resource's URI
}

// keys gives each entry a name of its own among affordances of one kind: what the server calls it, if that can be a name. An entry whose
// name is not plain, or not its own, has a part of its hash behind it. What an entry is called depends on what else there is only where
// two want the same, so that names stay as servers change. Of two with one kind and id, the second has none: "".
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
			owner[out[i]] = i // its name is exact
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
	for i := range out { // somebody may be called like another with its hash
		if used[out[i]] {
			out[i] = ""
		}
		used[out[i]] = true
	}
	return out
}

// plainName is a name without what addresses and terminals take for something else.
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
