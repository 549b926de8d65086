package main

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

func newOrgCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "org",
		Short: "make, join and manage the organization of the node",
		Long: "The nodes of an organization may call each other. An organization is made without a network and without a\n" +
			"registry: its log proves itself. Issuers are the nodes that issue the credentials of members; the root key\n" +
			"changes which nodes are issuers. Other organizations become partners: lmosd trust.",
		Example: `  lmosd org init acme.example
  lmosd org invite --role customer-service
  lmosd org join lmos-invite:…
  lmosd org revoke z6MkpTHR8VNs --yes`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd trust, lmosd status"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOrgInit(a), newOrgInvite(a), newOrgJoin(a), newOrgRequests(a), newOrgAdmit(a), newOrgLs(a), newOrgStatus(a), newOrgIssue(a), newOrgRevoke(a), newOrgRestore(a),
		newOrgRenew(a), newOrgIssuer(a), newOrgBootstrap(a), newOrgExport(a), newOrgRoot(a), newOrgRecover(a), newOrgDeactivate(a), newOrgLeave(a))
	return cmd
}

// confirm prompts before a change that cannot be undone, unless yes is set. Without a terminal, yes is required.
func (a *app) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.Interactive() {
		return cli.Usage("", "not confirmed: %s", question).Then(interact.StepOption, "yes")
	}
	switch ok, err := prompt.Confirm(ctx, a.Console, question); {
	case err != nil:
		return err
	case !ok:
		return interact.Errorf(interact.Cancelled, "nothing was changed", "not confirmed")
	}
	return nil
}

func addYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVar(yes, "yes", false, "do not prompt for a confirmation")
}

// A change is the document of a command that changes an organization or its partners.
type change struct {
	cli.Head
	Change string  `json:"change"`
	DID    did.DID `json:"did,omitempty"`
	Name   string  `json:"name,omitempty"`
	File   string  `json:"file,omitempty"`
}

// changed prints a change; text is the line for people.
func (a *app) changed(c change, text string) error {
	c.Head = cli.NewHead("Change")
	name := string(c.DID)
	for _, other := range []string{c.Name, c.File} {
		if name == "" {
			name = other
		}
	}
	return a.Show(cli.View{Doc: c, Names: []string{name}, People: cli.Line(text)})
}

// An act is a change of an organization or of its partners.
type act struct {
	question string // before it, unless yes is set; empty: none
	yes      bool
	do       func(ctx context.Context, c *api.Client) error
	done     change // with text, for people
	text     string
	next     []string // commands
}

// perform prompts, makes a change at the node, and prints it.
func (a *app) perform(ctx context.Context, x act) error {
	if x.question != "" {
		if err := a.confirm(ctx, x.yes, x.question); err != nil {
			return err
		}
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	if err := x.do(ctx, client); err != nil {
		return err
	}
	if err := a.changed(x.done, x.text); err != nil {
		return err
	}
	if len(x.next) > 0 {
		a.Next(x.next...)
	}
	return nil
}

// send sends a request to the node of the command.
func send[T any](a *app, call func(*api.Client) (T, error)) (out T, err error) {
	client, err := a.client()
	if err != nil {
		return out, err
	}
	return call(client)
}

// elsewhere prints the next command, for another node: it has no flags of this one.
func (a *app) elsewhere(command, where string) {
	if a.ForPeople() {
		a.Talk.Line(a.Talk.Paint(terminal.Dim, "next: ") + terminal.OneLine(command) + a.Talk.Paint(terminal.Dim, "   # "+where))
	}
}

// inform prints a line for people on standard error.
func (a *app) inform(text string) {
	if a.ForPeople() {
		a.Talk.Line(terminal.OneLine(text))
	}
}

func newOrgInit(a *app) *cobra.Command {
	var recovery string
	cmd := &cobra.Command{
		Use:   "init <domain>",
		Short: "make an organization",
		Long: "Makes an organization whose first member and issuer is this node. No network is needed, and nothing checks the\n" +
			"domain: others recognize the organization by its SCID. The node writes the next root key to a new file, which\n" +
			"replaces a lost or stolen root key: move it to a safe place. An organization that the first run of the node made\n" +
			"is replaced, if it has no other member and no partner.",
		Example: `  lmosd org init acme.example
  lmosd org init acme.example --recovery /media/usb/acme.recovery`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd org invite, lmosd trust invite, lmosd org recover"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(args[0]) == "" {
				return cli.Usage("", "the domain is empty").Then(interact.StepOrgInit, "acme.example")
			}
			return a.initOrganization(cmd.Context(), args[0], recovery)
		},
	}
	cmd.Flags().StringVar(&recovery, "recovery", "", "new `FILE` of the next root key (default: DOMAIN.recovery)")
	return cmd
}

