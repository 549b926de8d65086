package expose

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestInputsOfACommand(t *testing.T) {
	t.Parallel()
	x, err := Open(t.Context(), Spec{Target: "exec:cat", Actions: []string{"a", "b"}, Inputs: []string{"city:string", "days:integer=3", "units:string=mm", "deep:boolean?"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	thing, err := parseDraft(x.TD)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		in := thing.Actions[name].Input
		if got := strings.Join(in.Properties(), " "); got != "city days deep units" || strings.Join(in.Required(), " ") != "city" ||
			in.Property("days").Type() != "integer" || in.Property("units").Keyword("default") != "mm" {
			b, _ := json.Marshal(in.Value())
			t.Errorf("%s: %s", name, b)
		}
	}
	for input, says := range map[string]string{
		"days": "expected NAME:TYPE", "days:int": "expected NAME:TYPE", ":string": "expected NAME:TYPE", "a:integer=x": "not of type integer",
		"a b:string": "expected NAME:TYPE",
	} {
		if _, err := Open(t.Context(), Spec{Target: "exec:cat", Inputs: []string{input}}, nil, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", input, err)
		}
	}
	if _, err := Open(t.Context(), Spec{Target: "exec:cat", Inputs: []string{"a:string", "a:string"}}, nil, nil); err == nil {
		t.Error("an input is accepted twice")
	}
}

// A target that needs its scheme, and a program that is missing, are refused before there is an agent.
func TestTargetsWithoutAScheme(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run, script := write("run.sh", "#!/bin/sh\n", 0o700), write("script.sh", "#!/bin/sh\n", 0o600)
	api, yaml := write("api.json", `{"openapi":"3.1.0"}`, 0o600), write("api.yaml", "openapi: 3.1.0\n", 0o600)
	for name, test := range map[string]struct {
		spec Spec
		says string
		next string
	}{
		"a program":                    {Spec{Target: run, Name: "x"}, "is a program", "expose exec:" + run + " name x"},
		"a script":                     {Spec{Target: script}, "is a program", "expose exec:" + script},
		"an OpenAPI document":          {Spec{Target: api}, "OpenAPI document", "expose openapi:" + api},
		"one in YAML":                  {Spec{Target: yaml}, "OpenAPI document", "expose openapi:" + yaml},
		"a missing program":            {Spec{Target: "exec:no-such-program-anywhere -x"}, "no program is called no-such-program-anywhere", ""},
		"a missing file":               {Spec{Target: "exec:./nothing"}, "does not exist", "option dir DIR"},
		"a folder":                     {Spec{Target: "exec:" + dir}, "is a directory", ""},
		"a file that is not a program": {Spec{Target: "exec:" + script}, "is not executable", ""},
		"a file beside":                {Spec{Target: "exec:run.sh", Dir: dir}, "no program is called run.sh", "expose exec:./run.sh"},
	} {
		_, err := Open(t.Context(), test.spec, nil, nil)
		e := interact.AsError(err)
		if err == nil || !strings.Contains(e.Error(), test.says) || e.Hint == "" && len(e.Next) == 0 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		next := ""
		for _, s := range e.Next {
			next = string(s.Kind) + " " + strings.Join(s.Args, " ")
		}
		if next != test.next {
			t.Errorf("%s: next %q, want %q", name, next, test.next)
		}
	}
	for _, command := range []string{"cd /; ls", "exec cat", "X=1 cat", "for i in 1; do echo; done", "[ 1 = 1 ]", "'my program'"} {
		if x, err := Open(t.Context(), Spec{Target: "exec:" + command, Name: "x"}, nil, nil); err != nil {
			t.Errorf("%s: %v", command, err)
		} else {
			x.Close()
		}
	}
}

func FuzzParseInput(f *testing.F) {
	f.Add("days:integer=3")
	f.Add("city:string?")
	f.Fuzz(func(t *testing.T, text string) {
		name, schema, _, err := parseInput(text)
		if err == nil && (name == "" || td.ParseSchema(schema) == nil) {
			t.Errorf("%q gives %q, %v", text, name, schema)
		}
	})
}
