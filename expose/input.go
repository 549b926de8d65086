package expose

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// inputTypes are the types of an input (TD 1.1 §5.3.2.1).
var inputTypes = []string{"array", "boolean", "integer", "number", "object", "string"}

// inputText is NAME:TYPE, optional with ? or a default.
var inputText = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,63}):([a-z]+)(\?|=(?s:.*))?$`)

// parseInput reads an input: NAME:TYPE is required, NAME:TYPE? is optional, and NAME:TYPE=VALUE is optional with a default, which is JSON
// if the type is not string. The agent itself applies the default.
func parseInput(text string) (name string, schema map[string]any, required bool, err error) {
	m := inputText.FindStringSubmatch(text)
	if m == nil || !slices.Contains(inputTypes, m[2]) {
		return "", nil, false, interact.Errorf(interact.Usage, "for example days:integer, city:string? or units:string=mm",
			"expected NAME:TYPE with one of the types %s, got %s", strings.Join(inputTypes, ", "), interact.Excerpt(text, 80))
	}
	schema = map[string]any{"type": m[2]}
	if value, ok := strings.CutPrefix(m[3], "="); ok {
		var v any = value
		if m[2] != "string" && json.Unmarshal([]byte(value), &v) != nil {
			return "", nil, false, interact.Errorf(interact.Usage, "a default is JSON of the type", "the default of %s is not of type %s: %s", m[1], m[2],
				interact.Excerpt(value, 80))
		}
		schema["default"] = v
	}
	return m[1], schema, m[3] == "", nil
}

// withInputs returns a generated description whose actions have the inputs.
func withInputs(raw []byte, inputs []string) ([]byte, error) {
	properties, required := map[string]any{}, []string{}
	for _, text := range inputs {
		name, schema, isRequired, err := parseInput(text)
		if err != nil {
			return nil, err
		}
		if properties[name] != nil {
			return nil, interact.Errorf(interact.Usage, "keep one of them", "the input %s is given twice", name)
		}
		properties[name] = schema
		if isRequired {
			required = append(required, name)
		}
	}
	input := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		input["required"] = required
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, interact.AsError(err)
	}
	actions, _ := doc["actions"].(map[string]any)
	for _, action := range actions {
		if a, ok := action.(map[string]any); ok {
			a["input"] = input
		}
	}
	return json.Marshal(doc)
}
