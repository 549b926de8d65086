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
	"github.com/lmosd/lmosd/gateway/tokens"
)

func newTokenCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "create, list or revoke the access tokens of the node",
		Long: "An access token lets a program use the API of the node, over HTTP, WebSocket or MQTT, with the rights of its scopes only. The token in\n" +
			"api.token in the data directory has all rights and the name operator.",
		Example: `  lmosd token create dashboard --scope find --scope read:weather
  lmosd token ls
  lmosd token revoke dashboard`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenCreate(a), newTokenLs(a), newTokenRevoke(a))
	return cmd
}

func newTokenCreate(a *app) *cobra.Command {
	var q api.TokenRequest
	cmd := &cobra.Command{
		Use:   "create <name>",
		Short: "create an access token and print it, once",
		Long: "Creates an access token and prints it alone on standard output. The node stores only its hash: the token is not shown again.\n" +
			"A scope is an operation, on all agents or on one: find, read, write, invoke, subscribe, call (the four before it), manage\n" +
			"(change the node), * (everything); read:AGENT, invoke:AGENT/ACTION. A scope that permits to call an agent permits to find it.\n" +
			"A name is at most 64 of a-z, 0-9, dot, hyphen and underscore.",
		Example: `  export LMOSD_TOKEN=$(lmosd token create ci)
  lmosd token create dashboard --scope find --scope read:weather --expires 30d
  lmosd token create bot --scope invoke:weather/getWeather --role support -o json`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd token revoke"),
		Args:        cli.Takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Name = args[0]
			return a.createToken(cmd.Context(), q)
		},
	}
	cmd.Flags().StringArrayVar(&q.Scopes, "scope", []string{"call"}, "`SCOPE` of the token; may be repeated")
	cmd.Flags().StringArrayVar(&q.Roles, "role", nil, "`ROLE` that agents and access rules of this node see; may be repeated")
	cmd.Flags().StringVar(&q.Lifetime, "expires", "90d", "`DURATION` until the token expires, as 12h or 30d; at most 365d")
	for flag, values := range map[string][]string{"scope": tokens.Operations(), "role": nil, "expires": {"1d", "30d", "90d", "365d"}} {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, noFiles)); err != nil {
			panic(err) // the flag exists
		}
	}
	return cmd
}

func (a *app) createToken(ctx context.Context, q api.TokenRequest) error {
	t, err := send(a, func(c *api.Client) (*api.Token, error) { return c.CreateToken(ctx, q) })
	if err != nil {
		return err
	}
	if err := a.Show(cli.View{Doc: t, Names: []string{t.Name}, People: cli.Line(t.Token)}); err != nil {
		return err
	}
	if a.ForPeople() {
		a.Talk.Line(terminal.OneLine("token " + t.Name + " with " + strings.Join(t.Scopes, " ") + " until " + render.Stamp(t.Expires) + "; it is not shown again"))
		a.Next("lmosd token ls", "lmosd token revoke "+terminal.Shell(t.Name))
	}
	return nil
}

func newTokenLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the access tokens of the node",
		Long: "Lists the access tokens of the node by name, also expired ones. It does not show the tokens themselves. On standard error, it shows\n" +
			"whether the node can check the tokens of the identity providers in http.oidc.",
		Example: `  lmosd token ls
  lmosd token ls --jq '.items[] | select(.expired) | .name'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listTokens(cmd.Context()) },
	}
}

func (a *app) listTokens(ctx context.Context) error {
	list, err := send(a, func(c *api.Client) (*api.TokenList, error) { return c.Tokens(ctx) })
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(t api.Token) string { return t.Name }),
		People: cli.Body(render.Tokens(list.Items, time.Now()))})
	if err != nil {
		return err
	}
	if a.ForPeople() {
		for _, p := range list.IdentityProviders {
			a.Talk.Line(terminal.OneLine(providerLine(p, time.Now())))
		}
	}
	if len(list.Items) == 0 {
		a.Next("lmosd token create NAME")
	}
	return nil
}

// providerLine returns the state of an identity provider.
func providerLine(p api.IdentityProvider, now time.Time) string {
	line := "identity provider " + p.Name + " (" + p.Issuer + "): "
	switch {
	case p.Problem != "" && p.Since.IsZero():
		return line + "its tokens cannot be checked: " + p.Problem
	case p.Problem != "":
		return line + "tokens of its known keys are accepted; it cannot be reached since " + terminal.Ago(p.Since, now) + ": " + p.Problem
	case p.Since.IsZero():
		return line + "its keys are read when its first token arrives"
	}
	return fmt.Sprintf("%s%s, read %s", line, terminal.Count(p.Keys, "key", "keys"), terminal.Ago(p.Since, now))
}

func newTokenRevoke(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke <name>",
		Aliases: []string{"rm"},
		Short:   "revoke an access token at once",
		Long: "Revokes an access token. Its running requests, event streams, and connections over WebSocket and MQTT end. Tasks that it started\n" +
			"continue: lmosd task cancel.",
		Example: `  lmosd token revoke dashboard
  lmosd token ls -o name | xargs -n1 lmosd token revoke`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite),
		Args:        cli.Takes(1, 1), ValidArgsFunction: a.completeToken,
		RunE: func(cmd *cobra.Command, args []string) error { return a.revokeToken(cmd.Context(), args[0]) },
	}
}

func (a *app) revokeToken(ctx context.Context, name string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	if name == "" {
		return cli.Usage("list them: lmosd token ls", "the name of the token is empty")
	}
	if err := client.RevokeToken(ctx, name); err != nil {
		return err
	}
	doc := struct {
		cli.Head
		Name string `json:"name"`
	}{cli.NewHead("RevokedToken"), name}
	return a.Show(cli.View{Doc: doc, Names: []string{name}, People: cli.Line("revoked " + name)})
}

// completeToken completes the names of access tokens.
func (a *app) completeToken(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
		list, err := c.Tokens(ctx)
		if err != nil {
			return nil, err
		}
		return cli.Each(list.Items, func(t api.Token) string { return t.Name + "\t" + terminal.OneLine(strings.Join(t.Scopes, " ")) }), nil
	})
}