func (a *app) initOrganization(ctx context.Context, domain, recovery string) error {
	if recovery == "" {
		recovery = strings.ReplaceAll(domain, ":", "-") + ".recovery"
	}
	file, err := filepath.Abs(recovery)
	if err != nil {
		return input.Unreadable(recovery, err)
	}
	o, err := send(a, func(c *api.Client) (*api.Organization, error) {
		return c.InitOrganization(ctx, api.OrganizationInit{Domain: domain, RecoveryFile: file})
	})
	if err != nil {
		return err
	}
	if err := a.showOrganization(o); err != nil {
		return err
	}
	a.inform("the key that recovers the organization is in " + file + ": move it to a safe place, off this host")
	a.Next("lmosd org invite   # for another node", "lmosd trust invite   # for another organization")
	return nil
}

// showOrganization prints the sheet of an organization.
func (a *app) showOrganization(o *api.Organization) error {
	return a.Show(cli.View{Doc: o, Names: []string{string(o.DID)}, People: cli.Body(render.Organization(o, time.Now()))})
}

func newOrgStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the organization of the node, and its issuers",
		Long: "Shows the organization of the node: its SCID, the membership of this node, the issuers, and which keys this node\n" +
			"has. A membership is unconfirmed until an issuer, or another member, has sent a current status list.",
		Example: `  lmosd org status
  lmosd org status -o json --jq .state`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd org ls, lmosd trust ls"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := a.organization(cmd.Context())
			if err != nil {
				return err
			}
			if err := a.showOrganization(o); err != nil {
				return err
			}
			a.adviseOn(o)
			return nil
		},
	}
}

// organization returns the organization of the node.
func (a *app) organization(ctx context.Context) (*api.Organization, error) {
	return send(a, func(c *api.Client) (*api.Organization, error) { return c.Organization(ctx) })
}

// adviseOn prints what should be done for an organization.
func (a *app) adviseOn(o *api.Organization) {
	switch {
	case o.Auto:
		a.Next("lmosd org init DOMAIN   # one that you choose")
	case o.State == api.OrganizationEnded:
		a.Next("lmosd org leave")
	case o.State == api.OrganizationExpired:
		a.Next("lmosd org renew")
	case o.Root && len(o.Issuers) == 1 && len(o.Members) > 1:
		a.inform("one issuer: if it fails, no credential is renewed and nothing can be revoked")
		a.Next("lmosd org issuer add NODE")
	case o.Root && len(o.Members) > 1:
		a.inform("the root key is on this node: a thief of this node has the organization until it is recovered")
		a.Next("lmosd org root export FILE")
	case o.Issuer:
		a.Next("lmosd org ls", "lmosd org invite")
	default:
		a.Next("lmosd trust ls")
	}
}

