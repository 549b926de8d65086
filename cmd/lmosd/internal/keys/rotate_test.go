package keys

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/trust/organization"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const tool = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Slow", "security": "n", "securityDefinitions": {"n": {"scheme": "nosec"}},
	"actions": {"wait": {"forms": [{"href": "http://127.0.0.1:9/wait"}]}}}`

// A stopped node has a data directory, an agent with an id that contains its DID, and perhaps an organization of its own.
type stopped struct {
	t    *testing.T
	c    *cli.Console
	conf *configs.Config
	old  did.DID
}

func newStopped(t *testing.T, organized bool) *stopped {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + dir, "LMOSD_DATA_DIR=" + dir, "LMOSD_PROFILE=test"}
	conf, err := configs.Load(configs.LoadOptions{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	s := &stopped{t: t, c: cli.New(env, nil, io.Discard, io.Discard), conf: conf}
	s.c.Flags.Output = "json"
	s.runs(func(ctx context.Context, n *node.Node) {
		s.old = n.DID()
		if organized {
			if _, err := n.Client().InitOrganization(ctx, api.OrganizationInit{Domain: "acme.example", RecoveryFile: filepath.Join(t.TempDir(), "recovery.pem")}); err != nil {
				t.Error(err)
			}
		}
		if _, err := n.Publish(ctx, []byte(tool)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// runs starts the node as lmosd run does, calls f and stops it.
func (s *stopped) runs(f func(context.Context, *node.Node)) {
	s.t.Helper()
	open, err := Opener(s.t.Context(), s.c, s.conf)
	if err != nil {
		s.t.Fatal(err)
	}
	key, err := open()
	if err != nil {
		s.t.Fatal(err)
	}
	r := &rotator{console: s.c, conf: s.conf}
	if err := r.run(did.AsProcess(s.t.Context()), key, func(ctx context.Context, n *node.Node) error { f(ctx, n); return nil }); err != nil {
		s.t.Fatal(err)
	}
}

// has checks that the node starts with one identity: it owns its agent, and no file has another state.
func (s *stopped) has(want func(id did.DID) bool, org bool) {
	s.t.Helper()
	s.runs(func(ctx context.Context, n *node.Node) {
		if !want(n.DID()) {
			s.t.Errorf("the node is %s", n.DID())
		}
		known := slices.Collect(n.Known())
		if len(known) != 1 || known[0].Record.Owner != n.DID() || !strings.Contains(known[0].ID, string(n.DID())) {
			s.t.Errorf("the node %s knows %v", n.DID(), known)
		}
		o, err := n.Client().Organization(ctx)
		if org && (err != nil || o.State != api.OrganizationConfirmed || !o.Issuer) {
			s.t.Errorf("the organization is %+v, %v", o, err)
		}
	})
}

// crashed returns a function that fails at a step.
func crashed(at string) func(string) error {
	return func(step string) error {
		if step == at {
			return errCrash
		}
		return nil
	}
}

var errCrash = errors.New("crash")

// Wherever a replacement is interrupted, the node starts with one key that has everything, and the replacement can be finished.
func TestRotationSurvivesCrashes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at string
		// afterwards is true if the node has the new key when it starts again.
		organized, afterwards bool
	}{{"key", true, false}, {"request", true, false}, {"hand over", true, false}, {"confirmed", true, true}, {"replace", true, true},
		{"complete", true, true}, {"", true, true}, {"request", false, false}, {"hand over", false, true}, {"complete", false, true}} {
		t.Run(c.at, func(t *testing.T) {
			t.Parallel()
			s := newStopped(t, c.organized)
			stop := c.at
			if stop == "confirmed" {
				stop = "hand over"
			}
			r, err := begin(t.Context(), s.c, s.conf, !c.organized, crashed(stop))
			for i := 0; err == nil && i < len(r.steps()); i++ {
				err = r.do(t.Context(), r.steps()[i])
			}
			if (c.at != "") != errors.Is(err, errCrash) || c.at == "" && err != nil {
				t.Fatalf("it ended with %v", err)
			}
			if c.at == "confirmed" { // the answer of the issuer is stored, and nothing follows
				org, err := organization.Open(filepath.Join(s.conf.Node.DataDir, "org"), s.old, organization.Options{})
				if err != nil {
					t.Fatal(err)
				}
				credential, err := org.Replace(s.old, r.fresh.DID(), nil, false)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.pending.Confirm(credential.Raw); err != nil {
					t.Fatal(err)
				}
			}
			s.has(func(id did.DID) bool { return (id != s.old) == c.afterwards }, c.organized)
			if !c.afterwards {
				if err := rotate(t.Context(), s.c, s.conf, !c.organized); err != nil {
					t.Fatal(err)
				}
			}
			s.has(func(id did.DID) bool { return id != s.old }, c.organized)
			s.finished()
		})
	}
}

// finished checks what remains of a replacement: the new key, and an audit log that verifies with it.
func (s *stopped) finished() {
	s.t.Helper()
	path, _ := s.conf.KeyFile()
	key, err := keystore.Open(path)
	if err != nil {
		s.t.Fatal(err)
	}
	if p, err := rotation.Load(s.conf.Node.DataDir); p != nil || err != nil {
		s.t.Errorf("the state is %+v, %v", p, err)
	}
	if _, err := os.Lstat(path + ".next"); err == nil {
		s.t.Error("the next key is still there")
	}
	log, err := audit.Open(audit.Options{Dir: s.conf.AuditDir(), Signer: key}) // the next line of the node
	if err != nil {
		s.t.Fatal(err)
	}
	log.Change(audit.ChangeKey, "key in use")
	if err := log.Close(); err != nil {
		s.t.Fatal(err)
	}
	if r, err := audit.Verify(s.conf.AuditDir(), audit.Check{Keys: []did.DID{key.DID()}}); err != nil {
		s.t.Errorf("%v: %v", err, r.Problems)
	}
	if _, err := audit.Verify(s.conf.AuditDir(), audit.Check{Keys: []did.DID{s.old}}); err == nil {
		s.t.Error("the audit log verifies with the old key")
	}
}

func TestRefusedRotations(t *testing.T) {
	t.Parallel()
	organized, alone := newStopped(t, true), newStopped(t, false)
	release, err := lock(organized.conf.Node.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := rotate(t.Context(), organized.c, organized.conf, false); interact.AsError(err).Code != interact.DataDirLocked {
		t.Errorf("a node that runs: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if err := rotate(t.Context(), organized.c, organized.conf, true); interact.AsError(err).Code != interact.Usage {
		t.Errorf("--new-identity in an organization: %v", err)
	}
	if err := rotate(t.Context(), alone.c, alone.conf, false); err == nil || !strings.Contains(err.Error(), "no organization") {
		t.Errorf("no organization: %v", err)
	}
	credentials := t.TempDir()
	path, _ := alone.conf.KeyFile()
	key, err := keystore.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Export(filepath.Join(credentials, "lmosd-identity"), keystore.Passphrase{}); err != nil {
		t.Fatal(err)
	}
	conf, err := configs.Load(configs.LoadOptions{Env: append(slices.Clone(alone.c.Env), "CREDENTIALS_DIRECTORY="+credentials)})
	if err != nil {
		t.Fatal(err)
	}
	if err := rotate(t.Context(), alone.c, conf, true); err == nil || !strings.Contains(err.Error(), "systemd credential") || interact.AsError(err).Hint == "" {
		t.Errorf("a systemd credential: %v", err)
	}
	for _, s := range []*stopped{organized, alone} {
		s.has(func(id did.DID) bool { return id == s.old }, s == organized)
	}
}

func TestMentions(t *testing.T) {
	t.Parallel()
	s := newStopped(t, false)
	for name, text := range map[string]string{"policy.yaml": "rules:\n- {allow: " + string(s.old) + "}\n", "policy.cedar": "// " + string(s.old) + "\n"} {
		if err := os.WriteFile(filepath.Join(s.conf.Node.DataDir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := mentions(s.conf, s.old)
	want := []string{filepath.Join(s.conf.Node.DataDir, "policy.yaml") + ":2", filepath.Join(s.conf.Node.DataDir, "policy.cedar") + ":1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
