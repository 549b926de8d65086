package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Limits of invitations, as in the gateway.
const (
	defaultInvitationLife = 24 * time.Hour
	maxInvitationLife     = 30 * 24 * time.Hour
	maxInvitation         = 8 << 10 // bytes of its text
)

// inviteFlags are the flags of the commands that make invitations.
type inviteFlags struct {
	roles  []string
	to     string
	uses   int
	life   time.Duration
	until  string
	issuer bool
	quiet  bool
}

func (f *inviteFlags) add(cmd *cobra.Command, role, to string) {
	cmd.Flags().StringArrayVar(&f.roles, "role", nil, role)
	cmd.Flags().StringVar(&f.to, "for", "", to)
	cmd.Flags().IntVar(&f.uses, "uses", 1, "how often it can be used")
	cmd.Flags().DurationVar(&f.life, "expires", defaultInvitationLife, "how long it can be used, at most 720h")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only the invitation")
}

// request returns the invitation of the flags.
func (f *inviteFlags) request(kind string) (r api.InvitationRequest, err error) {
	r = api.InvitationRequest{Kind: kind, Roles: f.roles, Uses: f.uses, Life: api.Duration(f.life), Issuer: f.issuer}
	switch {
	case f.uses < 1:
		return r, cli.Usage("", "--uses is %d, expected 1 or more", f.uses)
	case f.life <= 0 || f.life > maxInvitationLife:
		return r, cli.Usage("", "--expires is %s, expected up to 720h", f.life).Then(interact.StepOption, "expires", "24h")
	}
	if f.to != "" {
		if r.For, err = did.Parse(render.WithMethod(f.to)); err != nil {
			return r, cli.Usage("lmosd id and lmosd org status print DIDs", "expected a DID after --for, got %q", f.to)
		}
	}
	if f.until != "" {
		r.Until, err = dateOf(f.until)
	}
	return r, err
}

// dateOf returns the end of a date in UTC, or a time.
func dateOf(text string) (time.Time, error) {
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return day.AddDate(0, 0, 1), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, cli.Usage("for example --until 2027-01-31 or --until 2027-01-31T12:00:00Z", "expected a date after --until, got %q", text)
	}
	return t, nil
}

func newOrgInvite(a *app) *cobra.Command {
	var f inviteFlags
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "make an invitation for a node to join the organization",
		Long: "Prints an invitation on standard output, and what it is for on standard error. Any holder of the text can use it,\n" +
			"once and for 24 hours unless the flags say otherwise: send it by a private channel, or use --for.\n" +
			"Only issuers can invite. The new node connects to this one, so both must reach each other once.",
		Example: `  lmosd org invite
  lmosd org invite --role customer-service --uses 3
  lmosd org invite --for z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --issuer
  lmosd org invite --quiet > invitation`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd org join, lmosd org ls --invitations"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.invite(cmd.Context(), api.InviteNode, &f, "lmosd org join INVITATION", "on the other node")
		},
	}
	f.add(cmd, "`ROLE` of the new member; repeatable", "`DID` of the only node that can use it")
	cmd.Flags().BoolVar(&f.issuer, "issuer", false, "make the new member an issuer, too")
	return cmd
}

func newTrustInvite(a *app) *cobra.Command {
	var f inviteFlags
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "invite another organization to become a partner",
		Long: "Prints an invitation on standard output, and what it is for on standard error. Any holder of the text can use it,\n" +
			"once and for 24 hours unless the flags say otherwise: send it by a private channel. Without --for,\n" +
			"the partner is unconfirmed until lmosd trust confirm. Only issuers can invite. An issuer of the other\n" +
			"organization accepts it, and connects to this node.",
		Example: `  lmosd trust invite
  lmosd trust invite --until 2027-01-31 --role logistics
  lmosd trust invite --for did:webvh:QmT4example:globex.example
  lmosd trust invite -q > invitation`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd trust accept, lmosd trust confirm"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.invite(cmd.Context(), api.InvitePartner, &f, "lmosd trust accept INVITATION", "on an issuer of the other organization")
		},
	}
	f.add(cmd, "`ROLE` of the partner that counts here; repeatable (default: all)", "`DID` of the only organization that can use it")
	cmd.Flags().StringVar(&f.until, "until", "", "last `DATE` of the partnership, in UTC (default: without limit)")
	return cmd
}

