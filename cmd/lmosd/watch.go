package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// watchFlags are the flags of a watch.
type watchFlags struct {
	all     bool
	since   string
	limit   int
	timeout time.Duration
	with    withFlag
}

func newWatchCommand(a *app) *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch <agent> [event|property…]",
		Short: "print events and property changes as they arrive",
		Long: "Prints events and changes of observable properties as they arrive; without a name, all events. The command runs\n" +
			"until Ctrl-C, --limit or --timeout. It reconnects, and receives the missed events that the host of the agent\n" +
			"still stores. With --limit, fewer events until --timeout are a failure (exit code 7).",
		Example: `  lmosd watch weather
  lmosd watch weather userFeedbackReceived units
  lmosd watch weather --all -o jsonl
  lmosd watch weather userFeedbackReceived --limit 1 --timeout 1m`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd read, lmosd show"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeWatched,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.interact(cmd.Context(), 0, "watch", args, func(ctx context.Context, c *conversation) error {
				topics, err := c.topics(args[1:], f.all)
				if err != nil {
					return err
				}
				if err := f.with.use(c, nil); err != nil {
					return err
				}
				return c.watch(ctx, topics, f)
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "without a name: also all observable properties")
	flags.StringVar(&f.since, "since", "", "start after the event with this `ID`, if the host still stores it")
	flags.IntVar(&f.limit, "limit", 0, "end after this number of events")
	flags.DurationVar(&f.timeout, "timeout", 0, "end after this time")
	f.with.add(cmd)
	return cmd
}

// A topic is one event or property, or all of them.
type topic struct{ kind, name string } // kind is events or properties; an empty name is all

const (
	eventKind    = "events"
	propertyKind = "properties"
)

// topics returns the topics of names; a name may be that of an event, an observable property, or both.
func (c *conversation) topics(names []string, all bool) (list []topic, err error) {
	for _, name := range names {
		p := c.thing.Properties[name]
		switch {
		case c.thing.Events[name] == nil && p == nil:
			known := append(slices.Sorted(maps.Keys(c.thing.Events)), slices.Sorted(maps.Keys(c.thing.Properties))...)
			return nil, c.noAffordance("event or property", name, known, "watch")
		case c.thing.Events[name] == nil && !p.Observable:
			return nil, interact.Errorf(interact.NotAllowed, "", "the property %q of %s cannot be observed", name, c.asked).
				Then(interact.StepRead, c.asked, name)
		}
		if c.thing.Events[name] != nil {
			list = append(list, topic{eventKind, name})
		}
		if p != nil && p.Observable {
			list = append(list, topic{propertyKind, name})
		}
	}
	if len(names) > 0 {
		return list, nil
	}
	if len(c.thing.Events) > 0 {
		list = append(list, topic{eventKind, ""})
	}
	if all && c.observable() {
		list = append(list, topic{propertyKind, ""})
	}
	if len(list) == 0 {
		e := interact.Errorf(interact.NoAffordance, "", "%s has nothing that could be watched like that", c.asked)
		if !all && c.observable() {
			return nil, e.Then(cli.StepCommand, "lmosd watch "+terminal.Shell(c.asked)+" --all")
		}
		return nil, e.Then(interact.StepShow, c.asked)
	}
	return list, nil
}

// observable reports whether a property is observable.
func (c *conversation) observable() bool {
	for _, p := range c.thing.Properties {
		if p.Observable {
			return true
		}
	}
	return false
}

// An occurrence is the document of an event or a change.
type occurrence struct {
	cli.Head
	Agent    string          `json:"agent"`
	Ref      string          `json:"ref"`
	Event    string          `json:"event,omitempty"` // or Property
	Property string          `json:"property,omitempty"`
	ID       string          `json:"id,omitempty"` // for --since
	Time     time.Time       `json:"time"`         // of arrival
	Data     json.RawMessage `json:"data"`
}

