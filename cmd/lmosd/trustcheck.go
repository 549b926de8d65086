package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newTrustCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check <domain>",
		Short: "check which organization a domain belongs to",
		Long: "Fetches the log of the organization at a domain over HTTPS, and verifies it. As long as the log may be cached (one\n" +
			"hour, unless it states another time), agents of its verified members are shown as proven. What is not proven is\n" +
			"printed with the reason. Exits with 4 if the domain proves nothing. A DID instead of a domain also states the\n" +
			"SCID that the domain must serve.",
		Example: `  lmosd trust check globex.example
  lmosd trust check did:webvh:QmT4example:globex.example
  lmosd trust check globex.example -o json --jq .proven`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd find --organization, lmosd trust ls"),
		Args:        cli.Takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			c, err := client.CheckDomain(cmd.Context(), strings.TrimSpace(args[0]))
			if err != nil {
				return err
			}
			return a.showCheck(c)
		},
	}
}

// showCheck prints what a domain proves; without a proof the exit code is [cli.ExitNotFound].
func (a *app) showCheck(c *api.DomainCheck) error {
	if err := a.Show(cli.View{Doc: c, Names: []string{string(c.DID)}, People: cli.Body(render.DomainCheck(c))}); err != nil {
		return err
	}
	if !c.Proven {
		return cli.SilentError(cli.ExitNotFound)
	}
	a.Next("lmosd find --organization " + terminal.Shell(c.Organization.Name))
	return nil
}
