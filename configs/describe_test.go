package configs

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

func TestDescribeLoadsAndIsTheDefault(t *testing.T) {
	t.Parallel()
	c, err := Load(LoadOptions{File: file(t, string(Describe())), Env: []string{"LMOSD_DATA_DIR=/d"}})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Node.DataDir = "/d"
	if d := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{})); d != "" {
		t.Error(d)
	}
}

func TestDescribeHasLinesForPeople(t *testing.T) {
	t.Parallel()
	text := string(Describe())
	for line := range strings.Lines(text) {
		if len(line) > 120 {
			t.Errorf("%d bytes: %s", len(line), line)
		}
	}
	for _, want := range []string{"\n  # The timeout of a call if", "\n  timeout: 30s\n", "\n    memory: 256MiB\n",
		"Values: auto, server, client.", "\n  listen: \"127.0.0.1:4668\"\n", "\n  hosts: []\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	keys := Keys()
	if len(keys) < 30 {
		t.Errorf("only %d keys", len(keys))
	}
	for _, k := range keys {
		if len(k.Doc) < 20 || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s says %q", k.Name, k.Doc)
		}
		if got, _ := Default().Get(k.Name); k.Type != "string" && k.Type != "list" && got != k.Default {
			t.Errorf("%s has the default %q and prints %q", k.Name, got, k.Default)
		}
		if k.List() != (k.Type == "list") {
			t.Errorf("%s: list is %t", k.Name, k.List())
		}
	}
	if k := findKey(t, "mesh.limits.streams_per_peer"); k.Env() != "LMOSD_MESH__LIMITS__STREAMS_PER_PEER" || k.Type != "int" {
		t.Errorf("got %+v %s", k, k.Env())
	}
}

func TestYAMLHasOrigins(t *testing.T) {
	t.Parallel()
	path := file(t, "mesh:\n  network: \"true\"\n")
	c, err := Load(LoadOptions{File: path, Flags: flag("node.name", "a: b # c")})
	if err != nil {
		t.Fatal(err)
	}
	text := string(c.YAML(true))
	for _, want := range []string{`network: "true"  # from ` + path + ":2\n", `name: "a: b # c"  # from flag --node.name`,
		"untrusted: find  # from default\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(c.YAML(false)), "# from") {
		t.Error("origins were not asked for")
	}
	again(t, c)
}

func TestJSONHasTheSameTree(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Mesh struct {
			DHT    struct{ TTL string } `json:"dht"`
			Limits struct {
				Memory string `json:"memory"`
			} `json:"limits"`
		} `json:"mesh"`
		Trust struct {
			Rate struct {
				PerPeer string `json:"per_peer"`
			} `json:"rate"`
		} `json:"trust"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Mesh.DHT.TTL != "24h" || got.Mesh.Limits.Memory != "256MiB" || got.Trust.Rate.PerPeer != "100/s" {
		t.Errorf("got %s", b)
	}
	if i, j := strings.Index(string(b), `"node"`), strings.Index(string(b), `"storage"`); i < 0 || i > j {
		t.Errorf("not in the order of the file: %s", b)
	}
}

func TestMarshalYAMLKeepsTheOrder(t *testing.T) {
	t.Parallel()
	b, err := MarshalYAML(struct {
		Z string   `json:"z"`
		A []int    `json:"a"`
		M struct{} `json:"m"`
	}{Z: "007", A: []int{1, 2}})
	if err != nil || !strings.HasPrefix(string(b), "z: \"007\"\na:\n- 1\n- 2\n") {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := MarshalYAML(func() {}); err == nil {
		t.Error("a function has no YAML")
	}
}

func TestContexts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lmosd", "contexts.yaml")
	c, err := ReadContexts(path)
	if err != nil || len(c.Contexts) != 0 {
		t.Fatalf("an absent file gave %+v, %v", c, err)
	}
	c.Current = "tn-1"
	c.Contexts["tn-1"] = Context{Node: "http://127.0.0.1:41933", DataDir: "/d"}
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := ReadContexts(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, again, cmpopts.IgnoreUnexported(Contexts{})); d != "" {
		t.Error(d)
	}
	again.Current = ""
	if err := again.Write(path); err != nil {
		t.Error(err)
	}
	if err := c.Write(path); !errors.Is(err, atomicfile.ErrChanged) {
		t.Errorf("contexts that another command has changed are written: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || !slices.Equal(left, []string{path}) {
		t.Errorf("the folder has %v", left)
	}
}

func TestWrongContexts(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"an unknown key":     "apiVersion: lmosd/v1\ncurent: x\n",
		"a wrong type":       "contexts: 5\n",
		"no YAML":            "contexts: {\n",
		"an unknown version": "apiVersion: lmosd/v9\n",
		"a relative file":    "contexts: {a: {token_file: x}}\n",
		"deep nesting":       strings.Repeat("[", 100),
	} {
		if c, err := ReadContexts(file(t, text)); err == nil {
			t.Errorf("%s gave %+v", name, c)
		}
	}
	if err := (&Contexts{}).Write(filepath.Join(file(t, ""), "below", "contexts.yaml")); err == nil {
		t.Error("a file below a file was written")
	}
}

func FuzzContexts(f *testing.F) {
	f.Add([]byte("apiVersion: lmosd/v1\ncurrent: a\ncontexts: {a: {node: /x}}\n"))
	f.Add([]byte("contexts: &a {a: *a}\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		c := &Contexts{}
		if err := c.decode(source); err == nil && c.APIVersion != APIVersion {
			t.Errorf("version %q was read", c.APIVersion)
		}
	})
}
