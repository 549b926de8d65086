package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/td"
)

// An Input declares a member of the input of actions. It gives a type to a parameter or a body member without one, narrows one, or adds a member
// to a JSON body that allows more members than the document has.
type Input struct {
	Action   string // empty: all actions that can have it
	Name     string // of the parameter or member, in the document or in the Thing
	Type     string // of TD 1.1 §5.3.2.1
	Default  any    // the value that the server takes if it is absent; nil: unknown
	Required bool
}

// An InputError is the error of [Convert] for an input that no action can have. Known are the names of the parameters and body members of its
// action, or of all actions. Type is a type that the document has for the name, if that is the reason.
type InputError struct {
	Index  int // in Options.Inputs
	Reason string
	Known  []string
	Has    bool // the document has the name
	Type   string
}

func (e *InputError) Error() string { return e.Reason }

// declare applies the inputs to the actions. An input without an action is for all that have its name; if there is none, for all whose bodies take
// more members. The error is an [*InputError].
func (c *converter) declare(ops []*operation) error {
	for i, in := range c.o.Inputs {
		var conflict *InputError
		applied, known := false, map[string]bool{}
		for _, apply := range []func(*operation, Input) (bool, *InputError){(*operation).refine, (*operation).add} {
			if applied || conflict != nil {
				break
			}
			for _, op := range ops {
				if in.Action != "" && in.Action != op.name {
					continue
				}
				for _, name := range op.inputs() {
					known[name] = true
				}
				has, e := apply(op, in)
				applied = applied || has && e == nil
				if e == nil {
					continue
				}
				conflict = cmp.Or(conflict, e)
				if has {
					op.warn(op.where(), "the input %s does not apply: %s", clip(in.Name, 60), e.Reason)
				}
			}
		}
		name := clip(in.Name, 60)
		switch {
		case applied:
			continue
		case conflict != nil && (conflict.Has || in.Action != ""):
		case in.Action == "":
			conflict = &InputError{Reason: "no action has a parameter " + name + ", or a JSON body that allows it"}
		default:
			conflict = &InputError{Reason: "the action has no parameter " + name + " and no JSON body"}
		}
		conflict.Index, conflict.Known = i, slices.Sorted(maps.Keys(known))
		return conflict
	}
	return nil
}

// body returns the schema of the body of the action; nil without one.
func (op *operation) body() map[string]any {
	body, _ := op.result["input"].(map[string]any)
	return body
}

// inputs returns the names of the parameters and body members of the action.
func (op *operation) inputs() []string {
	members, _ := op.body()["properties"].(map[string]any)
	return slices.AppendSeq(slices.Collect(maps.Keys(op.variables)), maps.Keys(members))
}

// refine applies an input to the parameter or the body member with its name. It reports whether there is one.
func (op *operation) refine(in Input) (has bool, e *InputError) {
	query, path := variableName(in.Name, percent), variableName(in.Name, func(byte) string { return "_" })
	for _, name := range []string{in.Name, query, path} {
		if schema, ok := op.variables[name].(map[string]any); ok {
			return true, op.refineVariable(in, name, maps.Clone(schema))
		}
	}
	members, _ := op.body()["properties"].(map[string]any)
	if schema, ok := members[in.Name].(map[string]any); ok {
		return true, refineMember(in, op.body(), schema)
	}
	for _, p := range op.parameters() {
		if p.name == in.Name {
			return true, &InputError{Reason: fmt.Sprintf("%s is a %s parameter that is not sent", clip(in.Name, 60), clip(p.in, 40)), Has: true}
		}
	}
	return false, nil
}

// refineVariable applies an input to a variable of the address, whose schema is a copy.
func (op *operation) refineVariable(in Input, name string, schema map[string]any) *InputError {
	required, _ := schema["lmosd:required"].(bool)
	if op.guessed[name] {
		delete(schema, "type")
	}
	isList := in.Type == "array" && !op.guessed[name] && schema["oneOf"] != nil && admits(schema, in.Type)
	if (in.Type == "array" || in.Type == "object") && !isList && admits(schema, in.Type) {
		return &InputError{Reason: fmt.Sprintf("%s is a parameter with a single value", clip(in.Name, 60)), Has: true}
	}
	if e := narrow(in, schema, required || op.inPath[name], isList); e != nil {
		return e
	}
	if in.Required && !op.inPath[name] {
		op.require(schema)
	}
	op.variables[name], op.guessed[name] = schema, false
	return nil
}

