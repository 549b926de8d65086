package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newPingCommand(a *app) *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:   "ping <agent>",
		Short: "measure the round-trip time to the host of an agent",
		Long: "Measures the round-trip time to the node that publishes an agent, and prints the path. It does not call the\n" +
			"agent; lmosd trace with an action does.",
		Example: `  lmosd ping weather
  lmosd ping weather -n 20 -o json --jq '.rtt_ms | add / length'`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd trace, lmosd peers"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > 100 {
				return cli.Usage("for example -n 4", "-n is from 1 to 100")
			}
			return a.interact(cmd.Context(), 0, "ping", args, func(ctx context.Context, c *conversation) error {
				p, err := c.client.Ping(ctx, c.agent.Ref, n)
				if err != nil {
					return err
				}
				return c.showPing(p)
			})
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 4, "how often")
	return cmd
}

func (c *conversation) showPing(p *api.Ping) error {
	err := c.Show(cli.View{Doc: p, Names: []string{string(p.Node)}, People: cli.Body(render.Ping(p))})
	if err == nil {
		c.Next("lmosd trace " + terminal.Shell(c.asked))
	}
	return err
}

func newTraceCommand(a *app) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "trace <agent> [action] [k=v…]",
		Short: "show the paths to an agent and the stages of a call",
		Long: "Lists the paths to an agent, best first, and the round-trip time to its host. With an action, calls it as lmosd\n" +
			"call does, and prints the path and the time of each stage: lookup, network, host and agent. The trace id finds\n" +
			"the spans of the call in your OpenTelemetry collector.",
		Example: `  lmosd trace weather
  lmosd trace weather getWeather question=Bonn
  lmosd trace weather getWeather question=Bonn --via mesh --jq .timings`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd ping, lmosd call"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeAction,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.interact(cmd.Context(), f.timeout, "trace", args, func(ctx context.Context, c *conversation) error {
				if len(args) == 1 {
					return c.paths(ctx)
				}
				return c.trace(ctx, f, args[1], args[2:])
			})
		},
	}
	addTimeout(cmd, &f.timeout)
	addVia(cmd, &f.via)
	return cmd
}

// A waysDocument is the document of `lmosd trace` without an action.
type waysDocument struct {
	*api.PathList
	Ping *api.Ping `json:"ping,omitempty"` // of the path through the mesh; absent without an answer
}

// paths shows the paths to the agent. A host that does not answer the ping is a result, not a failure.
func (c *conversation) paths(ctx context.Context) error {
	paths, err := c.client.Paths(ctx, c.agent.Ref)
	if err != nil {
		return err
	}
	doc := waysDocument{PathList: paths}
	ping, unanswered := c.client.Ping(ctx, c.agent.Ref, 1)
	if unanswered == nil {
		doc.Ping = ping
	} else if ctx.Err() != nil {
		return unanswered
	}
	err = c.Show(cli.View{Doc: doc, Names: cli.Each(paths.Items, func(p api.Path) string { return p.Name }), People: cli.Body(render.Paths(paths.Items))})
	if err != nil {
		return err
	}
	if c.ForPeople() {
		line := "its host answers no ping"
		if unanswered == nil {
			line = "host " + ping.Node.Short() + " · " + render.PingPath(ping)
			if len(ping.RTT) > 0 && ping.RTT[0] > 0 {
				line += " · " + terminal.Millis(ping.RTT[0])
			}
		}
		c.Talk.Line(c.Talk.Paint(terminal.Dim, terminal.OneLine(line)))
	}
	if len(c.agent.Actions) > 0 {
		c.Next("lmosd trace " + terminal.Shell(c.asked) + " " + terminal.Shell(c.agent.Actions[0]) + " …")
	}
	return nil
}

// trace calls an action and shows the id of the trace and the parts of the time.
func (c *conversation) trace(ctx context.Context, f callFlags, name string, words []string) error {
	action, err := c.action(name, "trace")
	if err != nil {
		return err
	}
	body, err := input.Read(c.Console, action.InputWithVariables(), words)
	if err != nil {
		return err
	}
	id, parent := newTrace()
	c.Note("trace %s", id) // a failed call is in the collector, too
	r, err := c.client.Invoke(ctx, c.agent.Ref, name, api.CallOptions{Body: body, Via: f.via, Timing: true, TraceParent: parent})
	if err != nil {
		return misfit(err, strings.TrimSpace("lmosd trace "+terminal.Shell(c.asked)+" "+terminal.Shell(name)+" "+input.Sample(action.InputWithVariables())))
	}
	doc := c.result(r.Output, r.Media, r.Timing)
	if doc.Action, doc.Trace = name, id; r.Task != nil {
		doc.Status, doc.Task = r.Task.Status, r.Task.ID
	}
	return c.Show(cli.View{Doc: doc, Names: []string{c.agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		if s.TTY {
			s.Line(s.Paint(terminal.Bold, "trace "+id) + ": search for it in your collector")
		} else {
			s.Line("trace\t" + id)
		}
		traceTable(doc).Write(s)
	}})
}

// newTrace returns the id of a new trace, and the traceparent of a call in it with the flag sampled (W3C Trace Context §3.2.2).
func newTrace() (id, parent string) {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	id = hex.EncodeToString(b[:16])
	return id, "00-" + id + "-" + hex.EncodeToString(b[16:]) + "-01"
}

// traceTable returns the parts of the time of a call. They do not overlap; a part that was not measured is included in the part around
// it. The node reports its times when the answer begins.
func traceTable(r *callResult) *terminal.Table {
	type measure struct{ name, time, what string }
	var parts []measure
	part := func(name string, ms float64, what string) {
		if ms > 0 {
			parts = append(parts, measure{name, terminal.Millis(ms), what})
		}
	}
	m := r.Timings
	part("resolve", m.Resolve, "until the agent was resolved")
	if m.Host > 0 {
		part("network", m.Total-m.Resolve-m.Host, r.Path)
		part("host", m.Host-m.Agent, "checks, limits and queues of the agent's node")
	} else {
		part("path", m.Total-m.Resolve-m.Agent, r.Path)
	}
	part("agent", m.Agent, "")
	part("total", m.Total, "until the response began")
	part("took", r.Took, "with this command: "+r.Status+", "+terminal.Size(len(r.Output))+" of output")
	return terminal.TableOf(parts, false, []terminal.Column[measure]{
		{Name: "PART", Keep: true, Cell: terminal.TextOf(func(m measure) string { return m.name })},
		{Name: "TIME", Keep: true, Cell: terminal.TextOf(func(m measure) string { return m.time })},
		{Keep: true, Cell: terminal.TextOf(func(m measure) string { return m.what })},
	})
}
