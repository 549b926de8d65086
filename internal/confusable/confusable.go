// Package confusable detects names that look alike, by the skeletons of Unicode Technical Standard #39, section 4.
package confusable

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"

	"go.mau.fi/util/confusable"

	"github.com/lmosd/lmosd/internal/textmatch"
)

// Skeleton returns a text that is equal for names that look alike, in any case. It is for comparison only.
func Skeleton(name string) string {
	if plain(name) {
		return name
	}
	return textmatch.Fold(confusable.Skeleton(textmatch.Fold(name)))
}

// plain reports whether a name is its own skeleton, as most are: no character of it is replaced.
func plain(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z' && c != 'm' && c != 'l', '2' <= c && c <= '9', c == '-':
		default:
			return false
		}
	}
	return true
}

// scripts are the names of all scripts, sorted once.
var scripts = sync.OnceValue(func() []string { return slices.Sorted(maps.Keys(unicode.Scripts)) })

// Odd returns the character of a name that a similar name does not have, and its script: "Cyrillic е". It is empty if there is
// none.
func Odd(name, like string) string {
	name, like = textmatch.Fold(name), textmatch.Fold(like)
	for _, r := range name {
		if strings.ContainsRune(like, r) {
			continue
		}
		script := ""
		for _, s := range scripts() {
			if unicode.Is(unicode.Scripts[s], r) {
				script = strings.ReplaceAll(s, "_", " ") + " "
				break
			}
		}
		if r < unicode.MaxASCII || script == "Common " {
			script = ""
		}
		if !unicode.IsGraphic(r) || unicode.IsMark(r) {
			return fmt.Sprintf("%sU+%04X", script, r)
		}
		return script + string(r)
	}
	return ""
}
