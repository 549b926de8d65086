package configs

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestEdit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source, key string
		values      []string // nil: the key is removed
		want        string
	}{
		"a value":              {"# top\nhttp:\n  # port\n  listen: \"127.0.0.1:1\"  # why\nmesh: {}\n", "http.listen", []string{"127.0.0.1:2"}, "# top\nhttp:\n  # port\n  listen: \"127.0.0.1:2\"  # why\nmesh: {}\n"},
		"in braces":            {"http: {listen: \"127.0.0.1:1\", auth: token} # x\n", "http.listen", []string{"127.0.0.1:2"}, "http: {listen: \"127.0.0.1:2\", auth: token} # x\n"},
		"the last in braces":   {"trust: {rate: {per_peer: 5/s}}\n", "trust.rate.per_peer", []string{"50/s"}, "trust: {rate: {per_peer: 50/s}}\n"},
		"added in braces":      {"http: {auth: token} # x\n", "http.console", []string{"false"}, "http: {auth: token, console: false} # x\n"},
		"added deep in braces": {"mesh: {}\n", "mesh.dht.mode", []string{"client"}, "mesh: {dht: {mode: client}}\n"},
		"added to a section":   {"http:\n    auth: token # x\n\n# the mesh\nmesh:\n    mdns: false\n", "http.console", []string{"false"}, "http:\n    auth: token # x\n    console: false\n\n# the mesh\nmesh:\n    mdns: false\n"},
		"a new section":        {"# only a comment\n", "mesh.dht.mode", []string{"client"}, "# only a comment\nmesh:\n  dht:\n    mode: client\n"},
		"a section without":    {"mesh:\n  # mdns: false\nhttp:\n  auth: token\n", "mesh.mdns", []string{"false"}, "mesh:\n  mdns: false\n  # mdns: false\nhttp:\n  auth: token\n"},
		"an empty file":        {"", "node.name", []string{"a b"}, "node:\n  name: \"a b\"\n"},
		"no line end":          {"profile: lan", "node.name", []string{"x"}, "profile: lan\nnode:\n  name: x\n"},
		"carriage returns":     {"profile: lan\r\nnode:\r\n  name: x # y\r\n", "node.name", []string{"z"}, "profile: lan\r\nnode:\r\n  name: z # y\r\n"},
		"a list":               {"http:\n  hosts: [a.example]\n", "http.hosts", []string{"b.example", "c.example"}, "http:\n  hosts: [\"b.example\", \"c.example\"]\n"},
		"a list with commas":   {"http:\n  hosts: [a.example]\n", "http.hosts", []string{"b.example,c.example"}, "http:\n  hosts: [\"b.example\", \"c.example\"]\n"},
		"a list over lines":    {"agents:\n  # one\n  - exec:a\n  # two\n  - exec:b # b\nnode: {name: x}\n", "agents", []string{"exec:b", "exec:c"}, "agents:\n  # two\n  - exec:b # b\n  - \"exec:c\"\nnode: {name: x}\n"},
		"a list that ends":     {"agents:\n- exec:a\n", "agents", []string{""}, "agents: []\n"},
		"removed":              {"http:\n  # port\n  listen: \"127.0.0.1:1\"\n  auth: token\n", "http.listen", nil, "http:\n  # port\n  auth: token\n"},
		"removed with section": {"mesh:\n  dht:\n    mode: client\nnode: {name: x}\n", "mesh.dht.mode", nil, "node: {name: x}\n"},
		"removed in braces":    {"http: {listen: \"127.0.0.1:1\", auth: token}\n", "http.auth", nil, "http: {listen: \"127.0.0.1:1\"}\n"},
		"the first in braces":  {"http: {listen: \"127.0.0.1:1\", auth: token}\n", "http.listen", nil, "http: {auth: token}\n"},
		"not there":            {"http: {auth: token}\n", "node.name", nil, "http: {auth: token}\n"},
		"a null":               {"node:\n  name:   # none\n", "node.name", []string{"x"}, "node:\n  name: x #  none\n"},
		"no ASCII":             {"node: {name: \"Käte\", data_dir: /d} # ü\n", "node.data_dir", []string{"/é"}, "node: {name: \"Käte\", data_dir: \"/é\"} # ü\n"},
	} {
		got, err := Edit("lmosd.yaml", []byte(c.source), c.key, c.values, c.values == nil)
		if want := strings.ReplaceAll(c.want, "#  none", "# none"); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	for name, c := range map[string]struct{ source, key, value, says string }{
		"a wrong value":      {"", "trust.rate.per_peer", "5", "expected a rate"},
		"an unknown key":     {"", "htp.listen", "5", "no key is called"},
		"a broken file":      {"http: {listen: \n", "http.auth", "none", "lmosd.yaml:"},
		"an unknown key too": {"htp: 5\n", "http.auth", "none", "unknown key"},
		"an anchor":          {"node: {name: &a x}\n", "node.name", "y", ""},
	} {
		if got, err := Edit("lmosd.yaml", []byte(c.source), c.key, []string{c.value}, false); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
}

// Every key can be set and removed in the file that describe prints, in an empty one and in one line, and only its lines change.
func TestEditOfEveryKey(t *testing.T) {
	t.Parallel()
	flow, err := yaml.YAMLToJSON(Default().YAML(false))
	if err != nil {
		t.Fatal(err)
	}
	for form, source := range map[string][]byte{"describe": Describe(), "new": NewFile(), "JSON": flow} {
		for _, k := range Keys() {
			other := otherValue(t, k)
			if other == nil {
				continue
			}
			with, err := Edit("f", source, k.Name, other, false)
			if err != nil {
				t.Errorf("%s: %s = %q: %v", form, k.Name, other, err)
				continue
			}
			if rows := Diff(source, with); form == "describe" && len(rows) != 2 {
				t.Errorf("%s: %d lines changed: %q", k.Name, len(rows), rows)
			}
			without, err := Edit("f", with, k.Name, nil, true)
			if err != nil || form == "new" && !bytes.Equal(without, source) {
				t.Errorf("%s: without %s: %v\n%s", form, k.Name, err, without)
			}
		}
	}
}

func FuzzEdit(f *testing.F) {
	f.Add("http: {listen: x}\nmesh:\n  - a\n", "mesh.mdns", "false", false)
	f.Add("agents:\n- a\n", "agents", "b,c", true)
	f.Fuzz(func(t *testing.T, source, key, value string, unset bool) {
		got, err := Edit("f", []byte(source), key, []string{value}, unset)
		var ps problems
		if err == nil && readYAML("f", got, &ps) == nil && ps.err() != nil {
			t.Errorf("%q became %q: %v", source, got, ps.err())
		}
	})
}

func TestSchema(t *testing.T) {
	t.Parallel()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaID, doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile(SchemaID)
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) error {
		j, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	for name, text := range map[string][]byte{"describe": Describe(), "new": NewFile(), "nulls": []byte("mesh:\nhttp: {listen: null}\n")} {
		if err := check(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, k := range Keys() {
		if other := otherValue(t, k); other != nil {
			with, err := Edit("f", NewFile(), k.Name, other, false)
			if err != nil {
				t.Fatal(err)
			}
			if err := check(with); err != nil {
				t.Errorf("%s = %q: %v", k.Name, other, err)
			}
		}
	}
	for _, bad := range []string{"htp: {}\n", "http: {listen: 5}\n", "trust: {untrusted: never}\n", "trust: {rate: {per_peer: 5}}\n", "mesh: {limits: {streams_per_peer: 7}}\n", "http: {oidc: [{nme: x}]}\n", "interact: {timeout: soon}\n"} {
		if check([]byte(bad)) == nil {
			t.Errorf("%q is valid", bad)
		}
	}
	var marks struct {
		ID         string `json:"$id"`
		Properties struct {
			Trust struct {
				Description string
				Properties  struct {
					Rate struct {
						Properties map[string]struct {
							Reloadable  bool   `json:"x-reloadable"`
							Env         string `json:"x-env"`
							Description string
							Default     any
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(Schema(), &marks); err != nil {
		t.Fatal(err)
	}
	one := marks.Properties.Trust.Properties.Rate.Properties["per_peer"]
	if marks.ID != "urn:lmosd:schema:config:v1" || !one.Reloadable || one.Env != "LMOSD_TRUST__RATE__PER_PEER" || one.Default != "100/s" || one.Description == "" ||
		marks.Properties.Trust.Description == "" {
		t.Errorf("%+v", marks)
	}
	if !slices.IsSorted([]int{bytes.Index(Schema(), []byte(`"node"`)), bytes.Index(Schema(), []byte(`"storage"`))}) {
		t.Error("not in the order of the file")
	}
}
