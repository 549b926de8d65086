package access

import (
	"maps"
	"slices"

	"github.com/lmosd/lmosd/td"
)

// TargetOf returns the target of requests to a Thing.
func TargetOf(t *td.Thing, name string) *Target {
	target := &Target{ID: t.ID, Visibility: t.Visibility}
	if name != "" {
		target.Names = []string{name}
	}
	for _, c := range t.Capabilities {
		target.Capabilities = append(target.Capabilities, td.Prefixes(c.ID)...)
	}
	return target
}

// NameOf returns the name by which rules name a target: the name of a Thing if it has one, otherwise its id, or "node".
func NameOf(t *Target) string {
	switch {
	case t == nil:
		return "node"
	case len(t.Names) > 0:
		return t.Names[0]
	}
	return t.ID
}

// Affordances returns the names of the affordances of a Thing by operation.
func Affordances(t *td.Thing) map[Op][]string {
	properties := slices.Sorted(maps.Keys(t.Properties))
	return map[Op][]string{Read: properties, Write: properties, Invoke: slices.Sorted(maps.Keys(t.Actions)),
		Subscribe: slices.Sorted(maps.Keys(t.Events))}
}