func newOrgLs(a *app) *cobra.Command {
	var invitations bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the members of the organization or its invitations",
		Long: "Lists the nodes for which this node issued a credential: only issuers have such a list. With --invitations: the\n" +
			"open invitations, without their texts.",
		Example: `  lmosd org ls
  lmosd org ls --invitations
  lmosd org ls -o json --jq '.items[] | select(.revoked) | .did'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd org status, lmosd org revoke"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if invitations {
				return a.listInvitations(cmd.Context())
			}
			return a.listMembers(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&invitations, "invitations", false, "list the open invitations")
	return cmd
}

func (a *app) listMembers(ctx context.Context) error {
	o, err := a.organization(ctx)
	if err != nil {
		return err
	}
	items := o.Members
	if items == nil {
		items = []api.Member{}
	}
	err = a.Show(cli.View{Doc: cli.List[api.Member]{Head: cli.NewHead("MemberList"), Items: items},
		Names:  cli.Each(items, func(m api.Member) string { return string(m.DID) }),
		People: func(s *terminal.Screen, wide bool) { render.Members(items, time.Now(), wide).Write(s) }})
	switch {
	case err != nil:
		return err
	case !o.Issuer:
		a.inform("this node is not an issuer: only issuers know the members")
		a.Next("lmosd org status")
	case len(items) <= 1:
		a.Next("lmosd org invite   # for another node")
	}
	return nil
}

// nextOfIssuer prints the next commands of an issuer, or how another node can do what they do.
func (a *app) nextOfIssuer(ctx context.Context, commands ...string) {
	o, err := a.organization(ctx)
	switch {
	case err != nil:
		a.Next("lmosd org init DOMAIN", "lmosd org join INVITATION")
	case o.Issuer:
		a.Next(commands...)
	default:
		a.Next("lmosd org status   # the issuers, which invite")
	}
}

func (a *app) listInvitations(ctx context.Context) error {
	list, err := send(a, func(c *api.Client) (*api.InvitationList, error) { return c.Invitations(ctx) })
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(i api.Invitation) string { return i.ID }),
		People: func(s *terminal.Screen, wide bool) { render.Invitations(list.Items, time.Now(), wide).Write(s) }})
	if err == nil && len(list.Items) == 0 {
		a.inform("no open invitations")
		a.nextOfIssuer(ctx, "lmosd org invite", "lmosd trust invite")
	}
	return err
}

func newOrgIssue(a *app) *cobra.Command {
	var roles []string
	cmd := &cobra.Command{
		Use:   "issue <node> --role <role>…",
		Short: "set the roles of a member",
		Long: "Replaces the roles of a member, or makes a node a member. The member gets a credential with these roles at once\n" +
			"if it is connected, else with its next renewal. Without --role it has no role but node. Only issuers can do it.",
		Example: `  lmosd org issue z6MkpTHR8VNs --role customer-service
  lmosd org issue z6MkpTHR8VNs --role customer-service --role billing`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org ls, lmosd org revoke"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeMember,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.member(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if roles == nil {
				roles = []string{}
			}
			text := "no roles but node"
			if len(roles) > 0 {
				text = "the roles " + strings.Join(roles, ", ")
			}
			return a.perform(cmd.Context(), act{text: render.MemberName(*m) + " has " + text, done: change{Change: "issued", DID: m.DID, Name: m.Name},
				do: func(ctx context.Context, c *api.Client) error { return c.SetRoles(ctx, m.DID, roles) }})
		},
	}
	cmd.Flags().StringArrayVar(&roles, "role", nil, "`ROLE` of the member; repeatable")
	return cmd
}

func newOrgRevoke(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "revoke <node…>",
		Short: "end the membership of a node at once",
		Long: "Ends the membership of a node: all members and partners that are connected end its connections, calls,\n" +
			"subscriptions and tasks within seconds, others when they connect. Access rules do not help it for 30 days. An\n" +
			"issuer that is revoked keeps its issuing key until lmosd org issuer rm.",
		Example: `  lmosd org revoke z6MkpTHR8VNs
  lmosd org revoke did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --yes`,
		Annotations:       cli.About(cli.ScopeMesh, cli.Danger, "lmosd org ls, lmosd org restore"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeMember,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachMember(cmd.Context(), args, "revoked", (*api.Client).Revoke, func(all []*api.Member) error {
				names := cli.Each(all, func(m *api.Member) string { return render.MemberName(*m) })
				return a.confirm(cmd.Context(), yes, "Revoke "+strings.Join(names, ", ")+"? What it does at members and partners ends at once.")
			})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func newOrgRestore(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "restore <node…>",
		Short: "end the exclusion of a revoked node",
		Long: "Ends the exclusion of a node that this issuer revoked. Its old credentials stay revoked: it gets a new one when it\n" +
			"connects to an issuer.",
		Example: `  lmosd org restore z6MkpTHR8VNs
  lmosd org ls --jq '.items[] | select(.revoked) | .did' | xargs -r lmosd org restore`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org revoke"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeMember,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachMember(cmd.Context(), args, "restored", (*api.Client).Restore, func([]*api.Member) error { return nil })
		},
	}
}

// eachMember applies do to the members that names name, after check. It stops at the first failure.
func (a *app) eachMember(ctx context.Context, names []string, done string, do func(*api.Client, context.Context, did.DID) error,
	check func([]*api.Member) error) error {
	var all []*api.Member
	for _, name := range names {
		m, err := a.member(ctx, name)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	if err := check(all); err != nil {
		return err
	}
	for _, m := range all {
		err := a.perform(ctx, act{do: func(ctx context.Context, c *api.Client) error { return do(c, ctx, m.DID) },
			done: change{Change: done, DID: m.DID, Name: m.Name}, text: done + " " + render.MemberName(*m)})
		if err != nil {
			return err
		}
	}
	a.Next("lmosd org ls")
	return nil
}

// member returns the member that a text names: its DID, the start of its key, or its name. A complete DID may be of a node that this issuer
// does not know.
func (a *app) member(ctx context.Context, text string) (*api.Member, error) {
	if strings.TrimSpace(text) == "" {
		return nil, cli.Usage("", "the name of the node is empty").Then(cli.StepCommand, "lmosd org ls")
	}
	o, err := a.organization(ctx)
	if err != nil {
		return nil, err
	}
	found := membersNamed(o.Members, text)
	switch id, err := did.Parse(render.WithMethod(text)); {
	case len(found) == 1:
		return &found[0], nil
	case len(found) > 1:
		names := cli.Each(found[:min(len(found), 5)], func(m api.Member) string { return string(m.DID) })
		return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(names, ", "), "%d members match %q", len(found), text)
	case err == nil:
		return &api.Member{DID: id}, nil
	}
	return nil, interact.Errorf(interact.NotFound, "", "no member matches %q", interact.Excerpt(text, 200)).Then(cli.StepCommand, "lmosd org ls")
}

// membersNamed returns the member with a DID, or those whose name is text or whose key begins with it.
func membersNamed(all []api.Member, text string) (found []api.Member) {
	for _, m := range all {
		if string(m.DID) == render.WithMethod(text) {
			return []api.Member{m}
		}
		if m.Name == text || strings.HasPrefix(m.DID.Multibase(), strings.TrimPrefix(text, "did:key:")) {
			found = append(found, m)
		}
	}
	return found
}

func newOrgRenew(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "renew",
		Short: "get a new credential for this node",
		Long: "Gets a new credential for this node from an issuer. Nodes renew their credentials by themselves, at half of their\n" +
			"life: this is for a node whose credential has ended, or whose roles have changed.",
		Example: `  lmosd org renew
  lmosd org renew -o json --jq .until`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org status"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := send(a, func(c *api.Client) (*api.Organization, error) { return c.RenewCredential(cmd.Context()) })
			if err != nil {
				return err
			}
			return a.showOrganization(o)
		},
	}
}

func newOrgIssuer(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issuer",
		Short: "add an issuer of credentials, or remove one",
		Long: "Issuers issue and renew the credentials of members, and revoke them. Each has a key of its own. With two issuers,\n" +
			"one may fail without any refusal. Adding and removing them needs the root key on this node.",
		Example: `  lmosd org issuer add z6MkpTHR8VNs
  lmosd org issuer rm '#i2' --yes`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd org status, lmosd org root import"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOrgIssuerAdd(a), newOrgIssuerRm(a))
	return cmd
}

func newOrgIssuerAdd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "add <node>",
		Short: "make a member an issuer",
		Long: "Makes a connected member an issuer: it makes an issuing key, and the root key of this node adds it to the log of\n" +
			"the organization.",
		Example: `  lmosd org issuer add z6MkpTHR8VNs
  lmosd org issuer add did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org status"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeMember,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.member(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.AddIssuer(ctx, m.DID) },
				done: change{Change: "issuer-added", DID: m.DID, Name: m.Name}, text: render.MemberName(*m) + " is an issuer", next: []string{"lmosd org status"}})
		},
	}
}

