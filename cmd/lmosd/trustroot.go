package main

import (
	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// newTrustCommand returns lmosd trust. Its subcommands are in trust.go.
func newTrustCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "invite, accept, list and remove partner organizations",
		Long: "Partners are other organizations, whose nodes may connect and find public agents; more by access rules. A\n" +
			"partnership starts with one invitation, which the other side accepts.",
		Example: `  lmosd trust invite
  lmosd trust accept lmos-invite:…
  lmosd trust ls`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd org"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrustInvite(a), newTrustAccept(a), newTrustLs(a), newTrustStatus(a), newTrustRm(a), newTrustConfirm(a), newTrustDistrust(a), newTrustCheck(a), newTrustIssuer(a), newTrustPresent(a), newTrustCredential(a), newWhyCommand(a))
	return cmd
}
