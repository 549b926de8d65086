package prompt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// here is the folder of the test.
var here, _ = filepath.Abs(".")

// typed prompts a person who types lines, and returns the answer and the output.
func typed(t *testing.T, in interact.Input, lines ...string) (interact.Answer, string) {
	t.Helper()
	var out bytes.Buffer
	c := cli.New([]string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1"}, strings.NewReader(strings.Join(lines, "\n")), io.Discard, &out)
	answers, err := New(c, "ci\x1b").Ask(t.Context(), interact.Inputs{"q": in})
	if err != nil {
		t.Fatal(err)
	}
	return answers["q"], out.String()
}

func TestFields(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		schema string
		lines  []string
		want   string // content
		shown  string
	}{
		"text":              {`{"type":"string"}`, []string{"", " a b "}, `{"f":"a b"}`, "it is needed"},
		"default":           {`{"type":"string","default":"x"}`, []string{""}, `{"f":"x"}`, "f [x]: "},
		"length":            {`{"type":"string","minLength":3}`, []string{"ab", "abc"}, `{"f":"abc"}`, "✗ it must have at least 3 characters"},
		"email":             {`{"type":"string","format":"email"}`, []string{"a", "a@b.c"}, `{"f":"a@b.c"}`, `"a" is not a valid email`},
		"uri":               {`{"type":"string","format":"uri"}`, []string{"a", "a:b"}, `{"f":"a:b"}`, `"a" is not a valid uri`},
		"date":              {`{"type":"string","format":"date"}`, []string{"1.1.2026", "2026-01-01"}, `{"f":"2026-01-01"}`, "is not a valid date"},
		"date-time":         {`{"type":"string","format":"date-time"}`, []string{"now", "2026-01-01T10:00:00Z"}, `{"f":"2026-01-01T10:00:00Z"}`, "not a valid date-time"},
		"integer":           {`{"type":"integer","minimum":1}`, []string{"x", "1.5", "0", "2"}, `{"f":2}`, "f (integer from 1): "},
		"number":            {`{"type":"number","maximum":1}`, []string{"0.5"}, `{"f":0.5}`, "f (number to 1): "},
		"yes":               {`{"type":"boolean"}`, []string{"si", "Yes"}, `{"f":true}`, `"si" is neither y nor n`},
		"no by default":     {`{"type":"boolean","default":false}`, []string{""}, `{"f":false}`, "[n]"},
		"one by number":     {`{"type":"string","enum":["a","b"]}`, []string{"3", "2"}, `{"f":"b"}`, `"3" is not one of the choices`},
		"one by value":      {`{"type":"string","enum":["2","1"]}`, []string{"1"}, `{"f":"1"}`, " 1  2\n"},
		"one by title":      {`{"type":"string","oneOf":[{"const":"#f00","title":"Red"}]}`, []string{"red"}, `{"f":"#f00"}`, "1  #f00 (Red)"},
		"old names":         {`{"type":"string","enum":["x"],"enumNames":["Ex"]}`, []string{"ex"}, `{"f":"x"}`, "x (Ex)"},
		"several":           {`{"type":"array","items":{"enum":["a","b","c"]}}`, []string{"c, 1,"}, `{"f":["c","a"]}`, "any, with commas between"},
		"several by title":  {`{"type":"array","items":{"anyOf":[{"const":"a","title":"Ah"}]}}`, []string{"ah"}, `{"f":["a"]}`, "a (Ah)"},
		"none of several":   {`{"type":"array","items":{"enum":["a"]}}`, []string{""}, `{"f":[]}`, ""},
		"too few":           {`{"type":"array","minItems":1,"items":{"enum":["a"]}}`, []string{"", "a"}, `{"f":["a"]}`, "it is needed"},
		"JSON":              {`{"type":"object"}`, []string{"{", `{"a":1}`}, `{"f":{"a":1}}`, `"{" is not a valid object`},
		"what is not known": {`{"type":7,"title":{}}`, []string{"x"}, `{"f":"x"}`, ""},
		"a title that commands": {`{"type":"string","title":"a\u001b[31m","description":"why"}`, []string{"x"}, `{"f":"x"}`,
			"a\ufffd[31m: why\n"},
	} {
		a, shown := typed(t, interact.Input{Kind: interact.InputForm, Message: "Well?",
			Schema: []byte(`{"type":"object","required":["f"],"properties":{"f":` + c.schema + `}}`)}, append(c.lines, "")...)
		if a.Action != interact.Accept || string(a.Content) != c.want || !strings.Contains(shown, c.shown) || strings.Contains(shown, "\x1b") {
			t.Errorf("%s: got %s %s, shown %s", name, a.Action, a.Content, shown)
		}
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    interact.Input
		lines []string
		want  string
	}{
		"left out":     {form(`{"properties":{"z":{"type":"string"},"a":{"type":"integer"}}}`), []string{"", "1"}, `accept {"a":1}`},
		"in order":     {form(`{"properties":{"z":{"type":"string"},"a":{"type":"integer"}}}`), []string{"x", "1"}, `accept {"z":"x","a":1}`},
		"consent":      {form(``), []string{""}, "accept {}"},
		"one value":    {form(`{"type":"integer"}`), []string{"3"}, "accept 3"},
		"declined":     {form(`{"properties":{"z":{"type":"string"}}}`), []string{"!decline"}, "decline "},
		"cancelled":    {form(`{"properties":{"z":{"type":"string"}}}`), []string{"!cancel"}, "cancel "},
		"the end":      {form(`{"required":["z"],"properties":{"z":{"type":"string"}}}`), nil, "cancel "},
		"fields clash": {form(`{"minProperties":1,"properties":{"z":{"type":"string"}}}`), []string{"", "x"}, `accept {"z":"x"}`},
		"address":      {interact.Input{Kind: interact.InputURL, URL: "javascript:x"}, []string{"!decline"}, "decline "},
		"message":      {interact.Input{Kind: interact.InputMessage, Message: strings.Repeat("a\n", 90)}, []string{"", "hi"}, `accept "hi"`},
		"model": {interact.Input{Kind: interact.InputModel, Params: []byte(`{"messages":[{"role":"user","content":[{"type":"image"},{"type":"text","text":"?"}]}]}`)},
			[]string{"", "a", ""}, `accept {"content":{"text":"a","type":"text"},"model":"person","role":"assistant","stopReason":"endTurn"}`},
		"no model":   {interact.Input{Kind: interact.InputModel}, []string{"!decline"}, "decline "},
		"folders":    {interact.Input{Kind: interact.InputRoots}, []string{"/a b /c"}, `accept {"roots":[{"uri":"file:///a","name":"a"},{"uri":"file://` + here + `/b","name":"b"},{"uri":"file:///c","name":"c"}]}`},
		"no folders": {interact.Input{Kind: interact.InputRoots}, []string{""}, `accept {"roots":[]}`},
	} {
		a, shown := typed(t, c.in, append(c.lines, "")...)
		if got := a.Action + " " + string(a.Content); got != c.want {
			t.Errorf("%s: got %s, shown %s", name, got, shown)
		}
	}
}

