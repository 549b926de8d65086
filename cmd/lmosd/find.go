package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
		Annotations: map[string]string{"scope": scopeMesh, "impact": readOnly, "see": "lmosd show, lmosd help names"},
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
			return &interact.Error{Code: interact.Usage, Title: "--owner is no DID", Hint: "--owner did:key:z6Mk…, as lmosd show prints it", Err: err}
		}
		f.query.Owner = owner
	}
	if f.query.Limit < 0 || f.timeout < 0 {
		return usage("for example --limit 10 --timeout 5s", "--limit and --timeout cannot be negative")
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
		return silentError(exitNotFound)
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
	v := view{doc: list, people: func(s *screen, wide bool) { agentTable(list.Items, wide, time.Now()).write(s) }}
	for _, g := range list.Items {
		v.names = append(v.names, g.Ref)
	}
	if err := a.show(v); err != nil {
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
		a.next("lmosd find … --timeout 10s")
		return
	case len(list.Items) == 0:
		a.next("lmosd find   # everything that is known")
		return
	}
	best := list.Items[0]
	if i := slices.IndexFunc(list.Items, func(g gateway.Agent) bool { return g.Reachable && len(g.Actions) > 0 }); i >= 0 {
		best = list.Items[i]
	}
	name := shell(copyable(best))
	if len(best.Actions) == 0 {
		a.next("lmosd show " + name)
		return
	}
	a.next("lmosd show "+name, "lmosd call "+name+" "+shell(best.Actions[0])+" …")
}

func agentTable(items []gateway.Agent, wide bool, now time.Time) *table {
	t := &table{header: []string{"AGENT", "CAPABILITIES", "ACTIONS", "STATE", "SEEN"}, keep: []int{0, 3, 4}, wide: wide}
	if wide {
		t.header = append(t.header, "TITLE", "ID", "OWNER", "HOSTS", "EXPIRES")
	}
	for _, g := range items {
		row := []cell{{copyable(g), fullName(g)}, text(strings.Join(g.Capabilities, ",")), text(strings.Join(g.Actions, ",")), text(state(g)),
			{ago(g.Seen, now), g.Seen.Format(time.RFC3339)}}
		if wide {
			row = append(row, text(g.Title), text(g.ID), text(string(g.Owner)), text(joinDIDs(g.Hosts)), text(g.Expires.Format(time.RFC3339)))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// coverage says how complete an answer is, always: a short list without that would look like a small mesh.
func (a *app) coverage(list *gateway.AgentList) {
	switch a.flags.output {
	case "json", "yaml":
		return // the document has it
	case "jsonl":
		b, err := encode(map[string]any{"apiVersion": gateway.APIVersion, "coverage": list.Coverage}, false)
		if err == nil {
			a.talk.line(strings.TrimSpace(string(b)))
		}
		return
	}
	a.talk.line(a.talk.paint(dim, coverageLine(list, time.Now())))
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
		asked += ", oldest " + ago(c.Oldest, now)
	}
	parts := []string{count(len(list.Items), "agent", "agents") + " from " + count(len(hosts), "peer", "peers"), asked}
	if away > 0 {
		parts = append(parts, count(away, "agent is unreachable", "agents are unreachable"))
	}
	switch {
	case c.Truncated:
		parts = append(parts, "incomplete: cut at the limit or the deadline")
	case !c.Complete():
		parts = append(parts, "incomplete")
	}
	return strings.Join(append(parts, millis(list.Took)), " · ")
}
