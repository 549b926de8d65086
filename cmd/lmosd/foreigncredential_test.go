package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/aries"
)

// TestForeignCredentialLetsANodeIn: two nodes without an organization, as processes. A credential of a wallet lets one call what a rule permits
// its role. That ends with the trust in the issuer.
func TestForeignCredentialLetsANodeIn(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wallet, err := aries.NewWallet(key)
	if errors.Is(err, did.ErrLegacyUnsupported) {
		t.Skip("this build has no aries")
	} else if err != nil {
		t.Fatal(err)
	}
	x := newUser(t)
	find := []string{"--trust.untrusted", "find"}
	host, adjuster := x.node("host", find...), x.node("adjuster", find...)
	x.at(adjuster).ok("peers", "connect", host.P2P[0])
	agent := x.at(host).start("expose", "exec:cat", "--name", "claims", "--action", "settle")
	agent.prints("exposed claims")
	call := []string{"call", "claims@" + strings.TrimPrefix(string(host.DID), "did:key:"), "settle", "input=4711"}
	eventually(t, "the node finds the agent", func() bool { return x.at(adjuster).lmosd("show", "claims").code == 0 })
	contains(t, x.at(adjuster).fails(cli.ExitRefused, call...), "LMOS-1403")

	contains(t, x.at(host).ok("trust", "issuer", "add", string(wallet.DID()), "--name", "registry", "--role", "adjuster"), "registry")
	x.at(host).ok("policy", "allow", "registry/adjuster", "--to", "call", "--on", "claims")
	raw, err := wallet.Issue(adjuster.DID, time.Now().Add(-time.Minute), time.Now().Add(time.Hour), "adjuster")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "adjuster.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, x.at(host).fails(cli.ExitRefused, "trust", "present", file), "LMOS-1420", "its subject is")
	x.at(adjuster).ok("trust", "present", file, "--to", string(host.DID))
	eventually(t, "the role counts", func() bool {
		return strings.Contains(x.at(host).ok("trust", "credential", "ls", "-o", "json"), `"roles":["adjuster"]`)
	})
	contains(t, x.at(adjuster).ok(call...), "4711")
	contains(t, x.at(host).ok("trust", "why", string(adjuster.DID), "invoke", "claims"), "adjuster by "+string(wallet.DID()))

	x.at(host).ok("trust", "issuer", "rm", "registry")
	contains(t, x.at(adjuster).fails(cli.ExitRefused, call...), "LMOS-1403")
	agent.stop()
}
