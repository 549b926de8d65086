package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/internal/tlstest"
)

// folder returns a data folder whose path is short enough for a socket.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lmosd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// listen serves a fake node on the socket of a data folder.
func listen(t *testing.T, dir string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "lmosd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: makeFake().routes()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

func TestNodeOfACommand(t *testing.T) {
	t.Parallel()
	url := newFakeNode(t)
	addr := strings.TrimPrefix(url, "http://")
	served, stale := folder(t), folder(t)
	listen(t, served)
	if err := os.WriteFile(filepath.Join(stale, "lmosd.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(served, "lmosd.sock")
	for name, test := range map[string]struct {
		env, args []string
		code      int
		says      string // on standard error, with -v
	}{
		"a URL":                               {nil, []string{"--node", url}, 0, url + " (--node)"},
		"a socket":                            {nil, []string{"--node", socket}, 0, socket + " (--node)"},
		"unix: and a socket":                  {nil, []string{"--node", "unix:" + socket}, 0, "(--node)"},
		"the flag before the variable":        {[]string{"LMOSD_NODE=http://127.0.0.1:1"}, []string{"--node", url}, 0, url},
		"the variable":                        {[]string{"LMOSD_NODE=" + url}, nil, 0, "(LMOSD_NODE)"},
		"the socket of the folder":            {nil, []string{"--data-dir", served}, 0, socket + " (socket in the data folder)"},
		"the folder of the variable":          {[]string{"LMOSD_DATA_DIR=" + served}, nil, 0, socket},
		"a stale socket, then the address":    {[]string{"XDG_DATA_HOME=" + stale, "LMOSD_HTTP__LISTEN=" + addr}, nil, 0, url + " (http.listen)"},
		"no other node for a named folder":    {nil, []string{"--data-dir", stale}, cli.ExitNoNode, "no process holds the data folder " + stale},
		"a named folder and an address":       {[]string{"LMOSD_HTTP__LISTEN=" + addr}, []string{"--data-dir", stale}, 0, url},
		"a socket where nobody answers":       {nil, []string{"--node", filepath.Join(stale, "lmosd.sock")}, cli.ExitNoNode, "no process holds"},
		"no socket and no fixed port":         {[]string{"LMOSD_HTTP__LISTEN=127.0.0.1:0"}, nil, cli.ExitNoNode, "lmosd.sock"},
		"neither URL nor socket":              {nil, []string{"--node", "127.0.0.1/x"}, cli.ExitUsage, "expected the URL or the socket"},
		"a broken configuration is no bar":    {[]string{"LMOSD_PROFILE=none"}, []string{"--node", url}, 0, url},
		"a broken configuration is a bar":     {[]string{"LMOSD_PROFILE=none"}, nil, cli.ExitUsage, "env LMOSD_PROFILE"},
		"a name of a context that is not":     {nil, []string{"--node", "tn-1"}, cli.ExitUsage, "none is known"},
		"a configuration that does not exist": {nil, []string{"-c", filepath.Join(stale, "x.yaml")}, cli.ExitUsage, "config describe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := lmosd(t.Context(), home(t, test.env...), "", append([]string{"status", "-v"}, test.args...)...)
			if r.code != test.code || !strings.Contains(r.errors, test.says) {
				t.Errorf("exit code %d, want %d with %q; %s", r.code, test.code, test.says, r.errors)
			}
		})
	}
}

// A node with a certificate serves HTTPS: commands use it by its URL if they trust the certificate, and by the socket in any case.
func TestNodeWithACertificate(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	cert, key := filepath.Join(x.home, "cert.pem"), filepath.Join(x.home, "key.pem")
	tlstest.Write(t, cert, key)
	n := x.node("n", "--http.tls.cert", cert, "--http.tls.key", key)
	if !strings.HasPrefix(n.API, "https://127.0.0.1:") {
		t.Errorf("the API is at %s", n.API)
	}
	contains(t, x.ok("status", "--data-dir", n.dir, "-o", "json"), `"state":"ready"`)
	contains(t, x.fails(cli.ExitNoNode, "status", "--node", n.API), "certificate")
	x.env = append(x.env, "SSL_CERT_FILE="+cert)
	contains(t, x.ok("status", "--node", n.API, "-o", "json"), `"state":"ready"`)
	plain := strings.TrimPrefix(n.API, "https://") // as in the configuration of a node without a socket
	x.env = append(x.env, "LMOSD_HTTP__SOCKET=none", "LMOSD_HTTP__LISTEN="+plain, "LMOSD_HTTP__TLS__CERT="+cert, "LMOSD_HTTP__TLS__KEY="+key)
	contains(t, x.ok("status", "-o", "json"), `"state":"ready"`)
	contains(t, x.fails(cli.ExitUsage, "run", "--profile", "test", "--data-dir", filepath.Join(x.home, "m"), "--http.tls.key", ""),
		"http.tls.key")
}

// A token that goes to another host over plain HTTP is warned of, once.
func TestTokenOverPlainHTTPIsAWarning(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]int{"http://192.0.2.1:4668": 1, "https://192.0.2.1:4668": 0, "http://127.0.0.1:4668": 0, "unix:/x/lmosd.sock": 0} {
		var stdout, stderr bytes.Buffer
		a := newApp([]string{"LMOSD_TOKEN=secret", "HOME=" + t.TempDir()}, strings.NewReader(""), &stdout, &stderr)
		a.Flags.Node = addr
		for range 2 { // nothing is sent yet
			c, err := a.client()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		if got := strings.Count(stderr.String(), "LMOS-W071"); got != want || strings.Contains(stderr.String(), "secret") || stdout.Len() > 0 {
			t.Errorf("%s: said %q", addr, stderr.String())
		}
	}
}
