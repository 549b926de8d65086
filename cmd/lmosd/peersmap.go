package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newMapCommand(a *app) *cobra.Command {
	var scope string
	var dot bool
	var limit int
	cmd := &cobra.Command{
		Use:   "map",
		Short: "show nodes and the connections between them",
		Long: "Shows the nodes of a part of the mesh and the connections between them. For organization and mesh, the node asks\n" +
			"the members of its organization for their connections; the last line has how many have answered.",
		Example: `  lmosd peers map
  lmosd peers map --scope organization
  lmosd peers map --scope mesh --dot > mesh.dot
  lmosd peers map --scope mesh -o json --jq '.links[].to'`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd peers, lmosd net"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.showMap(cmd.Context(), api.TopologyScope(scope), limit, dot)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&scope, "scope", string(api.TopologyMine), "`PART` of the mesh: mine, organization or mesh")
	flags.IntVar(&limit, "limit", 0, "most nodes, and most connections, to show (default 2000)")
	flags.BoolVar(&dot, "dot", false, "print the map for Graphviz")
	return cmd
}

func (a *app) showMap(ctx context.Context, scope api.TopologyScope, limit int, dot bool) error {
	switch scope {
	case api.TopologyMine, api.TopologyOrganization, api.TopologyMesh:
	default:
		return cli.Usage("", "--scope %s is neither mine nor organization nor mesh", scope).Then(cli.StepCommand, "lmosd peers map --scope mesh")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	m, err := client.Topology(ctx, scope, limit)
	if err != nil {
		return err
	}
	view := cli.View{Doc: m, Names: cli.Each(m.Nodes, func(n api.TopologyNode) string { return string(n.DID) }),
		People: func(s *terminal.Screen, wide bool) { render.Topology(s, m, wide) }}
	if dot {
		view.People = func(s *terminal.Screen, _ bool) { render.Dot(s, m) }
	}
	if err := a.Show(view); err != nil || dot {
		return err
	}
	if a.ForPeople() {
		a.Talk.Line(a.Talk.Paint(terminal.Dim, render.TopologyCoverage(m)))
	}
	if scope == api.TopologyMine {
		a.Next("lmosd peers map --scope mesh")
	}
	return nil
}