// watch prints the events and changes of topics until a limit is reached.
func (c *conversation) watch(ctx context.Context, topics []topic, f watchFlags) error {
	switch {
	case f.limit < 0 || f.timeout < 0:
		return cli.Usage("for example --limit 10 --timeout 1m", "--limit and --timeout cannot be negative")
	case f.since != "" && len(topics) > 1:
		return cli.Usage("watch one event at a time", "--since is an id of one event or property, and %d are watched", len(topics))
	}
	wait, cancel := context.WithCancel(ctx)
	if f.timeout > 0 {
		wait, cancel = context.WithTimeout(ctx, f.timeout)
	}
	defer cancel()
	n, last := 0, ""
	err := c.merge(wait, topics, f.since, func(o occurrence) error {
		if n++; n == 1 && c.ForPeople() && !c.Out.TTY {
			c.Out.Line("TIME\tNAME\tVALUE")
		}
		if len(topics) == 1 {
			last = o.ID
		}
		if err := c.print(o); err != nil {
			return err
		}
		if n == f.limit {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
	case ctx.Err() != nil:
		return cli.SilentError(cli.ExitInterrupted) // Ctrl-C is how a watch ends
	case err != nil && wait.Err() == nil:
		return err
	case n < f.limit:
		return interact.Errorf(interact.Timeout, "raise --timeout, or check that the agent runs", "%s of %d came from %s",
			terminal.Count(n, "event", "events"), f.limit, c.asked).Then(interact.StepShow, c.asked)
	}
	if last != "" {
		words := []string{"lmosd watch", terminal.Shell(c.asked), terminal.Shell(topics[0].name), "--since",
			terminal.Shell(last) + "   # what came since"}
		c.Next(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "''" }), " "))
	}
	return nil
}

// errEnough ends a watch at its limit.
var errEnough = errors.New("enough")

// merge calls f for the events and changes of all topics, until f or a topic fails, all topics end, or ctx ends.
func (c *conversation) merge(ctx context.Context, topics []topic, since string, f func(occurrence) error) error {
	ctx, cancel := context.WithCancel(ctx)
	type arrival struct {
		occurrence
		err error
	}
	arrivals := make(chan arrival)
	var work sync.WaitGroup
	for _, t := range topics {
		work.Go(func() {
			for e, err := range c.client.Watch(ctx, c.agent.Ref, t.kind, t.name, since) {
				o := occurrence{Head: cli.NewHead("Event"), Agent: c.agent.ID, Ref: c.agent.Ref, ID: e.ID,
					Time: time.Now(), Data: e.Data}
				if t.kind == eventKind {
					o.Event = e.Name
				} else {
					o.Property = e.Name
				}
				select {
				case arrivals <- arrival{o, err}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		work.Wait()
		close(arrivals)
	}()
	defer func() {
		cancel()
		for range arrivals { // until all senders have ended
		}
	}()
	for a := range arrivals {
		if a.err != nil {
			return a.err
		}
		if err := f(a.occurrence); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// print prints an occurrence.
func (c *conversation) print(o occurrence) error {
	name := o.Event + o.Property
	return c.ShowNext(cli.View{Doc: o, Names: []string{o.ID}, People: func(s *terminal.Screen, _ bool) {
		if !s.TTY {
			s.Line(o.Time.Format(time.RFC3339Nano) + "\t" + terminal.OneLine(name) + "\t" + plain(o.Data))
			return
		}
		s.Line(fmt.Sprintf("%s  %s  %s", s.Paint(terminal.Dim, o.Time.Format("15:04:05")),
			s.Paint(terminal.Bold, terminal.OneLine(name)), plain(o.Data)))
	}})
}

// plain returns a JSON value on one line, a string without quotes.
func plain(value json.RawMessage) string {
	var text *string
	if json.Unmarshal(value, &text) == nil && text != nil {
		return terminal.OneLine(*text)
	}
	return terminal.OneLine(string(value))
}
