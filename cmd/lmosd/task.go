package main

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/printer"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
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
		"Shows the state of a task from the agent's host, with the output if it is completed, or the reason if it failed.",
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
		"Waits until a task has ended and prints the output as lmosd call does. The exit code is that of the call: 0 only if the task is\n"+
			"completed. Stopping the wait does not stop the task. Required input is requested on a terminal; elsewhere it is\n"+
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
			return a.Show(cli.View{Doc: ended, Names: []string{ended.ID}, People: cli.Line(ended.Status + " " + ended.ID)})
		})
}

// taskCommand returns a command for one task.
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

// withTask calls do with the task whose id begins with prefix.
func (a *app) withTask(ctx context.Context, prefix string, do func(context.Context, *api.Client, *api.Task) error) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	t, err := findTask(ctx, client, prefix)
	if err != nil {
		return err
	}
	return do(ctx, client, t)
}

// findTask returns the task whose id begins with prefix.
func findTask(ctx context.Context, c *api.Client, prefix string) (*api.Task, error) {
	if prefix == "" {
		return nil, cli.Usage("", "the id of the task is empty").Then(interact.StepTasks)
	}
	list, err := c.KnownTasks(ctx)
	if err != nil {
		return nil, err
	}
	var found []api.Task
	for _, t := range list.Items {
		if t.ID == prefix {
			return &t, nil
		}
		if strings.HasPrefix(t.ID, prefix) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return nil, interact.Errorf(interact.NoTask, "", "no task begins with %q", prefix).Then(interact.StepTasks)
	case 1:
		return &found[0], nil
	}
	ids := cli.Each(found[:min(len(found), 5)], func(t api.Task) string { return t.ID })
	return nil, interact.Errorf(interact.Ambiguous, "use one of "+strings.Join(ids, ", "), "%d tasks begin with %q", len(found), prefix)
}

func (a *app) listTasks(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	list, err := client.Tasks(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(t api.Task) string { return t.ID }),
		People: cli.Body(render.Tasks(list.Items, time.Now()))})
	if err != nil {
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

func (a *app) showTask(t *api.Task) error {
	t.APIVersion, t.Kind = api.APIVersion, "Task"
	s := &terminal.Sheet{}
	s.Add("task", t.ID)
	s.Add("agent", t.Thing)
	s.Add("action", t.Action)
	s.Add("status", t.Status)
	s.Add("began", render.Stamp(t.Requested))
	s.Add("ended", render.Stamp(t.Ended))
	s.Add("asks", prompt.Show(t.Inputs)...)
	s.Add("output", plain(t.Output))
	if e := failureOf(t); e != nil {
		s.Add("error", interact.AsError(e).Code.String()+" "+e.Error())
	}
	err := a.Show(cli.View{Doc: t, Names: []string{t.ID}, People: cli.Body(s)})
	switch {
	case err != nil || t.Final():
	case len(t.Inputs) > 0:
		a.Next(answering(t), "lmosd task cancel "+terminal.Shell(t.ID))
	default:
		a.Next("lmosd task wait "+terminal.Shell(t.ID), "lmosd task cancel "+terminal.Shell(t.ID))
	}
	return err
}

// awaitTask waits for a task and prints its output.
func (a *app) awaitTask(ctx context.Context, client *api.Client, t *api.Task, timeout time.Duration, f askFlags) error {
	ctx, cancel, err := limited(ctx, timeout, "10m")
	if err != nil {
		return err
	}
	defer cancel()
	c := &conversation{app: a, client: client, asked: t.Name, began: time.Now(), found: time.Now(), agent: api.Agent{Ref: t.Thing}}
	return c.outlast(ctx, t, f, func(ended *api.Task) error {
		ended.APIVersion, ended.Kind = api.APIVersion, "Task"
		return a.Show(cli.View{Doc: ended, Names: []string{ended.ID}, People: func(s *terminal.Screen, _ bool) {
			printer.Write(s, ended.Output, interact.JSON)
		}})
	})
}

// failureOf returns the error of a failed or cancelled task, else nil.
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
