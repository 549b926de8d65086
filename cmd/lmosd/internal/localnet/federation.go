package localnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/testnet"
)

// A federation is the story of two organizations. Its nodes are processes, its agents are HTTP servers of this process.
type federation struct {
	*demo
	agents                                                  *parcels
	acme, issuer, service, globex, logistics, exNode, other *testnet.Member

	track, orders, support *api.Publication   // of logistics, orders and support
	subscribed             context.CancelFunc // ends the subscription of the node that is revoked
}

// The agents of the story.
const (
	track   = "logistics/track"
	reroute = "logistics/reroute"
)

// Roles of nodes.
const (
	serviceRole   = "customer-service"
	logisticsRole = "logistics"
)

// soon limits the time until a change is known to all nodes.
const soon = 15 * time.Second

func (f *federation) steps() []storyStep {
	return []storyStep{
		{"seven nodes up and meshed", f.start},
		{"two organizations made", f.organize},
		{"members invited, with roles", f.join},
		{"partners by one invitation", f.federate},
		{"agent published for a role", f.offer},
		{"found by the role", f.find},
		{"called by the role", f.callByRole},
		{"another action refused", f.refuseAction},
		{"another role refused", f.refuseNode},
		{"outsider: find", f.outsiderFinds},
		{"outsider: exact id", f.outsiderShows},
		{"outsider: through a third node", f.outsiderAsksThird},
		{"outsider: DHT", f.outsiderReadsDHT},
		{"outsider: MCP list", f.outsiderListsMCP},
		{"outsider: A2A list", f.outsiderListsA2A},
		{"outsider: gossip", f.outsiderListens},
		{"outsider: call", f.outsiderCalls},
		{"outsider: dial of a members' node", f.outsiderDials},
		{"issuer killed, calls continue", f.killIssuer},
		{"revoked, its subscription ends", f.revoke},
		{"returning node refuses the revoked one", f.comeBack},
		{"the audit log has it", f.audit},
	}
}

// start runs the nodes: three of each organization, and an untrusted node.
func (f *federation) start(ctx context.Context) (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	f.net, err = testnet.Processes(ctx, 7, testnet.Options{Network: fmt.Sprintf("demo-%d", os.Getpid()), Seed: time.Now().UnixNano(),
		Dir: f.dir, Binary: binary, Flags: []string{"--trust.untrusted", "find", "--trust.audit.level", "denied"}})
	if err != nil {
		return "", err
	}
	m := f.net.Members
	f.acme, f.issuer, f.service, f.globex, f.logistics, f.exNode, f.other = m[0], m[1], m[2], m[3], m[4], m[5], m[6]
	return "Acme: nodes 1, 2, 3; Globex: 4, 5, 6; the outsider: 7; untrusted nodes may only find", f.net.Settle(ctx)
}

func (f *federation) organize(ctx context.Context) (string, error) {
	var scids []string
	for domain, m := range map[string]*testnet.Member{"acme.example": f.acme, "globex.example": f.globex} {
		o, err := m.InitOrganization(ctx, api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(f.dir, domain+".recovery")})
		if err != nil {
			return "", err
		}
		scids = append(scids, fmt.Sprintf("%s %.8s…", domain, o.SCID))
	}
	slices.Sort(scids)
	return strings.Join(scids, ", ") + "; no network, no DNS", nil
}

func (f *federation) join(ctx context.Context) (string, error) {
	for _, j := range []struct {
		at, m  *testnet.Member
		issuer bool
		roles  []string
	}{{f.acme, f.issuer, true, nil}, {f.acme, f.service, false, []string{serviceRole}},
		{f.globex, f.logistics, false, []string{logisticsRole}}, {f.globex, f.exNode, false, nil}} {
		i, err := j.at.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode, Roles: j.roles, Issuer: j.issuer})
		if err != nil {
			return "", err
		}
		if _, err := j.m.JoinOrganization(ctx, api.Acceptance{Invitation: i.Text}); err != nil {
			return "", fmt.Errorf("node %d: %w", j.m.N, err)
		}
	}
	for _, m := range f.net.Members[:6] {
		var o *api.Organization
		err := f.wait(ctx, fmt.Sprintf("node %d is a confirmed member", m.N), func(ctx context.Context) (err error) {
			if o, err = m.Organization(ctx); err == nil && o.State != api.OrganizationConfirmed {
				err = errors.New(o.State)
			}
			return err
		})
		if err != nil {
			return "", err
		}
		if m == f.issuer && (!o.Issuer || len(o.Issuers) != 2) || m == f.service && !slices.Contains(o.Roles, serviceRole) {
			return "", fmt.Errorf("node %d is issuer: %v, of %d; its roles are %v", m.N, o.Issuer, len(o.Issuers), o.Roles)
		}
	}
	return fmt.Sprintf("node 2 is the second issuer of Acme, node 3 has the role %s", serviceRole), nil
}

