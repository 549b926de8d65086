package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// eventFlags are the flags of lmosd events.
type eventFlags struct {
	types  []string
	since  string
	follow bool
	limit  int
}

func newEventsCommand(a *app) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "print events of the node: peers, agents, tasks, warnings",
		Long: "Prints the last events of the node, oldest first: peers and agents that came, changed and went, tasks, warnings,\n" +
			"relays, calls and changes of trust. Those of calls and of trust need full rights. With --follow, it prints the\n" +
			"events that follow, until Ctrl-C; it reconnects, and receives the missed events that the node still stores. A\n" +
			"gap means that the node does not store some of them any more.",
		Example: `  lmosd events
  lmosd events --type peer,agent --since 10m
  lmosd events --types task -f -o jsonl`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd watch, lmosd calls, lmosd status"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, err := f.after(time.Now())
			if err != nil {
				return err
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			if f.follow {
				return a.followEvents(cmd.Context(), client, f, since)
			}
			return a.listEvents(cmd.Context(), client, f, since)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.types, "types", nil, "only these `KINDS` (also --type), or those below: peer,agent.added")
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "type" {
			name = "types"
		}
		return pflag.NormalizedName(name)
	})
	flags.StringVar(&f.since, "since", "", "start after an event by its `SEQ`, or after a time: 10m")
	flags.BoolVarP(&f.follow, "follow", "f", false, "print the events that follow")
	flags.IntVar(&f.limit, "limit", 0, "number of events, at most 1000 (default: 100, or without an end with --follow)")
	return cmd
}

// after returns the number after which the events begin: of an event, or of a time; 0: the newest ones.
func (f *eventFlags) after(now time.Time) (uint64, error) {
	if f.limit < 0 || f.limit > 1000 {
		return 0, cli.Usage("for example --limit 20", "--limit is %d; expected a number from 1 to 1000", f.limit)
	}
	if f.since == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(f.since); err == nil && d > 0 {
		return uint64(now.Add(-d).UnixMicro()), nil // the numbers of events are times
	}
	seq, err := strconv.ParseUint(f.since, 10, 53)
	if err != nil || seq == 0 {
		return 0, cli.Usage("for example --since 10m", "--since is %q; expected the number of an event or a duration", f.since)
	}
	return seq, nil
}

func (a *app) listEvents(ctx context.Context, client *api.Client, f eventFlags, since uint64) error {
	limit := f.limit
	if limit == 0 {
		limit = 100
	}
	list, err := client.Events(ctx, api.EventQuery{Types: f.types, Since: since, Limit: limit})
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(e api.NodeEvent) string { return strconv.FormatUint(e.Seq, 10) }),
		People: func(s *terminal.Screen, wide bool) { render.Events(list.Items, wide).Write(s) }})
	if err != nil {
		return err
	}
	if list.Next != "" {
		a.Next("lmosd events --since " + terminal.Shell(list.Next) + "   # the following ones")
		return nil
	}
	a.Next("lmosd events -f --since " + strconv.FormatUint(list.Latest, 10) + "   # what follows")
	return nil
}

// followEvents prints events as they arrive.
func (a *app) followEvents(ctx context.Context, client *api.Client, f eventFlags, since uint64) error {
	n := 0
	for e, err := range client.WatchEvents(ctx, f.types, since) {
		switch {
		case err != nil && ctx.Err() != nil:
			return cli.SilentError(cli.ExitInterrupted) // Ctrl-C is how it ends
		case err != nil:
			return err
		}
		if n++; n == 1 && a.ForPeople() && !a.Out.TTY {
			a.Out.Line("TIME\tKIND\tSUBJECT\tDETAIL")
		}
		view := cli.View{Doc: e, Names: []string{strconv.FormatUint(e.Seq, 10)}, People: func(s *terminal.Screen, _ bool) { render.Event(s, e) }}
		if err := a.ShowNext(view); err != nil {
			return err
		}
		if n == f.limit {
			return nil
		}
	}
	return nil
}

