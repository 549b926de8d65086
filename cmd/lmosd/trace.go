package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/gateway"
)

func newPingCommand(a *app) *cobra.Command {
	var n int
	cmd := &cobra.Command{
		Use:   "ping <agent>",
		Short: "measure how far away the host of an agent is",
		Long: "Measures the round trip to the node that offers an agent, and says by which way. The agent itself is not asked:\n" +
			"lmosd trace with an action does that.",
		Example: `  lmosd ping weather
  lmosd ping weather -n 20 -o json --jq '.rtt_ms | add / length'`,
		Annotations:       map[string]string{"scope": scopeMesh, "impact": readOnly, "see": "lmosd trace, lmosd peers"},
		Args:              takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 || n > 100 {
				return usage("for example -n 4", "-n is from 1 to 100")
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

func (c *conversation) showPing(p *gateway.Ping) error {
	err := c.show(view{doc: p, names: []string{string(p.Node)}, people: func(to *screen, _ bool) { pingSheet(p).write(to) }})
	if err == nil {
		c.next("lmosd trace " + shell(c.asked))
	}
	return err
}

func pingSheet(p *gateway.Ping) *sheet {
	s := &sheet{}
	s.add("host", string(p.Node))
	s.add("way", p.Path)
	if len(p.RTT) == 0 || slices.Max(p.RTT) == 0 {
		return s // this node is the host
	}
	sum, each := 0.0, make([]string, len(p.RTT))
	for i, rtt := range p.RTT {
		sum += rtt
		each[i] = millis(rtt)
	}
	s.add("rtt", strings.Join(each, "  "))
	if len(p.RTT) > 1 {
		s.add("least", millis(slices.Min(p.RTT)))
		s.add("mean", millis(sum/float64(len(p.RTT))))
		s.add("most", millis(slices.Max(p.RTT)))
	}
	return s
}

func newTraceCommand(a *app) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "trace <agent> [action] [k=v…]",
		Short: "show the ways to an agent, and where the time of a call goes",
		Long: "Lists the ways to an agent, best first, and how far away its host is. With an action it calls that, as lmosd call\n" +
			"does, and shows by which way, and where the time went: until the agent was known, in the network, in its host, and\n" +
			"in the agent itself.",
		Example: `  lmosd trace weather
  lmosd trace weather getWeather question=Bonn
  lmosd trace weather getWeather question=Bonn --via mesh --jq .timings`,
		Annotations:       map[string]string{"scope": scopeMesh, "impact": readWrite, "see": "lmosd ping, lmosd call"},
		Args:              takes(1, -1),
		ValidArgsFunction: a.completeAction,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.interact(cmd.Context(), f.timeout, "trace", args, func(ctx context.Context, c *conversation) error {
				if len(args) == 1 {
					return c.ways(ctx)
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
	*gateway.PathList
	Ping *gateway.Ping `json:"ping,omitempty"` // of the way through the mesh; left out if nobody answers
}

// ways shows how the agent is reached. That its host answers no ping is an answer, not a failure, as long as there is a way.
func (c *conversation) ways(ctx context.Context) error {
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
	v := view{doc: doc, people: func(s *screen, _ bool) {
		t := &table{header: []string{"WAY", "STATE", "TOOK", "ADDRESS"}, keep: []int{0, 1, 2}}
		for _, p := range paths.Items {
			state, took := "up", "-"
			if p.Down {
				state = "down"
			}
			if p.Took > 0 {
				took = millis(p.Took)
			}
			t.add(text(p.Name), text(state), text(took), text(p.Href))
		}
		t.write(s)
	}}
	for _, p := range paths.Items {
		v.names = append(v.names, p.Name)
	}
	if err := c.show(v); err != nil {
		return err
	}
	if c.forPeople() {
		line := "its host answers no ping"
		if unanswered == nil {
			line = "host " + ping.Node.Short() + " · " + ping.Path
			if len(ping.RTT) > 0 && ping.RTT[0] > 0 {
				line += " · " + millis(ping.RTT[0])
			}
		}
		c.talk.line(c.talk.paint(dim, oneLine(line)))
	}
	if len(c.agent.Actions) > 0 {
		c.next("lmosd trace " + shell(c.asked) + " " + shell(c.agent.Actions[0]) + " …")
	}
	return nil
}

// trace calls an action and shows where the time went.
func (c *conversation) trace(ctx context.Context, f callFlags, name string, words []string) error {
	action, err := c.action(name, "trace")
	if err != nil {
		return err
	}
	input, err := c.input(action.Input, words)
	if err != nil {
		return err
	}
	r, err := c.client.Invoke(ctx, c.agent.Ref, name, gateway.CallOptions{Body: input, Via: f.via, Timing: true})
	if err != nil {
		return misfit(err, strings.TrimSpace("lmosd trace "+shell(c.asked)+" "+shell(name)+" "+sample(action.Input)))
	}
	doc := c.result(r.Output, r.Media, r.Timing)
	if doc.Action = name; r.Task != nil {
		doc.Status, doc.Task = r.Task.Status, r.Task.ID
	}
	return c.show(view{doc: doc, names: []string{c.agent.Ref}, people: func(s *screen, _ bool) { traceTable(doc).write(s) }})
}

// traceTable says where the time of a call went. The parts do not overlap; what was not measured is not shown, and is in the part
// around it. The node tells its times when the answer begins.
func traceTable(r *callResult) *table {
	t := &table{header: []string{"PART", "TIME", ""}, keep: []int{0, 1, 2}}
	part := func(name string, ms float64, what string) {
		if ms > 0 {
			t.add(text(name), text(millis(ms)), text(what))
		}
	}
	m := r.Timings
	part("resolve", m.Resolve, "until the agent was known")
	if m.Host > 0 {
		part("network", m.Total-m.Resolve-m.Host, r.Path)
		part("host", m.Host-m.Agent, "checks, limits and queues of the agent's node")
	} else {
		part("way", m.Total-m.Resolve-m.Agent, r.Path)
	}
	part("agent", m.Agent, "")
	part("total", m.Total, "until the answer began to come")
	part("took", r.Took, "with this command: "+r.Status+", "+size(len(r.Output))+" of output")
	return t
}
