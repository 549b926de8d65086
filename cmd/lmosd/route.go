package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
)

type routeFlags struct {
	method     string
	among      string
	timeout    time.Duration
	exitStatus bool
}

var routeMethods = []string{string(route.Lexical), string(route.Vector), string(route.LLM), string(route.Hybrid)}

func newRouteCommand(a *app) *cobra.Command {
	var f routeFlags
	cmd := &cobra.Command{
		Use:   "route <task…>",
		Short: "select one agent for a task",
		Long: "Selects the agent for a task in natural language, by the examples in the capabilities of the agents, or reports\n" +
			"that none matches. Without endpoints, words are compared; a node with search.embeddings or search.model compares\n" +
			"embeddings, uses a language model, or both.",
		Example: `  lmosd route "show my bill"
  lmosd route why is my invoice so high --filter 'organization:"Example Corp"'
  lmosd route "cancel my contract" --method hybrid -o json
  lmosd call "$(lmosd route 'how is the weather' -o name --exit-status)" getWeather question=Rain?`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd find, lmosd call"),
		Args:        cli.Takes(1, -1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runRoute(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.method, "method", "", "`METHOD`: "+strings.Join(routeMethods, ", ")+" (default that of the node)")
	flags.StringVar(&f.among, "filter", "", "a `QUERY` as of lmosd find that selects the candidates; all: tools too (default all agents)")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait")
	flags.BoolVar(&f.exitStatus, "exit-status", false, "exit 4 if no agent fits")
	return cmd
}

func (a *app) runRoute(ctx context.Context, f routeFlags, words []string) error {
	switch {
	case f.method != "" && !slices.Contains(routeMethods, f.method):
		return cli.Usage(cli.HintFor(f.method, routeMethods, "--method lexical"), "--method is %s, expected one of %s", f.method,
			strings.Join(routeMethods, ", "))
	case f.timeout <= 0:
		return cli.Usage("for example --timeout 10s", "--timeout must be longer than nothing")
	}
	if _, err := querytext.Parse(f.among, td.Query{}); err != nil {
		return cli.Usage("for example --filter type:agent", "--filter cannot be read: %v", err)
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	got, err := client.Route(ctx, api.RouteRequest{Message: strings.Join(words, " "), Method: f.method, Among: f.among})
	if err != nil {
		return err
	}
	v := cli.View{Doc: got, People: func(s *terminal.Screen, wide bool) { render.Route(s, got, wide) }}
	if got.Agent != nil {
		v.Names = []string{got.Agent.ID}
	}
	if err := a.Show(v); err != nil {
		return err
	}
	switch {
	case got.Agent != nil:
		name := terminal.Shell(render.CandidateName(got.Agent))
		a.Next("lmosd show "+name, "lmosd call "+name+" …")
	case f.exitStatus:
		return cli.SilentError(cli.ExitNotFound)
	default:
		a.Next("lmosd find " + terminal.Shell(strings.Join(words, " ")))
	}
	return nil
}
