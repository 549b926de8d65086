package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
)

// A person who has the key of a node cuts its audit log and signs it again. The files agree with each other; a head that a member keeps shows it.
func TestAuditVerifyAsksMembers(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	flags := []string{"--mesh.network", "audit", "--trust.audit.level", "denied"}
	first, second := x.node("a", flags...), x.node("b", flags...)
	x.at(first).ok("org", "init", "acme.example")
	contains(t, x.at(first).ok("audit", "verify"), "– members not asked for the heads that they keep: no member of the organization is connected")
	invitation := strings.TrimSpace(x.at(first).ok("org", "invite", "-o", "name"))
	x.at(second).ok("org", "join", invitation)
	restart := func() {
		t.Helper()
		if code := first.stop(); code != 0 { // with a checkpoint
			t.Fatalf("exit code %d", code)
		}
		first = x.node("a", append(flags, "--mesh.bootstrap", second.P2P[0])...)
	}
	for _, agent := range []string{"a", "b", "c", "d"} { // more lines than the cut log has later
		x.at(first).ok("policy", "allow", "own", "--to", "find", "--on", agent)
	}
	restart()
	var clean string
	eventually(t, "node b keeps a head of the log of node a", func() bool {
		r := x.at(first).lmosd("audit", "verify")
		clean = r.out
		return r.code == 0 && strings.Contains(r.out, "✓ members "+second.DID.Short()+" keeps heads of this log")
	})
	report := decode[struct {
		Chains  []audit.ChainReport
		Members struct {
			Asked []struct{ Heads []audit.Head }
		}
	}](t, x.at(first).ok("audit", "verify", "-o", "json"))
	if len(report.Members.Asked) != 1 || len(report.Members.Asked[0].Heads) == 0 {
		t.Fatalf("%+v\n%s", report, clean)
	}
	if code := first.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	contains(t, x.at(first).ok("audit", "verify"), "– members not asked for the heads that they keep: the node does not run")
	cut(t, first)
	if out := x.at(first).ok("audit", "verify"); strings.Contains(out, "✗") {
		t.Errorf("the files alone show the cut:\n%s", out)
	}
	first = x.node("a", append(flags, "--mesh.bootstrap", second.P2P[0])...)
	eventually(t, "the head at node b shows the cut", func() bool {
		r := x.at(first).lmosd("audit", "verify")
		return r.code == cli.ExitOf(interact.AuditBroken) && strings.Contains(r.errors, "LMOS-3023") &&
			strings.Contains(r.out, "✗ members "+second.DID.Short()) && strings.Contains(r.out, "member "+second.DID.Short()) &&
			strings.Contains(r.out, "✗ 000001.jsonl:")
	})
	x.at(first).ok("policy", "allow", "own", "--to", "find", "--on", "weather")
	restart() // the checkpoint of the new line contradicts the one that node b keeps
	eventually(t, "node b reports the fork", func() bool {
		return strings.Contains(x.at(second).lmosd("status").out, "the audit log of "+first.DID.Short()+" was changed or replaced")
	})
	contains(t, second.talk.String()+second.out.String(), "audit log of a member has two histories")
}

// cut removes the lines of the first chain after its first ones, and adds a checkpoint with the key of the node.
func cut(t *testing.T, n *nodeProcess) {
	t.Helper()
	path := filepath.Join(n.dir, "audit", "000001.jsonl")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(b, []byte("\n"))[:2]
	key, err := keystore.Open(filepath.Join(n.dir, "identity.pem"))
	if err != nil {
		t.Fatal(err)
	}
	last, err := audit.ParseLine(lines[1])
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding
	prev := sha256.Sum256(lines[1])
	raw, err := json.Marshal(audit.Line{N: last.N + 1, Time: last.Time, Prev: b64.EncodeToString(prev[:]), Event: audit.EventCheckpoint, Chain: "audit", By: n.DID})
	if err != nil {
		t.Fatal(err)
	}
	raw = raw[:len(raw)-1]
	sig, err := key.Sign(did.PurposeAudit, raw)
	if err != nil {
		t.Fatal(err)
	}
	lines = append(lines, append(raw, []byte(`,"sig":"`+b64.EncodeToString(sig)+`"}`)...), nil)
	if err := os.WriteFile(path, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}
