package main

import (
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// TestExposeForARoleOfAPartner: two organizations and an untrusted node, five processes. Globex exposes an agent for a role of Acme, which
// --for refuses until the partner is confirmed. The node with the role finds and calls it. A node of Acme without the role and the untrusted
// one get what they get for an agent that does not exist. Rule and visibility end with the command.
func TestExposeForARoleOfAPartner(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	find := []string{"--trust.untrusted", "find", "--telemetry.log.level", "info", "--telemetry.log.format", "text"}
	globex, acme, desk, other := x.node("globex", find...), x.node("acme", find...), x.node("desk", find...), x.node("other", find...)
	for _, n := range []*nodeProcess{acme, desk, other} {
		x.at(n).ok("peers", "connect", globex.P2P[0])
	}
	x.at(globex).ok("org", "init", "globex.example")
	x.at(acme).ok("org", "init", "acme.example")
	x.at(desk).ok("org", "join", strings.TrimSpace(x.at(acme).ok("org", "invite", "--role", "customer-service", "-q")))
	x.at(globex).ok("trust", "accept", strings.TrimSpace(x.at(acme).ok("trust", "invite", "-q")))

	expose := []string{"expose", "exec:cat", "--name", "logistics", "--action", "track", "--for", "acme/customer-service"}
	for _, args := range [][]string{expose, {"publish", x.weather(), "--for", "partners"}} {
		contains(t, x.at(globex).fails(cli.ExitRefused, args...), "LMOS-1403", "the partner acme is unconfirmed", "lmosd trust confirm acme")
	}
	x.at(globex).ok("trust", "confirm", "acme")
	agent := x.at(globex).start(expose...)
	agent.prints("exposed logistics", "visibility\tpartners")
	shown := decode[api.AgentDetail](t, x.at(globex).ok("show", "logistics", "-o", "json"))
	contains(t, string(shown.TD), `"lmosd:visibility":"partners"`)

	call := []string{"call", "logistics@" + strings.TrimPrefix(string(globex.DID), "did:key:"), "track", "input=4711"}
	eventually(t, "the node with the role finds the agent", func() bool { return x.at(desk).lmosd("show", "logistics").code == 0 })
	contains(t, x.at(desk).ok(call...), "4711")
	for name, n := range map[string]*nodeProcess{"a node of the partner without the role": acme, "an untrusted node": other} {
		for _, args := range [][]string{call, {"show", shown.Agent.Ref}} {
			if r := x.at(n).lmosd(args...); r.code != cli.ExitNotFound || !strings.Contains(r.errors, "LMOS-1404") {
				t.Errorf("%s, lmosd %s: exit code %d, %s", name, strings.Join(args, " "), r.code, r.errors)
			}
		}
		if found := x.at(n).lmosd("find"); strings.Contains(found.out+found.errors, "logistics") {
			t.Errorf("%s finds it: %s", name, found.out)
		}
	}
	contains(t, x.at(globex).ok("policy", "ls"), "expose logistics\t{allow: acme/customer-service, to: [find, call], on: ")

	agent.stop()
	if rules := x.at(globex).ok("policy", "ls"); strings.Contains(rules, "logistics") {
		t.Errorf("the rule is kept:\n%s", rules)
	}
	eventually(t, "the node with the role learns of the end", func() bool { return x.at(desk).lmosd(call...).code != 0 })
}
