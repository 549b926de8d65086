package main

import (
	"context"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/bridge/mcp/aggregator"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/stdio"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

func newMCPCommand(a *app) *cobra.Command {
	var thing string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "run an MCP server on standard input and output",
		Long: "For MCP clients that start a program: forwards MCP messages to the node of this machine, which answers as at\n" +
			"/mcp of its API, for clients of 2026-07-28 and of earlier revisions. Standard output has nothing else.\n" +
			"The command waits for a node that does not run yet, and reconnects to a node that restarts; the client keeps\n" +
			"running. lmosd install adds this command to the configuration of a client.",
		Example: `  lmosd mcp
  lmosd mcp --thing weather`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd install, lmosd expose, lmosd run"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.relayMCP(cmd.Context(), thing)
		},
	}
	cmd.Flags().StringVar(&thing, "thing", "", "serve only this `AGENT`, with its own names")
	return cmd
}

// relayMCP forwards messages between a client and the node until the client disconnects or ctx ends.
func (a *app) relayMCP(ctx context.Context, thing string) error {
	path := "/mcp"
	if thing != "" {
		path += "/things/" + url.PathEscape(thing)
		if err := a.knows(ctx, thing); err != nil {
			return err
		}
	}
	dial := func(ctx context.Context, in io.Reader) (io.ReadCloser, error) {
		client, err := a.dial() // each time: a restarted node has a new socket and token
		if err != nil {
			return nil, err
		}
		defer client.Close()
		body, err := client.Stream(ctx, path, aggregator.LinesType, in)
		if err != nil {
			return nil, a.target.Explain(err)
		}
		return body, nil
	}
	return stdio.Run(ctx, stdio.Options{In: a.Stdin, Out: a.Out, Dial: dial, OnConnection: a.logConnection, Version: version()})
}

// knows checks that the node knows an agent, if the node runs.
func (a *app) knows(ctx context.Context, thing string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	_, err = client.Agent(ctx, thing)
	if e := interact.AsError(err); e != nil && (e.Code == interact.NotRunning || e.Code == interact.NodeLost) {
		return nil
	}
	return err
}

// logConnection reports to the log of the client that the node is unreachable, or reachable again.
func (a *app) logConnection(err error) {
	e := interact.AsError(err)
	if e == nil {
		a.Talk.Line("connected to the node")
		return
	}
	a.Talk.Line(terminal.OneLine(e.Error() + "; it is waited for. hint: " + a.Advice(e.Hint, e.Next, false)))
}
