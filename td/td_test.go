package td

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/internal/jcs"
)

// epoch is the current time of the tests.
var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// signer returns the key of a fixed seed.
func signer(t testing.TB, n byte) *keystore.Key {
	t.Helper()
	k, err := keystore.FromSeed([32]byte{31: n})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustParse(t testing.TB, raw string) *Thing {
	t.Helper()
	thing, err := Parse([]byte(raw))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return thing
}

func decodeJSON(t testing.TB, s string) any {
	t.Helper()
	v, err := jcs.Decode([]byte(s), 8<<20)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return v
}

// tdWith returns a minimal valid TD with additional members.
func tdWith(members ...string) string {
	return `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "T", ` +
		`"security": ["n"], "securityDefinitions": {"n": {"scheme": "nosec"}}` +
		strings.Join(append([]string{""}, members...), ", ") + `}`
}

func lease(seq uint64, hosts ...did.DID) Lease {
	l := Lease{Seq: seq, Now: epoch, Lifetime: 6 * time.Hour}
	for _, h := range hosts {
		l.Hosts = append(l.Hosts, Host{Node: h, Addrs: []string{"/ip4/192.0.2.7/udp/4667/quic-v1", "/ip4/192.0.2.7/tcp/4667"}})
	}
	return l
}

// published returns the TD completed, signed by s with seq.
func published(t testing.TB, raw []byte, s did.Signer, seq uint64) *Signed {
	t.Helper()
	thing, err := Complete(raw, s.DID())
	if err != nil {
		t.Fatalf("Complete: %v", err)
	}
	signed, err := Sign(thing, s, lease(seq, s.DID()))
	if err != nil {
		t.Fatalf("Sign: %v", err)
	}
	return signed
}

func verified(t testing.TB, s *Signed) *Description {
	t.Helper()
	d, err := s.Verify(context.Background(), NewVerifier(did.Keys()), epoch)
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	return d
}

func issuesOf(err error) []Issue {
	if v, ok := err.(*ValidationError); ok {
		issues := slices.Clone(v.Issues)
		for i := range issues {
			issues[i].Rule = "" // TestStricterRules of interop checks the rules
		}
		return issues
	}
	return nil
}
