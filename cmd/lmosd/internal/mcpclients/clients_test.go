package mcpclients

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

var server = Server{Name: "lmosd", Command: "/usr/bin/lmosd", Args: []string{"mcp"}}

// golden compares with a file beside that of a case.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s\n%v", file, got, want, err)
	}
}

func TestOnlyTheEntryOfAFileChanges(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("testdata/*.before")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, file := range all {
		stem := strings.TrimSuffix(file, ".before")
		name, _, _ := strings.Cut(filepath.Base(stem), "_")
		t.Run(filepath.Base(stem), func(t *testing.T) {
			t.Parallel()
			c, err := Find(name)
			if err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			after, err := c.Add(before, server)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, stem+".after", after)
			golden(t, stem+".diff", []byte(Diff("FILE", before, after)))
			if again, err := c.Add(after, server); err != nil || !bytes.Equal(again, after) {
				t.Errorf("a second time changes it: %v\n%s", err, Diff("FILE", after, again))
			}
			removed, err := c.Remove(after, server.Name)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, stem+".removed", removed)
			if again, err := c.Remove(removed, server.Name); err != nil || !bytes.Equal(again, removed) {
				t.Errorf("removing a second time changes it: %v", err)
			}
		})
	}
}

func TestInvalidFilesAreUnchanged(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{`, `[]`, `{"mcpServers":[]}`, `{"a":1 "b":2}`, `{} x`, `{"a":}`, `{/* }`, `{"a":tru}`, `{"a":"b}`, `nothing`,
		`{,}`, `{"a":[,]}`, `{"a":1,,}`, `{}/*/`, `{"a":,}`, `{"a":1},`} {
		c, _ := Find("claude")
		if out, err := c.Add([]byte(text), server); err == nil {
			t.Errorf("%s became %s", text, out)
		}
	}
	c, _ := Find("codex")
	if out, err := c.Add([]byte("mcp_servers = { a = 1 }\n"), server); err == nil {
		t.Errorf("got %s", out)
	}
}

func TestPlacesOfFiles(t *testing.T) {
	t.Parallel()
	variable := func(name string) string {
		return map[string]string{"APPDATA": "C:/Users/a/AppData/Roaming", "CODEX_HOME": "/codex"}[name]
	}
	there := func(file string) bool { return file == "/home/b/.config/opencode/opencode.jsonc" }
	if c, _ := Find("opencode"); c.File("linux", "/home/b", variable, there) != "/home/b/.config/opencode/opencode.jsonc" {
		t.Error("opencode.jsonc is not found")
	}
	for _, test := range []struct{ client, system, want string }{
		{"claude", "linux", "/home/a/.claude.json"},
		{"claude-desktop", "darwin", "/home/a/Library/Application Support/Claude/claude_desktop_config.json"},
		{"claude-desktop", "windows", "C:/Users/a/AppData/Roaming/Claude/claude_desktop_config.json"},
		{"cursor", "windows", "/home/a/.cursor/mcp.json"},
		{"claude", "windows", "/home/a/.claude.json"},
		{"claude-desktop", "linux", "/home/a/.config/Claude/claude_desktop_config.json"},
		{"cursor", "darwin", "/home/a/.cursor/mcp.json"},
		{"gemini", "linux", "/home/a/.gemini/settings.json"},
		{"lmstudio", "windows", "/home/a/.lmstudio/mcp.json"},
		{"opencode", "linux", "/home/a/.config/opencode/opencode.json"},
		{"opencode", "windows", "/home/a/.config/opencode/opencode.json"},
		{"vscode", "linux", "/home/a/.config/Code/User/mcp.json"},
		{"vscode", "darwin", "/home/a/Library/Application Support/Code/User/mcp.json"},
		{"vscode", "windows", "C:/Users/a/AppData/Roaming/Code/User/mcp.json"},
		{"windsurf", "darwin", "/home/a/.codeium/windsurf/mcp_config.json"},
		{"zed", "linux", "/home/a/.config/zed/settings.json"},
		{"zed", "windows", "C:/Users/a/AppData/Roaming/Zed/settings.json"},
		{"codex", "linux", "/codex/config.toml"},
		{"zed", "darwin", "/home/a/.config/zed/settings.json"},
	} {
		c, err := Find(test.client)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.File(test.system, "/home/a", variable, there); got != test.want {
			t.Errorf("%s on %s: got %s, want %s", test.client, test.system, got, test.want)
		}
	}
	if _, err := Find("nobody"); err == nil {
		t.Error("an unknown client was found")
	}
}

// Whatever stands in a file, it is refused or keeps being one that can be read, and what is added can be taken out.
func FuzzAdd(f *testing.F) {
	all, _ := filepath.Glob("testdata/*.before")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"zed", "codex"} {
			c, _ := Find(name)
			after, err := c.Add(text, server)
			if err != nil {
				continue
			}
			again, err := c.Add(after, server)
			if err != nil || !bytes.Equal(again, after) {
				t.Fatalf("%s: %v\n%q\n%q", name, err, after, again)
			}
			removed, err := c.Remove(after, server.Name)
			if err != nil || name == "zed" && bytes.Contains(removed, []byte("/usr/bin/lmosd")) != bytes.Contains(text, []byte("/usr/bin/lmosd")) {
				t.Fatalf("%s: %v\n%q\n%q", name, err, text, removed)
			}
		}
	})
}

// The form that the documentation of each client asks for (see All), in a file that is new.
func TestFormOfEachClient(t *testing.T) {
	t.Parallel()
	const plain = `{"mcpServers":{"lmosd":{"command":"/usr/bin/lmosd","args":["mcp"]}}}`
	forms := map[string]string{
		"claude":         `{"mcpServers":{"lmosd":{"type":"stdio","command":"/usr/bin/lmosd","args":["mcp"]}}}`,
		"claude-desktop": plain,
		"codex":          "[mcp_servers.lmosd]\ncommand = \"/usr/bin/lmosd\"\nargs = [\"mcp\"]\n",
		"cursor":         plain,
		"gemini":         plain,
		"lmstudio":       plain,
		"opencode":       `{"mcp":{"servers":{"lmosd":{"type":"local","command":["/usr/bin/lmosd","mcp"]}}}}`,
		"vscode":         `{"servers":{"lmosd":{"type":"stdio","command":"/usr/bin/lmosd","args":["mcp"]}}}`,
		"windsurf":       plain,
		"zed":            `{"context_servers":{"lmosd":{"command":"/usr/bin/lmosd","args":["mcp"],"env":{}}}}`,
	}
	for _, c := range all {
		got, err := c.Add(nil, server)
		if err != nil {
			t.Fatal(err)
		}
		if !c.toml {
			var b bytes.Buffer
			if err := json.Compact(&b, got); err != nil {
				t.Fatal(err)
			}
			got = b.Bytes()
		}
		if string(got) != forms[c.Name] {
			t.Errorf("%s: got\n%s\nwant\n%s", c.Name, got, forms[c.Name])
		}
	}
}

// opencode of version 1 has its servers right below mcp (https://opencode.ai/v1/docs/mcp-servers): a file that has some keeps that form; what
// lmosd itself wrote there becomes today's.
func TestFormsOfOpencode(t *testing.T) {
	t.Parallel()
	c, err := Find("opencode")
	if err != nil {
		t.Fatal(err)
	}
	const old, now = `"lmosd":{"type":"local","command":["/usr/bin/lmosd","mcp"],"enabled":true}`, `"lmosd":{"type":"local","command":["/usr/bin/lmosd","mcp"]}`
	const other = `"files":{"type":"local","command":["npx"]}`
	for before, want := range map[string]string{
		`{"mcp":{` + other + `}}`:             `{"mcp":{` + other + `,` + old + `}}`,
		`{"mcp":{` + old + `}}`:               `{"mcp":{"servers":{` + now + `}}}`,
		`{"mcp":{"timeout":5}}`:               `{"mcp":{"timeout":5,"servers":{` + now + `}}}`,
		`{"mcp":{"servers":{` + other + `}}}`: `{"mcp":{"servers":{` + other + `,` + now + `}}}`,
		`{"theme":"x"}`:                       `{"theme":"x","mcp":{"servers":{` + now + `}}}`,
	} {
		after, err := c.Add([]byte(before), server)
		var compact bytes.Buffer
		if err != nil || json.Compact(&compact, after) != nil || compact.String() != want {
			t.Errorf("%s became %s, %v", before, after, err)
		}
		removed, err := c.Remove(after, server.Name)
		if err != nil || bytes.Contains(removed, []byte("lmosd")) {
			t.Errorf("%s: there is left %s, %v", before, removed, err)
		}
	}
}
