package main

import (
	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// newTrustCommand returns `lmosd trust` with its subcommands.
func newTrustCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "explain the decisions of the node about callers",
		Long:  "Explains which callers may use the agents of the node, and why.",
		Example: `  lmosd trust why anyone invoke weather
  lmosd trust why globex/logistics invoke weather/getWeather`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd policy"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWhyCommand(a))
	return cmd
}
