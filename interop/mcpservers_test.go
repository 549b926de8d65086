package interop

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
)

// MCP servers of other authors, as they come from npm, are things of the mesh: their tools, resources and prompts are called and read
// over HTTP at another node than that to which they are attached, as `lmosd expose mcp:…` does it.
func TestMCPServers(t *testing.T) {
	modules(t)
	t.Parallel()
	m := newMesh(t)
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "note.txt"), []byte("Hello from a file."), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args  string
		env   []string
		least int // actions
		asks  [][3]string
	}{
		"everything": {"", nil, 18, [][3]string{ // path, input or nothing, what is in the answer
			{"actions/get-sum", `{"a":1,"b":2}`, `The sum of 1 and 2 is 3.`},
			{"actions/get-structured-content", `{"location":"New York"}`, `{"temperature":33,"conditions":"Cloudy","humidity":82}`},
			{"actions/get-tiny-image", `{}`, `"mimeType":"image/png"`},
			{"actions/trigger-long-running-operation", `{"duration":0.1,"steps":2}`, `completed`},
			{"actions/args-prompt", `{"city":"Bonn"}`, `{"messages":[{"role":"user"`},
			{"properties/features.md", ``, `# Everything Server - Features`},
			{"properties/Dynamic_Text_Resource?resourceId=3", ``, `Resource 3`},
			{"actions/get-sum", `{"a":"x","b":2}`, `LMOS-1400`},
		}},
		"filesystem": {folder, nil, 10, [][3]string{
			{"actions/read_text_file", `{"path":"` + folder + `/note.txt"}`, `Hello from a file.`},
			{"actions/read_text_file", `{"path":"/etc/passwd"}`, `Access denied`},
			{"actions/list_directory", `{"path":"` + folder + `"}`, `note.txt`},
		}},
		"memory": {"", []string{"MEMORY_FILE_PATH=" + filepath.Join(t.TempDir(), "m.jsonl")}, 9, [][3]string{
			{"actions/create_entities", `{"entities":[{"name":"Bo","entityType":"person","observations":["tall"]}]}`, `Bo`},
			{"actions/read_graph", `{}`, `tall`},
		}},
	} {
		line := "mcp:node node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js " + test.args
		x, err := expose.Open(t.Context(), expose.Spec{Target: line, Name: name, Env: test.env}, []bridge.Bridge{mcp.New(mcp.Options{Log: logger()})}, logger())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- agent.AttachChanging(ctx, m.wsHost, m.token, func() ([]byte, <-chan struct{}) { return x.TD, nil }, x.Thing, nil, logger())
		}()
		d := m.known(t, name)
		if len(d.Thing.Actions) < test.least {
			t.Errorf("%s: %d actions", name, len(d.Thing.Actions))
		}
		for _, ask := range test.asks {
			if got := askHTTP(t, m.api+"/things/"+name+"/"+ask[0], ask[1]); !strings.Contains(got, ask[2]) {
				t.Errorf("%s: %s %s: %s", name, ask[0], ask[1], interact.Clip(got, 500))
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		x.Close()
	}
}

// askHTTP reads, or posts an input.
func askHTTP(t *testing.T, at, input string) string {
	t.Helper()
	method := http.MethodGet
	if input != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(input))
	if err != nil {
		t.Fatal(err)
	}
	if input != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