func newOrgIssuerRm(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "rm <method>",
		Aliases: []string{"remove"},
		Short:   "remove an issuing key",
		Long: "Removes an issuing key from the log of the organization. The credentials that it signed are no longer valid:\n" +
			"their members renew them at another issuer. lmosd org status lists the keys. The last one cannot be removed.",
		Example: `  lmosd org issuer rm '#i2'
  lmosd org issuer rm i2 --yes`,
		Annotations:       cli.About(cli.ScopeMesh, cli.Danger, "lmosd org status"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeIssuer,
		RunE: func(cmd *cobra.Command, args []string) error {
			method := args[0]
			if !strings.Contains(method, "#") {
				method = "#" + method
			}
			if method == "#" {
				return cli.Usage("for example '#i2'", "the name of the key is empty").Then(cli.StepCommand, "lmosd org status")
			}
			return a.perform(cmd.Context(), act{question: "Remove the issuing key " + method + "? Credentials that it signed are no longer valid.", yes: yes,
				do:   func(ctx context.Context, c *api.Client) error { return c.RemoveIssuer(ctx, method) },
				done: change{Change: "issuer-removed", Name: method}, text: "removed the issuing key " + method})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func newOrgExport(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export <folder>",
		Short: "write the public files of the organization, for a web server",
		Long: "Writes did.jsonl, did.json and, on an issuer, its status list to a folder on the host of the node, for a web\n" +
			"server that serves it as https://DOMAIN/.well-known/. Existing files are replaced. Other organizations need no\n" +
			"web server: nodes give each other these files.",
		Example: `  lmosd org export well-known
  lmosd org export /var/www/acme.example/.well-known`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd org status"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return cli.Usage("", "the folder is empty").Then(cli.StepCommand, cmd.UseLine())
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return input.Unreadable(args[0], err)
			}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.ExportOrganization(ctx, dir) },
				done: change{Change: "exported", File: dir}, text: "exported to " + dir})
		},
	}
}

