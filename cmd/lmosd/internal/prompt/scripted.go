package prompt

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Words are the answers on a command line.
type Words struct {
	Args    []string // like those of lmosd call; for several inputs, all answers as JSON
	Decline bool
	Cancel  bool
	Roots   []string // folders
}

// None reports whether there are no answers.
func (w *Words) None() bool { return len(w.Args) == 0 && !w.Decline && !w.Cancel && len(w.Roots) == 0 }

// Answer answers all inputs. The error is of code [interact.Usage], or [interact.Invalid] with the issues.
func (w *Words) Answer(c *cli.Console, in interact.Inputs) (interact.Answers, error) {
	answers, err := w.Folders(in)
	if err != nil {
		return nil, err
	}
	open := slices.DeleteFunc(slices.Sorted(maps.Keys(in)), func(key string) bool { _, done := answers[key]; return done })
	action := ""
	switch {
	case w.Decline && w.Cancel || (w.Decline || w.Cancel) && len(w.Args) > 0:
		return nil, cli.Usage("use one of them", "an answer, --decline and --cancel exclude each other")
	case w.Decline:
		action = interact.Decline
	case w.Cancel:
		action = interact.Dismiss
	case len(open) > 1:
		return w.whole(c, in, open, answers)
	}
	for _, key := range open {
		a := interact.Answer{Action: action}
		if action == "" {
			if a, err = w.accept(c, in[key]); err != nil {
				return nil, err
			}
		}
		answers[key] = a
	}
	return answers, nil
}

// Folders answers the inputs that require folders, if there are any.
func (w *Words) Folders(in interact.Inputs) (interact.Answers, error) {
	answers := interact.Answers{}
	for key, one := range in {
		if one.Kind != interact.InputRoots || len(w.Roots) == 0 {
			continue
		}
		content, err := roots(w.Roots)
		if err != nil {
			return nil, err
		}
		answers[key] = interact.Answer{Action: interact.Accept, Content: content}
	}
	return answers, nil
}

// whole reads answers by their keys.
func (w *Words) whole(c *cli.Console, in interact.Inputs, open []string, answers interact.Answers) (interact.Answers, error) {
	together := cli.Usage(Sample(in), "%s required: answer them together", terminal.Count(len(open), "input is", "inputs are"))
	if len(w.Args) != 1 || !strings.HasPrefix(w.Args[0], ":=") && !strings.HasPrefix(w.Args[0], "@") && w.Args[0] != "-" {
		return nil, together
	}
	raw, err := input.Read(c, nil, w.Args)
	if err != nil {
		return nil, err
	}
	var given interact.Answers
	if json.Unmarshal(raw, &given) != nil {
		return nil, together
	}
	for _, key := range open {
		a, ok := given[key]
		if !ok || !slices.Contains([]string{interact.Accept, interact.Decline, interact.Dismiss}, a.Action) {
			return nil, cli.Usage(Sample(in), "expected an answer to %s", key)
		}
		answers[key] = a
	}
	return answers, nil
}

// accept reads the answer to one input.
func (w *Words) accept(c *cli.Console, in interact.Input) (a interact.Answer, err error) {
	a.Action = interact.Accept
	switch in.Kind {
	case interact.InputURL:
		if len(w.Args) > 0 {
			return a, cli.Usage("answer without arguments after the address was opened", "an address requires no answer")
		}
		return a, nil
	case interact.InputRoots:
		return a, cli.Usage("--root DIR, or --decline", "folders are required")
	case interact.InputModel:
		a.Content, err = w.model(c)
		return a, err
	case interact.InputMessage:
		a.Content, err = input.Read(c, text, w.Args)
	default:
		a.Content, err = input.Read(c, schemaOf(in.Schema), w.Args)
	}
	if err == nil && a.Content == nil {
		a.Content = json.RawMessage("{}")
	}
	if err == nil {
		err = fits(in, a.Content)
	}
	return a, err
}

// fits validates the values of a form.
func fits(in interact.Input, content json.RawMessage) error {
	if in.Kind == interact.InputMessage {
		return nil
	}
	if issues := misfits(schemaOf(in.Schema), content); len(issues) > 0 {
		return &interact.Error{Code: interact.Invalid, Title: "the answer does not fit the request: " + issues[0].String(),
			Hint: "give " + sampleOf(in), Issues: issues}
	}
	return nil
}

// model reads the answer of a model: words, or the whole as JSON.
func (w *Words) model(c *cli.Console) (json.RawMessage, error) {
	if len(w.Args) == 0 {
		return nil, cli.Usage("write the words, or --decline", "the answer of a model is required")
	}
	raw, err := input.Read(c, text, w.Args)
	var words string
	if err != nil || json.Unmarshal(raw, &words) != nil {
		return raw, err
	}
	return freeText(words), nil
}

// text is the schema of words.
var text = td.ParseSchema(map[string]any{"type": "string"})

// Sample returns the arguments of an answer after the id of the task.
func Sample(in interact.Inputs) string {
	if len(in) == 1 {
		for _, one := range in {
			return sampleOf(one)
		}
	}
	all := interact.Answers{}
	for key, one := range in {
		a := interact.Answer{Action: interact.Accept}
		if one.Kind == interact.InputForm {
			a.Content = json.RawMessage(`{}`)
		}
		all[key] = a
	}
	return ":=" + terminal.Shell(string(encoded(all)))
}

func sampleOf(in interact.Input) string {
	switch in.Kind {
	case interact.InputURL:
		return ""
	case interact.InputRoots:
		return "--root DIR"
	case interact.InputModel, interact.InputMessage:
		return "WORDS"
	}
	fields := fieldsOf(in.Schema)
	if len(fields) == 1 && fields[0].name == "" {
		return fields[0].sample()
	}
	needed := slices.DeleteFunc(slices.Clone(fields), func(f field) bool { return !f.required })
	if len(needed) == 0 {
		needed = fields
	}
	var words []string
	for _, f := range needed {
		if f.Type == "array" {
			words = append(words, terminal.Shell(f.name)+":="+terminal.Shell("["+f.sample()+"]"))
		} else {
			words = append(words, terminal.Shell(f.name)+"="+terminal.Shell(f.sample()))
		}
	}
	return strings.Join(words, " ")
}

// sample returns a valid value, if one is known.
func (f *field) sample() string {
	switch options := f.options(); {
	case len(options) > 0 && f.Type == "array":
		return string(encoded(options[0].Const))
	case len(options) > 0:
		return options[0].word()
	case f.Type == "boolean":
		return "true"
	case f.Minimum != nil:
		return f.Minimum.String()
	}
	return "…"
}

// Show prints the required inputs, one per line.
func Show(in interact.Inputs) (lines []string) {
	for _, key := range slices.Sorted(maps.Keys(in)) {
		one := in[key]
		what := one.Message
		switch one.Kind {
		case interact.InputURL:
			what += "  " + one.URL
		case interact.InputModel:
			what += "what a model says to:"
			for _, s := range conversation(one.Params) {
				what += " " + s.role + ": " + s.text
			}
		case interact.InputRoots:
			what += "folders that may be worked in"
		default:
			var fields []string
			for _, f := range fieldsOf(one.Schema) {
				fields = append(fields, f.label(f.words(), "true or false"))
			}
			if len(fields) > 0 {
				what += "  " + strings.Join(fields, ", ")
			}
		}
		lines = append(lines, terminal.OneLine(key+"  "+what))
	}
	return lines
}
