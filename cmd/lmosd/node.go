package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func (a *app) status(ctx context.Context) (*api.Status, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	return client.Status(ctx)
}

func newStatusCommand(a *app) *cobra.Command {
	var history bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show the state of the node: peers, agents, calls, warnings",
		Long:  "Shows the state of the node and its warnings; with --history, its load in the last 15 minutes.",
		Example: `  lmosd status
  lmosd status --history
  lmosd status -o json --jq .state
  lmosd status --node http://127.0.0.1:4670`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd peers, lmosd id"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if history {
				return a.showHistory(cmd.Context())
			}
			return a.showStatus(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&history, "history", false, "show the load of the last 15 minutes: calls, errors, times, peers, agents, memory")
	return cmd
}

func (a *app) showStatus(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	st, err := client.Status(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: st, Names: []string{string(st.DID)}, People: func(s *terminal.Screen, _ bool) {
		org, _ := client.Organization(ctx) // nil: none, or the caller may not read it
		var partners []api.Partner
		if org != nil {
			if list, err := client.Partners(ctx); err == nil {
				partners = list.Items
			}
		}
		render.Status(s, st, org, partners, a.target.Context, a.hint)
	}})
	if err != nil || !a.ForPeople() {
		return err
	}
	if own := version(); st.Version != "" && st.Version != own {
		a.Talk.Line(a.Talk.Paint(terminal.Yellow, "warning: ") + terminal.OneLine("the node is lmosd "+st.Version+", this command is "+own))
	}
	switch {
	case st.Peers.Total == 0:
		a.Next("lmosd peers connect MULTIADDR   # one that lmosd id prints on another host")
	case st.Agents.Known+st.Agents.Local > 0:
		a.Next("lmosd find")
	default:
		a.Next("lmosd publish FILE")
	}
	return nil
}

func newPeersCommand(a *app) *cobra.Command {
	var exitStatus bool
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "list the connected nodes, map the mesh, or connect a node",
		Long:  "Lists the connected nodes, nearest first.",
		Example: `  lmosd peers
  lmosd peers -o name
  lmosd peers map --scope mesh
  lmosd peers connect /ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd id"),
		Args:        cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runPeers(cmd.Context(), exitStatus)
		},
	}
	cmd.Flags().BoolVar(&exitStatus, "exit-status", false, "exit 4 if there is no peer")
	cmd.AddCommand(newMapCommand(a), newConnectCommand(a))
	return cmd
}

func newConnectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "connect <multiaddr>",
		Short: "connect the node to another one",
		Long:  "Connects the node to the node at an address that ends in /p2p/ and a peer id, as `lmosd id` prints it there.",
		Example: `  lmosd peers connect /ip4/192.0.2.7/tcp/4667/p2p/12D3KooW…
  lmosd peers connect "$(ssh other lmosd id --jq '.p2p[0]')"`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd peers"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			if err := client.Connect(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.showConnected(args[0])
		},
	}
}

func (a *app) showConnected(addr string) error {
	doc := struct {
		cli.Head
		Addr string `json:"addr"`
	}{cli.NewHead("Connection"), addr}
	_, id, _ := strings.Cut(addr, "/p2p/")
	err := a.Show(cli.View{Doc: doc, Names: []string{id}, People: cli.Line("connected to " + id)})
	if err == nil {
		a.Next("lmosd peers")
	}
	return err
}

func (a *app) runPeers(ctx context.Context, exitStatus bool) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	list, err := client.Peers(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(p api.Peer) string { return string(p.DID) }),
		People: func(s *terminal.Screen, wide bool) { render.Peers(list.Items, wide).Write(s) }})
	if err != nil {
		return err
	}
	if len(list.Items) > 0 {
		return nil
	}
	if a.ForPeople() {
		a.Talk.Line("no peers")
	}
	a.Next("lmosd peers connect MULTIADDR   # one that lmosd id prints on another host")
	if exitStatus {
		return cli.SilentError(cli.ExitNotFound)
	}
	return nil
}