func form(schema string) interact.Input {
	return interact.Input{Kind: interact.InputForm, Schema: []byte(schema)}
}

// An interruption is not an answer.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	in, typing := io.Pipe()
	defer typing.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answers, err := New(cli.New(nil, in, io.Discard, io.Discard), "ci").Ask(ctx, interact.Inputs{"q": form(`{"type":"string"}`)})
	if !errors.Is(err, context.Canceled) || len(answers) != 0 {
		t.Errorf("got %v, %v", answers, err)
	}
}

// Every input of an untrusted agent can be shown, without control characters.
func FuzzForm(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"array","items":{"enum":["x",1,null]}}}}`, "1,x")
	f.Add(`{"properties":{"a":{"oneOf":[{"const":{}}]},"a":7}}`, "\x1b")
	f.Fuzz(func(t *testing.T, schema, line string) {
		var out bytes.Buffer
		c := cli.New(nil, strings.NewReader(strings.Repeat(line+"\n", 20)), io.Discard, &out)
		in := interact.Inputs{"q": {Kind: interact.InputForm, Message: schema, Schema: []byte(schema)}}
		if _, err := New(c, "ci").Ask(t.Context(), in); err != nil || strings.ContainsRune(out.String(), '\x1b') {
			t.Errorf("%v: %q", err, out.String())
		}
		_ = Show(in)
		_ = Sample(in)
	})
}

// Missing prompts for missing members, and keeps the input if none is missing or the person cancels.
func TestMissing(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","required":["petId","status","tags","level"],"properties":{"petId":{"type":"integer","description":"The pet."},
		"status":{"type":"string","enum":["available","sold"]},"name":{"type":"string"},"level":{"oneOf":[{"type":"integer"},{"type":"null"}]},
		"tags":{"oneOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}}}`
	for name, c := range map[string]struct {
		schema, given string
		lines         []string
		want, shown   string
	}{
		"everything": {schema, "", []string{"x", "7", "2", "a", "3"}, `{"petId":7,"status":"sold","tags":"a","level":3}`, "zoo needs: "},
		"the rest": {schema, ` {"name":"Rex", "level":null, "status":"sold"} `, []string{"7", "a"},
			`{"name":"Rex", "level":null, "status":"sold","petId":7,"tags":"a"}`, "petId (integer): "},
		"nothing":         {schema, `{"petId":1,"status":"sold","tags":[],"level":1}`, nil, `{"petId":1,"status":"sold","tags":[],"level":1}`, ""},
		"who says no":     {schema, `{"petId":1}`, []string{"sold", "!decline"}, `{"petId":1}`, "!decline declines"},
		"who leaves":      {schema, ``, nil, ``, "The pet."},
		"no object":       {`{"type":"string"}`, ``, nil, ``, ""},
		"no object given": {schema, `[1]`, nil, `[1]`, ""},
		"null":            {schema, `null`, nil, `null`, ""},
		"an empty object": {`{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}}`, `{ }`, []string{"x"}, `{ "a":"x"}`, ""},
		"a list of JSON":  {`{"type":"object","required":["a"],"properties":{"a":{"type":"array","items":{"type":"integer"}}}}`, ``, []string{"x", "[1]"}, `{"a":[1]}`, "✗"},
	} {
		var s any
		if err := json.Unmarshal([]byte(c.schema), &s); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		to := cli.New([]string{"LMOSD_FORCE_TTY=80", "NO_COLOR=1"}, strings.NewReader(strings.Join(c.lines, "\n")), io.Discard, &out)
		got, err := New(to, "zoo").Missing(t.Context(), td.ParseSchema(s), []byte(c.given))
		if err != nil || string(got) != c.want || !strings.Contains(out.String(), c.shown) || c.shown == "" && len(c.lines) == 0 && out.Len() > 0 {
			t.Errorf("%s: got %s, %v, want %s; shown was\n%s", name, got, err, c.want, out.String())
		}
	}
}
