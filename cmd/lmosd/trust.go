package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// showPartner prints the sheet of a partner, then a line for people, and what comes next.
func (a *app) showPartner(p *api.Partner, text string) error {
	err := a.Show(cli.View{Doc: p, Names: []string{p.Name}, People: cli.Body(render.Partner(p, time.Now()))})
	if err != nil {
		return err
	}
	if text != "" {
		a.inform(text)
	}
	name := terminal.Shell(p.Name)
	if p.State == api.PartnerUnconfirmed {
		a.Next("lmosd trust confirm " + name + "   # if the words are the same on both sides")
	} else {
		a.Next("lmosd expose TARGET --for " + name)
	}
	return nil
}

func newTrustLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls [name]",
		Aliases: []string{"list"},
		Short:   "list the partner organizations, or show one",
		Long: "Lists the partners of the organization, with their state and the six words by which both sides recognize each\n" +
			"other. A partner is unconfirmed if the invitation did not name it and its words were not compared.",
		Example: `  lmosd trust ls
  lmosd trust ls globex
  lmosd trust ls -o json --jq '.items[] | select(.state == "unconfirmed") | .name'`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust confirm, lmosd trust rm, lmosd org status"),
		Args:              cli.Takes(0, 1),
		ValidArgsFunction: a.completePartner,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listPartners(cmd.Context())
			}
			p, err := a.partner(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			p.APIVersion, p.Kind = api.APIVersion, "Partner"
			return a.showPartner(p, "")
		},
	}
}

func (a *app) listPartners(ctx context.Context) error {
	list, err := send(a, func(c *api.Client) (*api.PartnerList, error) { return c.Partners(ctx) })
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(p api.Partner) string { return p.Name }),
		People: func(s *terminal.Screen, wide bool) { render.Partners(list.Items, time.Now(), wide).Write(s) }})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list.Items, func(p api.Partner) bool { return p.State == api.PartnerUnconfirmed })
	switch {
	case i >= 0:
		a.Next("lmosd trust confirm " + terminal.Shell(list.Items[i].Name) + "   # if the words are the same on both sides")
	case len(list.Items) == 0:
		a.inform("no partners")
		a.nextOfIssuer(ctx, "lmosd trust invite", "lmosd trust accept INVITATION")
	default:
		a.Next("lmosd trust ls " + terminal.Shell(list.Items[0].Name))
	}
	return nil
}

// partner returns the partner with a local name.
func (a *app) partner(ctx context.Context, name string) (*api.Partner, error) {
	list, err := send(a, func(c *api.Client) (*api.PartnerList, error) { return c.Partners(ctx) })
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if p.Name == name || string(p.DID) == name || p.SCID == name {
			return &p, nil
		}
	}
	names := cli.Each(list.Items, func(p api.Partner) string { return p.Name })
	return nil, cli.Similar(interact.Errorf(interact.NotFound, "", "no partner is called %q", interact.Excerpt(name, 200)), name, names,
		"lmosd trust ls")
}

func newTrustConfirm(a *app) *cobra.Command {
	var head string
	cmd := &cobra.Command{
		Use:   "confirm <name>",
		Short: "confirm a partner whose six words were compared",
		Long: "Confirms a partner whose invitation did not name it: its six words are the same on both sides, which people have\n" +
			"compared, for example by telephone. A partner whose log has two histories is suspended: compare the versions with\n" +
			"its operator, and name that of the true history with --log. All members of the organization then use that one.",
		Example: `  lmosd trust confirm globex
  lmosd trust confirm globex --log 3-QmXf6…
  lmosd trust confirm globex -o json --jq .state`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd trust ls"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completePartner,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.partner(cmd.Context(), args[0])
			if err == nil {
				p, err = send(a, func(c *api.Client) (*api.Partner, error) { return c.ConfirmPartner(cmd.Context(), p.Name, head) })
			}
			if err != nil {
				return err
			}
			return a.showPartner(p, "")
		},
	}
	cmd.Flags().StringVar(&head, "log", "", "`VERSION` of the history that counts, if there are two")
	return cmd
}

func newTrustRm(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "rm <name>",
		Aliases: []string{"remove"},
		Short:   "end a partnership at once",
		Long: "Ends a partnership: the connections, calls, subscriptions and tasks of the partner's nodes at this organization\n" +
			"end at once, and access rules do not help them for 30 days. Its nodes learn it when they connect. A new\n" +
			"invitation starts a new partnership.",
		Example: `  lmosd trust rm globex
  lmosd trust rm globex --yes`,
		Annotations:       cli.About(cli.ScopeMesh, cli.Danger, "lmosd trust ls, lmosd trust invite"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completePartner,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.partner(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.perform(cmd.Context(), act{question: "End the partnership with " + p.Name + " (" + p.SCID + ")? What its nodes do here ends at once.", yes: yes,
				do:   func(ctx context.Context, c *api.Client) error { return c.RemovePartner(ctx, p.Name) },
				done: change{Change: "partner-removed", DID: p.DID, Name: p.Name}, text: "removed " + p.Name, next: []string{"lmosd trust ls"}})
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func newTrustDistrust(a *app) *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use:   "distrust <did>",
		Short: "exclude a node or an organization from everything",
		Long: "Excludes a node or an organization from this node: its connections and calls end at once, and access rules do not\n" +
			"help it. --undo ends that. A node can take another key: access rules that permit few callers protect more.",
		Example: `  lmosd trust distrust z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd trust distrust did:webvh:QmT4example:globex.example
  lmosd trust distrust z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --undo`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd org revoke, lmosd trust rm"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := did.Parse(render.WithMethod(strings.TrimSpace(args[0])))
			if err != nil {
				return cli.Usage("lmosd peers -o name prints DIDs", "expected a DID, got %q", interact.Excerpt(args[0], 200))
			}
			done, text := "distrusted", "excluded "+string(id)
			if undo {
				done, text = "distrust-ended", "no longer excluded: "+string(id)
			}
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.Distrust(ctx, id, !undo) },
				done: change{Change: done, DID: id}, text: text})
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "end the exclusion")
	return cmd
}

// completePartner completes the names of partners.
func (a *app) completePartner(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.Partners(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(p api.Partner) string { return p.Name + "\t" + terminal.OneLine(p.State+" "+string(p.DID)) }), nil
	})
}
