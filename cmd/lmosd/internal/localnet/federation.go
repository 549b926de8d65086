package localnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
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
		{"found by the role only", f.find},
		{"called by the role", f.callByRole},
		{"another action refused", f.refuseAction},
		{"another role refused", f.refuseNode},
		{"untrusted node refused", f.refuseUntrusted},
		{"issuer killed, calls continue", f.killIssuer},
		{"revoked, its subscription ends", f.revoke},
		{"returning node refuses the revoked one", f.comeBack},
		{"the decision is explained", f.explain},
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
	return "Acme: nodes 1, 2, 3; Globex: 4, 5, 6; an untrusted node: 7; untrusted nodes may only find", f.net.Settle(ctx)
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
	return "by node 3, which has the role", err
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
	return fmt.Sprintf("the agent answers that it was called by %s, %s, of %s", f.service.DID.Short(), caller.Roles, o.Name), nil
}

func (f *federation) refuseAction(ctx context.Context) (string, error) {
	return refused(interact.Forbidden, "reroute, called by node 3")(invoke(ctx, f.service, f.track, "reroute"))
}

// refuseNode: a node of the partner without the role gets the answer for an agent that does not exist, by find, by the id, and by a call.
func (f *federation) refuseNode(ctx context.Context) (string, error) {
	return f.hidden(ctx, f.issuer, "node 2, which is of Acme,")
}

// refuseUntrusted also asks node 3, which has the description, and a public agent.
func (f *federation) refuseUntrusted(ctx context.Context) (string, error) {
	if _, err := refused(interact.Forbidden, "")(invoke(ctx, f.other, f.orders, "track")); err != nil {
		return "", fmt.Errorf("the public agent: %w", err)
	}
	detail, err := f.hidden(ctx, f.other, "the untrusted node")
	return detail + "; a public agent: " + interact.Forbidden.String(), err
}

// hidden checks that a node learns nothing of logistics.
func (f *federation) hidden(ctx context.Context, m *testnet.Member, who string) (string, error) {
	refs, answered, err := found(ctx, m)
	switch {
	case err != nil:
		return "", err
	case len(refs) != 2 || slices.Contains(refs, f.track.Ref):
		return "", fmt.Errorf("node %d finds %v, not the two public agents", m.N, refs)
	case answered < 6:
		return "", fmt.Errorf("only %d nodes answered node %d", answered, m.N)
	}
	if _, err := m.Agent(ctx, f.track.Ref); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("node %d asked for the exact id, and got %v", m.N, err)
	}
	why, err := f.logistics.Why(ctx, api.WhyRequest{Who: string(m.DID), Op: "invoke", On: "logistics/track"})
	if err != nil || why.Code != interact.NotFound.String() {
		return "", fmt.Errorf("node 5 decides %+v, %w", why, err)
	}
	return refused(interact.NotFound, fmt.Sprintf("%s asks %d nodes, by the id, and calls", who, answered))(invoke(ctx, m, f.track, "track"))
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
	return "node 1 of Acme; 20 of 20 calls of node 3 passed, and node 2 renewed its credential", nil
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
	return fmt.Sprintf("node 6 at node 2, %d ms after the revocation; node 3 was stopped before", took.Milliseconds()), nil
}

// comeBack starts the node that was away, while all others but the revoked one are suspended: so this one is the first that it meets. Then
// the others continue, and the node learns the revocation.
func (f *federation) comeBack(ctx context.Context) (string, error) {
	signal := func(sig syscall.Signal) {
		for _, m := range []*testnet.Member{f.issuer, f.globex, f.logistics, f.other} {
			_ = syscall.Kill(m.PID, sig) // a node that has ended fails the step later
		}
	}
	signal(syscall.SIGSTOP)
	resume := sync.OnceFunc(func() { signal(syscall.SIGCONT) })
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
	_, err = invoke(ctx, f.exNode, f.support, "track")
	return fmt.Sprintf("node 3 meets node 6 first: 0 of %d calls passed", tries+1), expectError(err)
}

// expectError returns an error for a call that passed.
func expectError(err error) error {
	if err == nil {
		return errors.New("node 3 lets it call")
	}
	return nil
}

func (f *federation) explain(ctx context.Context) (string, error) {
	why, err := f.issuer.Why(ctx, api.WhyRequest{Who: string(f.exNode.DID), Op: "subscribe", On: "orders/moved"})
	if err != nil {
		return "", err
	}
	if why.Allow || !strings.Contains(why.Why, "revoked") {
		return "", fmt.Errorf("node 2 explains: %+v", why)
	}
	return "lmosd trust why, at node 2: " + why.Why, nil
}

// audit reads the audit logs of the hosts, which have the denied calls.
func (f *federation) audit(ctx context.Context) (string, error) {
	lines := 0
	for host, callers := range map[*testnet.Member][]*testnet.Member{f.logistics: {f.service}, f.issuer: {f.other, f.exNode}} {
		for _, caller := range callers {
			err := f.wait(ctx, fmt.Sprintf("the audit log of node %d has a denied call of node %d", host.N, caller.N), func(context.Context) error {
				n, err := denied(host, caller)
				if err == nil && n == 0 {
					err = errors.New("there is none")
				}
				lines += n
				return err
			})
			if err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("lmosd audit ls --denied: node 3 at node 5, nodes 6 and 7 at node 2, %d lines", lines), nil
}

// denied returns the number of lines about denied requests of a node and its consumers in the audit log of another one.
func denied(host, caller *testnet.Member) (n int, err error) {
	for l, err := range audit.NewReader(filepath.Join(host.DataDir, "audit")).New() {
		if err != nil {
			return 0, err
		}
		if node, _, _ := strings.Cut(l.Who, "#"); l.Verdict == "deny" && node == string(caller.DID) {
			n++
		}
	}
	return n, nil
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
