package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// TestRejectionHasItsExitCode: three processes. A host refuses one of the others, which knows the host's agent from the third: call, find,
// show and peers connect say that it is refused, and how that is mended. With trust.untrusted: none, a node's own agents work.
func TestRejectionHasItsExitCode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	caller, third := x.node("caller"), x.node("third")
	deny := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(deny, []byte("apiVersion: lmosd/v1\nrules:\n- {deny: \""+string(caller.DID)+"\", to: \"*\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := x.node("host", "--trust.policy_file", deny)
	x.at(host).ok("publish", file)
	x.at(third).ok("peers", "connect", host.P2P[0])
	x.at(caller).ok("peers", "connect", third.P2P[0])
	eventually(t, "the caller knows the agent", func() bool { return x.at(caller).lmosd("show", "weather").code == 0 })
	args := []string{"call", "weather", "getWeather", "question=Rain?", "interactionMode=text"}
	for range 2 {
		contains(t, x.at(caller).fails(cli.ExitRefused, args...), "LMOS-1403", "refuses this node by its policy", "invitation")
	}
	contains(t, x.at(caller).fails(cli.ExitRefused, "peers", "connect", host.P2P[0]), "LMOS-1403")
	contains(t, x.at(caller).ok("find", "weather"), "refused")
	contains(t, x.at(caller).ok("show", "weather"), "refused")
	if r := x.at(caller).lmosd("find", "weather"); r.code != 0 {
		t.Errorf("find ends with %d", r.code)
	} else {
		contains(t, r.errors, "1 agent is refused to this node (LMOS-1403)")
	}
	x.at(third).ok(args...)

	alone := x.node("alone", "--trust.untrusted", "none")
	x.at(alone).ok("publish", file)
	x.at(alone).ok(args...)
}
