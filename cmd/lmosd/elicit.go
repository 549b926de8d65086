package main

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
)

// askFlags are the flags for the input that an action requires.
type askFlags struct {
	roots   []string
	noInput bool
}

func (f *askFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.roots, "root", nil, "`DIR` for an agent that requests roots; may repeat")
	cmd.Flags().BoolVar(&f.noInput, "no-input", false, "print requests for input and exit with 10")
}

// mayAsk reports whether an action may require input: by its declaration, or because its agent is an MCP server or an A2A agent.
func (c *conversation) mayAsk(name string) bool {
	var about struct {
		Actions map[string]struct {
			Asks bool `json:"lmosd:requiresInput"`
		} `json:"actions"`
	}
	_ = json.Unmarshal(c.thing.Raw, &about) // it was read before
	if about.Actions[name].Asks {
		return true
	}
	for a := range maps.Values(c.thing.Actions) {
		if bridge.IsTunnel(a.Types) {
			return true
		}
	}
	return false
}

// answers returns the input that t requires, from the flags or the user; nil without a terminal.
func (a *app) answers(ctx context.Context, who string, t *api.Task, f askFlags) (interact.Answers, error) {
	given := prompt.Words{Roots: f.roots}
	answers, err := given.Folders(t.Inputs)
	if err != nil {
		return nil, err
	}
	open := maps.Clone(t.Inputs)
	maps.DeleteFunc(open, func(key string, _ interact.Input) bool { _, done := answers[key]; return done })
	switch {
	case len(open) == 0:
		return answers, nil
	case f.noInput || !a.Interactive():
		return nil, nil
	}
	entered, err := prompt.New(a.Console, who).Ask(ctx, open)
	maps.Copy(answers, entered)
	return answers, err
}

// showAsking prints the requests for input of a task that keeps waiting; the exit code is [cli.ExitAsks].
func (a *app) showAsking(t *api.Task) error {
	if err := a.showTask(t); err != nil {
		return err
	}
	return cli.SilentError(cli.ExitAsks)
}

func newTaskAnswer(a *app) *cobra.Command {
	var w prompt.Words
	var noInput bool
	cmd := &cobra.Command{
		Use:   "answer <id> [k=v… | k:=JSON | @file | -]",
		Short: "send the input that a task requires",
		Long: "Sends the input that a task in the state input-required requires, so that the task continues. On a terminal,\n" +
			"prompts for each request. Words have the form of lmosd call: the values of a form, a message, or the answer of a\n" +
			"model. A URL that was opened needs no words. Several requests are answered together, as JSON:\n" +
			"{\"KEY\":{\"action\":\"accept\",\"content\":{…}},…}.",
		Example: `  lmosd task answer 3f2a name=Ada
  lmosd task answer 3f2a --decline
  lmosd task answer 3f2a --root ./docs`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd task show, lmosd task wait"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			w.Args = args[1:]
			return a.withTask(cmd.Context(), args[0], func(ctx context.Context, c *api.Client, t *api.Task) error {
				return a.answerTask(ctx, c, t, w, noInput)
			})
		},
	}
	cmd.Flags().BoolVar(&w.Decline, "decline", false, "decline the request: the task continues without the input")
	cmd.Flags().BoolVar(&w.Cancel, "cancel", false, "cancel the request")
	cmd.Flags().StringArrayVar(&w.Roots, "root", nil, "`DIR` that the agent may use; may repeat")
	cmd.Flags().BoolVar(&noInput, "no-input", false, "do not prompt, even on a terminal")
	return cmd
}

// answerTask sends the input that a task requires.
func (a *app) answerTask(ctx context.Context, c *api.Client, t *api.Task, w prompt.Words, noInput bool) error {
	now, err := c.Task(ctx, t.ID)
	if err != nil {
		return err
	}
	if len(now.Inputs) == 0 {
		return interact.Errorf(interact.NoTask, "", "the task is %s and requires no input", now.Status).
			Then(cli.StepCommand, "lmosd task show "+terminal.Shell(t.ID))
	}
	var answers interact.Answers
	if w.None() && !noInput && a.Interactive() {
		answers, err = prompt.New(a.Console, now.Name).Ask(ctx, now.Inputs)
	} else {
		answers, err = w.Answer(a.Console, now.Inputs)
	}
	if e := interact.AsError(err); e != nil && (e.Code == interact.Invalid || e.Code == interact.Usage && len(now.Inputs) > 1) {
		e.Hint, e.Next = answering(now), nil // [prompt.Words] does not know the task
	}
	if err == nil {
		err = c.AnswerTask(ctx, now, answers)
	}
	if err != nil {
		return err
	}
	if after, err := c.Task(ctx, t.ID); err == nil { // the node stores its tasks
		now = after
	} else {
		now.Status, now.Inputs = interact.StatusRunning.String(), nil
	}
	err = a.Show(cli.View{Doc: now, Names: []string{now.ID}, People: cli.Line("answered " + now.ID)})
	switch {
	case err != nil:
	case len(now.Inputs) > 0:
		a.Next(answering(now))
	default:
		a.Next("lmosd task wait " + terminal.Shell(now.ID))
	}
	return err
}

// answering returns the command that answers the requests of t.
func answering(t *api.Task) string {
	line := "lmosd task answer " + terminal.Shell(t.ID)
	if sample := prompt.Sample(t.Inputs); sample != "" {
		line += " " + sample
	}
	return line
}
