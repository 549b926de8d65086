package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/printer"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// callFlags are the flags of a call.
type callFlags struct {
	timeout           time.Duration
	async, stream     bool
	key, via          string
	with              withFlag
	accept, mediaType string
	ask               askFlags
	by                capabilityFlags
}

func newCallCommand(a *app) *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "call <agent> <action> [k=v… | k:=JSON | @file | -]",
		Short: "call an action of an agent and print its output",
		Long: "Calls an action. k=v is typed by its schema, k:=JSON is passed unchanged, @file and - (standard input) are the " +
			"whole input; words are the input that is one string. Only the output is printed; -o json adds the agent, the " +
			"path and the timings. On a terminal, missing input is asked for. --capability calls a provider of it, first of " +
			"this node, then the fastest; if one certainly did not act, another one is called, three at most.",
		Example: `  lmosd call weather getWeather question="Rain in Bonn?"
  lmosd call weather getForecast days=3 units:='["mm","°C"]'
  echo '{"question":"Rain?"}' | lmosd call weather getWeather -
  lmosd call weather getWeather question=Bonn --jq .output
  lmosd call weather getReport year=2026 --async
  lmosd call weather getWeather question=Bonn --with @pay.token
  lmosd call --capability urn:example:weather:forecast@^1 getWeather question=Bonn --trust partner --explain
  lmosd call weather transcribe @question.ogg --content-type audio/ogg --stream`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite,
			"lmosd show, lmosd read, lmosd task, lmosd trace, lmosd help exit-codes"),
		Args: func(cmd *cobra.Command, args []string) error { return f.by.args(cmd, args) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if f.by.capability != "" {
				return a.completeProvided(cmd, &f.by, args)
			}
			return a.completeAction(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.by.capability != "" {
				return a.callCapability(cmd.Context(), f, args[0], args[1:])
			}
			return a.interact(cmd.Context(), f.timeout, "call", args, func(ctx context.Context, c *conversation) error {
				return c.call(ctx, f, args[1], args[2:])
			})
		},
	}
	addTimeout(cmd, &f.timeout)
	flags := cmd.Flags()
	flags.BoolVar(&f.async, "async", false, "do not wait: print the id of the run (lmosd task)")
	flags.BoolVar(&f.stream, "stream", false, "print the output as it arrives")
	flags.StringVar(&f.accept, "accept", "", "media `TYPE` that the output should have")
	flags.StringVar(&f.mediaType, "content-type", "", "media `TYPE` of @file or -, which may be large")
	flags.StringVar(&f.key, "idempotency-key", "", "`KEY` with which the action runs only once")
	f.with.add(cmd)
	addVia(cmd, &f.via)
	f.ask.add(cmd)
	f.by.add(cmd)
	return cmd
}

func addVia(cmd *cobra.Command, via *string) {
	cmd.Flags().StringVar(via, "via", "", "a `PATH` of lmosd trace, a scheme, or an address")
}

func addTimeout(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", 0, "how long to wait (default: of the node, 30s)")
}

// A conversation is one interaction with one agent.
type conversation struct {
	*app
	client *api.Client
	asked  string // the reference that the user entered
	agent  api.Agent
	thing  *td.Thing
	began  time.Time
	found  time.Time // when the agent was found

	candidates []api.Agent // of a call by capability, the agent among them; nil: another interaction
	explain    bool        // the document has the candidates
}

// interact finds the agent args[0] and calls talk, for at most timeout; zero sets no limit. Hints repeat the verb and args.
func (a *app) interact(ctx context.Context, timeout time.Duration, verb string, args []string,
	talk func(context.Context, *conversation) error) error {
	ref := args[0]
	ctx, cancel, err := limited(ctx, timeout, "10s")
	if err != nil {
		return err
	}
	defer cancel()
	if err := nameless(ref); err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	c := &conversation{app: a, client: client, asked: ref, began: time.Now()}
	if err = c.resolve(ctx); err == nil {
		err = talk(ctx, c)
	} else if better := a.swapped(ctx, err, verb, args); better != err {
		return better
	}
	return lateness(clarify(err, ref, func(ref string) string { return again(verb, ref, args[1:]) }), ref, timeout)
}

// limited returns ctx with a timeout; zero sets no limit. The example is for the error of a negative timeout.
func limited(ctx context.Context, timeout time.Duration, example string) (context.Context, context.CancelFunc, error) {
	switch {
	case timeout < 0:
		return ctx, nil, cli.Usage("for example --timeout "+example, "--timeout cannot be negative")
	case timeout > 0:
		ctx, cancel := context.WithTimeout(ctx, timeout)
		return ctx, cancel, nil
	}
	return ctx, func() {}, nil
}

// again returns a command line with another agent, with its input if that is short.
func again(verb, ref string, rest []string) string {
	line := "lmosd " + verb + " " + ref
	for i, word := range rest {
		if word = terminal.Shell(word); i > 0 && len(line)+len(word) > 200 {
			return line + " …"
		}
		line += " " + word
	}
	return line
}

