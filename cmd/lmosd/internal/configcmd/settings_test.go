package configcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// config runs `lmosd config` in a home of its own, and returns what it printed.
func config(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := cli.New([]string{"HOME=" + t.TempDir()}, nil, &out, &out)
	root := &cobra.Command{Use: "lmosd", SilenceErrors: true, SilenceUsage: true}
	c.Flags.Register(root.PersistentFlags())
	root.AddCommand(NewConfigCommand(c, nil))
	root.SetArgs(append([]string{"config"}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestEveryKeyIsAFlag(t *testing.T) {
	t.Parallel()
	for _, k := range configs.Keys() {
		if k.Name == "apiVersion" || k.Name == "node.data_dir" {
			continue
		}
		value := strings.Trim(k.Default, `"`)
		if k.List() {
			value = "/ip4/127.0.0.1/tcp/1/p2p/x"
		}
		if k.Name == "mesh.filter" {
			value = "10.0.0.0/8"
		}
		if k.Name == "mesh.introductions" {
			value = "did:web:example.org"
		}
		if k.Name == "a2a.key_origins" || k.Name == "http.origins" {
			value = "https://keys.example.org"
		}
		if strings.HasPrefix(k.Name, "http.tls.") {
			continue // two keys that depend on each other
		}
		if strings.HasPrefix(k.Name, "trust.") && k.List() {
			value = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
		}
		out, err := config(t, "show", "--origin", "--"+k.Name+"="+value)
		if err != nil || !strings.Contains(out, "# from flag --"+k.Name+"\n") {
			t.Errorf("--%s=%s: %v", k.Name, value, err)
		}
	}
	out, err := config(t, "show", "--mesh.mdns", "--data-dir", "/d", "--http.hosts", "a", "--http.hosts", "b", "-o", "yaml")
	for _, want := range []string{"mdns: true", "data_dir: /d", "- a\n", "mesh.mdns: flag --mesh.mdns"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s, %v", want, out, err)
		}
	}
}

// An invalid line of the key agents is found before a node starts, with its number.
func TestAgentsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lmosd.yaml")
	if err := os.WriteFile(file, []byte("agents: [\"'exec:cat' --name a\", \"exec:cat --nme b\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config(t, "validate", file)
	if e := interact.AsError(err); err == nil || e.Code != interact.ConfigInvalid || !strings.HasPrefix(e.Title, "agents[1] ("+file) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(file, []byte("apiVersion: lmosd/v1\nhttp:\n  lsten: a\nmesh:\n  mdsn: true\nnode:\n  nme: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := config(t, "validate", file)
	last := 0
	for _, key := range []string{"lsten", "mdsn", "nme"} { // in the order of the file, each once
		at := strings.Index(out, `"`+key+`"`)
		if at < last || strings.Count(out, `"`+key+`"`) != 1 {
			t.Errorf("%s is not where it should be in %s", key, out)
		}
		last = at
	}
	if err == nil {
		t.Error("it is valid")
	}
	if out, err := config(t, "get", "http.listen"); err != nil || out != "127.0.0.1:4668\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := config(t, "get", "http.lsten"); err == nil || interact.AsError(err).Hint != `did you mean "http.listen"?` {
		t.Errorf("got %v", err)
	}
}
