package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
)

func newDelegateCommand(a *app) *cobra.Command {
	var q api.DelegationRequest
	var to string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "delegate <agent/action>",
		Short: "let another node use a right of this one, for a while",
		Long: "Prints a token by which another node calls one action of an agent that this node may call and delegate: lmosd call --with.\n" +
			"The token is for that node, at that host. It ends with its time, with lmosd delegate revoke, and when this node loses\n" +
			"the right. The operator of the host permits it: lmosd policy allow WHO --to delegate --on AGENT.",
		Example: `  lmosd delegate payout/pay --to did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --for 10m
  lmosd delegate payout/pay --to did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH --for 1h --where 'amount<=100'`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd call, lmosd policy"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			at := strings.LastIndexByte(args[0], '/')
			if at < 0 {
				return cli.Usage("", "name an action: AGENT/ACTION, got %q", args[0])
			}
			q.Agent, q.Name, q.Life = args[0][:at], args[0][at+1:], life.String()
			if q.To, err = did.Parse(to); err != nil {
				return cli.Usage("", "--to is the DID of a node: %s", err)
			}
			d, err := send(a, func(c *api.Client) (*api.Delegation, error) { return c.Delegate(cmd.Context(), q) })
			if err != nil {
				return err
			}
			if err := a.Show(cli.View{Doc: d, Names: []string{d.Token}, People: cli.Line(d.Token)}); err != nil {
				return err
			}
			a.elsewhere("lmosd call "+terminal.Shell(q.Agent)+" "+terminal.Shell(q.Name)+" --with TOKEN", "at the other node, until "+render.Stamp(d.Expires))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "the `DID` of the node that may use it")
	f.DurationVar(&life, "for", 10*time.Minute, "how long, at most 30 days")
	f.StringArrayVar(&q.Where, "where", nil, "a `CONDITION` on the input, such as amount<=100; repeatable")
	f.StringVar(&q.Op, "op", "invoke", "what is delegated: invoke, read, write or subscribe")
	cmd.AddCommand(newDelegateLs(a), newDelegateRevoke(a))
	return cmd
}

func newDelegateLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "ls",
		Aliases:     []string{"list"},
		Short:       "list what this node delegated and that has not ended",
		Long:        "Lists what consumers of this node delegated to other nodes and that has not ended, without the tokens.",
		Example:     "  lmosd delegate ls\n  lmosd delegate ls -o json",
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd delegate revoke"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := send(a, func(c *api.Client) (*api.DelegationList, error) { return c.Delegations(cmd.Context()) })
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: l, Names: cli.Each(l.Items, func(d api.Delegation) string { return d.ID }),
				People: func(s *terminal.Screen, wide bool) { render.DelegationTable(l.Items, wide, time.Now()).Write(s) }})
		},
	}
}

func newDelegateRevoke(a *app) *cobra.Command {
	return &cobra.Command{
		Use:         "revoke <id>",
		Short:       "end a delegation, with what runs by it",
		Long:        "Ends a delegation at its host, which must be connected, with what runs by it.",
		Example:     "  lmosd delegate revoke zdpuAyyH8fpE\n  lmosd delegate ls -o name | xargs -n 1 lmosd delegate revoke",
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd delegate ls"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error {
				_, err := c.RevokeDelegation(ctx, args[0])
				return err
			}, done: change{Change: "revoked", Name: args[0]}, text: "revoked " + args[0]})
		},
	}
}
