package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/trust/foreign"
)

func newTrustPresent(a *app) *cobra.Command {
	var to []string
	cmd := &cobra.Command{
		Use:   "present <file|-|did>",
		Short: "show other nodes a credential of a foreign issuer",
		Long: "Stores a W3C Verifiable Credential 1.1 about this node, and shows it to the nodes of the organization and of " +
			"partners, or only to those of --to, now and when they connect; each decides what it grants (lmosd trust " +
			"issuer). From a did:web with a VerifiableCredentialService, the credentials are fetched. A credential has one " +
			"proof (Ed25519Signature2018 or 2020, JsonWebSignature2020), an expirationDate, and no credentialStatus.",
		Example: `  lmosd trust present adjuster.json
  lmosd trust present did:web:wallet.example
  lmosd trust present adjuster.json --to z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd trust present - < adjuster.json`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd trust credential ls, lmosd trust issuer"),
		Args:        cli.Takes(1, 1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.present(cmd.Context(), args[0], to) },
	}
	cmd.Flags().StringArrayVar(&to, "to", nil, "`DID` of a node to which it is shown; may be repeated")
	return cmd
}

func (a *app) present(ctx context.Context, file string, to []string) error {
	nodes := []did.DID{}
	for _, text := range to {
		id, err := did.Parse(render.WithMethod(strings.TrimSpace(text)))
		if err != nil {
			return cli.Usage("lmosd peers -o name prints DIDs", "expected a DID, got %q", interact.Excerpt(text, 200))
		}
		nodes = append(nodes, id)
	}
	if strings.HasPrefix(file, "did:") {
		list, err := send(a, func(c *api.Client) (*api.ForeignCredentialList, error) {
			return c.FetchCredentials(ctx, api.CredentialFetch{From: did.DID(file), To: nodes})
		})
		if err != nil {
			return err
		}
		return a.showCredentials(list)
	}
	raw, err := input.Content(a.Console, file, foreign.MaxCredential)
	if err != nil {
		return err
	}
	if !json.Valid(raw) {
		return cli.Usage("name the file that the issuer made", "%s is not JSON", input.Called(file))
	}
	c, err := send(a, func(c *api.Client) (*api.ForeignCredential, error) {
		return c.PresentCredential(ctx, api.CredentialPresentation{Credential: raw, To: nodes})
	})
	if err != nil {
		return err
	}
	if err := a.Show(cli.View{Doc: c, Names: []string{c.Hash}, People: cli.Body(render.ForeignCredentials([]api.ForeignCredential{*c}, time.Now()))}); err != nil {
		return err
	}
	a.Next("lmosd trust credential ls")
	return nil
}

func newTrustCredential(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "list or remove credentials of foreign issuers",
		Long:  "A credential of a foreign issuer gives a node roles here: lmosd trust issuer. A node shows those that it holds: lmosd trust present.",
		Example: `  lmosd trust credential ls
  lmosd trust credential rm 9f2c0b7d51aa`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust present, lmosd trust issuer"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	ls := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the credentials of the node and of connected nodes",
		Long:    "Lists the credentials that the node holds, and those that connected nodes have shown and that count here, with the roles that they give.",
		Example: `  lmosd trust credential ls
  lmosd trust credential ls -o json --jq '.items[] | select(.held | not) | .subject'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listCredentials(cmd.Context()) },
	}
	rm := &cobra.Command{
		Use:     "rm <hash>",
		Aliases: []string{"remove"},
		Short:   "remove a credential that the node holds",
		Long:    "Removes a credential that the node holds. Nodes that have seen it know it until the connection ends.",
		Example: `  lmosd trust credential rm 9f2c0b7d51aa
  lmosd trust credential ls -o json --jq '.items[] | select(.held) | .hash' | xargs -n1 lmosd trust credential rm`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite),
		Args:        cli.Takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.RemoveCredential(ctx, args[0]) },
				done: change{Change: "credential-removed", Name: args[0]}, text: "removed " + args[0]})
		},
	}
	cmd.AddCommand(ls, rm)
	return cmd
}

func (a *app) listCredentials(ctx context.Context) error {
	list, err := send(a, func(c *api.Client) (*api.ForeignCredentialList, error) { return c.ForeignCredentials(ctx) })
	if err != nil {
		return err
	}
	return a.showCredentials(list)
}

func (a *app) showCredentials(list *api.ForeignCredentialList) error {
	err := a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(c api.ForeignCredential) string { return c.Hash }),
		People: cli.Body(render.ForeignCredentials(list.Items, time.Now()))})
	if err == nil && len(list.Items) == 0 {
		a.inform("no credentials")
		a.Next("lmosd trust present FILE", "lmosd trust issuer add DID --name NAME --role ROLE")
	}
	return err
}

func newTrustIssuer(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issuer",
		Short: "choose the foreign issuers whose credentials give roles",
		Long: "A foreign issuer is no organization: its credentials make no node a member or a partner. They give the node that holds one the\n" +
			"roles that are permitted here, which access rules name NAME/ROLE.",
		Example: `  lmosd trust issuer add did:web:registry.example --name registry --role adjuster
  lmosd policy allow registry/adjuster --to find,call --on claims
  lmosd trust issuer ls`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust credential, lmosd policy allow"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrustIssuerAdd(a), newTrustIssuerLs(a), newTrustIssuerRm(a))
	return cmd
}

func newTrustIssuerAdd(a *app) *cobra.Command {
	var i api.ForeignIssuer
	cmd := &cobra.Command{
		Use:   "add <did>",
		Short: "let the credentials of an issuer give roles, or change which",
		Long: "Adds an issuer, a did:key or a did:web, whose document the node fetches when a credential is shown. A role is a word that the\n" +
			"credential has as role or in roles of its subject, or ROLE=TYPE, which each credential of the type gives. The name stays that\n" +
			"of the issuer.",
		Example: `  lmosd trust issuer add did:web:registry.example --name registry --role adjuster --role auditor
  lmosd trust issuer add did:web:registry.example --name registry --role adjuster=https://claims.example/Adjuster`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd policy allow"),
		Args:        cli.Takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			i.DID = did.DID(strings.TrimSpace(args[0]))
			return a.trustIssuer(cmd.Context(), i)
		},
	}
	cmd.Flags().StringVar(&i.Name, "name", "", "`NAME` of the issuer in access rules; required")
	cmd.Flags().StringArrayVar(&i.Roles, "role", nil, "`ROLE` that its credentials may give, or ROLE=TYPE; may be repeated; required")
	return cmd
}

