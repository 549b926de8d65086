package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lmosd": main, "curl": curl, "endless": endless, "crowded": crowded})
}

// TestScripts runs testdata/script/*.txtar. Each has a fake node of its own: LMOSD_NODE and LMOSD_TOKEN lead to it.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup:               setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": wantExit,
		},
	})
}

// setUp prepares the node, files and environment of a script.
func setUp(env *testscript.Env) error {
	n := makeFake()
	url, err := serve(env, n.routes(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	bare, err := serve(env, (&fakeNode{owner: n.owner, agents: n.agents, bare: true}).routes(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"HOME": filepath.Join(env.WorkDir, "home"), "URL": url, "BARE": bare, "LMOSD_NODE": url,
		"LMOSD_TOKEN": fakeToken, "OWNER": n.owner.Multibase(), "TERM": "xterm",
		// A program with the race detector sleeps for a second before it exits, and there are hundreds here.
		"GORACE": "atexit_sleep_ms=0"} {
		env.Setenv(name, value)
	}
	return writeFiles(env.WorkDir, url)
}

// writeFiles puts what scripts need and a txtar archive cannot hold: a key, modes, the address of the node.
func writeFiles(dir, url string) error {
	private, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(make([]byte, 32)))
	if err != nil {
		return err
	}
	files, err := auditFiles()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"weather.td.json":                   weatherTD,
		"data/audit/000001.jsonl":           files["000001.jsonl"],
		"data/audit/denied-000001.jsonl":    files["denied-000001.jsonl"],
		"data/identity.pem":                 pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"home/.config/lmosd/contexts.yaml":  fmt.Appendf(nil, "apiVersion: lmosd/v1\ncurrent: tn-1\ncontexts: {tn-1: {node: %q}}\n", url),
		"home/.local/share/lmosd/some.file": nil,
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// auditFiles returns the files of a log of the key in data: a change, 17 equal denials, and one of a partner.
var auditFiles = sync.OnceValues(func() (files map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "lmosd-audit")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	key, err := keystore.FromSeed([32]byte{})
	if err != nil {
		return nil, err
	}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	l, err := audit.Open(audit.Options{Dir: dir, Signer: key, Now: func() time.Time { now = now.Add(time.Millisecond); return now }})
	if err != nil {
		return nil, err
	}
	l.Change(audit.ChangeTrust, "partner globex added")
	for range 17 {
		l.Decision(audit.Decision{Who: did.Consumer(did.Token, "dashboard"), Op: "invoke", Thing: "weather", Name: "getWeather", Code: interact.Forbidden, Rule: "policy.yaml:12"})
	}
	globex := &did.Principal{DID: key.DID(), Node: key.DID(), Name: "crm", Via: did.Peer, Org: "did:webvh:QmT4:globex.example"}
	l.Decision(audit.Decision{Who: globex, Op: "find", Thing: "logistics", Code: interact.NotFound})
	if err := l.Close(); err != nil {
		return nil, err
	}
	files = map[string][]byte{}
	for _, name := range []string{"000001.jsonl", "denied-000001.jsonl"} {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
})

// serve serves h until the script ends, and returns the URL.
func serve(env *testscript.Env, h http.Handler, network, addr string) (string, error) {
	l, err := net.Listen(network, addr)
	if err != nil {
		return "", err
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with Close
	}()
	env.Defer(func() {
		_ = s.Close() // callers that wait for slow are disconnected
		<-done
	})
	return "http://" + l.Addr().String(), nil
}

// wantExit runs a command with an expected exit code: exits 4 lmosd show unknown.
func wantExit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG…")
	}
	code := "0"
	if args[1] == "lmosd" && asks(args[2:]) && ts.Getenv("LMOSD_CONFIG") == "" { // a path in it may be relative
		var env []string
		for _, name := range []string{"HOME", "TMPDIR", "PATH", "TERM", "NO_COLOR", "XDG_CONFIG_HOME", "LMOSD_NODE", "LMOSD_TOKEN", "LMOSD_FORCE_TTY"} {
			env = append(env, name+"="+ts.Getenv(name))
		}
		r := lmosd(context.Background(), env, "", args[2:]...)
		fmt.Fprint(ts.Stdout(), r.out)
		fmt.Fprint(ts.Stderr(), r.errors)
		code = strconv.Itoa(r.code)
	} else if err := ts.Exec(args[1], args[2:]...); err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if code != args[0] {
		ts.Fatalf("%s: exit code %s, want %s", strings.Join(args[1:], " "), code, args[0])
	}
}

// asks reports whether a command sends requests to a node, and needs neither a file nor the folder in which it runs. Tests run these in
// their own process: the start of the program costs more CPU time than the command.
func asks(args []string) bool {
	local := func(arg string) bool {
		return strings.HasPrefix(arg, "@") || strings.HasPrefix(arg, "--config") || strings.HasPrefix(arg, "--data-dir") || strings.HasPrefix(arg, "--node")
	}
	return len(args) > 0 && !slices.ContainsFunc(args, local) &&
		slices.Contains([]string{"call", "find", "peers", "ping", "read", "show", "task", "trace", "trust", "unpublish", "watch", "write"}, args[0])
}

// A result is what one execution in this process printed and gave.
type result struct {
	code        int
	out, errors string
}

// lmosd runs a command line in this process.
func lmosd(ctx context.Context, env []string, stdin string, args ...string) result {
	var out, talk bytes.Buffer
	code := newApp(env, strings.NewReader(stdin), &out, &talk).run(ctx, args)
	return result{code, out.String(), talk.String()}
}

// home returns an environment that has a home folder of its own and nothing else.
func home(t testing.TB, more ...string) []string {
	t.Helper()
	return append([]string{"HOME=" + t.TempDir()}, more...)
}
