package configs

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// retired are keys of earlier versions. The function returns what replaces a key with its values: the new lines of the configuration or of
// the access rules.
var retired = map[string]func(values []string) string{
	"trust.policy": func(values []string) string {
		if len(values) == 1 && values[0] == "allowlist" {
			return "write trust: {untrusted: none}, and the nodes as an access rule or as members of an organization"
		}
		return "write trust: {untrusted: open}, or untrusted: find, with which untrusted nodes find agents and call none"
	},
	"trust.allow": func(values []string) string { return accessRule("allow", "[connect, store, find, call]", values) },
	"trust.deny":  func(values []string) string { return accessRule("deny", `"*"`, values) },
}

// accessRule returns a file of access rules with one rule, on one line.
func accessRule(effect, to string, values []string) string {
	for i, v := range values {
		values[i] = fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("write into policy.yaml in the data directory: {apiVersion: lmosd/v1, rules: [{%s: [%s], to: %s}]}", effect,
		strings.Join(values, ", "), to)
}

// valuesOf returns the texts of a scalar or a list.
func valuesOf(n ast.Node) (values []string) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		if text, ok := scalar(n); ok {
			values = append(values, text)
		}
		return values
	}
	for _, element := range list.Values {
		if text, ok := scalar(element); ok {
			values = append(values, text)
		}
	}
	return values
}
