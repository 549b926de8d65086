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

	track, ledger, orders, desk *api.Publication
	subscribed                  context.CancelFunc // ends the subscription of the node that is revoked
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
		{"two organizations made", f.found},
		{"members invited, with roles", f.join},
		{"partners by one invitation", f.federate},
		{"agents published, with access rules", f.offer},
		{"called by the role, caller known", f.callByRole},
		{"another action refused", f.refuseAction},
		{"a node without the role refused", f.refuseNode},
		{"stranger calls nothing", f.refuseStranger},
		{"restricted agent hidden", f.hide},
		{"issuer killed, calls continue", f.killIssuer},
		{"revoked, its subscription ends", f.revoke},
		{"returning node refuses the revoked one", f.comeBack},
		{"the decision is explained", f.explain},
		{"the audit log has it", f.audit},
	}
}

// start runs the nodes: three of each organization, and a stranger.
func (f *federation) start(ctx context.Context) (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	f.net, err = testnet.Processes(ctx, 7, testnet.Options{Network: fmt.Sprintf("demo-%d", os.Getpid()), Seed: time.Now().UnixNano(),
		Dir: f.dir, Binary: binary, Flags: []string{"--trust.untrusted", "find"}})
	if err != nil {
		return "", err
	}
	m := f.net.Members
	f.acme, f.issuer, f.service, f.globex, f.logistics, f.exNode, f.other = m[0], m[1], m[2], m[3], m[4], m[5], m[6]
	return "Acme: nodes 1, 2, 3; Globex: 4, 5, 6; a stranger: 7; untrusted nodes may only find", f.net.Settle(ctx)
}

