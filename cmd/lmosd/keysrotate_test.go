package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/testnet"
)

// A member of an organization replaces its key: a rule of a partner for its role applies to the new key, its agents follow it, its audit log
// verifies, and whoever has the old key and the old data directory is refused.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	passphrase := x.file("passphrase", "correct horse\n")
	acme, globex := x.node("acme", "--trust.untrusted", "find"), x.node("globex", "--trust.untrusted", "find")
	for _, n := range []*nodeProcess{acme, globex} {
		name := filepath.Base(n.dir)
		x.at(n).ok("org", "init", name+".example", "--recovery", filepath.Join(x.home, name+".recovery"))
	}
	x.at(globex).ok("trust", "accept", strings.TrimSpace(x.at(acme).ok("trust", "invite", "--quiet")))
	x.at(globex).ok("publish", x.weather())
	x.at(globex).ok("policy", "allow", "acme/desk", "--to", "call", "--on", "weather")

	flags := []string{"--trust.untrusted", "find", "--mesh.bootstrap", acme.P2P[0], "--mesh.bootstrap", globex.P2P[0]}
	member := x.node("member", flags...)
	old := member.DID
	x.at(member).ok("org", "join", strings.TrimSpace(x.at(acme).ok("org", "invite", "--role", "desk", "--quiet")))
	agents := map[string]string{"notes": "public", "ledger": "organization"}
	for name, audience := range agents {
		x.at(member).ok("publish", x.file(name+".td.json", fmt.Sprintf(`{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": %q, "security": "n",
			"securityDefinitions": {"n": {"scheme": "nosec"}}, "actions": {"add": {"forms": [{"href": "http://127.0.0.1:9/add"}]}},
			"lmosd:visibility": %q}`, name, audience)))
	}
	call := []string{"call", "weather", "getWeather", "question=Rain?", "interactionMode=text"}
	eventually(t, "the role of the member counts", func() bool { return x.at(member).lmosd(call...).code == 0 })
	// belongTo waits until the other nodes find the agents that are theirs to find, each once, with an owner.
	belongTo := func(owner did.DID) {
		t.Helper()
		for name, audience := range agents {
			for _, n := range []*nodeProcess{acme, globex} {
				if n == globex && audience == "organization" {
					continue
				}
				var last result
				if err := testnet.Until(patient(t), name+" is that of "+string(owner), func() bool {
					last = x.at(n).lmosd("find", name, "-o", "json")
					var found struct {
						Items []struct{ Owner did.DID }
					}
					return json.Unmarshal([]byte(last.out), &found) == nil && len(found.Items) == 1 && found.Items[0].Owner == owner
				}); err != nil {
					t.Fatalf("%v; %s finds\n%s%s", err, n.dir, last.out, last.errors)
				}
			}
		}
	}
	belongTo(old)
	contains(t, x.at(member).fails(cli.ExitConflict, "keys", "rotate"), "LMOS-3011", "stop the node first")
	member.stop()
	for _, line := range []string{"cp -Rp member thief", "lmosd keys passphrase --data-dir member --new fd:3 3< " + passphrase} {
		if r := x.typed(line); r.code != 0 {
			t.Fatal(line, r)
		}
	}

	globex.stop() // While it is away, it misses the withdrawals. Then it may receive them after the revocation of the old key.
	rotate := x.typed("lmosd keys rotate -o json --profile test --data-dir member --node.passphrase fd:3 " + strings.Join(flags, " ") + " 3< " + passphrase)
	if rotate.code != 0 {
		t.Fatal(rotate)
	}
	doc := decode[struct {
		DID, Before, Organization string
		Withdrawn                 int
		Revoked                   bool
		Rules                     []string
	}](t, rotate.out)
	if doc.DID == string(old) || doc.Before != string(old) || doc.Organization == "" || doc.Withdrawn != len(agents) || !doc.Revoked || len(doc.Rules) != 0 {
		t.Errorf("the document is %s", rotate.out)
	}
	globex = x.node("globex", "--trust.untrusted", "find", "--mesh.bootstrap", acme.P2P[0])
	member = x.nodeWith("member", passphrase, flags...)
	if string(member.DID) != doc.DID {
		t.Fatalf("the node is %s", member.DID)
	}
	eventually(t, "the role of the new key counts", func() bool { return x.at(member).lmosd(call...).code == 0 })
	belongTo(member.DID)
	contains(t, x.at(acme).ok("org", "ls"), doc.DID, "revoked")
	contains(t, x.at(member).typed("LMOSD_NODE__PASSPHRASE=fd:3 lmosd audit verify --key "+doc.DID+" 3< "+passphrase).out, "✓ audit")

	thief := x.node("thief", flags...)
	if thief.DID != old {
		t.Fatalf("the thief is %s", thief.DID)
	}
	for range 5 {
		if r := x.at(thief).lmosd(call...); r.code == 0 {
			t.Fatalf("the old key may call: %s", r.out)
		}
	}
	contains(t, x.at(globex).lmosd("trust", "why", string(old), "invoke", "weather").out, "denied")
	contains(t, x.at(acme).ok("audit", "ls"), string(old)+" was replaced by "+doc.DID)
}

