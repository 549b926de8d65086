package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
	"github.com/lmosd/lmosd/td/scheme"
)

// spare is what a client waits longer than the node that it has given a time.
const spare = 5 * time.Second

type findFlags struct {
	query       td.Query
	owner, host string
	timeout     time.Duration
	exitStatus  bool
	explain     bool
	watch       bool
	strategy    string
	page        string
}

func newFindCommand(a *app) *cobra.Command {
	var f findFlags
	cmd := &cobra.Command{
		Use:   "find [words…]",
		Short: "find agents by capability, name or words",
		Long: "Finds agents, best first, in the index of the node and then in the mesh. Words are compared with titles,\n" +
			"descriptions, capabilities and actions, with tolerance for typos. A capability also matches all ids below it.\n" +
			"All flags must match. Words may be fields (type:agent, capability:urn:x), with OR between queries and NOT before\n" +
			"excluded terms. The line after the table has the number of matches and the completeness of the answer; --page\n" +
			"continues. --watch prints changes.",
		Example: `  lmosd find
  lmosd find "who can check stock levels" --explain
  lmosd find --capability urn:example:weather --type agent --version-range ^1.2
  lmosd find --capability urn:example:weather:forecast --version-range ^1 --strategy highest --limit 1
  lmosd find weather OR traffic NOT type:tool
  lmosd find --action getWeather -o name --exit-status
  lmosd find --watch -o jsonl`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd show, lmosd help names"),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runFind(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.query.Capability, "capability", nil, "capability `ID`, or the beginning of one; may repeat, all must hold")
	flags.StringVar(&f.query.Type, "type", "", "agent, tool, or any `@TYPE`")
	flags.StringVar(&f.query.Version, "version-range", "", "`RANGE` for the version of the capability: ^1.2, 1.x, [1.0,2.0[")
	flags.StringVar(&f.strategy, "strategy", "",
		"`VERSION` of the one capability that comes first: highest, or most_similar (the lowest that fits)")
	flags.StringVar(&f.query.Action, "action", "", "`NAME` of an action")
	flags.StringVar(&f.query.Property, "property", "", "`NAME` of a property")
	flags.StringVar(&f.query.Event, "event", "", "`NAME` of an event")
	flags.StringVar(&f.owner, "owner", "", "`DID` of the owner, or its key z6Mk…")
	flags.StringVar(&f.host, "host", "", "`DID` of a node through which it is reached, or its key")
	flags.StringVar(&f.query.Organization, "organization", "", "`NAME` of the vendor")
	flags.StringVar(&f.query.Protocol, "protocol", "", "`SCHEME` of a form: "+scheme.Protocols()+", …")
	flags.BoolVar(&f.explain, "explain", false, "show the factors of each score")
	flags.BoolVar(&f.watch, "watch", false, "print changes until Ctrl-C")
	flags.IntVar(&f.query.Limit, "limit", 0, "most agents to show (default 32)")
	flags.StringVar(&f.page, "page", "", "`CURSOR` of the next page, from the previous answer; without other flags")
	flags.DurationVar(&f.timeout, "timeout", 0, "time limit of the search in the mesh (default 2s)")
	flags.BoolVar(&f.exitStatus, "exit-status", false, "exit 4 if nothing is found")
	return cmd
}

func (a *app) runFind(ctx context.Context, f findFlags, words []string) error {
	if f.page != "" {
		return a.findPage(ctx, f, words)
	}
	q, err := f.question(words)
	if err != nil {
		return err
	}
	strategy := td.Strategy(strings.ToUpper(f.strategy))
	switch {
	case strategy == "":
	case strategy != td.Highest && strategy != td.MostSimilar:
		return cli.Usage("--strategy highest", "--strategy %s is neither highest nor most_similar", f.strategy)
	case len(q.Capability) != 1 || len(q.Or) > 0 || f.watch || f.explain:
		return cli.Usage("for example lmosd find --capability urn:example:weather:forecast --strategy highest",
			"--strategy is for one capability, without OR, --watch and --explain")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if f.watch {
		return a.watchFind(ctx, client, q, f.explain)
	}
	ctx, cancel := context.WithTimeout(ctx, max(f.timeout, 2*time.Second)+spare)
	defer cancel()
	find := client.Find
	switch {
	case f.explain:
		find = client.Explain
	case strategy != "":
		find = func(ctx context.Context, q td.Query, timeout time.Duration) (*api.AgentList, error) {
			return client.Resolve(ctx, q, strategy, timeout)
		}
	}
	list, err := find(ctx, q, f.timeout)
	if err != nil {
		return err
	}
	return a.showFound(list, f.exitStatus)
}

// showFound prints list; with exitStatus, an empty one is [cli.ExitNotFound].
func (a *app) showFound(list *api.AgentList, exitStatus bool) error {
	if err := a.showAgents(list); err != nil {
		return err
	}
	if exitStatus && len(list.Items) == 0 {
		return cli.SilentError(cli.ExitNotFound)
	}
	return nil
}

// findPage prints what comes after an earlier answer.
func (a *app) findPage(ctx context.Context, f findFlags, words []string) error {
	if len(words) > 0 || f.query.HasCriteria() || f.owner+f.host+f.strategy != "" || f.query.Limit != 0 || f.explain || f.watch {
		return cli.Usage("lmosd find --page CURSOR", "--page goes on with its own question: leave the words and other flags out")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, max(f.timeout, 2*time.Second)+spare)
	defer cancel()
	list, err := client.NextPage(ctx, f.page, f.timeout)
	if err != nil {
		return err
	}
	return a.showFound(list, f.exitStatus)
}

// question makes a query of flags and words.
func (f *findFlags) question(words []string) (q td.Query, err error) {
	for _, flag := range []struct {
		name, value string
		to          *did.DID
	}{{"owner", f.owner, &f.query.Owner}, {"host", f.host, &f.query.Host}} {
		if flag.value == "" {
			continue
		}
		if *flag.to, err = did.Parse(withMethod(flag.value)); err != nil {
			return q, &interact.Error{Code: interact.Usage, Title: "--" + flag.name + " is no DID", Err: err,
				Hint: "--" + flag.name + " did:key:z6Mk…, as lmosd show prints it"}
		}
	}
	if f.query.Limit < 0 || f.timeout < 0 {
		return q, cli.Usage("for example --limit 10 --timeout 5s", "--limit and --timeout cannot be negative")
	}
	if _, err := td.ParseRange(f.query.Version); f.query.Version != "" && err != nil {
		return q, cli.Usage("for example --version-range ^1.2", "--version-range: %v", err)
	}
	q, err = querytext.Parse(together(words), f.query)
	if err != nil {
		return q, cli.Usage("for example: lmosd find weather OR traffic NOT type:tool", "the question cannot be read: %v", err)
	}
	return q, nil
}

// together writes words as one question. The shell has taken the quotes off what was one field.
func together(words []string) string {
	parts := make([]string, len(words))
	for i, word := range words {
		if name, value, ok := strings.Cut(word, ":"); ok && !strings.ContainsAny(name, " \"") && strings.Contains(value, " ") {
			word = name + `:"` + strings.ReplaceAll(value, `"`, "") + `"`
		}
		parts[i] = word
	}
	return strings.Join(parts, " ")
}

// watchFind prints what is found, and then each change on a line.
func (a *app) watchFind(ctx context.Context, client *api.Client, q td.Query, explain bool) error {
	if explain || a.Flags.Output == "wide" {
		return cli.Usage("lmosd find --watch -o jsonl", "--watch prints lines; leave --explain and -o wide out")
	}
	var known api.AgentList
	start := time.Now()
	for change, err := range client.WatchFind(ctx, q) {
		switch {
		case ctx.Err() != nil:
			return cli.SilentError(cli.ExitInterrupted) // Ctrl-C is how a watch ends
		case err != nil:
			return err
		case change.Change == "known" && change.Agent != nil:
			known.Items = append(known.Items, *change.Agent)
		case change.Coverage != nil && a.ForPeople():
			known.Coverage, known.Took = *change.Coverage, float64(time.Since(start).Microseconds())/1000
			a.coverage(&known)
			continue
		}
		if err := a.showChange(change); err != nil {
			return err
		}
	}
	return nil
}

// signs lead the lines of changes.
var signs = map[string]string{"known": " ", "added": "+", "changed": "~", "removed": "-", "overflow": "!"}

func (a *app) showChange(c api.AgentChange) error {
	if a.Flags.Output == "yaml" {
		a.Out.Line("---")
	}
	v := cli.View{Doc: c, People: func(s *terminal.Screen, _ bool) { changeLine(s, c, time.Now()) }}
	if c.Agent != nil {
		v.Names = []string{c.Agent.Ref}
	}
	return a.Show(v)
}

func changeLine(s *terminal.Screen, c api.AgentChange, now time.Time) {
	what := "changes were missed: look again with lmosd find"
	if c.Agent != nil {
		what = copyable(*c.Agent)
		if !s.TTY {
			what = fullName(*c.Agent)
		}
	}
	at := c.Time
	if at.IsZero() {
		at = now
	}
	why := c.Reason
	if why == "" && c.Agent != nil {
		why = state(*c.Agent)
	}
	if !s.TTY {
		s.Line(strings.Join([]string{signs[c.Change], at.Format(time.RFC3339Nano), terminal.OneLine(what), why}, "\t"))
		return
	}
	s.Line(fmt.Sprintf("%s %s  %s  %s", s.Paint(terminal.Bold, signs[c.Change]), s.Paint(terminal.Dim, at.Local().Format("15:04:05")),
		s.Paint(terminal.Bold, terminal.OneLine(what)), why))
}

// withMethod completes the key of a did:key.
func withMethod(owner string) string {
	if strings.HasPrefix(owner, "z6Mk") {
		return "did:key:" + owner
	}
	return owner
}

func (a *app) showAgents(list *api.AgentList) error {
	v := cli.View{Doc: list, People: func(s *terminal.Screen, wide bool) { agentTable(list.Items, wide, time.Now()).Write(s) }}
	for _, g := range list.Items {
		v.Names = append(v.Names, g.Ref)
	}
	if slices.ContainsFunc(list.Items, func(g api.Agent) bool { return len(g.ScoreFactors) > 0 }) {
		v.People = func(s *terminal.Screen, wide bool) { reasonTable(list.Items, wide).Write(s) }
	}
	if err := a.Show(v); err != nil {
		return err
	}
	a.coverage(list)
	a.nextAfterFind(list)
	return nil
}

// nextAfterFind leads to the first agent that can be called.
func (a *app) nextAfterFind(list *api.AgentList) {
	var more []string
	if list.Next != "" {
		more = []string{"lmosd find --page " + list.Next}
	}
	switch {
	case len(list.Items) == 0 && !list.Coverage.Complete():
		a.Next("lmosd find … --timeout 10s")
		return
	case len(list.Items) == 0:
		a.Next("lmosd find   # everything that is known")
		return
	}
	best := list.Items[0]
	if i := slices.IndexFunc(list.Items, func(g api.Agent) bool { return g.State == api.StateReachable && len(g.Actions) > 0 }); i >= 0 {
		best = list.Items[i]
	}
	short, _ := shortNames(list.Items)(best)
	name := terminal.Shell(short)
	if len(best.Actions) == 0 {
		a.Next(append(more, "lmosd show "+name)...)
		return
	}
	a.Next(append(more, "lmosd show "+name, "lmosd call "+name+" "+terminal.Shell(best.Actions[0])+" …")...)
}

func agentTable(items []api.Agent, wide bool, now time.Time) *terminal.Table {
	t := &terminal.Table{Header: []string{"AGENT", "CAPABILITIES", "ACTIONS", "STATE", "SEEN"}, Keep: []int{0, 3, 4}, Wide: wide}
	if wide {
		t.Header = append(t.Header, "TITLE", "ID", "OWNER", "HOSTS", "EXPIRES")
	}
	name := shortNames(items)
	for _, g := range items {
		row := []terminal.Cell{terminal.Short(name(g)), terminal.Text(strings.Join(g.Capabilities, ",")),
			terminal.Text(strings.Join(g.Actions, ",")), terminal.Text(state(g)),
			terminal.Short(terminal.Ago(g.LastSeen, now), g.LastSeen.Format(time.RFC3339))}
		if wide {
			row = append(row, terminal.Texts(g.Title, g.ID, string(g.Owner), joinDIDs(g.Hosts), g.Expires.Format(time.RFC3339))...)
		}
		t.Add(row...)
	}
	return t
}

// reasonTable says where each rank is from.
func reasonTable(items []api.Agent, wide bool) *terminal.Table {
	t := &terminal.Table{Header: []string{"AGENT", "SCORE", "WHY"}, Keep: []int{0, 1}, Wide: wide}
	name := shortNames(items)
	for _, g := range items {
		var why []string
		for _, w := range g.ScoreFactors {
			why = append(why, reasonOf(w))
		}
		t.Add(terminal.Short(name(g)), terminal.Text(fmt.Sprintf("%.3f", g.Score)), terminal.Text(strings.Join(why, ", ")))
	}
	return t
}

func reasonOf(w api.ScoreFactor) string {
	switch {
	case w.Signal == "fallback":
		return "(" + w.Found + ")"
	case w.Asked != "" && w.Asked != w.Found:
		return fmt.Sprintf("%s ≈ %s in %s %.3f", w.Asked, w.Found, w.Field, w.Amount)
	case w.Asked != "":
		return fmt.Sprintf("%s in %s %.3f", w.Asked, w.Field, w.Amount)
	}
	if w.Found != "" {
		return fmt.Sprintf("%s (%s) %.3f", w.Signal, w.Found, w.Amount)
	}
	return fmt.Sprintf("%s %.3f", w.Signal, w.Amount)
}

// coverage says how complete an answer is, always: a short list without that would look like a small mesh.
func (a *app) coverage(list *api.AgentList) {
	switch a.Flags.Output {
	case "json", "yaml":
		return // the document has it
	case "jsonl":
		end := map[string]any{"apiVersion": api.APIVersion, "coverage": list.Coverage}
		if list.Total != nil {
			end["total"] = *list.Total
		}
		if list.Next != "" {
			end["next"] = list.Next
		}
		if len(list.Warnings) > 0 {
			end["warnings"] = list.Warnings
		}
		b, err := cli.Encode(end, false)
		if err == nil {
			a.Talk.Line(strings.TrimSpace(string(b)))
		}
		return
	}
	a.Talk.Line(a.Talk.Paint(terminal.Dim, coverageLine(list, time.Now())))
	a.doubts(list.Warnings)
}

// doubts prints why an answer may be wrong or lack something, unless a document has it.
func (a *app) doubts(warnings []api.Warning) {
	if a.Flags.Output == "json" || a.Flags.Output == "jsonl" || a.Flags.Output == "yaml" {
		return
	}
	for _, w := range warnings {
		a.Talk.Line(warningLine(a.Talk, w))
	}
}

func coverageLine(list *api.AgentList, now time.Time) string {
	c := list.Coverage
	hosts, away, unknown := map[did.DID]bool{}, 0, 0
	for _, g := range list.Items {
		for _, h := range g.Hosts {
			hosts[h] = true
		}
		switch g.State {
		case api.StateUnreachable:
			away++
		case api.StateUnknown:
			unknown++
		}
	}
	asked := fmt.Sprintf("asked %d, answered %d", c.Asked, c.Answered)
	if c.Unreachable > 0 {
		asked += fmt.Sprintf(", unreachable %d", c.Unreachable)
	}
	if !c.Oldest.IsZero() {
		asked += ", oldest " + terminal.Ago(c.Oldest, now)
	}
	shown := terminal.Count(len(list.Items), "agent", "agents")
	if list.Total != nil && *list.Total > len(list.Items) {
		shown = fmt.Sprintf("%d of %s", len(list.Items), terminal.Count(*list.Total, "agent", "agents"))
	}
	parts := []string{shown + " from " + terminal.Count(len(hosts), "peer", "peers"), asked}
	if away > 0 {
		parts = append(parts, terminal.Count(away, "agent is unreachable", "agents are unreachable"))
	}
	if c.Refused > 0 {
		parts = append(parts, terminal.Count(c.Refused, "agent is refused to this node", "agents are refused to this node")+" (LMOS-1403)")
	}
	if unknown > 0 {
		parts = append(parts, terminal.Count(unknown, "agent was not reached yet", "agents were not reached yet"))
	}
	switch {
	case c.Truncated:
		parts = append(parts, "incomplete: cut at the deadline or another bound")
	case !c.Complete():
		parts = append(parts, "incomplete")
	}
	return strings.Join(append(parts, terminal.Millis(list.Took)), " · ")
}