func (f *federation) found(ctx context.Context) (string, error) {
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
	o, err := f.globex.Organization(ctx)
	if err != nil {
		return "", err
	}
	i, err := f.acme.Invite(ctx, api.InvitationRequest{Kind: api.InvitePartner, For: o.DID})
	if err != nil {
		return "", err
	}
	p, err := f.globex.AcceptInvitation(ctx, api.Acceptance{Invitation: i.Text})
	if err != nil {
		return "", err
	}
	words := strings.Join(p.Words, " ")
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

// offer publishes agents: logistics and ledger of Globex, orders and desk of Acme.
func (f *federation) offer(ctx context.Context) (_ string, err error) {
	if f.agents, err = startParcels(); err != nil {
		return "", err
	}
	for _, a := range []struct {
		at         *testnet.Member
		title      string
		visibility td.Visibility
		to         string
		callers    string
		on         string
		out        **api.Publication
	}{
		{f.logistics, "logistics", td.Public, "invoke", "acme/" + serviceRole, "logistics/track", &f.track},
		{f.logistics, "ledger", td.Partners, "find", "acme/" + serviceRole, "ledger", &f.ledger},
		{f.issuer, "orders", td.Public, "subscribe", "globex", "orders", &f.orders},
		{f.service, "desk", td.Public, "call", "globex", "desk", &f.desk},
	} {
		if *a.out, err = a.at.Publish(ctx, f.agents.describe(a.title, a.visibility)); err != nil {
			return "", fmt.Errorf("%s: %w", a.title, err)
		}
		if _, err = a.at.AddRule(ctx, api.RuleRequest{Allow: []string{a.callers}, To: []string{a.to}, On: []string{a.on}}); err != nil {
			return "", fmt.Errorf("the rule for %s: %w", a.title, err)
		}
	}
	return fmt.Sprintf("at node 5: allow acme/%s to invoke logistics/track", serviceRole), nil
}

// callByRole calls the agent of the partner. Its output has the caller that the agent received.
func (f *federation) callByRole(ctx context.Context) (caller string, err error) {
	err = f.wait(ctx, "node 3 calls track", func(ctx context.Context) error {
		caller, err = invoke(ctx, f.service, f.track, "track")
		return err
	})
	if err != nil {
		return "", err
	}
	if node, _, _ := strings.Cut(caller, "#"); node != string(f.service.DID) {
		return "", fmt.Errorf("the agent was called by %s, not by node 3, %s", caller, f.service.DID)
	}
	return "node 3 to node 5; the agent reports its caller: " + did.DID(caller).Short(), nil
}

func (f *federation) refuseAction(ctx context.Context) (string, error) {
	return refused(interact.Forbidden, "reroute, called by node 3")(invoke(ctx, f.service, f.track, "reroute"))
}

func (f *federation) refuseNode(ctx context.Context) (string, error) {
	return refused(interact.Forbidden, "track, called by node 2, which is of Acme but has another role")(invoke(ctx, f.issuer, f.track, "track"))
}

func (f *federation) refuseStranger(ctx context.Context) (string, error) {
	if list, err := f.other.Find(ctx, td.Query{Text: "logistics"}, time.Second); err != nil || len(list.Items) == 0 {
		return "", fmt.Errorf("the stranger does not find the public agent: %w", err)
	}
	return refused(interact.Forbidden, "it finds the public agent logistics, and may not call it")(invoke(ctx, f.other, f.track, "track"))
}

// hide looks for a restricted agent: only its host shows it to the stranger by no way.
func (f *federation) hide(ctx context.Context) (string, error) {
	if _, err := f.logistics.Agent(ctx, f.ledger.Ref); err != nil {
		return "", fmt.Errorf("the host does not have it: %w", err)
	}
	list, err := f.other.Find(ctx, td.Query{}, time.Second)
	switch {
	case err != nil:
		return "", err
	case len(list.Items) != 3 || slices.ContainsFunc(list.Items, func(a api.Agent) bool { return a.Ref == f.ledger.Ref }):
		return "", fmt.Errorf("the stranger finds %+v, not the three public agents", list.Items)
	case list.Coverage.Answered < 6:
		return "", fmt.Errorf("only %d nodes answered the stranger", list.Coverage.Answered)
	}
	if _, err := f.other.Agent(ctx, f.ledger.Ref); codeOf(err) != interact.NotFound {
		return "", fmt.Errorf("the exact id gives %v", err)
	}
	if _, err := refused(interact.NotFound, "")(invoke(ctx, f.other, f.ledger, "track")); err != nil {
		return "", err
	}
	for _, who := range []string{string(f.other.DID), "acme"} {
		why, err := f.logistics.Why(ctx, api.WhyRequest{Who: who, Op: "invoke", On: "ledger/track"})
		if err != nil || why.Code != interact.NotFound.String() {
			return "", fmt.Errorf("the host decides %+v, %w", why, err)
		}
	}
	return fmt.Sprintf("the stranger asked %d nodes, and by the exact id: %s", list.Coverage.Answered, interact.NotFound), nil
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
	if _, err := invoke(ctx, f.exNode, f.desk, "track"); err != nil {
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

// comeBack starts the node that was away. The revoked node dials it as soon as it serves, and calls it until it knows the revocation.
func (f *federation) comeBack(ctx context.Context) (string, error) {
	if err := f.net.Restart(ctx, f.service); err != nil {
		return "", err
	}
	tries, barred := 0, false
	err := f.wait(ctx, "node 3 knows the revocation", func(ctx context.Context) error {
		_ = f.exNode.Connect(ctx, f.service.Addrs[0]) // refused, or ended later
		for range 3 {
			if out, err := invoke(ctx, f.exNode, f.desk, "track"); err == nil {
				return fmt.Errorf("node 3 lets it call: %s", out)
			}
			tries++
		}
		s, err := f.service.Standing(ctx, f.exNode.DID)
		switch {
		case err != nil:
			return err
		case barred:
			return nil // it was called once more since
		case s.Barred != "":
			barred = true
		}
		return fmt.Errorf("node 6 is %s there, pending: %q", s.Relation, s.Pending)
	})
	return fmt.Sprintf("node 6 dials node 3 as soon as it runs: 0 of %d calls passed", tries), err
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

// audit reads the audit log of the host, where a denied call of each caller is recorded.
func (f *federation) audit(ctx context.Context) (string, error) {
	callers := map[string]bool{string(f.service.DID): false, string(f.issuer.DID): false, string(f.other.DID): false}
	lines := 0
	for l, err := range audit.NewReader(filepath.Join(f.logistics.DataDir, "audit")).New() {
		if err != nil {
			return "", err
		}
		if node, _, _ := strings.Cut(l.Who, "#"); l.Verdict == "deny" && l.Code == interact.Forbidden.String() {
			callers[node] = true
			lines++
		}
	}
	for who, found := range callers {
		if !found {
			return "", fmt.Errorf("no refused call of %s is in the audit log of node 5", who)
		}
	}
	return fmt.Sprintf("node 5: %d lines with %s, of nodes 2, 3 and 7", lines, interact.Forbidden), nil
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
		last = cond(ctx)
		return last == nil
	})
	return errors.Join(err, last)
}

// invoke calls an agent of the story from a node, and returns the caller that the agent received.
func invoke(ctx context.Context, m *testnet.Member, p *api.Publication, action string) (caller string, err error) {
	out, _, err := m.Call(ctx, p.Ref, action, interact.JSON, []byte(`{"order":"4711"}`))
	if err != nil {
		return "", err
	}
	var answer struct{ Caller string }
	if err := json.Unmarshal(out, &answer); err != nil || answer.Caller == "" {
		return "", fmt.Errorf("expected the caller as the output, got %s", out)
	}
	return answer.Caller, nil
}

// refused checks that a call failed with code.
func refused(code interact.Code, detail string) func(string, error) (string, error) {
	return func(out string, err error) (string, error) {
		if err == nil {
			return "", fmt.Errorf("the agent was called: %s", out)
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