func newOrgDeactivate(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "deactivate",
		Short: "end the organization, for all members and partners",
		Long: "Ends the organization: its log accepts no further version, and no credential of it is valid. Members and partners\n" +
			"refuse its nodes. The root key must be on this node. It cannot be undone.",
		Example: `  lmosd org deactivate
  lmosd org deactivate --yes`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd org leave"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := a.organization(cmd.Context())
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), act{question: "End " + o.Name + " (" + o.SCID + ") for all its members and partners? It cannot be undone.", yes: yes,
				do:   func(ctx context.Context, c *api.Client) error { return c.DeactivateOrganization(ctx) },
				done: change{Change: "deactivated", DID: o.DID, Name: o.Name}, text: "ended " + o.Name})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func newOrgLeave(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "delete the organization and its keys from this node",
		Long: "Deletes the organization from this node: its log, its credential, its partners and its keys. The organization\n" +
			"continues without this node, if another one is an issuer. It cannot be undone; an issuer may invite the node again.",
		Example: `  lmosd org leave
  lmosd org leave --yes`,
		Annotations: cli.About(cli.ScopeMesh, cli.Danger, "lmosd org root export, lmosd org join"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := a.organization(cmd.Context())
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), act{question: "Leave " + o.Name + "? " + losses(o), yes: yes,
				do:   func(ctx context.Context, c *api.Client) error { return c.LeaveOrganization(ctx) },
				done: change{Change: "left", DID: o.DID, Name: o.Name}, text: "left " + o.Name,
				next: []string{"lmosd org join INVITATION", "lmosd org init DOMAIN"}})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

// losses lists what a node loses that leaves its organization.
func losses(o *api.Organization) string {
	text := "This node loses its credential"
	if o.Issuer {
		text += ", its issuing key"
	}
	if o.Root {
		text += ", and the root key: without a copy, only the recovery file can change the organization"
	}
	if o.Issuer && len(o.Issuers) == 1 {
		text += ". No other node is an issuer: the organization ends when the credentials of its members end"
	}
	return text + "."
}

// completeMember completes the members of the organization.
func (a *app) completeMember(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		o, err := c.Organization(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(o.Members, func(m api.Member) string {
			return render.MemberName(m) + "\t" + terminal.OneLine(m.Name+" "+strings.Join(m.Roles, ", "))
		}), nil
	})
}

// completeIssuer completes the issuing keys of the organization.
func (a *app) completeIssuer(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		o, err := c.Organization(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(o.Issuers, func(i api.Issuer) string {
			return strings.TrimPrefix(i.Method, "#") + "\t" + i.Node.Short()
		}), nil
	})
}
