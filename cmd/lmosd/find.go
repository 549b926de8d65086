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
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/querytext"
	"github.com/lmosd/lmosd/td/scheme"
)

// spare is the additional time that a client waits for a node with a time limit.
const spare = 5 * time.Second

type findFlags struct {
	query       td.Query
	owner, host string
	timeout     time.Duration
	exitStatus  bool
	explain     bool
	watch       bool
	claimed     bool
	strategy    string
	page        string
	all         bool
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
  lmosd find weather OR traffic NOT type:tool
  lmosd find --action getWeather -o name --exit-status
  lmosd find --all -o name
  lmosd find --watch -o jsonl`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd show, lmosd help names"),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runFind(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.query.Capability, "capability", nil, "capability `ID` or its beginning; may repeat, all hold")
	flags.StringVar(&f.query.Type, "type", "", "agent, tool, or any `@TYPE`")
	flags.StringVar(&f.query.Version, "version-range", "", "`RANGE` of its version: ^1.2, 1.x, [1.0,2.0[")
	flags.StringVar(&f.strategy, "strategy", "",
		"`VERSION` that comes first: highest or most_similar")
	flags.StringVar(&f.query.Action, "action", "", "`NAME` of an action")
	flags.StringVar(&f.query.Property, "property", "", "`NAME` of a property")
	flags.StringVar(&f.query.Event, "event", "", "`NAME` of an event")
	flags.StringVar(&f.owner, "owner", "", "`DID` of the owner, or its key z6Mk…")
	flags.StringVar(&f.host, "host", "", "`DID` of the node that hosts it, or its key")
	flags.StringVar(&f.query.Organization, "organization", "", "`NAME` or DID: own, of a partner, or proven")
	flags.BoolVar(&f.claimed, "claimed", false, "with --organization, also its claims and vendors")
	flags.StringVar(&f.query.Protocol, "protocol", "", "`SCHEME` of a form: "+scheme.Protocols()+", …")
	flags.BoolVar(&f.explain, "explain", false, "show the factors of each score")
	flags.BoolVar(&f.watch, "watch", false, "print changes until Ctrl-C")
	flags.IntVar(&f.query.Limit, "limit", 0, "most agents to show (default 32)")
	flags.StringVar(&f.page, "page", "", "`CURSOR` of the next page; without other flags")
	flags.BoolVar(&f.all, "all", false, "all matches that the node knows, by id; none is asked")
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
	if f.all {
		return a.findAll(ctx, f, q, words)
	}
	strategy := td.Strategy(strings.ToUpper(f.strategy))
	switch {
	case strategy == "":
	case strategy != td.Highest && strategy != td.MostSimilar:
		return cli.Usage("--strategy highest", "--strategy %s is neither highest nor most_similar", f.strategy)
	case len(q.Capability) != 1 || len(q.Or) > 0 || f.watch || f.explain:
		return cli.Usage("for example", "--strategy is for one capability, without OR, --watch and --explain").
			Then(cli.StepCommand, "lmosd find --capability urn:example:weather:forecast --strategy highest")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	if f.watch {
		return a.watchFind(ctx, client, q, f.explain)
	}
	return a.found(ctx, f, words, func(ctx context.Context) (*api.AgentList, error) {
		switch {
		case f.explain:
			return client.Explain(ctx, q, f.timeout)
		case strategy != "":
			return client.Resolve(ctx, q, strategy, f.timeout)
		}
		return client.Find(ctx, q, f.timeout)
	})
}

// pageOfAll is the number of agents of one request of --all.
const pageOfAll = 1000

// findAll prints all matches in the index of the node.
func (a *app) findAll(ctx context.Context, f findFlags, q td.Query, words []string) error {
	if f.strategy != "" || f.explain || f.watch || f.query.Limit != 0 || f.timeout != 0 || f.query.Version != "" {
		return cli.Usage("", "expected --all without --strategy, --explain, --watch, --limit, --timeout and --version-range").
			Then(cli.StepCommand, "lmosd find --all --type agent")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	q.Limit, f.timeout = pageOfAll, time.Minute // for all pages
	return a.found(ctx, f, words, func(ctx context.Context) (*api.AgentList, error) {
		var all *api.AgentList
		for page, err := range client.AgentPages(ctx, q) {
			if err != nil {
				return nil, err
			}
			if all == nil {
				all = page
				continue
			}
			all.Items, all.Took = append(all.Items, page.Items...), all.Took+page.Took
		}
		all.Next, all.Coverage.More = "", false
		return all, nil
	})
}

// found prints the list that find returns; with --exit-status, an empty one is [cli.ExitNotFound].
func (a *app) found(ctx context.Context, f findFlags, words []string, find func(context.Context) (*api.AgentList, error)) error {
	ctx, cancel := context.WithTimeout(ctx, max(f.timeout, 2*time.Second)+spare)
	defer cancel()
	list, err := find(ctx)
	if err == nil {
		err = a.showAgents(ctx, list, f, words)
	}
	if err == nil && f.exitStatus && len(list.Items) == 0 {
		return cli.SilentError(cli.ExitNotFound)
	}
	return err
}

// findPage prints the next page of an earlier answer.
func (a *app) findPage(ctx context.Context, f findFlags, words []string) error {
	if len(words) > 0 || f.query.HasCriteria() || f.owner+f.host+f.strategy != "" || f.query.Limit != 0 || f.explain || f.watch || f.claimed || f.all {
		return cli.Usage("", "expected --page without words and other flags: the cursor contains the query").
			Then(cli.StepCommand, "lmosd find --page CURSOR")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	return a.found(ctx, f, words, func(ctx context.Context) (*api.AgentList, error) { return client.NextPage(ctx, f.page, f.timeout) })
}

// question returns the query of flags and words.
func (f *findFlags) question(words []string) (q td.Query, err error) {
	for _, flag := range []struct {
		name, value string
		to          *did.DID
	}{{"owner", f.owner, &f.query.Owner}, {"host", f.host, &f.query.Host}} {
		if flag.value == "" {
			continue
		}
		if *flag.to, err = did.Parse(render.WithMethod(flag.value)); err != nil {
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
		return q, cli.Usage("for example", "the question cannot be read: %v", err).
			Then(cli.StepCommand, "lmosd find weather OR traffic NOT type:tool")
	}
	for part := range q.Parts() {
		part.Claimed = f.claimed
	}
	return q, nil
}

// together joins words to one query. It quotes fields again whose quotes the shell removed.
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

// watchFind prints the agents, and then each change on a line.
func (a *app) watchFind(ctx context.Context, client *api.Client, q td.Query, explain bool) error {
	if explain || a.Flags.Output == "wide" {
		return cli.Usage("", "--watch prints lines; leave --explain and -o wide out").Then(cli.StepCommand, "lmosd find --watch -o jsonl")
	}
	var known api.AgentList
	start := time.Now()
	for change, err := range client.WatchFind(ctx, q) {
		switch {
		case ctx.Err() != nil:
			return cli.SilentError(cli.ExitInterrupted) // Ctrl-C ends a watch
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

func (a *app) showChange(c api.AgentChange) error {
	v := cli.View{Doc: c, People: func(s *terminal.Screen, _ bool) { render.Change(s, c, time.Now()) }}
	if c.Agent != nil {
		v.Names = []string{c.Agent.Ref}
	}
	return a.ShowNext(v)
}

func (a *app) showAgents(ctx context.Context, list *api.AgentList, f findFlags, words []string) error {
	v := cli.View{Doc: list, Names: cli.Each(list.Items, func(g api.Agent) string { return g.Ref }),
		People: func(s *terminal.Screen, wide bool) { render.Agents(list.Items, wide, time.Now()).Write(s) }}
	if slices.ContainsFunc(list.Items, func(g api.Agent) bool { return len(g.ScoreFactors) > 0 }) {
		v.People = func(s *terminal.Screen, wide bool) { render.Scores(list.Items, wide).Write(s) }
	}
	if err := a.Show(v); err != nil {
		return err
	}
	a.coverage(list)
	a.nextAfterFind(ctx, list, f, words)
	return nil
}

// nextAfterFind suggests to show and call the first agent that can be called, or similar queries if none was found.
func (a *app) nextAfterFind(ctx context.Context, list *api.AgentList, f findFlags, words []string) {
	var more []string
	if list.Next != "" {
		more = []string{"lmosd find --page " + list.Next}
	}
	if len(list.Items) == 0 {
		if a.ForPeople() {
			a.Next(a.insteadOf(ctx, list, f, words)...)
		}
		return
	}
	best := list.Items[0]
	if i := slices.IndexFunc(list.Items, func(g api.Agent) bool { return g.State == api.StateReachable && len(g.Actions) > 0 }); i >= 0 {
		best = list.Items[i]
	}
	short, _ := render.Names(list.Items)(best)
	name := terminal.Shell(short)
	if len(best.Actions) == 0 {
		a.Next(append(more, "lmosd show "+name)...)
		return
	}
	a.Next(append(more, "lmosd show "+name, "lmosd call "+name+" "+terminal.Shell(best.Actions[0])+" …")...)
}

// coverage always prints the completeness of an answer: without it, an incomplete list looks like a small mesh.
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
	a.Talk.Item("", 0, render.Coverage(list, time.Now()))
	a.doubts(list.Warnings)
}

// doubts prints the warnings of an answer, unless its document has them.
func (a *app) doubts(warnings []api.Warning) {
	if slices.Contains([]string{"json", "jsonl", "yaml"}, a.Flags.Output) {
		return
	}
	for _, w := range warnings {
		a.Talk.Line(render.Warning(a.Talk, w))
	}
}
