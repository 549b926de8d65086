package cli

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/itchyny/gojq"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// outputs are the values of -o.
var outputs = []string{"table", "wide", "json", "jsonl", "yaml", "name"}

// A View is the result of a command in all output formats.
type View struct {
	// Doc is the document for programs: an object with apiVersion and kind; a list has items.
	Doc any
	// Names are for -o name.
	Names []string
	// People writes the form for people to a screen; wide has more columns.
	People func(s *terminal.Screen, wide bool)
}

// A Head has the first members of each document.
type Head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// NewHead returns the head of a document of the given kind.
func NewHead(kind string) Head { return Head{api.APIVersion, kind} }

// A List is a document with items.
type List[T any] struct {
	Head
	Items []T `json:"items"`
}

// Body returns the [View.People] that writes a table or a sheet.
func Body(b interface{ Write(*terminal.Screen) }) func(*terminal.Screen, bool) {
	return func(s *terminal.Screen, _ bool) { b.Write(s) }
}

// Line returns the [View.People] that writes one line.
func Line(text string) func(*terminal.Screen, bool) {
	return func(s *terminal.Screen, _ bool) { s.Line(terminal.OneLine(text)) }
}

// Each applies name to each item, for [View.Names].
func Each[T any](items []T, name func(T) string) (names []string) {
	for _, i := range items {
		names = append(names, name(i))
	}
	return names
}

// ShowNext prints v as one of a sequence of documents.
func (c *Console) ShowNext(v View) error {
	if c.Flags.Output == "yaml" {
		c.Out.Line("---")
	}
	return c.Show(v)
}

// Show prints v in the requested format. A failed --jq expression is [interact.Usage].
func (c *Console) Show(v View) error {
	switch c.Flags.Output {
	case "json":
		if c.Flags.jq != "" {
			return c.filter(v.Doc)
		}
		return c.writeJSON(v.Doc)
	case "jsonl":
		return c.writeLines(v.Doc)
	case "yaml":
		b, err := configs.MarshalYAML(v.Doc)
		if err != nil {
			return err
		}
		return c.Print(b)
	case "name":
		for _, n := range v.Names {
			c.Out.Line(terminal.OneLine(n))
		}
		return nil
	}
	v.People(c.Out, c.Flags.Output == "wide")
	return nil
}

// writeJSON prints one document: indented on a terminal, on one line elsewhere.
func (c *Console) writeJSON(doc any) error {
	b, err := Encode(doc, c.Out.TTY)
	if err != nil {
		return err
	}
	return c.Print(b)
}

// Encode returns doc as JSON with a line end. HTML characters are not escaped.
func Encode(doc any, indent bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	err := e.Encode(doc)
	return b.Bytes(), err
}

// writeLines prints the items of a list, or another document, one per line.
func (c *Console) writeLines(doc any) error {
	b, err := Encode(doc, false)
	if err != nil {
		return err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if json.Unmarshal(b, &list) != nil || list.Items == nil { // items that are an object are no list
		return c.Print(b)
	}
	for _, item := range list.Items {
		if err := c.Print(append(item, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// query parses the expression of --jq.
func (c *Console) query() (*gojq.Code, error) {
	q, err := gojq.Parse(c.Flags.jq)
	if err == nil {
		var code *gojq.Code
		if code, err = gojq.Compile(q); err == nil {
			return code, nil
		}
	}
	return nil, &interact.Error{Code: interact.Usage, Title: "expected a jq expression after --jq", Hint: "for example --jq '.items[].name'", Err: err}
}

// filter prints the results of the --jq expression for doc, one per line, strings unquoted.
func (c *Console) filter(doc any) error {
	code, err := c.query()
	if err != nil {
		return err
	}
	b, err := Encode(doc, false)
	if err != nil {
		return err
	}
	var input any
	if err := json.Unmarshal(b, &input); err != nil {
		return err
	}
	results := code.Run(input)
	for {
		v, ok := results.Next()
		if !ok {
			return nil
		}
		if err, isErr := v.(error); isErr {
			var halt *gojq.HaltError
			if errors.As(err, &halt) && halt.Value() == nil {
				return nil
			}
			return &interact.Error{Code: interact.Usage, Title: "--jq failed", Hint: "look at the document with -o json", Err: err}
		}
		if err := c.result(v); err != nil {
			return err
		}
	}
}

// result prints one result of --jq.
func (c *Console) result(v any) error {
	if s, ok := v.(string); ok {
		if c.Out.TTY {
			s = terminal.Printable(s)
		}
		return c.Print([]byte(s + "\n"))
	}
	return c.writeJSON(v)
}
