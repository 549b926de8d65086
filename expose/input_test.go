package expose

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td/openapi"
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
	for _, twice := range [][]string{{"a:string", "a:string"}, {"a:string", "run.a:integer"}, {"run.a:string", "a:integer"}} {
		if _, err := Open(t.Context(), Spec{Target: "exec:cat", Inputs: twice}, nil, nil); err == nil || !strings.Contains(err.Error(), "given twice") {
			t.Errorf("%q: %v", twice, err)
		}
	}
}

// An input with an action belongs to this action. Other actions without inputs accept any.
func TestInputsOfOneAction(t *testing.T) {
	t.Parallel()
	for actions, test := range map[string]struct{ inputs, want string }{
		"a b c":     {"a.city:string b.days:integer=3", "a: city string!; b: days integer; c: any"},
		"a b":       {"city:string a.days:integer?", "a: city string! days integer; b: city string!"},
		"get get.x": {"get.x.city:string get.x.y:string", "get: any; get.x: city string! y string!"},
		"a":         {"a.b.c:string u:string=a.b:integer", "a: b.c string! u string"},
	} {
		s := Spec{Target: "exec:cat", Actions: strings.Fields(actions), Inputs: strings.Fields(test.inputs)}
		x, err := Open(t.Context(), s, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", actions, err)
			continue
		}
		defer x.Close()
		thing, err := parseDraft(x.TD)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range strings.Fields(actions) {
			in, text := thing.Actions[name].Input, name+":"
			for _, member := range in.Properties() {
				text += " " + member + " " + in.Property(member).Type()
				if slices.Contains(in.Required(), member) {
					text += "!"
				}
			}
			if len(in.Properties()) == 0 {
				text += " any"
			}
			got = append(got, text)
		}
		if all := strings.Join(got, "; "); all != test.want {
			t.Errorf("%s with %s: %s, want %s", actions, test.inputs, all, test.want)
		}
	}
	s := Spec{Target: "exec:cat", Name: "m", Actions: []string{"lookup", "save"}, Dir: ".", Inputs: []string{"city:string", "lookop.days:integer=3"}}
	_, err := Open(t.Context(), s, nil, nil)
	if e := interact.AsError(err); err == nil || e.Code != interact.Usage || !strings.Contains(e.Title, "no action is called lookop: the actions are lookup, save") ||
		e.Hint != `did you mean "lookup.days:integer=3"?` || strings.Join(e.Next[0].Args, " ") !=
		"exec:cat name m action lookup action save input city:string input lookup.days:integer=3 dir ." {
		t.Errorf("%+v", e)
	}
	s.Inputs = []string{"other.days:integer"}
	_, err = Open(t.Context(), s, nil, nil)
	if e := interact.AsError(err); err == nil || e.Next[0].Kind != interact.StepHelp {
		t.Errorf("%+v", e)
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
		in, err := parseInput(text)
		if err == nil && (in.Name == "" || !slices.Contains(inputTypes, in.Type) || in.Default != nil && !openapi.IsOf(in.Default, in.Type)) {
			t.Errorf("%q gives %+v", text, in)
		}
	})
}