// require marks a query parameter as required; TD 1.1 has no term for it.
func (op *operation) require(schema map[string]any) {
	schema["lmosd:required"] = true
	op.prefixes["lmosd"] = td.NamespaceLMOSD
}

// refineMember applies an input to a member of a body.
func refineMember(in Input, body, schema map[string]any) *InputError {
	required, _ := body["required"].([]any)
	isRequired := slices.Contains(required, any(in.Name))
	e := narrow(in, schema, isRequired, false)
	if e == nil && in.Required && !isRequired {
		body["required"] = append(slices.Clip(required), in.Name)
	}
	return e
}

// partKeywords are the keywords of bodies to which no members are added: these may not accept them.
var partKeywords = []string{"oneOf", "anyOf", "allOf", "not", "enum", "const"}

// add adds an input to the body. It reports whether the body has one more member.
func (op *operation) add(in Input) (has bool, e *InputError) {
	body := op.body()
	more, isSchema := body["additionalProperties"].(map[string]any)
	schema := maps.Clone(more)
	switch {
	case body == nil:
		return false, nil
	case !admits(body, "object"):
		return false, &InputError{Reason: fmt.Sprintf("the body is of type %s, which has no members", typeIn(body))}
	case body["additionalProperties"] != nil && !isSchema:
		return false, &InputError{Reason: "the body allows no other members than those in the document"}
	case slices.ContainsFunc(partKeywords, func(name string) bool { return body[name] != nil }):
		return false, &InputError{Reason: "the body has alternatives or parts, to which no member can be added"}
	case schema == nil:
		schema = map[string]any{}
	}
	if e := refineMember(in, body, schema); e != nil {
		return false, e
	}
	members, _ := body["properties"].(map[string]any)
	if members == nil {
		members = map[string]any{}
	}
	members[in.Name] = schema
	body["type"], body["properties"] = "object", members
	return true, nil
}

// narrow gives a schema the type and the default of an input, or returns the contradiction to the document. A list keeps its types.
func narrow(in Input, schema map[string]any, required, isList bool) *InputError {
	name := clip(in.Name, 60)
	switch {
	case !admits(schema, in.Type):
		has := typeIn(schema)
		e := &InputError{Reason: fmt.Sprintf("the document has %s as %s, and not as %s", name, has, in.Type), Has: true}
		if slices.Contains(jsonTypes, has) {
			e.Type = has
		}
		return e
	case required && !in.Required:
		return &InputError{Reason: fmt.Sprintf("the document requires %s", name), Has: true, Type: in.Type}
	}
	if !isList {
		schema["type"] = in.Type
	}
	if in.Default != nil {
		schema["default"] = in.Default
	}
	return nil
}

// admits reports whether a converted schema accepts values of a type, by its types and fixed values.
func admits(schema map[string]any, kind string) bool {
	has, typed := schema["type"].(string)
	if typed && has != kind && !(has == "number" && kind == "integer") {
		return false
	}
	values, _ := schema["enum"].([]any)
	if v, ok := schema["const"]; ok {
		values = append(slices.Clip(values), v)
	}
	if len(values) > 0 && !slices.ContainsFunc(values, func(v any) bool { return IsOf(v, kind) }) {
		return false
	}
	for _, name := range []string{"oneOf", "anyOf"} {
		if branches, ok := schema[name].([]any); ok && !slices.ContainsFunc(branches, func(b any) bool { return branchAdmits(b, kind) }) {
			return false
		}
	}
	all, _ := schema["allOf"].([]any)
	return !slices.ContainsFunc(all, func(b any) bool { return !branchAdmits(b, kind) })
}

func branchAdmits(branch any, kind string) bool {
	m, ok := branch.(map[string]any)
	return ok && admits(m, kind)
}

// IsOf reports whether a decoded value is of a type.
func IsOf(v any, kind string) bool {
	switch v := v.(type) {
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && v == float64(int64(v))
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return false
}

// typeIn returns the types that a converted schema accepts, as text.
func typeIn(schema map[string]any) string {
	var types []string
	for _, kind := range jsonTypes {
		if admits(schema, kind) && !(kind == "integer" && slices.Contains(types, "number")) {
			types = append(types, kind)
		}
	}
	if len(types) == 0 {
		return "null"
	}
	return strings.Join(types, " or ")
}
