package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/td"
)

// numberIn returns the number of the grant in a file.
func numberIn(t *testing.T, file string) uint64 {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, g, err := api.ParseHostingGrant(raw)
	if err != nil {
		t.Fatal(err)
	}
	return g.Number
}

// The owner signs on a machine without a node, and operators bring the grant to their nodes.
func TestHostingOfAnOwner(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	n := x.node("n")
	file, key, grant := x.weather(), filepath.Join(x.home, "owner.pem"), filepath.Join(x.home, "weather.grant.json")
	id := strings.TrimSpace(x.ok("id", "--jq", ".did", "--data-dir", n.dir))
	other := didtest.NewKey().DID()

	signed := x.ok("hosting", "sign", file, "--key", key, "--host", id, "--host", other.Multibase(), "--file", grant)
	contains(t, signed, "granted weather to 2 nodes until", grant)
	for path, mode := range map[string]os.FileMode{key: 0o600, grant: 0o644} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	first := numberIn(t, grant)
	put := x.ok("hosting", "put", grant, "--data-dir", n.dir)
	contains(t, put, "hosted weather", "granted to", other.Short())
	contains(t, x.ok("hosting", "ls", "--data-dir", n.dir), "weather", "\thosted\t")
	contains(t, x.ok("show", "weather", "--data-dir", n.dir), "grant", "until", "host")
	contains(t, x.ok("show", "weather", "--verify", "--data-dir", n.dir), "✓ grant", "✓ record", "✓ proof")

	// A renewal is of the same description, and shorter ones are reported.
	x.ok("hosting", "renew", grant, "--key", key, "--remove", string(other), "--expires", "5h")
	if second := numberIn(t, grant); second <= first {
		t.Errorf("the grant %d follows %d", second, first)
	}
	x.ok("hosting", "put", grant, "--data-dir", n.dir)
	if r := x.lmosd("hosting", "ls", "--data-dir", n.dir); r.code != 0 || !strings.Contains(r.errors, "the grant of weather ends in") {
		t.Errorf("got %+v", r)
	}
	contains(t, x.ok("status", "--data-dir", n.dir, "-o", "json"), "LMOS-W043")
	var list api.HostedList
	if err := json.Unmarshal([]byte(x.ok("hosting", "ls", "--data-dir", n.dir, "-o", "json")), &list); err != nil || len(list.Items) != 1 || len(list.Items[0].Nodes) != 1 {
		t.Errorf("got %+v, %v", list, err)
	}

	foreign := filepath.Join(x.home, "foreign.pem")
	x.ok("hosting", "sign", file, "--key", foreign, "--host", string(other), "--file", filepath.Join(x.home, "others.json"))
	for want, args := range map[string][]string{
		"--key is missing":              {"sign", file, "--host", id},
		"--host is missing":             {"sign", file, "--key", key},
		"is not the DID of a node":      {"sign", file, "--key", key, "--host", "weather"},
		"has a grant of":                {"sign", file, "--key", foreign, "--host", id, "--file", grant},
		"is not a grant":                {"renew", file, "--key", key},
		"there is no key at":            {"renew", grant, "--key", filepath.Join(x.home, "none.pem")},
		"is the key of":                 {"renew", grant, "--key", foreign},
		"the grant does not name":       {"renew", grant, "--key", key, "--remove", string(other)},
		"no node remains in the grant":  {"renew", grant, "--key", key, "--remove", id},
		"--expires is 200h0m0s":         {"renew", grant, "--key", key, "--expires", "200h"},
		"is the key of a node":          {"renew", grant, "--key", key, "--host", ownerIn(t, grant)},
		"--file is missing":             {"sign", "-", "--key", key, "--host", id},
		"expected --passphrase prompt,": {"renew", grant, "--key", key, "--passphrase", "secret"},
	} {
		contains(t, x.fails(cli.ExitUsage, append([]string{"hosting"}, args...)...), want, "hint")
	}
	contains(t, x.fails(cli.ExitRefused, "hosting", "put", filepath.Join(x.home, "others.json"), "--data-dir", n.dir), "does not name this node", "lmosd id")
	contains(t, x.fails(cli.ExitNotFound, "hosting", "end", "lamp", "--data-dir", n.dir), "hosts no", "hint")

	contains(t, x.ok("hosting", "end", "weather", "--data-dir", n.dir), "ended weather")
	contains(t, x.ok("hosting", "put", grant, "--data-dir", n.dir), "hosted weather")
	contains(t, x.ok("hosting", "withdraw", grant, "--key", key, "--data-dir", n.dir), "withdrawn urn:lmos:")
	eventually(t, "the node ends", func() bool { return x.ok("hosting", "ls", "--data-dir", n.dir, "-o", "name") == "" })
	x.fails(cli.ExitRefused, "hosting", "put", grant, "--data-dir", n.dir)
	// The next grant offers it again.
	x.ok("hosting", "renew", grant, "--key", key)
	x.ok("hosting", "put", grant, "--data-dir", n.dir)
}

// ownerIn returns the owner of the grant in a file.
func ownerIn(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, g, err := api.ParseHostingGrant(raw)
	if err != nil {
		t.Fatal(err)
	}
	return string(g.Owner)
}

// A description with a proof of another owner, and a private one, are not granted.
func TestHostingSignsNoOthersDescriptions(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	another := didtest.NewKey()
	thing, err := td.Complete(weatherTD, another.DID())
	if err != nil {
		t.Fatal(err)
	}
	g, _, err := api.SignHostingGrant(thing, another, td.GrantLease{Number: 1, Now: time.Now(), Lifetime: time.Hour, Nodes: []did.DID{didtest.NewKey().DID()}})
	if err != nil {
		t.Fatal(err)
	}
	for want, content := range map[string][]byte{
		"belongs to another owner": g.TD,
		"is private":               []byte(strings.Replace(string(weatherTD), "{", `{"lmosd:visibility":"private",`, 1)),
		"not JSON":                 []byte("{"),
	} {
		file := filepath.Join(x.home, "a.td.json")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		contains(t, x.fails(cli.ExitUsage, "hosting", "sign", file, "--key", filepath.Join(x.home, "k.pem"), "--host", string(didtest.NewKey().DID())), want, "hint")
	}
	if _, err := os.Stat(filepath.Join(x.home, "a.grant.json")); err == nil {
		t.Error("a grant was written")
	}
}

func TestWarningsOfGrants(t *testing.T) {
	t.Parallel()
	env := home(t, "LMOSD_NODE="+newFakeNode(t), "LMOSD_TOKEN="+fakeToken)
	r := lmosd(t.Context(), env, "", "hosting", "ls")
	if r.code != 0 {
		t.Fatalf("got %+v", r)
	}
	contains(t, r.errors, "the grant of weather ends in 30h", "slow has a newer grant, 8,", "away is not offered: its grant ended")
	if n := strings.Count(r.errors, "grant"); n < 3 {
		t.Errorf("got %s", r.errors)
	}
}
