package nodeaddr

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
)

func TestTokenIsSentToThisHostOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "api.token"), []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		env    []string
		target Target
		want   string
	}{
		"loopback":                   {nil, Target{Addr: "http://127.0.0.1:1", tokens: dir}, "abc"},
		"loopback of IPv6":           {nil, Target{Addr: "http://[::1]:1", tokens: dir}, "abc"},
		"another host":               {nil, Target{Addr: "http://192.0.2.1:1", tokens: dir}, ""},
		"a name":                     {nil, Target{Addr: "https://node.example", tokens: dir}, ""},
		"a socket":                   {nil, Target{Addr: "/run/lmosd.sock", tokens: dir}, ""},
		"no folder":                  {nil, Target{Addr: "http://127.0.0.1:1"}, ""},
		"no file":                    {nil, Target{Addr: "http://127.0.0.1:1", tokens: t.TempDir()}, ""},
		"of a context":               {nil, Target{Addr: "https://node.example", token: "def"}, "def"},
		"of a context on this host":  {nil, Target{Addr: "http://127.0.0.1:1", token: "def", tokens: dir}, "def"},
		"the variable, not the file": {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "https://node.example", token: "def"}, "xyz"},
		"the variable":               {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "https://node.example"}, "xyz"},
		"the variable, in the clear": {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "HTTP://192.0.2.1:1"}, "xyz"},
		"the variable, with TLS":     {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "https://192.0.2.1:1"}, "xyz"},
		"the variable, to localhost": {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "http://localhost:1"}, "xyz"},
		"the variable's word":        {[]string{"LMOSD_TOKEN=xyz"}, Target{Addr: "http://127.0.0.1:1", tokens: dir}, "xyz"},
	} {
		test.target.console = cli.New(test.env, nil, nil, nil)
		if clear := name == "the variable, in the clear"; test.target.InTheClear() != clear {
			t.Errorf("%s: in the clear %v", name, !clear)
		}
		if got := test.target.Token(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// Without a node of its own, a command uses the system service, if this user can.
func TestTheSystemService(t *testing.T) {
	t.Parallel()
	service, err := os.MkdirTemp("", "svc") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(service) }()
	env := []string{"HOME=" + t.TempDir()}
	c := cli.New(env, nil, nil, nil)
	if got, err := local(c, service); err != nil || got.Addr != "http://127.0.0.1:4668" || got.service != service || closed(got.service) || closed("/nowhere") {
		t.Errorf("without a service: %+v, %v", got, err)
	}
	homeless := cli.New(nil, nil, nil, nil)
	if got, err := local(homeless, service); err == nil || got != nil {
		t.Errorf("without a home folder: %+v, %v", got, err)
	}
	l, err := net.Listen("unix", filepath.Join(service, "lmosd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got, err := local(homeless, service); err != nil || got.Addr != filepath.Join(service, "lmosd.sock") {
		t.Errorf("without a home folder, with a service: %+v, %v", got, err)
	}
	if got, err := local(c, service); err != nil || got.Addr != filepath.Join(service, "lmosd.sock") || got.DataDir != service || got.Folder() != " --data-dir "+service {
		t.Errorf("with a service: %+v, %v", got, err)
	}
	for _, own := range []string{"LMOSD_DATA_DIR=" + t.TempDir(), "LMOSD_HTTP__LISTEN=127.0.0.1:9"} {
		if got, err := local(cli.New(append(env, own), nil, nil, nil), service); err != nil || got.Addr == filepath.Join(service, "lmosd.sock") || got.service != "" {
			t.Errorf("%s: %+v, %v", own, got, err)
		}
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:4668": "127.0.0.1:4668", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", ":1": "127.0.0.1:1",
		"192.0.2.1:1": "192.0.2.1:1",
	} {
		if got := reachable(listen); got != want {
			t.Errorf("%s: got %s, want %s", listen, got, want)
		}
	}
}

func TestElsewhere(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	contexts := &configs.Contexts{APIVersion: configs.APIVersion, Contexts: map[string]configs.Context{
		"far": {Node: "http://192.0.2.1:1"}, "own": {Node: "http://localhost:1", DataDir: dir}}}
	if err := contexts.Write(configs.ContextsFile([]string{"HOME=" + home})); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{
		"":                   "", // the node of this host
		"http://127.0.0.1:1": "",
		dir + "/lmosd.sock":  "",
		"own":                "",
		"unknown":            "",
		"far":                "warning: other commands use http://192.0.2.1:1 (LMOSD_NODE far), not this node\n",
	} {
		var out bytes.Buffer
		Elsewhere(cli.New([]string{"HOME=" + home, "LMOSD_NODE=" + node}, nil, nil, &out), "http://127.0.0.1:1", dir)
		if out.String() != want {
			t.Errorf("%q: got %q, want %q", node, out.String(), want)
		}
	}
}