func newCallsCommand(a *app) *cobra.Command {
	var f api.CallQuery
	cmd := &cobra.Command{
		Use:   "calls [id]",
		Short: "list the last calls of the node, or the stages of one",
		Long: "Lists the last 500 interactions that were sent through the node, newest first, with those that run, or shows one\n" +
			"with its path and stages. An id may be shortened to a unique prefix. The node stores no inputs and outputs. It\n" +
			"measures the stages of up to 50 calls a second.",
		Example: `  lmosd calls
  lmosd calls b87e
  lmosd calls --thing weather --code LMOS-3001
  lmosd calls -o json --jq '.items[] | select(.took_ms > 1000) | .id'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd events, lmosd trace, lmosd call"),
		Args:        cli.Takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return a.showCall(cmd.Context(), client, args[0])
			}
			return a.listCalls(cmd.Context(), client, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Code, "code", "", "only calls that failed with the error `CODE`")
	flags.StringVar(&f.Thing, "thing", "", "only calls of the `AGENT`, by its name or reference")
	flags.StringVar(&f.Trace, "trace", "", "only calls of the trace with this `ID`")
	flags.IntVar(&f.Limit, "limit", 0, "at most this number of calls")
	return cmd
}

func (a *app) listCalls(ctx context.Context, client *api.Client, q api.CallQuery) error {
	if q.Limit < 0 || q.Limit > 500 {
		return cli.Usage("for example --limit 20", "--limit is %d; expected a number from 1 to 500", q.Limit)
	}
	list, err := client.Calls(ctx, q)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(c api.Call) string { return c.ID }),
		People: func(s *terminal.Screen, wide bool) { render.Calls(list.Items, wide, time.Now()).Write(s) }})
	switch {
	case err != nil:
		return err
	case len(list.Items) > 0:
		a.Next("lmosd calls " + terminal.Shell(list.Items[0].ID))
	default:
		if a.ForPeople() {
			a.Talk.Line("no calls")
		}
		a.Next("lmosd call AGENT ACTION")
	}
	return nil
}

// showCall shows the call whose id begins with prefix.
func (a *app) showCall(ctx context.Context, client *api.Client, prefix string) error {
	c, err := client.CallRecord(ctx, prefix)
	if err != nil && interact.AsError(err).Code == interact.NotFound {
		c, err = findCall(ctx, client, prefix)
	}
	if err != nil {
		return err
	}
	if err := a.Show(cli.View{Doc: c, Names: []string{c.ID}, People: func(s *terminal.Screen, _ bool) { render.Call(s, c) }}); err != nil {
		return err
	}
	if c.Code != "" {
		a.Next("lmosd errors " + terminal.Shell(c.Code))
		return nil
	}
	a.Next("lmosd calls --thing " + terminal.Shell(c.Thing))
	return nil
}

func findCall(ctx context.Context, client *api.Client, prefix string) (*api.Call, error) {
	list, err := client.Calls(ctx, api.CallQuery{})
	if err != nil {
		return nil, err
	}
	var found []api.Call
	for _, c := range list.Items {
		if strings.HasPrefix(c.ID, prefix) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return nil, interact.Errorf(interact.NotFound, "the node stores the last 500 calls", "no call begins with %q", prefix).
			Then(cli.StepCommand, "lmosd calls")
	case 1:
		found[0].APIVersion, found[0].Kind = api.APIVersion, "Call"
		return &found[0], nil
	}
	ids := cli.Each(found[:min(len(found), 5)], func(c api.Call) string { return c.ID })
	return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(ids, ", "), "%d calls begin with %q", len(found), prefix)
}

// showHistory shows the load of the node in the last 15 minutes.
func (a *app) showHistory(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	s, err := client.Series(ctx, 0)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: s, Names: []string{s.To.Format(time.RFC3339)}, People: func(to *terminal.Screen, _ bool) { render.Series(to, s) }})
	if err == nil {
		a.Next("lmosd events")
	}
	return err
}
