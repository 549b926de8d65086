package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// outputs are the forms that -o names.
var outputs = []string{"table", "wide", "json", "jsonl", "yaml", "name"}

// A view is what a command found out, in each form that can be asked for.
type view struct {
	// doc is the document for programs: an object with apiVersion and kind; a list has items.
	doc any
	// names are for -o name.
	names []string
	// people writes the form for people to a screen; wide asks for more columns.
	people func(s *screen, wide bool)
}

// show prints v in the form that was asked for.
func (a *app) show(v view) error {
	switch a.flags.output {
	case "json":
		if a.flags.jq != "" {
			return a.filter(v.doc)
		}
		return a.writeJSON(v.doc)
	case "jsonl":
		return a.writeLines(v.doc)
	case "yaml":
		b, err := configs.MarshalYAML(v.doc)
		if err != nil {
			return err
		}
		return a.write(b)
	case "name":
		for _, n := range v.names {
			a.out.line(oneLine(n))
		}
		return nil
	}
	v.people(a.out, a.flags.output == "wide")
	return nil
}

// forPeople reports whether the output is for people: then hints and next commands go to standard error.
func (a *app) forPeople() bool { return a.flags.output == "table" || a.flags.output == "wide" }

// next tells people the commands that come next. What stands behind three spaces and "#" in one is a comment.
func (a *app) next(commands ...string) {
	if !a.forPeople() {
		return
	}
	for i, c := range commands {
		c, comment, found := strings.Cut(c, "   #")
		c = oneLine(c + a.same())
		if found {
			c += a.talk.paint(dim, "   #"+comment)
		}
		commands[i] = c
	}
	a.talk.line(a.talk.paint(dim, "next: ") + strings.Join(commands, a.talk.paint(dim, "   ·   ")))
}

// same returns the flags that lead another command to the node of this one.
func (a *app) same() string {
	flags := ""
	for _, f := range []struct{ name, value string }{{"--config", a.flags.config}, {"--data-dir", a.flags.dataDir}, {"--node", a.flags.node}} {
		if f.value != "" {
			flags += " " + f.name + " " + shell(f.value)
		}
	}
	return flags
}

// note tells people who asked for more.
func (a *app) note(format string, args ...any) {
	if a.flags.verbose {
		a.talk.line(oneLine(fmt.Sprintf(format, args...)))
	}
}

func (a *app) write(b []byte) error {
	_, err := a.out.Write(b)
	return err
}

// writeJSON prints one document: indented on a terminal, on one line elsewhere.
func (a *app) writeJSON(doc any) error {
	b, err := encode(doc, a.out.tty)
	if err != nil {
		return err
	}
	return a.write(b)
}

// encode returns doc as JSON with the end of a line. Characters of HTML stay as they are.
func encode(doc any, indent bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	err := e.Encode(doc)
	return b.Bytes(), err
}

// writeLines prints the items of a list, or the document if it is none, one on a line.
func (a *app) writeLines(doc any) error {
	b, err := encode(doc, false)
	if err != nil {
		return err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if list.Items == nil {
		return a.write(b)
	}
	for _, item := range list.Items {
		if err := a.write(append(item, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// query reads the expression of --jq.
func (a *app) query() (*gojq.Code, error) {
	q, err := gojq.Parse(a.flags.jq)
	if err == nil {
		var code *gojq.Code
		if code, err = gojq.Compile(q); err == nil {
			return code, nil
		}
	}
	return nil, &interact.Error{Code: interact.Usage, Title: "--jq is no jq expression", Hint: "for example --jq '.items[].name'", Err: err}
}

// filter prints what the expression of --jq gives for doc, one result on a line, strings as they are.
func (a *app) filter(doc any) error {
	code, err := a.query()
	if err != nil {
		return err
	}
	b, err := encode(doc, false)
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
		if err := a.result(v); err != nil {
			return err
		}
	}
}

// result prints one result of --jq.
func (a *app) result(v any) error {
	if s, ok := v.(string); ok {
		if a.out.tty {
			s = printable(s)
		}
		return a.write([]byte(s + "\n"))
	}
	return a.writeJSON(v)
}