// lateness adds the name of the agent to the error of the timeout of this command.
func lateness(err error, ref string, timeout time.Duration) error {
	e := interact.AsError(err)
	if e == nil || e.Code != interact.Timeout || e.Title != "" {
		return err
	}
	return interact.Errorf(interact.Timeout, "raise --timeout, or see whether the agent is busy", "no answer from %s within %s", ref, timeout).
		Then(interact.StepShow, ref)
}

// resolve finds the agent: its exact reference is called, and its schemas determine the types of the input.
func (c *conversation) resolve(ctx context.Context) error {
	detail, err := c.client.Agent(ctx, c.asked)
	if err != nil {
		return err
	}
	if detail.MovedFrom != "" && c.ForPeople() {
		c.Talk.Line(c.Talk.Paint(terminal.Yellow, "moved: ") + terminal.OneLine(c.asked+" is "+render.Name(detail.Agent)+" now"))
	}
	c.agent, c.found = detail.Agent, time.Now()
	c.here = c.agent.Local
	if c.thing, err = td.Parse(detail.TD); err != nil {
		return fmt.Errorf("read the description of %s: %w", c.asked, err)
	}
	return nil
}

func (c *conversation) call(ctx context.Context, f callFlags, name string, words []string) error {
	if f.stream && (f.async || !c.ForPeople()) {
		return cli.Usage("leave --stream out", "--stream prints the output as it comes, which goes with neither --async nor -o %s",
			c.Flags.Output)
	}
	if err := f.with.use(c, words); err != nil {
		return err
	}
	action, err := c.action(name, "call")
	by := name
	if err != nil {
		action, by, err = c.undescribed(ctx, name, err)
	}
	if err != nil {
		return err
	}
	o := api.CallOptions{Accept: f.accept, Async: f.async, Key: f.key, Via: f.via, Timing: true}
	done, err := c.fill(ctx, &o, f, action, words)
	if err != nil {
		return err
	}
	defer done()
	if by != name {
		if err := named(&o, name); err != nil {
			return err
		}
	}
	o.Interactive = !f.async && o.Stream == nil && c.mayAsk(name)
	var parts *printer.Parts
	if f.stream {
		parts = &printer.Parts{To: c.Out}
		o.Output = parts
		if f.accept == "" || printer.IsJSON(f.accept) { // other output is printed unchanged
			o.Began = parts.Began
		}
	}
	r, err := c.invoke(ctx, by, o)
	if err == nil && r.Task != nil && !f.async {
		if r.Task.Name = c.agent.Name; c.ForPeople() && c.Talk.TTY && len(r.Task.Inputs) == 0 {
			c.Talk.Line(c.Talk.Paint(terminal.Dim, "it continues as a task, with or without this command: ") +
				"lmosd task wait " + r.Task.ID + c.Same())
		}
		return c.outlast(ctx, r.Task, f.ask, func(t *api.Task) error { return c.showOutput(name, t.Output, interact.JSON, r.Timing) })
	}
	switch {
	case err != nil:
		return misfit(err, strings.TrimSpace("lmosd call "+terminal.Shell(c.asked)+" "+terminal.Shell(name)+" "+input.Sample(action.InputWithVariables())))
	case r.Task != nil:
		return c.showStarted(r)
	case parts != nil:
		return parts.End()
	}
	return c.showOutput(name, r.Output, r.Media, r.Timing)
}

func (c *conversation) action(name, verb string) (*td.Action, error) {
	if a, ok := c.thing.Actions[name]; ok {
		return a, nil
	}
	return nil, c.noAffordance("action", name, slices.Sorted(maps.Keys(c.thing.Actions)), verb)
}

// streamFrom is the size from which a file is sent as a stream, in bytes. All bindings support smaller files as one input.
const streamFrom = 1 << 20

