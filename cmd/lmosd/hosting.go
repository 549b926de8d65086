package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/publication"
)

func newHostingCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hosting",
		Short: "run one agent on several nodes, by a grant of its owner",
		Long: "An owner whose key is on no node grants an agent to up to 8 nodes, for 7 days at most. Each node that hosts it signs\n" +
			"a record of its own; other nodes find one agent and call it at any of its hosts. sign, renew and withdraw need the\n" +
			"key of the owner; put, ls and end act on a node. A grant has no secret.",
		Example: `  lmosd hosting sign weather.td.json --key owner.pem --host z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd hosting put weather.grant.json
  lmosd hosting ls`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd publish, lmosd id"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newHostingSign(a), newHostingRenew(a), newHostingPut(a), newHostingLs(a), newHostingEnd(a), newHostingWithdraw(a))
	return cmd
}

func newHostingPut(a *app) *cobra.Command {
	var callers []string
	cmd := &cobra.Command{
		Use:   "put <file…>",
		Short: "host an agent at this node, or bring it a newer grant",
		Long: "Gives a grant to the node, which verifies it, stores it and announces that it hosts the agent. The agent runs at the\n" +
			"same local address on each host: the node calls the forms of the description. A newer grant of the same\n" +
			"description reaches the other hosts by itself; one of another description must be put at each host.",
		Example: `  lmosd hosting put weather.grant.json
  lmosd hosting put weather.grant.json --for globex`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd hosting sign, lmosd hosting ls"),
		Args:        cli.Takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *api.Client, name string) (*api.Publication, error) {
				f, err := a.readGrant(name)
				if err != nil {
					return nil, err
				}
				return c.Host(ctx, f.HostingGrant, callers)
			})
		},
	}
	cmd.Flags().StringArrayVar(&callers, "for", nil, expose.ForUsage)
	return cmd
}

func newHostingLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the agents of other owners that this node hosts",
		Long: "Lists the agents of other owners that this node hosts, with the end of the grant and the other hosts. The state is\n" +
			"hosted, waiting (a newer grant of another description must be put here), draining (the node stops) or grant-ended\n" +
			"(not offered until a newer grant is put). It warns of grants that end within 2 days.",
		Example: `  lmosd hosting ls
  lmosd hosting ls --jq '.items[] | select(.state != "hosted") | .name'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd hosting put, lmosd hosting end"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listHosted(cmd.Context()) },
	}
}

func (a *app) listHosted(ctx context.Context) error {
	list, err := send(a, func(c *api.Client) (*api.HostedList, error) { return c.Hosted(ctx) })
	if err != nil {
		return err
	}
	now := time.Now()
	if err := a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(h api.Hosted) string { return h.Ref }),
		People: cli.Body(render.HostedTable(list.Items, now))}); err != nil {
		return err
	}
	for _, h := range list.Items {
		if text := grantProblem(h, now); text != "" {
			a.Warn(text)
		}
	}
	if len(list.Items) == 0 {
		a.Next("lmosd hosting put FILE")
	}
	return nil
}

// grantProblem says what an operator has to do for a Thing; empty: nothing.
func grantProblem(h api.Hosted, now time.Time) string {
	name := terminal.OneLine(h.Name)
	switch left := h.Expires.Sub(now); {
	case h.State == api.HostedGrantEnded:
		return fmt.Sprintf("%s is not offered: its grant ended at %s; get a newer one from its owner: lmosd hosting put FILE", name, render.Stamp(h.Expires))
	case h.WaitingFor != 0:
		return fmt.Sprintf("%s has a newer grant, %d, of another description; get it from its owner: lmosd hosting put FILE", name, h.WaitingFor)
	case left < publication.GrantWarning:
		return fmt.Sprintf("the grant of %s ends in %s; its owner renews it: lmosd hosting renew FILE --key KEY", name, terminal.Span(left))
	}
	return ""
}

func newHostingEnd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "end <name…>",
		Short: "stop hosting an agent at this node; other hosts continue",
		Long: "Ends the hosting of agents at this node, and announces that. Other hosts continue. The grant may be put again as\n" +
			"long as it is valid. To remove a host for good, the owner signs a grant without it: lmosd hosting renew --remove.",
		Example: `  lmosd hosting end weather
  lmosd hosting ls -o name | xargs lmosd hosting end`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd hosting ls, lmosd hosting withdraw"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeHosted,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withdraw(cmd.Context(), args, (*api.Client).EndHosting, func(ref string) string { return "lmosd hosting end " + ref })
		},
	}
}

// completeHosted completes the names of the Things of other owners.
func (a *app) completeHosted(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.Hosted(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(h api.Hosted) string { return h.Name + "\t" + terminal.OneLine(h.Ref) }), nil
	})
}

// showHosted prints the grant and the other hosts of a Thing of another owner.
func (a *app) showHosted(p *api.Publication) {
	h := p.Hosted
	if h == nil || p.Withdrawn {
		return
	}
	s := &terminal.Sheet{}
	s.Add("grant", fmt.Sprintf("%d, until %s (%s)", h.Number, render.Stamp(h.Expires), terminal.Span(time.Until(h.Expires))))
	s.Add("granted to", shortOf(h.Nodes))
	s.Add("hosts", shortOf(h.Hosts))
	s.Write(a.Out)
}

// shortOf returns the short forms of DIDs.
func shortOf(ids []did.DID) string { return strings.Join(cli.Each(ids, did.DID.Short), ", ") }
