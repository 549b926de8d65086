package configs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
)

// The items name the origin of each value, and have no secret of it.
func TestItems(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lmosd.yaml")
	const text = `apiVersion: lmosd/v1
profile: lan
http:
  listen: 127.0.0.1:4670
telemetry:
  traces:
    endpoint: http://collector.example:4318/v1
agents:
  - "exec:'./weather.sh --secret hunter2' --name weather"
  - "'mcp:npx server --token=hunter2'"
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(LoadOptions{File: file, Env: []string{"LMOSD_MESH__MDNS=false", "LMOSD_DATA_DIR=/var/lib/lmosd"},
		Flags: map[string][]string{"interact.timeout": {"10s"}}})
	if err != nil {
		t.Fatal(err)
	}
	items := c.Items()
	if len(items) != len(Keys()) {
		t.Errorf("%d items of %d keys", len(items), len(Keys()))
	}
	all, err := json.Marshal(items)
	if err != nil || strings.Contains(string(all), "hunter2") {
		t.Errorf("%s, %v", all, err)
	}
	got := map[string]api.ConfigItem{}
	for _, i := range items {
		got[i.Key] = i
	}
	for _, want := range []api.ConfigItem{
		{Key: "http.listen", Value: "127.0.0.1:4670", Origin: api.OriginFile, Where: file + ":4"},
		{Key: "profile", Value: "lan", Origin: api.OriginFile, Where: file + ":2"},
		{Key: "mesh.mdns", Value: false, Origin: api.OriginEnv, Where: "LMOSD_MESH__MDNS"},
		{Key: "node.data_dir", Value: "/var/lib/lmosd", Origin: api.OriginEnv, Where: "LMOSD_DATA_DIR"},
		{Key: "interact.timeout", Value: "10s", Origin: api.OriginFlag, Where: "--interact.timeout"},
		{Key: "mqtt.listen", Value: "", Origin: api.OriginDefault},
		{Key: "telemetry.traces.endpoint", Value: "http://collector.example:4318/v1", Origin: api.OriginFile, Where: file + ":7"},
	} {
		if !reflect.DeepEqual(got[want.Key], want) {
			t.Errorf("%s: %+v, want %+v", want.Key, got[want.Key], want)
		}
	}
	if agents, ok := got["agents"].Value.([]string); !ok || len(agents) != 2 || agents[0] != "exec:./weather.sh … --name weather" || agents[1] != "mcp:npx …" {
		t.Errorf("agents %q", got["agents"].Value)
	}
}

// A value of the profile names it.
func TestItemsOfAProfile(t *testing.T) {
	t.Parallel()
	c, err := Load(LoadOptions{Flags: map[string][]string{"profile": {"public"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range c.Items() {
		if i.Origin == api.OriginProfile {
			if i.Where != "public" {
				t.Errorf("%+v", i)
			}
			return
		}
	}
	t.Error("no value is of the profile")
}

func TestWithoutSecrets(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"https://user:hunter2@h.example/v1?key=hunter2#x":    "https://h.example/v1",
		"mcp:https://user:hunter2@h.example/sse?key=hunter2": "mcp:https://h.example/sse",
		"https://h.example/%zz?key=hunter2#hunter2":          "https://h.example/%zz",
		"tcp+tls://h.example:6514":                           "tcp+tls://h.example:6514",
		"/ip4/192.0.2.7/tcp/4667":                            "/ip4/192.0.2.7/tcp/4667",
		"password=hunter2":                                   "password=[redacted]",
		"":                                                   "",
	} {
		if got := withoutSecrets(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
	for given, want := range map[string]string{
		"'mcp:https://user:hunter2@h.example/sse?key=hunter2' --name w": "mcp:https://h.example/sse --name w",
		"'a2a:https://h.example?key=hunter2' --trust-proxy=hunter2":     "[redacted]",
		"'openapi:https://h.example/x.json?sig=hunter2 hunter2'":        "openapi:https://h.example/x.json …",
	} {
		if got := agentName(given); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
	if got := agentName("exec:'"); got != "[redacted]" {
		t.Errorf("an incomplete line is %q", got)
	}
}
