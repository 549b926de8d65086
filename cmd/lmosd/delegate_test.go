package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// TestDelegateToANode: nodes as processes. A node that may call and delegate an action lets another one call it, and no third one.
func TestDelegateToANode(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	find := []string{"--trust.untrusted", "find"}
	host, lender, delegate, third := x.node("host", find...), x.node("lender", find...), x.node("delegate", find...), x.node("third", find...)
	script := x.file("payout.sh", "#!/bin/sh\nread amount\n[ \"$amount\" = wait ] && : > $0.began && exec sleep 100\necho \"paid $amount for $LMOSD_CALLER_LENT_BY\"\n")
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	x.at(host).start("expose", "exec:"+script, "--name", "payout", "--action", "pay").prints("exposed payout")
	x.at(host).ok("publish", x.weather())
	for _, n := range []*nodeProcess{lender, delegate, third} {
		x.at(n).ok("peers", "connect", host.P2P[0])
		eventually(t, "the node finds the agents", func() bool {
			return x.at(n).lmosd("show", "payout").code == 0 && x.at(n).lmosd("show", "weather").code == 0
		})
	}
	grant := []string{"delegate", "payout/pay", "--to", string(delegate.DID)}
	x.at(host).ok("policy", "allow", string(lender.DID), "--to", "call", "--on", "payout")
	contains(t, x.at(lender).fails(cli.ExitRefused, grant...), "LMOS-1403", "may not delegate", "ask the operator of that host for a rule")
	for _, agent := range []string{"payout", "weather"} {
		x.at(host).ok("policy", "allow", string(lender.DID), "--to", "call,delegate", "--on", agent)
	}

	token := filepath.Join(x.home, "pay.token")
	if err := os.WriteFile(token, []byte(x.at(lender).ok(grant...)), 0o600); err != nil {
		t.Fatal(err)
	}
	pay := []string{"call", "payout", "pay", "100", "--with", "@" + token}
	contains(t, x.at(delegate).fails(cli.ExitRefused, pay[:4]...), "LMOS-1403")
	contains(t, x.at(delegate).ok(pay...), "paid 100 for "+string(lender.DID))
	contains(t, x.at(third).fails(cli.ExitRefused, pay...), "LMOS-1425", "InvalidAudience")

	// Conditions: on a text, and on a member of an object.
	limited := decode[api.Delegation](t, x.at(lender).ok(append(grant, "--where", `value=="50"`, "--for", "1h", "-o", "json")...))
	contains(t, x.at(delegate).ok("call", "payout", "pay", "50", "--with", limited.Token), "paid 50")
	contains(t, x.at(delegate).fails(cli.ExitRefused, "call", "payout", "pay", "51", "--with", limited.Token), "LMOS-1425", "MatchError")
	rate := strings.TrimSpace(x.at(lender).ok("delegate", "weather/giveFeedback", "--to", string(delegate.DID), "--where", "rating<=3"))
	x.at(delegate).ok("call", "weather", "giveFeedback", "rating=3", "--with", rate)
	contains(t, x.at(delegate).fails(cli.ExitRefused, "call", "weather", "giveFeedback", "rating=4", "--with", rate), "LMOS-1425", "MatchError")
	contains(t, x.at(delegate).fails(cli.ExitRefused, "call", "weather", "getWeather", "question=Bonn", "interactionMode=text", "--with", rate), "LMOS-1425")
	units := strings.TrimSpace(x.at(lender).ok("delegate", "weather/units", "--op", "read", "--to", string(delegate.DID)))
	if got := strings.TrimSpace(x.at(delegate).ok("read", "weather", "units", "--with", units)); got != "celsius" {
		t.Errorf("read %q", got)
	}
	contains(t, x.at(delegate).fails(cli.ExitRefused, "read", "weather", "units", "--with", rate), "LMOS-1425")
	contains(t, x.at(delegate).fails(cli.ExitRefused, "read", "weather", "units"), "LMOS-1403")
	contains(t, x.at(delegate).fails(cli.ExitRefused, "write", "weather", "units", "fahrenheit", "--with", units), "LMOS-1425")
	contains(t, x.at(lender).fails(cli.ExitUsage, append(grant, "--where", "less than 100")...), "a condition is NAME")
	contains(t, x.at(lender).fails(cli.ExitNotFound, "delegate", "pay/payout", "--to", string(delegate.DID)), "LMOS-1404")

	list := x.at(lender).ok("delegate", "ls", "-o", "wide")
	contains(t, list, limited.ID, "invoke payout/pay", `value=="50"`, "rating<=3", string(host.DID))
	if n := strings.Count(x.at(lender).ok("delegate", "ls", "-o", "name"), "\n"); n != 4 {
		t.Errorf("%d delegations, want 4", n)
	}
	// A task by a delegation ends with it.
	task := strings.TrimSpace(x.at(delegate).ok("call", "payout", "pay", "wait", "--async", "-o", "name", "--with", "@"+token))
	eventually(t, "the action runs", func() bool { return !gone(script + ".began") })
	contains(t, x.at(lender).ok("delegate", "revoke", "@"+token), "revoked invoke payout/pay for")
	if r := x.at(delegate).lmosd("task", "wait", task); r.code == 0 || !strings.Contains(r.errors, "was cancelled") {
		t.Errorf("got %+v", r)
	}
	contains(t, x.at(delegate).fails(cli.ExitRefused, pay...), "LMOS-1403")
	contains(t, x.at(lender).fails(cli.ExitNotFound, "delegate", "revoke", "@"+token), "no delegation of this node has the id")
	x.at(lender).ok("delegate", "revoke", limited.ID[:12])
	x.at(lender).ok("delegate", "revoke", units)
	// The host sees what it issued, and ends it.
	issued := x.at(host).ok("delegate", "ls", "--issued")
	contains(t, issued, "/giveFeedback", string(lender.DID)+"#")
	contains(t, x.at(host).ok("delegate", "revoke", strings.TrimSpace(x.at(host).ok("delegate", "ls", "--issued", "-o", "name"))), "revoked invoke")
	contains(t, x.at(delegate).fails(cli.ExitRefused, "call", "weather", "giveFeedback", "rating=3", "--with", rate), "LMOS-1403")
	x.at(lender).ok("delegate", "revoke", rate)
	if left := x.at(lender).ok("delegate", "ls", "-o", "name"); left != "" {
		t.Errorf("left: %s", left)
	}

	// A host that is away receives the revocation later.
	token3 := strings.TrimSpace(x.at(lender).ok(grant...))
	host.stop()
	if r := x.at(lender).lmosd("delegate", "revoke", token3); r.code != 0 || !strings.Contains(r.errors, "has not received it") {
		t.Errorf("got %+v", r)
	}
	contains(t, x.at(lender).ok("delegate", "ls"), "\trevoking, ")
}
