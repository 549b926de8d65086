package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
)

// TestAccessRules: two processes. A host lets untrusted nodes find its agent. The log of the host names the command that lets the caller
// call, which takes effect at once; the callers of a publication are restored after a restart, and end with the publication.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	file := x.weather()
	caller := x.node("caller")
	start := func() *nodeProcess {
		host := x.node("host", "--trust.untrusted", "find", "--telemetry.log.level", "info", "--telemetry.log.format", "text")
		x.at(caller).ok("peers", "connect", host.P2P[0])
		eventually(t, "the caller knows the agent", func() bool { return x.at(caller).lmosd("show", "weather").code == 0 })
		return host
	}
	host := x.node("host", "--trust.untrusted", "find")
	contains(t, x.at(host).lmosd("publish", file).errors, "callers: nodes of the own organization; --for anyone opens it to all")
	host.stop()
	host = start()
	call := []string{"call", "weather", "getWeather", "question=Rain?", "interactionMode=text"}
	contains(t, x.at(caller).fails(cli.ExitRefused, call...), "LMOS-1403")
	who := string(caller.DID)
	eventually(t, "the host logs the refusal", func() bool { return strings.Contains(host.talk.String(), "call refused") })
	contains(t, host.talk.String(), "who="+who, `why="no rule lets untrusted callers invoke"`, "lmosd policy allow "+who+" --to invoke --on weather")
	why := x.at(host).lmosd("trust", "why", who, "invoke", "weather/getWeather")
	if why.code != cli.ExitRefused {
		t.Errorf("exit code %d", why.code)
	}
	contains(t, why.out, "denied: ", "no rule lets untrusted callers invoke", "LMOS-1403", who)

	x.at(host).ok("policy", "allow", who, "--to", "invoke", "--on", "weather")
	x.at(caller).ok(call...)
	contains(t, x.at(host).ok("trust", "why", who, "invoke", "weather"), "policy.yaml:6 {allow: \""+who+"\", to: invoke, on: weather}")
	contains(t, x.at(host).ok("policy", "show", "--who", who), "\tinvoke\tweather\tallow\tpolicy.yaml:6\t")
	contains(t, x.at(host).ok("policy", "check", filepath.Join(host.dir, "policy.yaml")), "1 rule")
	contains(t, x.at(host).fails(cli.ExitUsage, "policy", "allow", "globx", "--to", "call"), "LMOS-2007", `unknown caller "globx"`)
	x.at(host).ok("policy", "rm", who)
	x.at(caller).fails(cli.ExitRefused, call...)

	contains(t, x.at(host).fails(cli.ExitUsage, "publish", file, "--for", "globx"), `unknown caller "globx"`, "anyone")
	contains(t, x.at(host).lmosd("publish", file, "--for", "anyone").errors, "callers: anyone")
	x.at(caller).ok(call...)
	host.stop()
	host = start()
	x.at(caller).ok(call...)
	contains(t, x.at(host).ok("policy", "ls"), "expose weather\t{allow: anyone, to: [find, call], on: ")
	x.at(host).ok("unpublish", "weather")
	if rules := x.at(host).ok("policy", "ls"); strings.Contains(rules, "expose") {
		t.Errorf("the callers of a withdrawn agent are kept:\n%s", rules)
	}

	contains(t, x.at(host).fails(cli.ExitUsage, "expose", "exec:cat", "--name", "echo", "--for", "globx"), `unknown caller "globx"`)
	agent := x.at(host).start("expose", "exec:cat", "--name", "echo", "--for", who)
	agent.prints("exposed echo")
	eventually(t, "the caller calls the attached agent", func() bool { return x.at(caller).lmosd("call", "echo", "run", "input=x").code == 0 })
	agent.stop()
	if text, err := os.ReadFile(filepath.Join(host.dir, "policy.yaml")); err != nil || !strings.HasPrefix(string(text), "# Access rules of this node.") {
		t.Errorf("the file is %s, %v", text, err)
	}
}

func TestRefusalHint(t *testing.T) {
	t.Parallel()
	const peer did.DID = "did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH"
	weather := access.Request{Op: access.Invoke, Target: &access.Target{ID: "urn:x:w", Names: []string{"weather"}}}
	for name, c := range map[string]struct {
		refusal policy.Refusal
		want    string
	}{
		"an untrusted node": {policy.Refusal{Who: did.NodePrincipal(peer, "crm"), Request: weather}, "lmosd policy allow " + string(peer) + " --to invoke --on weather, or for all: lmosd expose … --for anyone"},
		"a partner that may not find it": {policy.Refusal{Who: &did.Principal{DID: peer, Node: peer, Relation: did.Partner}, Request: weather, Hidden: true},
			"lmosd policy allow " + string(peer) + " --to find,invoke --on weather"},
		"a token":           {policy.Refusal{Who: did.Consumer(did.Token, "crm"), Request: weather}, "lmosd policy allow token:crm --to invoke --on weather"},
		"a rule":            {policy.Refusal{Who: did.NodePrincipal(peer, ""), Request: weather, Decision: access.Decision{Rule: "policy.yaml:4"}}, "lmosd policy rm policy.yaml:4"},
		"a policy in Cedar": {policy.Refusal{Who: did.NodePrincipal(peer, ""), Request: weather, Decision: access.Decision{Rule: "policy.cedar:4"}}, ""},
		"a barred node":     {policy.Refusal{Who: &did.Principal{Node: peer, Barred: "revoked"}, Request: weather}, ""},
	} {
		if got := refusalHint(c.refusal); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
