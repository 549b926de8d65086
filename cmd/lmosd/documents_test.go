package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// noDocument are the commands whose documents are not in testdata/documents.golden, with the reason.
var noDocument = map[string]string{
	"lmosd":                   "prints help",
	"lmosd completion":        "prints a script for a shell",
	"lmosd man":               "writes manual pages; TestManualPages holds them",
	"lmosd mcp":               "speaks MCP on its standard streams; mcpends_test.go holds it",
	"lmosd run":               "runs until a signal; run_test.go holds its document and layers.txtar the output",
	"lmosd login":             "needs an authorization server; login_test.go holds its document",
	"lmosd logout":            "needs an authorization server; login_test.go holds its document",
	"lmosd demo":              "runs nodes; demo_test.go holds its document",
	"lmosd testnet":           "has no result: it lists its commands",
	"lmosd testnet up":        "runs nodes; testnet_test.go holds its document",
	"lmosd testnet ls":        "needs the nodes of testnet up; testnet_test.go holds its document",
	"lmosd testnet exec":      "prints what the command at a node prints",
	"lmosd testnet logs":      "prints log files as they are",
	"lmosd testnet down":      "needs the nodes of testnet up; testnet_test.go holds its document",
	"lmosd testnet nat":       "needs network namespaces; testnet/nat holds its document",
	"lmosd keys rotate":       "runs a node; keysrotate_test.go holds its document",
	"lmosd keys succeed":      "needs two keys of an agent; exposekey_test.go holds its document",
	"lmosd config edit":       "opens an editor; config-change.txtar holds it",
	"lmosd config schema":     "prints a JSON Schema, which TestSchema of package configs holds",
	"lmosd upgrade":           "has no result: it lists its commands",
	"lmosd upgrade check":     "runs nodes; upgrade_test.go holds its document",
	"lmosd group watch":       "prints messages of a group, not documents; group.txtar holds them",
	"lmosd keys export":       "asks for a passphrase; keys.txtar runs it",
	"lmosd keys passphrase":   "asks for a passphrase; keys.txtar holds its document",
	"lmosd service uninstall": "needs an installed service; internal/service holds its document",
	"lmosd console":           "opens a browser",
	"lmosd service":           "has no result: it lists its commands",
	"lmosd expose":            "serves until a signal; expose.txtar holds its document",
	"lmosd policy":            "has no result: it lists its commands",
	"lmosd trust":             "has no result: it lists its commands",
	"lmosd org":               "has no result: it lists its commands",
	"lmosd org root":          "has no result: it lists its commands",
	"lmosd group":             "has no result: it lists its commands",
	"lmosd keys":              "has no result: it lists its commands",
	"lmosd hosting":           "has no result: it lists its commands",
	"lmosd config":            "has no result: it lists its commands",
	"lmosd new":               "has no result: it lists its commands",
	"lmosd context":           "has no result: it lists its commands",
	"lmosd audit":             "has no result: it lists its commands",
	"lmosd errors":            "has no result: it lists its commands",
	"lmosd token":             "has no result: it lists its commands",
	"lmosd task":              "has no result: it lists its commands",
	"lmosd org issuer":        "has no result: it lists its commands",
	"lmosd trust issuer":      "has no result: it lists its commands",
	"lmosd trust credential":  "has no result: it lists its commands",
}

// documentLines are the lines of commands whose first example has no document of its own.
var documentLines = map[string]string{
	"lmosd config set":     "lmosd config set http.hosts node.example -c other.yaml",
	"lmosd config migrate": "lmosd config migrate --check -c lmosd.yaml",
	"lmosd top":            "lmosd top --once",
	"lmosd context rm":     "lmosd context add second --node /run/lmosd.sock >/dev/null; lmosd context rm second",
	"lmosd hosting put":    signed + "lmosd hosting put weather.grant.json",
	"lmosd hosting renew":  signed + "lmosd hosting renew weather.grant.json --key owner.pem",
	"lmosd task answer":    "lmosd call curious getReport year=5 >/dev/null 2>&1; lmosd task answer a5c0 --cancel",
}

const signed = "lmosd hosting sign weather.td.json --key owner.pem --host z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH >/dev/null; "

// documentLine returns the command line that prints the document of a command: its first example without a pipe, as JSON.
func documentLine(path, examples string) string {
	if line, ok := documentLines[path]; ok {
		return line
	}
	for line := range strings.SplitSeq(examples, "\n") {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "   #")
		if strings.HasPrefix(line, path) && !strings.ContainsAny(line, "|>") && !strings.Contains(line, " -o ") && !strings.Contains(line, "--jq") {
			return strings.ReplaceAll(line, "http://127.0.0.1:4670", "$URL")
		}
	}
	return path
}

