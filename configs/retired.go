package configs

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// retired are keys of earlier versions. The function returns what replaces a key with its values: the new lines of the configuration or of
// the access rules.
var retired = withMoved(map[string]func(values []string) string{
	"trust.policy": func(values []string) string {
		if len(values) == 1 && values[0] == "allowlist" {
			return "write trust: {untrusted: none}, and the nodes as an access rule or as members of an organization"
		}
		return "write trust: {untrusted: open}, or untrusted: find, with which untrusted nodes find agents and call none"
	},
	"trust.allow": func(values []string) string { return accessRule("allow", "[connect, store, find, call]", values) },
	"trust.deny":  func(values []string) string { return accessRule("deny", `"*"`, values) },
})

// moved are keys of earlier versions that have another name in the same section.
var moved = map[string]string{
	"interact.tasks.run": "interact.tasks.max_duration", "interact.tasks.keep": "interact.tasks.retention",
	"a2a.recheck": "a2a.card_refresh", "http.directory": "http.directory_auth",
}

// withMoved adds the keys of moved to those that are retired.
func withMoved(all map[string]func([]string) string) map[string]func([]string) string {
	for old, now := range moved {
		all[old] = func([]string) string { return "write " + now }
	}
	return all
}

// Retired returns what replaces a key of an earlier version, with its value as in a flag. It reports false for all other keys.
func Retired(key, value string) (replacement string, ok bool) {
	f := retired[key]
	if f == nil {
		return "", false
	}
	return f(splitList(value)), true
}

// accessRule returns a file of access rules with one rule, on one line.
func accessRule(effect, to string, values []string) string {
	if len(values) == 0 {
		return "remove it: an empty list has no effect"
	}
	var quoted []string
	for _, v := range values {
		quoted = append(quoted, fmt.Sprintf("%q", v))
	}
	return fmt.Sprintf("write into policy.yaml in the data directory: {apiVersion: lmosd/v1, rules: [{%s: [%s], to: %s}]}", effect,
		strings.Join(quoted, ", "), to)
}

// valuesOf returns the texts of a scalar or a list, also of a DID without quotes, which is a mapping inside of brackets.
func valuesOf(n ast.Node) (values []string) {
	elements := []ast.Node{n}
	if list, ok := n.(*ast.SequenceNode); ok {
		elements = list.Values
	}
	for _, element := range elements {
		text, ok := scalar(element)
		if !ok {
			text = strings.ReplaceAll(strings.TrimSpace(strings.Trim(element.String(), "{} \n")), ": ", ":")
		}
		if text != "" && element.Type() != ast.NullType {
			values = append(values, text)
		}
	}
	return values
}