// federate makes the organizations partners, and waits until all members know it.
func (f *federation) federate(ctx context.Context) (string, error) {
	i, err := f.acme.Invite(ctx, api.InvitationRequest{Kind: api.InvitePartner})
	if err != nil {
		return "", err
	}
	p, err := f.globex.AcceptInvitation(ctx, api.Acceptance{Invitation: i.Text})
	if err != nil {
		return "", err
	}
	words := strings.Join(p.Words, " ")
	for _, m := range []*testnet.Member{f.acme, f.globex} {
		list, err := m.Partners(ctx)
		switch {
		case err != nil:
			return "", err
		case len(list.Items) != 1 || len(p.Words) != 6 || strings.Join(list.Items[0].Words, " ") != words:
			return "", fmt.Errorf("node %d has %+v, not a partner with the words %q", m.N, list.Items, words)
		}
		if _, err := m.ConfirmPartner(ctx, list.Items[0].Name, ""); err != nil {
			return "", err
		}
	}
	for _, m := range f.net.Members[:6] {
		err := f.wait(ctx, fmt.Sprintf("node %d has the partner with the words %q", m.N, words), func(ctx context.Context) error {
			list, err := m.Partners(ctx)
			if err == nil && (len(list.Items) != 1 || list.Items[0].State != api.PartnerActive || strings.Join(list.Items[0].Words, " ") != words) {
				err = fmt.Errorf("it has %+v", list.Items)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("the same words on all six nodes: %q", words), nil
}

// offer publishes agents: logistics of Globex for a role of Acme, and orders and support of Acme, which are public.
func (f *federation) offer(ctx context.Context) (_ string, err error) {
	if f.agents, err = startParcels(); err != nil {
		return "", err
	}
	const service = "acme/" + serviceRole
	for _, a := range []struct {
		at         *testnet.Member
		title      string
		visibility td.Visibility
		rules      []api.RuleRequest
		out        **api.Publication
	}{
		{f.logistics, "logistics", td.Partners, []api.RuleRequest{allow(service, "find", "logistics"), allow(service, "invoke", "logistics/track")}, &f.track},
		{f.issuer, "orders", td.Public, []api.RuleRequest{allow("globex", "subscribe", "orders")}, &f.orders},
		{f.service, "support", td.Public, []api.RuleRequest{allow("globex", "invoke", "support")}, &f.support},
	} {
		if *a.out, err = a.at.Publish(ctx, f.agents.describe(a.title, a.visibility)); err != nil {
			return "", fmt.Errorf("%s: %w", a.title, err)
		}
		for _, r := range a.rules {
			if _, err = a.at.AddRule(ctx, r); err != nil {
				return "", fmt.Errorf("the rule for %s: %w", a.title, err)
			}
		}
	}
	return "at node 5: allow " + service + " to find logistics and to invoke logistics/track", nil
}

func allow(who, op, on string) api.RuleRequest {
	return api.RuleRequest{Allow: []string{who}, To: []string{op}, On: []string{on}}
}

// find waits until the node with the role has the restricted description.
func (f *federation) find(ctx context.Context) (string, error) {
	err := f.wait(ctx, "node 3 finds logistics", func(ctx context.Context) error {
		refs, _, err := found(ctx, f.service)
		if err == nil && !slices.Contains(refs, f.track.Ref) {
			err = fmt.Errorf("it finds %v", refs)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return "by node 3, which has the role", f.explain(ctx, f.logistics, f.service, "allowed", "find", "logistics")
}

// found returns all agents that a node finds, and the number of nodes that answered.
func found(ctx context.Context, m *testnet.Member) (refs []string, answered int, err error) {
	list, err := m.Find(ctx, td.Query{}, time.Second)
	if err != nil {
		return nil, 0, err
	}
	for _, a := range list.Items {
		refs = append(refs, a.Ref)
	}
	return refs, list.Coverage.Answered, nil
}

// callByRole calls the agent of the partner. Its output has the caller that the agent received.
func (f *federation) callByRole(ctx context.Context) (string, error) {
	caller, err := invoke(ctx, f.service, f.track, "track")
	if err != nil {
		return "", err
	}
	o, err := f.acme.Organization(ctx)
	if err != nil {
		return "", err
	}
	node, _, _ := strings.Cut(caller.ID, "#")
	if node != string(f.service.DID) || caller.Org != o.DID || !slices.Contains(strings.Fields(caller.Roles), serviceRole) {
		return "", fmt.Errorf("the agent was called by %+v, not by node 3, %s", caller, f.service.DID)
	}
	return fmt.Sprintf("the agent prints who called: %s, %s, of %s", f.service.DID.Short(), caller.Roles, o.Name),
		f.explain(ctx, f.logistics, f.service, "allowed", "invoke", track)
}

func (f *federation) refuseAction(ctx context.Context) (string, error) {
	detail, err := refused(interact.Forbidden, "reroute, called by node 3")(invoke(ctx, f.service, f.track, "reroute"))
	return detail, errors.Join(err, f.explain(ctx, f.logistics, f.service, "1403", "invoke", reroute))
}

// refuseNode: a node of the partner without the role gets the answer for an agent that does not exist, by find, by the id, and by a call.
func (f *federation) refuseNode(ctx context.Context) (string, error) {
	answered, err := f.lacks(ctx, f.issuer)
	if err != nil {
		return "", err
	}
	if _, err := f.issuer.Agent(ctx, f.track.Ref); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("node 2 asked for the exact id, and got %v", err)
	}
	detail, err := refused(interact.NotFound, fmt.Sprintf("node 2, which is of Acme, asks %d nodes, by the id, and calls", answered))(invoke(ctx, f.issuer, f.track, "track"))
	return detail, errors.Join(err, f.explain(ctx, f.logistics, f.issuer, "1404", "invoke", track))
}

// lacks checks that a node finds the public agents and not logistics, and returns the number of nodes that it asked.
func (f *federation) lacks(ctx context.Context, m *testnet.Member) (answered int, err error) {
	refs, answered, err := found(ctx, m)
	switch {
	case err != nil:
		return 0, err
	case len(refs) != 2 || slices.Contains(refs, f.track.Ref):
		return 0, fmt.Errorf("node %d finds %v, not the two public agents", m.N, refs)
	case answered < 6:
		return 0, fmt.Errorf("only %d nodes answered node %d", answered, m.N)
	}
	return answered, nil
}

func (f *federation) killIssuer(ctx context.Context) (string, error) {
	if err := f.acme.Kill(); err != nil {
		return "", err
	}
	for range 20 {
		if _, err := invoke(ctx, f.service, f.track, "track"); err != nil {
			return "", err
		}
	}
	if o, err := f.service.RenewCredential(ctx); err != nil || o.State != api.OrganizationConfirmed {
		return "", fmt.Errorf("the second issuer does not renew the credential: %w", err)
	}
	if _, err := invoke(ctx, f.service, f.track, "track"); err != nil {
		return "", err
	}
	return "node 1 of Acme; 20 of 20 calls of node 3 passed, and node 2 renewed its credential",
		f.explain(ctx, f.logistics, f.service, "allowed", "invoke", track)
}

// revoke stops a node of Acme, and revokes a node of Globex that is subscribed to an agent of another one.
func (f *federation) revoke(ctx context.Context) (string, error) {
	for _, m := range []*testnet.Member{f.issuer, f.service} {
		err := f.wait(ctx, fmt.Sprintf("node 6 is a partner at node %d", m.N), func(ctx context.Context) error {
			s, err := m.Standing(ctx, f.exNode.DID)
			if err == nil && s.Relation != did.Partner.String() {
				err = fmt.Errorf("it is %s, pending: %q", s.Relation, s.Pending)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	watch, end := context.WithCancel(ctx)
	f.subscribed = end
	first, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		var last error
		for _, err := range f.exNode.Watch(watch, f.orders.Ref, "events", "moved", "") {
			select {
			case first <- struct{}{}:
			default:
			}
			last = err
		}
		ended <- last
	}()
	select {
	case <-first:
	case err := <-ended:
		return "", fmt.Errorf("node 6 cannot subscribe: %w", err)
	case <-time.After(soon):
		return "", errors.New("node 6 receives no event")
	}
	if _, err := invoke(ctx, f.exNode, f.support, "track"); err != nil {
		return "", fmt.Errorf("node 6 cannot call node 3 before it is revoked: %w", err)
	}
	if err := f.service.Stop(); err != nil {
		return "", err
	}
	start := time.Now()
	if err := f.globex.Revoke(ctx, f.exNode.DID); err != nil {
		return "", err
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Second):
		return "", errors.New("the subscription still runs 2 s after the revocation")
	}
	took := time.Since(start)
	if _, err := refused(interact.Forbidden, "")(invoke(ctx, f.exNode, f.orders, "track")); err != nil {
		return "", err
	}
	return fmt.Sprintf("node 6 of Globex at node 2, %d ms after the revocation; node 3 was stopped before", took.Milliseconds()),
		f.explain(ctx, f.issuer, f.exNode, "its organization revoked the node", "subscribe", "orders/moved")
}

// comeBack starts the node that was away, while all others but the revoked one are suspended: so this one is the first that it meets. Then
// the others continue, and the node learns the revocation.
func (f *federation) comeBack(ctx context.Context) (string, error) {
	others := func(signal func(pid int) error) {
		for _, m := range []*testnet.Member{f.issuer, f.globex, f.logistics, f.other} {
			_ = signal(m.PID) // a node that has ended fails the step later
		}
	}
	others(testnet.Suspend)
	resume := sync.OnceFunc(func() { others(testnet.Resume) })
	defer resume()
	if err := f.net.Restart(ctx, f.service); err != nil {
		return "", err
	}
	if err := f.exNode.Connect(ctx, f.service.Addrs[0]); err != nil {
		return "", err
	}
	const tries = 3
	for range tries {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := invoke(try, f.exNode, f.support, "track")
		cancel()
		if err == nil {
			return "", errors.New("node 3 lets it call")
		}
	}
	s, err := f.service.Standing(ctx, f.exNode.DID)
	if err != nil || s.Barred != "" || s.Pending == "" {
		return "", fmt.Errorf("node 3 is expected not to know yet: %+v, %w", s, err)
	}
	resume()
	err = f.wait(ctx, "node 3 knows the revocation", func(ctx context.Context) error {
		s, err := f.service.Standing(ctx, f.exNode.DID)
		if err == nil && s.Barred == "" {
			err = fmt.Errorf("node 6 is %s there, pending: %q", s.Relation, s.Pending)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if _, err = invoke(ctx, f.exNode, f.support, "track"); err == nil {
		return "", errors.New("node 3 lets it call")
	}
	return fmt.Sprintf("node 6 dials node 3 first: 0 of %d calls passed", tries+1),
		f.explain(ctx, f.service, f.exNode, "its organization revoked the node", "invoke", "support/track")
}

// audit lists the denied requests of the hosts, as the commands print them, and checks that each refusal is there.
func (f *federation) audit(ctx context.Context) (string, error) {
	lines := 0
	for _, want := range []struct {
		host, caller *testnet.Member
		op, on       string
	}{
		{f.logistics, f.service, "invoke", reroute}, {f.issuer, f.other, "invoke", "orders/track"}, {f.issuer, f.exNode, "subscribe", "orders/moved"},
		{f.acme, f.other, "connect", ""}, {f.service, f.exNode, "invoke", "support/track"},
	} {
		err := f.wait(ctx, fmt.Sprintf("the audit log of node %d has a denied %s of node %d", want.host.N, want.op, want.caller.N), func(ctx context.Context) error {
			l, err := f.denied(ctx, want.host, want.caller, want.op, want.on)
			if err == nil {
				lines++
				f.why = append(f.why, fmt.Sprintf("node %d: deny node %d %s", want.host.N, want.caller.N, strings.TrimSpace(fmt.Sprint(l.Op, " ", want.on, " ", l.Code))))
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	for _, m := range []*testnet.Member{f.acme, f.issuer, f.service, f.globex, f.logistics} {
		if out, code, err := f.lmosd(ctx, m, "audit", "verify"); err != nil || code != 0 {
			return "", fmt.Errorf("the audit log of node %d: %s%v", m.N, out, err)
		}
	}
	return fmt.Sprintf("lmosd audit ls --denied: %d refusals; lmosd audit verify: nothing was changed", lines), nil
}

// denied returns the line about a denied request of a node or its consumers in the audit log of another one.
func (f *federation) denied(ctx context.Context, host, caller *testnet.Member, op, on string) (*audit.Line, error) {
	out, code, err := f.lmosd(ctx, host, "audit", "ls", "--denied", "--who", string(caller.DID), "-o", "json")
	if err != nil || code != 0 {
		return nil, fmt.Errorf("lmosd audit ls: exit code %d, %v", code, err)
	}
	var list struct{ Items []audit.Line }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	for _, l := range list.Items {
		if l.Op == op && (on == "" || strings.HasSuffix(l.Thing+"/"+l.Name, ":"+on)) {
			return &l, nil
		}
	}
	return nil, fmt.Errorf("it has %s", out)
}

// explain adds what lmosd trust why says at a node about a request of another one, and checks that it has the outcome: allow, the number of a
// code, or a part of the reason.
func (f *federation) explain(ctx context.Context, at, who *testnet.Member, outcome, op string, on ...string) error {
	out, _, err := f.lmosd(ctx, at, slices.Concat([]string{"trust", "why", string(who.DID), op}, on, []string{"-o", "json"})...)
	if err != nil {
		return err
	}
	var e api.Explanation
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		return fmt.Errorf("lmosd trust why at node %d: %w in %s", at.N, err, out)
	}
	text := "denied"
	if e.Allow {
		text = "allowed"
	}
	text = strings.TrimSpace(text + " " + e.Code)
	if !strings.Contains(text+" "+e.Why, outcome) || e.Why == "" || e.Allow && e.Rule == "" {
		return fmt.Errorf("lmosd trust why at node %d says %s, expected %s", at.N, out, outcome)
	}
	f.why = append(f.why, strings.TrimSpace(fmt.Sprintf("why, at node %d: %s: %s %s", at.N, text, e.Why, e.Text)))
	return nil
}

// lmosd runs a command of this program at a node, as its operator does.
func (f *federation) lmosd(ctx context.Context, m *testnet.Member, args ...string) (out string, code int, err error) {
	binary, err := os.Executable()
	if err != nil {
		return "", 0, err
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(slices.Clone(f.console.Env), "LMOSD_NODE="+m.Socket, "LMOSD_DATA_DIR="+m.DataDir)
	b, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return string(b), exit.ExitCode(), nil
	}
	return string(b), 0, err
}

// close ends the agents and the subscription.
func (f *federation) close() error {
	if f.subscribed != nil {
		f.subscribed()
	}
	if f.agents == nil {
		return nil
	}
	return f.agents.close()
}

// wait repeats cond until it returns nil, at most soon. The error contains the last one.
func (f *federation) wait(ctx context.Context, what string, cond func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	var last error
	err := testnet.Until(ctx, what, func() bool {
		err := cond(ctx)
		if err == nil || ctx.Err() == nil {
			last = err // not that of the end of ctx
		}
		return err == nil
	})
	return errors.Join(err, last)
}

// invoke calls an agent of the story from a node, and returns the caller that the agent received.
func invoke(ctx context.Context, m *testnet.Member, p *api.Publication, action string) (c caller, err error) {
	out, _, err := m.Call(ctx, p.Ref, action, interact.JSON, []byte(`{"order":"4711"}`))
	if err == nil {
		err = json.Unmarshal(out, &c)
	}
	return c, err
}

// refused checks that a call failed with code.
func refused(code interact.Code, detail string) func(caller, error) (string, error) {
	return func(c caller, err error) (string, error) {
		if err == nil {
			return "", fmt.Errorf("the agent was called by %s", c.ID)
		}
		if codeOf(err) != code {
			return "", fmt.Errorf("expected %s: %w", code, err)
		}
		return detail + ": " + code.String(), nil
	}
}

// codeOf returns the code of an error, 0 for nil.
func codeOf(err error) interact.Code {
	if e := interact.AsError(err); e != nil {
		return e.Code
	}
	return 0
}