// fill reads the input into o; on a terminal it prompts for missing values. The caller calls done after the call.
func (c *conversation) fill(ctx context.Context, o *api.CallOptions, f callFlags, action *td.Action, words []string) (done func(),
	err error) {
	done = func() {}
	if o.ContentType = f.mediaType; f.mediaType == "" || printer.IsJSON(f.mediaType) {
		o.Body, err = input.Read(c.Console, action.InputWithVariables(), words)
		if err == nil && !f.ask.noInput && c.Interactive() && !slices.Equal(words, []string{"-"}) {
			o.Body, err = prompt.New(c.Console, c.asked).Missing(ctx, action.InputWithVariables(), o.Body)
		}
		return done, err
	}
	if len(words) != 1 || words[0] != "-" && !strings.HasPrefix(words[0], "@") {
		return done, cli.Usage("--content-type "+terminal.Shell(f.mediaType)+" @FILE",
			"an input of the type %s is one @file, or - for standard input", f.mediaType)
	}
	name := strings.TrimPrefix(words[0], "@")
	if interact.IsCBOR(f.mediaType) {
		o.Body, err = input.Content(c.Console, name, input.MaxInput)
		return done, err
	}
	if o.Stream = c.Stdin; name == "-" {
		return done, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return done, input.Unreadable(name, err)
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() && info.Size() <= streamFrom {
		defer file.Close()
		o.Stream = nil
		o.Body, err = input.Content(c.Console, name, streamFrom)
		return done, err
	}
	o.Stream = file
	return func() { _ = file.Close() }, nil // it was only read
}

// outlast waits for a task, answers its requests for input, and shows its result. The task continues if the wait ends early.
func (c *conversation) outlast(ctx context.Context, t *api.Task, f askFlags, show func(*api.Task) error) error {
	for {
		if len(t.Inputs) > 0 {
			answers, err := c.answers(ctx, c.asked, t, f)
			switch {
			case err != nil:
				return goesOn(ctx, err, "the action waits for an answer", answering(t))
			case answers == nil:
				return c.showAsking(t)
			}
			if err := c.client.AnswerTask(ctx, t, answers); err != nil {
				return err
			}
		}
		now, err := c.client.WaitTask(ctx, t)
		if err != nil {
			return goesOn(ctx, err, "the action continues; the wait for it ended", "lmosd task wait "+t.ID)
		}
		if t = now; len(t.Inputs) > 0 {
			continue
		}
		if err := failureOf(t); err != nil {
			return err
		}
		return show(t)
	}
}

// goesOn returns the error of a wait that ended before its task.
func goesOn(ctx context.Context, err error, title, command string) error {
	if ctx.Err() == nil {
		return err
	}
	e := *interact.AsError(err)
	e.Title, e.Hint, e.Next, e.Err = title, "", interact.Next(cli.StepCommand, command), nil
	return &e
}

// showStarted prints the id of a started task.
func (c *conversation) showStarted(r *api.CallResult) error {
	doc := c.result(nil, "", r.Timing)
	doc.Action, doc.Status, doc.Task = r.Task.Action, r.Task.Status, r.Task.ID
	err := c.Show(cli.View{Doc: doc, Names: []string{r.Task.ID}, People: cli.Line(r.Task.ID)})
	if err == nil {
		c.Next("lmosd task wait "+terminal.Shell(r.Task.ID), "lmosd task ls")
	}
	return err
}

// A callResult is the document of a call.
type callResult struct {
	cli.Head
	Agent     string          `json:"agent"` // its id
	Ref       string          `json:"ref"`   // exact: id and owner
	Local     bool            `json:"local"` // the node of this command publishes the agent
	Action    string          `json:"action,omitempty"`
	Property  string          `json:"property,omitempty"`
	Status    string          `json:"status"`         // completed; pending or running with a task
	Task      string          `json:"task,omitempty"` // if it continues
	Output    json.RawMessage `json:"output,omitempty"`
	MediaType string          `json:"media_type,omitempty"` // of an output that is not JSON
	Path      string          `json:"path,omitempty"`       // local, mesh quic-v1, https …
	Trace     string          `json:"trace_id,omitempty"`   // of lmosd trace
	Took      float64         `json:"took_ms"`              // of this command
	Timings   timings         `json:"timings"`
	// Candidates are the agents of a call by capability in their order, with --explain.
	Candidates []candidate `json:"candidates,omitempty"`
}

// A candidate is an agent that a call by capability may have called.
type candidate struct {
	Ref string `json:"ref"`
	*api.Choice
}

// timings are the parts of the time in milliseconds, measured by the node; Resolve and Total by this command if the node did not report
// them. The time of the host, which publishes the agent, includes that of the agent.
type timings struct {
	Resolve float64 `json:"resolve_ms"` // until the agent was found
	Total   float64 `json:"total_ms"`   // until the answer arrived
	Host    float64 `json:"host_ms,omitempty"`
	Agent   float64 `json:"agent_ms,omitempty"`
}

// result returns the document of an interaction that ends now. t has the times of the node, or is nil.
func (c *conversation) result(output []byte, media string, t *interact.Timing) *callResult {
	now := time.Now()
	r := &callResult{Head: cli.NewHead("CallResult"), Agent: c.agent.ID, Ref: c.agent.Ref, Local: c.agent.Local,
		Status: "completed", Took: api.Milliseconds(now.Sub(c.began))}
	if t == nil {
		t = &interact.Timing{}
	}
	if c.explain {
		for _, g := range c.candidates {
			r.Candidates = append(r.Candidates, candidate{g.Ref, g.Choice})
		}
	}
	r.Path = t.Path
	r.Timings = timings{api.Milliseconds(cmp.Or(t.Resolve, c.found.Sub(c.began))), api.Milliseconds(cmp.Or(t.Total, now.Sub(c.found))),
		api.Milliseconds(t.Host), api.Milliseconds(t.Agent)}
	switch {
	case len(output) == 0:
	case printer.IsJSON(media) && json.Valid(output):
		r.Output = output
	default:
		r.Output, r.MediaType = input.Quoted(string(output)), media
	}
	return r
}

func (c *conversation) showOutput(action string, output []byte, media string, t *interact.Timing) error {
	r := c.result(output, media, t)
	r.Action = action
	return c.showValue(r, output, media)
}

// showValue prints r; for people, its output only.
func (c *conversation) showValue(r *callResult, output []byte, media string) error {
	return c.Show(cli.View{Doc: r, Names: []string{c.agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		printer.Write(s, output, media)
	}})
}
