package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

func newOrgBootstrap(a *app) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "bootstrap [<address>…]",
		Short: "list nodes through which others join the organization",
		Long: "Replaces the addresses in the document of the organization by those of this node, or by the given ones, 8 at most.\n" +
			"Nodes with the did:web or did:webvh of the organization in mesh.bootstrap join through them, and so do members and\n" +
			"partners whose other bootstrap peers are gone. The document is public. The change needs the root key on this node.",
		Example: `  lmosd org bootstrap
  lmosd org bootstrap /dns/mesh.acme.example/tcp/4667/p2p/12D3KooW…
  lmosd org bootstrap --none`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd org export, lmosd id, lmosd org root import"),
		Args:        cli.Takes(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case none && len(args) > 0:
				return cli.Usage("", "--none and addresses exclude each other").Then(cli.StepCommand, "lmosd org bootstrap --help")
			case none:
				return a.setBootstrap(cmd.Context(), []string{})
			case len(args) == 0:
				return a.setBootstrap(cmd.Context(), nil)
			}
			return a.setBootstrap(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "remove the list")
	return cmd
}

func (a *app) setBootstrap(ctx context.Context, addrs []string) error {
	o, err := send(a, func(c *api.Client) (*api.Organization, error) { return c.SetBootstrap(ctx, addrs) })
	if err != nil {
		return err
	}
	if err := a.showOrganization(o); err != nil {
		return err
	}
	a.Next("lmosd org export DIR   # for the web server of the domain")
	return nil
}
