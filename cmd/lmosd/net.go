package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newNetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "net",
		Short: "show how others reach the node, and what it relays for them",
		Long: "Shows whether other nodes can dial this one, with the proof, its relays, the attempts to get direct connections\n" +
			"(punches), and what it relays for others.",
		Example: `  lmosd net
  lmosd net -o json --jq .reachability
  lmosd net -o json --jq '.relays[].did'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd peers, lmosd status"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.showNet(cmd.Context())
		},
	}
}

func (a *app) showNet(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	n, err := client.Net(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: n, Names: cli.Each(n.Addrs, func(x api.NetAddr) string { return x.Addr }),
		People: func(s *terminal.Screen, _ bool) {
			st, _ := client.Status(ctx) // nil: the summary has one line
			render.Net(s, n, st)
		}})
	if err == nil {
		a.Next("lmosd peers")
	}
	return err
}
