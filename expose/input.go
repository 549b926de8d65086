package expose

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/internal/textmatch"
	"github.com/lmosd/lmosd/td/openapi"
)

// inputTypes are the types of an input (TD 1.1 §5.3.2.1).
var inputTypes = []string{"array", "boolean", "integer", "number", "object", "string"}

// inputText is NAME:TYPE, optional with ? or a default. A parameter of an OpenAPI document can have other names than a member of a command.
var (
	inputText  = lazyregexp.New(`^([^\s:=?]{1,128}):([a-z]+)(\?|=(?s:.*))?$`)
	memberName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)
)

// An input is a declared member of the inputs of actions.
type input struct {
	openapi.Input
	text string
}

// parseInput reads an input without an action: NAME:TYPE is required, NAME:TYPE? is optional, and NAME:TYPE=VALUE is optional with a default,
// which is JSON if the type is not string. The agent itself applies the default.
func parseInput(text string) (in openapi.Input, err error) {
	m := inputText().FindStringSubmatch(text)
	if m == nil || !slices.Contains(inputTypes, m[2]) {
		return in, interact.Errorf(interact.Usage, "for example days:integer, city:string? or units:string=mm",
			"expected NAME:TYPE with one of the types %s, got %s", strings.Join(inputTypes, ", "), interact.Excerpt(text, 80))
	}
	in = openapi.Input{Name: m[1], Type: m[2], Required: m[3] == ""}
	if value, ok := strings.CutPrefix(m[3], "="); ok {
		in.Default = value
		if m[2] != "string" && (json.Unmarshal([]byte(value), &in.Default) != nil || !openapi.IsOf(in.Default, m[2])) {
			return in, interact.Errorf(interact.Usage, "a default is JSON of the type", "the default of %s is not of type %s: %s", m[1], m[2],
				interact.Excerpt(value, 80))
		}
	}
	return in, nil
}

// inputs reads the inputs of s, [ACTION.]NAME:TYPE. The name of an action may have dots, too.
func (s Spec) inputs(actions []string) (all []input, err error) {
	for _, text := range s.Inputs {
		one, action := text, ""
		for _, name := range actions {
			if rest, ok := strings.CutPrefix(text, name+"."); ok && len(name) > len(action) {
				one, action = rest, name
			}
		}
		in, err := parseInput(one)
		if err != nil {
			return nil, err
		}
		if dot := strings.LastIndexByte(in.Name, '.'); action == "" && dot > 0 {
			unknown := in.Name[:dot]
			e := interact.Errorf(interact.Usage, "name one of them before the dot", "no action is called %s: the actions are %s",
				interact.Excerpt(unknown, 60), listed(actions))
			return nil, s.meant(e, text, nearest(unknown, actions), text[dot:])
		}
		in.Action = action
		for _, other := range all {
			if other.Name == in.Name && (other.Action == action || other.Action == "" || action == "") {
				return nil, interact.Errorf(interact.Usage, "keep one of them", "the input %s is given twice", in.Name)
			}
		}
		all = append(all, input{in, text})
	}
	return all, nil
}

// meant completes an error about an input with the command that has right and rest in its place; without right, with the manual.
func (s Spec) meant(e *interact.Error, text, right, rest string) *interact.Error {
	if right == "" {
		return e.Then(interact.StepHelp, "expose")
	}
	s.Inputs = slices.Clone(s.Inputs)
	s.Inputs[slices.Index(s.Inputs, text)] = right + rest
	e.Hint = `did you mean "` + interact.Excerpt(right+rest, 80) + `"?`
	return e.Then(interact.StepExpose, s.flagged(s.Target)...)
}

// nearest returns the one of known that is most similar to word; "" if more than a third of the letters differ.
func nearest(word string, known []string) (best string) {
	w := []rune(textmatch.Fold(word))
	least := (len(w)+2)/3 + 1
	for _, k := range known {
		if d := textmatch.Distance(w, []rune(textmatch.Fold(k)), least); d < least {
			best, least = k, d
		}
	}
	return best
}

// listed returns names for an error.
func listed(names []string) string { return interact.Excerpt(strings.Join(names, ", "), 200) }

// withInputs returns the generated description of a command whose actions have the inputs.
func (s Spec) withInputs(raw []byte) ([]byte, error) {
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, interact.AsError(err)
	}
	actions, _ := doc["actions"].(map[string]any)
	all, err := s.inputs(slices.Sorted(maps.Keys(actions)))
	if err != nil {
		return nil, err
	}
	declared := map[string]map[string]any{}
	for _, in := range all {
		if !memberName().MatchString(in.Name) {
			return nil, interact.Errorf(interact.Usage, "for example days:integer", "the name of an input has only letters, digits, - and _, got %s",
				interact.Excerpt(in.Name, 80))
		}
		for name, action := range actions {
			a, ok := action.(map[string]any)
			if !ok || in.Action != "" && in.Action != name {
				continue
			}
			schema := declared[name]
			if schema == nil { // replaces the one that accepts any input
				schema = map[string]any{"type": "object", "properties": map[string]any{}}
				declared[name], a["input"] = schema, schema
			}
			member := map[string]any{"type": in.Type}
			if in.Default != nil {
				member["default"] = in.Default
			}
			schema["properties"].(map[string]any)[in.Name] = member
			if in.Required {
				required, _ := schema["required"].([]string)
				schema["required"] = append(required, in.Name)
			}
		}
	}
	return json.Marshal(doc)
}

// convert converts an OpenAPI document, with the declared inputs.
func (s Spec) convert(raw []byte, server string) (thing []byte, warnings []string, err error) {
	o := openapi.Options{Server: server, Name: s.Name}
	thing, warnings, err = openapi.Convert(raw, o)
	if err != nil || len(s.Inputs) == 0 {
		return thing, warnings, err
	}
	t, err := parseDraft(thing)
	if err != nil {
		return nil, nil, err
	}
	all, err := s.inputs(slices.Sorted(maps.Keys(t.Actions)))
	if err != nil {
		return nil, nil, err
	}
	for _, in := range all {
		o.Inputs = append(o.Inputs, in.Input)
	}
	thing, warnings, err = openapi.Convert(raw, o)
	var wrong *openapi.InputError
	if errors.As(err, &wrong) {
		in := all[wrong.Index]
		e := interact.Errorf(interact.Usage, "use the type that it has, or leave it out", "the input %s cannot be declared: %s", interact.Excerpt(in.text, 80), wrong.Reason)
		if !wrong.Has {
			e.Hint = "its parameters and members are " + cmp.Or(listed(wrong.Known), "none")
		}
		name, kind := nearest(in.Name, wrong.Known), in.Type
		if wrong.Has {
			name, kind = in.Name, wrong.Type
		}
		if name == "" || kind == "" {
			return nil, nil, s.meant(e, in.text, "", "")
		}
		if in.Action != "" {
			name = in.Action + "." + name
		}
		return nil, nil, s.meant(e, in.text, name+":"+kind, "")
	}
	return thing, warnings, err
}