// TestDocuments compares the members of the JSON documents of all commands, with their types, with testdata/documents.golden; -update
// rewrites it. Each document is the output of an example against the fake node.
func TestDocuments(t *testing.T) {
	t.Parallel()
	var script strings.Builder
	var wanted []string
	for _, c := range visible(newTree(&bytes.Buffer{})) {
		path := c.CommandPath()
		if !c.Runnable() || noDocument[path] != "" {
			continue
		}
		line := documentLine(path, c.Example)
		if c.Annotations["impact"] == cli.Danger && !strings.Contains(line, "--yes") {
			line += " --yes"
		}
		wanted = append(wanted, path)
		fmt.Fprintf(&script, "document %s %s\n", quoteArg(path), quoteArg(line+" -o json"))
	}
	var mu sync.Mutex
	got := map[string]string{}
	t.Cleanup(func() { compareDocuments(t, wanted, got) })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "documents.txtar"), []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{Dir: dir, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error { return errors.Join(setUp(env), exampleFiles(env)) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"document": func(ts *testscript.TestScript, _ bool, args []string) {
			_ = ts.Exec("timeout", "60", "sh", "-c", args[1]) // a command that finds problems prints them, and has another exit code
			shape, err := shapeOf(ts.ReadFile("stdout"))
			if err != nil {
				ts.Logf("%s: %v: %s", args[1], err, ts.ReadFile("stderr"))
			}
			mu.Lock()
			defer mu.Unlock()
			got[args[0]] = shape
		}},
	})
}

// compareDocuments compares the shapes of documents with the golden file.
func compareDocuments(t *testing.T, wanted []string, got map[string]string) {
	file := filepath.Join("testdata", "documents.golden")
	if *update {
		var b strings.Builder
		for _, path := range slices.Sorted(maps.Keys(got)) {
			if got[path] != "" {
				fmt.Fprintf(&b, "$ %s\n%s\n", path, got[path])
			}
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden := map[string]string{}
	for part := range strings.SplitSeq("\n"+string(content), "\n$ ") {
		path, shape, _ := strings.Cut(part, "\n")
		golden[path] = strings.TrimSpace(shape)
	}
	for _, path := range wanted {
		switch shape := strings.TrimSpace(got[path]); {
		case shape == "":
			t.Errorf("%s -o json prints no document with apiVersion and kind: let its first example print one at the fake node (fake_test.go), "+
				"name another line in documentLines, or the reason in noDocument", path)
		case golden[path] == "":
			t.Errorf("the document of %s is not in %s: add it with go test ./cmd/lmosd -run TestDocuments -update", path, file)
		case golden[path] != shape:
			t.Errorf("the document of %s differs from %s (go test ./cmd/lmosd -run TestDocuments -update):\n%s", path, file, shape)
		}
	}
	for path := range noDocument {
		if golden[path] != "" {
			t.Errorf("%s has a document in %s, and a reason why not", path, file)
		}
	}
}

// shapeOf returns a line for each member of the documents of text, with its type. The members of items of a list are taken together.
func shapeOf(text string) (string, error) {
	types := map[string]map[string]bool{}
	var visit func(path string, v any)
	visit = func(path string, v any) {
		kind := "null"
		switch v := v.(type) {
		case map[string]any:
			kind = "object"
			for name, member := range v {
				visit(strings.TrimPrefix(path+"."+name, "."), member)
			}
		case []any:
			kind = "array"
			for _, item := range v {
				visit(path+"[]", item)
			}
		case string:
			kind = "string"
		case float64:
			kind = "number"
		case bool:
			kind = "boolean"
		}
		if kind == "object" && path == "" {
			return
		}
		if types[path] == nil {
			types[path] = map[string]bool{}
		}
		types[path][kind] = true
	}
	documents := json.NewDecoder(strings.NewReader(text))
	count := 0
	for {
		var v map[string]any
		switch err := documents.Decode(&v); {
		case errors.Is(err, io.EOF) && count == 0:
			return "", errors.New("no document")
		case errors.Is(err, io.EOF):
			var b strings.Builder
			for _, path := range slices.Sorted(maps.Keys(types)) {
				fmt.Fprintf(&b, "%s %s\n", path, strings.Join(slices.Sorted(maps.Keys(types[path])), "|"))
			}
			return b.String(), nil
		case err != nil:
			return "", err
		case v["apiVersion"] == nil || v["kind"] == nil:
			return "", errors.New("the document has no apiVersion or no kind")
		}
		visit("", v)
		types["kind"] = map[string]bool{fmt.Sprintf("%q", v["kind"]): true}
		count++
	}
}

func TestShapeOf(t *testing.T) {
	t.Parallel()
	got, err := shapeOf(`{"apiVersion":"a","kind":"K","items":[{"n":1},{"n":"x","m":null}],"z":{"y":true}}`)
	if want := "apiVersion string\nitems array\nitems[] object\nitems[].m null\nitems[].n number|string\nkind \"K\"\nz object\nz.y boolean\n"; err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}
	for _, text := range []string{"", "x", `{"kind":"K"}`, `[]`} {
		if _, err := shapeOf(text); err == nil {
			t.Errorf("%s is a document", text)
		}
	}
}