// Without an organization, a new key is a new identity, which the operator asks for.
func TestKeysRotateAlone(t *testing.T) {
	t.Parallel()
	x := newUser(t, "LMOSD_PROFILE=test")
	n := x.node("n")
	n.stop()
	contains(t, x.fails(cli.ExitUsage, "keys", "rotate", "--data-dir", "n"), "no organization", "--new-identity")
	contains(t, x.ok("id", "--data-dir", "n"), string(n.DID))
	r := x.lmosd("keys", "rotate", "--new-identity", "--data-dir", "n")
	if r.code != 0 || strings.Contains(x.ok("id", "--data-dir", "n"), string(n.DID)) {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.errors)
	}
	contains(t, r.errors, "unknown node", string(n.DID))
	contains(t, x.ok("audit", "verify", "--data-dir", "n"), "✓ audit")
	contains(t, x.fails(cli.ExitUsage, "keys", "rotate", "--data-dir", "absent"), "there is no key at")
}

// A backup is encrypted, is never written over a file, and gives a node its identity again. A key that others can read, or a wrong
// passphrase, starts nothing and changes nothing.
func TestKeysExportAndPassphrase(t *testing.T) {
	t.Parallel()
	x := newUser(t, "LMOSD_PROFILE=test")
	n := x.node("n")
	right, wrong := x.file("right", "correct horse\n"), x.file("wrong", "wrong horse\n")
	shell := func(line string, want int) string {
		t.Helper()
		r := x.typed(line)
		if r.code != want {
			t.Errorf("%s: exit code %d, want %d: %s%s", line, r.code, want, r.out, r.errors)
		}
		return r.out + r.errors
	}
	contains(t, shell("lmosd keys export b.age --data-dir n --passphrase fd:3 3< right", 0), "exported the key of "+string(n.DID)) // while it runs
	backup, err := os.ReadFile(filepath.Join(x.home, "b.age"))
	if err != nil || !strings.HasPrefix(string(backup), "-----BEGIN AGE ENCRYPTED FILE-----") {
		t.Errorf("the backup is %.40q, %v", backup, err)
	}
	for _, more := range []string{"--passphrase fd:3 3< wrong", "--plain"} {
		contains(t, shell("lmosd keys export b.age --data-dir n "+more, cli.ExitUsage), "b.age exists, and is not overwritten")
	}
	if again, err := os.ReadFile(filepath.Join(x.home, "b.age")); err != nil || string(again) != string(backup) {
		t.Errorf("the backup was changed, %v", err)
	}
	contains(t, shell("lmosd keys export c.pem --data-dir n --plain", 0), "unencrypted")
	n.stop()

	shell("lmosd keys passphrase --data-dir n --new fd:3 3< right", 0)
	before := shell("cat n/identity.pem", 0)
	for _, line := range []string{"lmosd keys passphrase --data-dir n --remove", "lmosd keys export d.age --data-dir n --passphrase fd:4 4< right", "lmosd id --data-dir n",
		"lmosd keys rotate --new-identity --data-dir n", "lmosd run --data-dir n"} {
		contains(t, shell("LMOSD_NODE__PASSPHRASE=fd:3 "+line+" 3< "+wrong, cli.ExitRefused), "LMOS-3013")
	}
	if !gone(filepath.Join(x.home, "d.age")) || !gone(filepath.Join(x.home, "n", "identity.pem.next")) || shell("cat n/identity.pem", 0) != before {
		t.Error("a wrong passphrase wrote a file")
	}
	contains(t, shell("LMOSD_NODE__PASSPHRASE=fd:3 lmosd keys passphrase --data-dir n --remove 3< "+right, 0), "removed the passphrase")
	contains(t, shell("lmosd id --data-dir n", 0), string(n.DID))

	// The backup in the place of the key.
	shell("mkdir -m 700 m && cp b.age m/identity.pem && chmod 644 m/identity.pem", 0)
	for _, command := range []string{"run", "id", "keys export e.age --plain", "keys passphrase --remove", "keys rotate --new-identity"} {
		contains(t, shell("LMOSD_NODE__PASSPHRASE=fd:3 lmosd "+command+" --data-dir m 3< "+right, cli.ExitRefused), "LMOS-3012", "0644", "chmod 600 ")
	}
	shell("chmod 600 m/identity.pem", 0)
	if again := x.nodeWith("m", right); again.DID != n.DID {
		t.Errorf("the backup gives %s, want %s", again.DID, n.DID)
	}
}