func (a *app) trustIssuer(ctx context.Context, i api.ForeignIssuer) error {
	if i.Name == "" || len(i.Roles) == 0 {
		return cli.Usage("for example --name registry --role adjuster", "--name and --role are required")
	}
	made, err := send(a, func(c *api.Client) (*api.ForeignIssuer, error) { return c.TrustIssuer(ctx, i) })
	if err != nil {
		return err
	}
	if err := a.Show(cli.View{Doc: made, Names: []string{made.Name}, People: cli.Body(render.ForeignIssuers([]api.ForeignIssuer{*made}))}); err != nil {
		return err
	}
	role, _, _ := strings.Cut(made.Roles[0], "=")
	a.Next("lmosd policy allow " + terminal.Shell(made.Name+"/"+role) + " --to find,call --on AGENT")
	return nil
}

func newTrustIssuerLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the foreign issuers",
		Long:    "Lists the foreign issuers by name, with the roles that their credentials may give.",
		Example: `  lmosd trust issuer ls
  lmosd trust issuer ls -o json --jq '.items[].did'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := send(a, func(c *api.Client) (*api.ForeignIssuerList, error) { return c.ForeignIssuers(cmd.Context()) })
			if err != nil {
				return err
			}
			err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(i api.ForeignIssuer) string { return i.Name }), People: cli.Body(render.ForeignIssuers(list.Items))})
			if err == nil && len(list.Items) == 0 {
				a.inform("no foreign issuers")
				a.Next("lmosd trust issuer add DID --name NAME --role ROLE")
			}
			return err
		},
	}
}

func newTrustIssuerRm(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm <name>",
		Aliases: []string{"remove"},
		Short:   "end what the credentials of an issuer give, at once",
		Long: "Ends what the credentials of an issuer give: calls and subscriptions that need a role of it end. Its name stays taken, so that\n" +
			"access rules keep their meaning.",
		Example: `  lmosd trust issuer rm registry
  lmosd trust issuer ls -o name | xargs -n1 lmosd trust issuer rm`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite),
		Args:        cli.Takes(1, 1), ValidArgsFunction: a.completeForeignIssuer,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.perform(cmd.Context(), act{do: func(ctx context.Context, c *api.Client) error { return c.RemoveForeignIssuer(ctx, args[0]) },
				done: change{Change: "issuer-removed", Name: args[0]}, text: "removed " + args[0], next: []string{"lmosd trust issuer ls"}})
		},
	}
}

// completeForeignIssuer completes the names of foreign issuers.
func (a *app) completeForeignIssuer(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.ForeignIssuers(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(i api.ForeignIssuer) string { return i.Name + "\t" + terminal.OneLine(string(i.DID)) }), nil
	})
}