// invite prints an invitation: for people, its text alone on standard output.
func (a *app) invite(ctx context.Context, kind string, f *inviteFlags, next, where string) error {
	r, err := f.request(kind)
	if err != nil {
		return err
	}
	i, err := send(a, func(c *api.Client) (*api.Invitation, error) { return c.Invite(ctx, r) })
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: i, Names: []string{i.Text}, People: func(s *terminal.Screen, _ bool) { s.Line(terminal.OneLine(i.Text)) }})
	if err != nil || f.quiet || !a.ForPeople() {
		return err
	}
	render.Invitation(i, time.Now()).Write(a.Talk)
	a.elsewhere(next, where)
	return nil
}

func newOrgJoin(a *app) *cobra.Command {
	var at, words string
	cmd := &cobra.Command{
		Use:   "join [invitation | -]",
		Short: "join an organization by invitation or on the local network",
		Long: "Makes this node a member of the organization that invites it; - reads the invitation from standard input, " +
			"because other users of this host see arguments. An organization that the first run of this node made is " +
			"replaced if it has no other member and no partner. Without an argument, the command asks an issuer on the " +
			"local network and waits until lmosd org admit there: compare the six words on both screens first.",
		Example: `  lmosd org join --words 'apple bird cloud door egg fox'
  lmosd org join lmos-invite:…
  lmosd org join - < invitation`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org invite, lmosd org admit, lmosd org status"),
		Args:        cli.Takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.joinByRequest(cmd.Context(), at, words)
			}
			o, err := redeem(a, args[0], func(c *api.Client, text string) (*api.Organization, error) {
				return c.JoinOrganization(cmd.Context(), api.Acceptance{Invitation: text})
			})
			if err != nil {
				return err
			}
			if err := a.showOrganization(o); err != nil {
				return err
			}
			a.inform("compare the SCID with that of the other node: lmosd org status")
			a.Next("lmosd find", "lmosd trust ls")
			return nil
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "`NODE` to ask on the local network, by its DID or the start of its key (default: the only one)")
	cmd.Flags().StringVar(&words, "words", "", "the six `WORDS` that lmosd org requests prints there, in place of a prompt")
	return cmd
}

// redeem sends the invitation of an argument to the node.
func redeem[T any](a *app, arg string, call func(c *api.Client, text string) (T, error)) (out T, err error) {
	text, err := a.invitation(arg)
	if err != nil {
		return out, err
	}
	return send(a, func(c *api.Client) (T, error) { return call(c, text) })
}

// invitation returns the text of an argument, or of standard input for "-". Errors do not quote it: it is a secret.
func (a *app) invitation(arg string) (string, error) {
	if arg == "-" {
		raw, err := input.Content(a.Console, "-", maxInvitation)
		if err != nil {
			return "", err
		}
		arg = string(raw)
	}
	text := strings.Join(strings.Fields(arg), "")
	switch {
	case text == "":
		return "", cli.Usage("lmosd org invite and lmosd trust invite print one", "the invitation is empty")
	case !strings.HasPrefix(text, "lmos-invite:"):
		return "", cli.Usage("lmosd org invite and lmosd trust invite print one", "expected an invitation, which begins with lmos-invite:")
	case len(text) > maxInvitation:
		return "", cli.Usage("copy it again", "the invitation is longer than %d bytes", maxInvitation)
	}
	return text, nil
}

func newTrustAccept(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "accept <invitation | ->",
		Short: "accept the invitation of another organization",
		Long: "Makes the organization that invites a partner of the own one, on both sides. - reads the invitation from standard\n" +
			"input: an argument is visible to other users of this host while the command runs, which matters until the\n" +
			"invitation is used. Compare the six words with the other side: a domain is only a claim. Only issuers can accept.",
		Example: `  lmosd trust accept lmos-invite:…
  lmosd trust accept - --name globex < invitation`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd trust invite, lmosd trust ls, lmosd trust confirm"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := redeem(a, args[0], func(c *api.Client, text string) (*api.Partner, error) {
				return c.AcceptInvitation(cmd.Context(), api.Acceptance{Invitation: text, Name: name})
			})
			if err != nil {
				return err
			}
			return a.showPartner(p, "compare the six words with the other side: lmosd trust ls")
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "local `NAME` of the partner (default: from its domain)")
	return cmd
}
