package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/printer"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
)

func newTaskCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "task",
		Short: "list, show, wait for, answer or cancel long-running actions",
		Long: "A task is an action that continues without its caller: one that was called with --async, or that its description\n" +
			"declares as long. The node stores the tasks that were started through it. An id may be shortened to a unique\n" +
			"prefix. A task in the state input-required waits for lmosd task answer.",
		Example: `  lmosd task ls
  lmosd task wait 3f2a
  lmosd task answer 3f2a name=Ada
  lmosd task cancel 3f2a`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd call"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTaskLs(a), newTaskShow(a), newTaskWait(a), newTaskAnswer(a), newTaskCancel(a))
	return cmd
}

func newTaskLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the tasks that were started through the node",
		Long: "Lists the tasks that were started through the node, newest first. The node queries the hosts of running tasks\n" +
			"for at most three seconds; if a host does not answer, the state is unknown, and the last known state is shown.",
		Example: `  lmosd task ls
  lmosd task ls -o json --jq '.items[] | select(.status == "running") | .id'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listTasks(cmd.Context()) },
	}
}

func newTaskShow(a *app) *cobra.Command {
	return a.taskCommand("show", "show the state of a task", cli.ReadOnly,
		"Asks the agent's host for the state of a task: with the output of one that is completed, and the reason of one that failed.",
		"  lmosd task show 3f2a\n  lmosd task show 3f2a --jq .status",
		func(ctx context.Context, c *api.Client, t *api.Task) error {
			now, err := c.Task(ctx, t.ID)
			if err != nil {
				return err
			}
			return a.showTask(now)
		})
}

func newTaskWait(a *app) *cobra.Command {
	var timeout time.Duration
	var f askFlags
	cmd := a.taskCommand("wait", "wait until a task ends, and print its output", cli.ReadOnly,
		"Waits until a task has ended, prints the output as lmosd call does, and ends as it would: with 0 only if the task is\n"+
			"completed. Whoever stops waiting does not stop the task. What it wants to know is asked on a terminal; elsewhere it is\n"+
			"printed, and the exit code is 10.",
		"  lmosd task wait 3f2a --timeout 10m\n  lmosd task wait \"$(lmosd call weather getReport year=2026 --async)\"",
		func(ctx context.Context, c *api.Client, t *api.Task) error {
			return a.awaitTask(ctx, c, t, timeout, f)
		})
	cmd.Aliases = []string{"follow"}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait (default: until it ends)")
	f.add(cmd)
	return cmd
}

func newTaskCancel(a *app) *cobra.Command {
	return a.taskCommand("cancel", "cancel a task", cli.ReadWrite,
		"Cancels a task. What the agent did until then stays done.",
		"  lmosd task cancel 3f2a\n  lmosd task ls --jq '.items[].id' | xargs -n1 lmosd task cancel",
		func(ctx context.Context, c *api.Client, t *api.Task) error {
			ended, err := c.CancelTask(ctx, t.ID)
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: ended, Names: []string{ended.ID}, People: func(s *terminal.Screen, _ bool) {
				s.Line(terminal.OneLine(ended.Status + " " + ended.ID))
			}})
		})
}

// taskCommand is a command about one task.
func (a *app) taskCommand(verb, short, impact, long, example string,
	do func(context.Context, *api.Client, *api.Task) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " <id>", Short: short, Long: long, Example: example, Annotations: cli.About(cli.ScopeMesh, impact),
		Args: cli.Takes(1, 1), ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTask(cmd.Context(), args[0], do)
		},
	}
}

// withTask finds the task whose id begins with prefix.
func (a *app) withTask(ctx context.Context, prefix string, do func(context.Context, *api.Client, *api.Task) error) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	t, err := findTask(ctx, client, prefix)
	if err != nil {
		return err
	}
	return do(ctx, client, t)
}

// findTask returns the task whose id begins with prefix.
func findTask(ctx context.Context, c *api.Client, prefix string) (*api.Task, error) {
	if prefix == "" {
		return nil, cli.Usage("lmosd task ls", "the id of the task is empty")
	}
	list, err := c.KnownTasks(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for i, t := range list.Items {
		if t.ID == prefix {
			return &list.Items[i], nil
		}
		if strings.HasPrefix(t.ID, prefix) {
			found = append(found, t.ID)
		}
	}
	switch len(found) {
	case 0:
		return nil, interact.Errorf(interact.NoTask, "lmosd task ls", "no task begins with %q", prefix)
	case 1:
		return &list.Items[slices.IndexFunc(list.Items, func(t api.Task) bool { return t.ID == found[0] })], nil
	}
	return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(found[:min(len(found), 5)], ", "),
		"%d tasks begin with %q", len(found), prefix)
}

func (a *app) listTasks(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.Tasks(ctx)
	if err != nil {
		return err
	}
	v := cli.View{Doc: list, People: func(s *terminal.Screen, _ bool) { taskTable(list.Items, time.Now()).Write(s) }}
	for _, t := range list.Items {
		v.Names = append(v.Names, t.ID)
	}
	if err := a.Show(v); err != nil {
		return err
	}
	switch i := slices.IndexFunc(list.Items, func(t api.Task) bool { return !t.Final() }); {
	case i >= 0 && interact.StatusOf(list.Items[i].Status) == interact.StatusInputRequired:
		a.Next("lmosd task show " + terminal.Shell(list.Items[i].ID))
	case i >= 0:
		a.Next("lmosd task wait " + terminal.Shell(list.Items[i].ID))
	case len(list.Items) > 0:
		a.Next("lmosd task show " + terminal.Shell(list.Items[0].ID))
	default:
		a.Next("lmosd call AGENT ACTION --async")
	}
	return nil
}

// shortTask is how much of an id a terminal shows: a UUID up to its first hyphen.
const shortTask = 8

func taskTable(items []api.Task, now time.Time) *terminal.Table {
	t := &terminal.Table{Header: []string{"TASK", "AGENT", "ACTION", "STATUS", "BEGAN", "TOOK"}, Keep: []int{0, 3, 4, 5}}
	for _, i := range items {
		end := i.Ended
		if end.IsZero() {
			end = now
		}
		took, status := terminal.Short(terminal.Span(end.Sub(i.Requested)), end.Sub(i.Requested).Round(time.Millisecond).String()), i.Status
		if status == api.UnknownTask { // nor is known how long it took
			took, status = terminal.Text("–"), fmt.Sprintf("%s (%s %s ago)", status, i.LastStatus, terminal.Ago(i.LastSeen, now))
		}
		t.Add(terminal.Short(i.ID[:min(len(i.ID), shortTask)], i.ID), terminal.Short(i.Name, i.Thing), terminal.Text(i.Action),
			terminal.Text(status), terminal.Short(terminal.Ago(i.Requested, now), i.Requested.Format(time.RFC3339)), took)
	}
	return t
}

func (a *app) showTask(t *api.Task) error {
	t.APIVersion, t.Kind = api.APIVersion, "Task"
	err := a.Show(cli.View{Doc: t, Names: []string{t.ID}, People: func(to *terminal.Screen, _ bool) {
		s := &terminal.Sheet{}
		s.Add("task", t.ID)
		s.Add("agent", t.Thing)
		s.Add("action", t.Action)
		s.Add("status", t.Status)
		s.Add("began", stamp(t.Requested))
		s.Add("ended", stamp(t.Ended))
		for _, line := range prompt.Show(t.Inputs) {
			s.Add("asks", line)
		}
		s.Add("output", plain(t.Output))
		if e := failureOf(t); e != nil {
			s.Add("error", interact.AsError(e).Code.String()+" "+e.Error())
		}
		s.Write(to)
	}})
	switch {
	case err != nil || t.Final():
	case len(t.Inputs) > 0:
		a.Next(answering(t), "lmosd task cancel "+terminal.Shell(t.ID))
	default:
		a.Next("lmosd task wait "+terminal.Shell(t.ID), "lmosd task cancel "+terminal.Shell(t.ID))
	}
	return err
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// awaitTask waits for a task and prints its output.
func (a *app) awaitTask(ctx context.Context, client *api.Client, t *api.Task, timeout time.Duration, f askFlags) error {
	if timeout < 0 {
		return cli.Usage("for example --timeout 10m", "--timeout cannot be negative")
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	c := &conversation{app: a, client: client, asked: t.Name, began: time.Now(), found: time.Now(), agent: api.Agent{Ref: t.Thing}}
	return c.outlast(ctx, t, f, func(ended *api.Task) error {
		ended.APIVersion, ended.Kind = api.APIVersion, "Task"
		return a.Show(cli.View{Doc: ended, Names: []string{ended.ID}, People: func(s *terminal.Screen, _ bool) {
			printer.Write(s, ended.Output, interact.JSON)
		}})
	})
}

// failureOf is the error that the last state of a task stands for; nil if it is completed, or goes on.
func failureOf(t *api.Task) error {
	switch status := interact.StatusOf(t.Status); {
	case len(t.Error) > 0:
		return problem.Unmarshal(http.StatusInternalServerError, t.Error)
	case status == interact.StatusFailed:
		return interact.Errorf(interact.AgentFailed, "see the agent's log", "the task %s failed", t.ID)
	case status == interact.StatusCancelled:
		return interact.Errorf(interact.Cancelled, "call the action again", "the task %s was cancelled", t.ID)
	}
	return nil
}
