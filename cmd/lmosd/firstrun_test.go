package main

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// TestFirstRun: the first run of a node with a profile for a local network makes an organization, which another node joins by one command. Then
// its agents can be called there. A second run makes no other one.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	lan := []string{"--profile", "lan", "--mesh.mdns=false", "--listen.p2p", "/ip4/127.0.0.1/tcp/0", "--http.listen", "127.0.0.1:0"}
	first := x.node("first", lan...)
	made := decode[api.Organization](t, x.at(first).ok("org", "status", "-o", "json"))
	if !made.Auto || !made.Issuer || !strings.HasSuffix(made.Name, ".internal") {
		t.Fatalf("the first run made %+v", made)
	}
	x.at(first).ok("publish", x.weather())
	second := x.node("second", lan...)
	x.at(second).ok("peers", "connect", first.P2P[0])
	eventually(t, "the second node knows the agent", func() bool { return x.at(second).lmosd("show", "weather").code == 0 })
	call := []string{"call", "weather", "getWeather", "question=Rain?", "interactionMode=text"}
	contains(t, x.at(second).fails(cli.ExitRefused, call...), "LMOS-1403")
	contains(t, x.at(second).fails(cli.ExitNotFound, "org", "join"), "lmosd org invite") // without mDNS
	x.at(second).ok("org", "join", strings.TrimSpace(x.at(first).ok("org", "invite", "-q")))
	contains(t, x.at(first).lmosd("trust", "ls").errors, "lmosd trust invite")
	if r := x.at(second).lmosd("trust", "ls"); strings.Contains(r.errors, "trust invite") || !strings.Contains(r.errors, "lmosd org status") {
		t.Errorf("a node that cannot invite is advised:\n%s", r.errors)
	}
	eventually(t, "the second node calls the agent", func() bool { return x.at(second).lmosd(call...).code == 0 })
	first.stop()
	if again := decode[api.Organization](t, x.at(x.node("first", lan...)).ok("org", "status", "-o", "json")); again.DID != made.DID || len(again.Members) != 2 {
		t.Errorf("after a restart: %+v", again)
	}
}
