package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/console"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// spare is what a client waits longer than the node that it has given a time.
const spare = 5 * time.Second

type findFlags struct {
	query      td.Query
	owner      string
	timeout    time.Duration
	exitStatus bool
}

func newFindCommand(a *app) *cobra.Command {
	var f findFlags
	cmd := &cobra.Command{
		Use:   "find [words…]",
		Short: "find agents by what they can do",
		Long: "Finds agents that match everything that is asked: in the index of the node first, then in the mesh.\n" +
			"Words are looked for in titles, descriptions and capabilities. A capability also finds those below it.\n" +
			"The line behind the table says how complete the answer is.",
		Example: `  lmosd find
  lmosd find weather forecast
  lmosd find --capability urn:example:weather --type agent
  lmosd find --action getWeather -o name --exit-status`,
		Annotations: console.About(console.ScopeMesh, console.ReadOnly, "lmosd show, lmosd help names"),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runFind(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.query.Capability, "capability", nil, "capability `ID`, or the beginning of one; may repeat, all must hold")
	flags.StringVar(&f.query.Type, "type", "", "agent, tool, or any `@TYPE`")
	flags.StringVar(&f.query.Action, "action", "", "`NAME` of an action")
	flags.StringVar(&f.owner, "owner", "", "`DID` of the owner, or its key z6Mk…")
	flags.IntVar(&f.query.Limit, "limit", 0, "most agents to show (default 32)")
	flags.DurationVar(&f.timeout, "timeout", 0, "how long the mesh is asked (default 2s)")
	flags.BoolVar(&f.exitStatus, "exit-status", false, "exit 4 if nothing is found")
	return cmd
}

func (a *app) runFind(ctx context.Context, f findFlags, words []string) error {
	f.query.Text = strings.Join(words, " ")
	if f.owner != "" {
		owner, err := did.Parse(withMethod(f.owner))
		if err != nil {
			return &interact.Error{Code: interact.Usage, Title: "--owner is no DID", Err: err,
				Hint: "--owner did:key:z6Mk…, as lmosd show prints it"}
		}
		f.query.Owner = owner
	}
	if f.query.Limit < 0 || f.timeout < 0 {
		return console.Usage("for example --limit 10 --timeout 5s", "--limit and --timeout cannot be negative")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, max(f.timeout, 2*time.Second)+spare)
	defer cancel()
	list, err := client.Find(ctx, f.query, f.timeout)
	if err != nil {
		return err
	}
	if err := a.showAgents(list); err != nil {
		return err
	}
	if f.exitStatus && len(list.Items) == 0 {
		return console.SilentError(console.ExitNotFound)
	}
	return nil
}

// withMethod completes the key of a did:key.
func withMethod(owner string) string {
	if strings.HasPrefix(owner, "z6Mk") {
		return "did:key:" + owner
	}
	return owner
}

func (a *app) showAgents(list *gateway.AgentList) error {
	v := console.View{Doc: list, People: func(s *terminal.Screen, wide bool) { agentTable(list.Items, wide, time.Now()).Write(s) }}
	for _, g := range list.Items {
		v.Names = append(v.Names, g.Ref)
	}
	if err := a.Show(v); err != nil {
		return err
	}
	a.coverage(list)
	a.nextAfterFind(list)
	return nil
}

// nextAfterFind leads to the first agent that can be called.
func (a *app) nextAfterFind(list *gateway.AgentList) {
	switch {
	case len(list.Items) == 0 && !list.Coverage.Complete():
		a.Next("lmosd find … --timeout 10s")
		return
	case len(list.Items) == 0:
		a.Next("lmosd find   # everything that is known")
		return
	}
	best := list.Items[0]
	if i := slices.IndexFunc(list.Items, func(g gateway.Agent) bool { return g.Reachable && len(g.Actions) > 0 }); i >= 0 {
		best = list.Items[i]
	}
	name := terminal.Shell(copyable(best))
	if len(best.Actions) == 0 {
		a.Next("lmosd show " + name)
		return
	}
	a.Next("lmosd show "+name, "lmosd call "+name+" "+terminal.Shell(best.Actions[0])+" …")
}

func agentTable(items []gateway.Agent, wide bool, now time.Time) *terminal.Table {
	t := &terminal.Table{Header: []string{"AGENT", "CAPABILITIES", "ACTIONS", "STATE", "SEEN"}, Keep: []int{0, 3, 4}, Wide: wide}
	if wide {
		t.Header = append(t.Header, "TITLE", "ID", "OWNER", "HOSTS", "EXPIRES")
	}
	for _, g := range items {
		row := []terminal.Cell{terminal.Short(copyable(g), fullName(g)), terminal.Text(strings.Join(g.Capabilities, ",")),
			terminal.Text(strings.Join(g.Actions, ",")), terminal.Text(state(g)),
			terminal.Short(terminal.Ago(g.Seen, now), g.Seen.Format(time.RFC3339))}
		if wide {
			row = append(row, terminal.Texts(g.Title, g.ID, string(g.Owner), joinDIDs(g.Hosts), g.Expires.Format(time.RFC3339))...)
		}
		t.Add(row...)
	}
	return t
}

// coverage says how complete an answer is, always: a short list without that would look like a small mesh.
func (a *app) coverage(list *gateway.AgentList) {
	switch a.Flags.Output {
	case "json", "yaml":
		return // the document has it
	case "jsonl":
		b, err := console.Encode(map[string]any{"apiVersion": gateway.APIVersion, "coverage": list.Coverage}, false)
		if err == nil {
			a.Talk.Line(strings.TrimSpace(string(b)))
		}
		return
	}
	a.Talk.Line(a.Talk.Paint(terminal.Dim, coverageLine(list, time.Now())))
}

func coverageLine(list *gateway.AgentList, now time.Time) string {
	c := list.Coverage
	hosts, away := map[did.DID]bool{}, 0
	for _, g := range list.Items {
		for _, h := range g.Hosts {
			hosts[h] = true
		}
		if state(g) == "unreachable" {
			away++
		}
	}
	asked := fmt.Sprintf("asked %d, answered %d", c.Asked, c.Answered)
	if c.Unreachable > 0 {
		asked += fmt.Sprintf(", unreachable %d", c.Unreachable)
	}
	if !c.Oldest.IsZero() {
		asked += ", oldest " + terminal.Ago(c.Oldest, now)
	}
	parts := []string{terminal.Count(len(list.Items), "agent", "agents") + " from " + terminal.Count(len(hosts), "peer", "peers"), asked}
	if away > 0 {
		parts = append(parts, terminal.Count(away, "agent is unreachable", "agents are unreachable"))
	}
	switch {
	case c.Truncated:
		parts = append(parts, "incomplete: cut at the limit or the deadline")
	case !c.Complete():
		parts = append(parts, "incomplete")
	}
	return strings.Join(append(parts, terminal.Millis(list.Took)), " · ")
}
