package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newCallCommand(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "call <agent> <action> [k=v… | k:=JSON | @file | -]",
		Short: "call an action of an agent and print its answer",
		Long: "Calls an action. k=v is typed by the action's input schema; k:=JSON is taken as it is; @file and - (standard\n" +
			"input) give the whole input; an action that takes one string takes the words as they are.\n" +
			"The answer alone is printed; -o json adds the agent, the status and the times.",
		Example: `  lmosd call weather getWeather question="Rain in Bonn?"
  lmosd call weather getForecast days=3 units:='["mm","°C"]'
  echo '{"question":"Rain?"}' | lmosd call weather getWeather -
  lmosd call weather getWeather question=Bonn --jq .output`,
		Annotations:       map[string]string{"scope": scopeMesh, "impact": readWrite, "see": "lmosd show, lmosd read, lmosd help exit-codes"},
		Args:              takes(2, -1),
		ValidArgsFunction: a.completeAction,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.interact(cmd.Context(), timeout, "call", args, func(ctx context.Context, c *conversation) error {
				return c.call(ctx, args[1], args[2:])
			})
		},
	}
	addTimeout(cmd, &timeout)
	return cmd
}

func addTimeout(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", 0, "how long to wait for the agent (default: what the node allows, 30s)")
}

// A conversation is one interaction with one agent.
type conversation struct {
	*app
	client *gateway.Client
	asked  string // what the user called the agent
	agent  gateway.Agent
	thing  *td.Thing
	began  time.Time
	found  time.Time // when the agent was known
}

// interact looks the agent that args begin with up and does what talk does with it, for timeout at most; zero sets no limit
// of its own. The verb and args are the command line, for hints.
func (a *app) interact(ctx context.Context, timeout time.Duration, verb string, args []string, talk func(context.Context, *conversation) error) error {
	ref := args[0]
	if timeout < 0 {
		return usage("for example --timeout 10s", "--timeout cannot be negative")
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if err := nameless(ref); err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	c := &conversation{app: a, client: client, asked: ref, began: time.Now()}
	if err = c.resolve(ctx); err == nil {
		err = talk(ctx, c)
	}
	return lateness(clarify(err, ref, func(ref string) string { return again(verb, ref, args[1:]) }), ref, timeout)
}

// again is a command line with another agent; its input is not repeated.
func again(verb, ref string, rest []string) string {
	line := "lmosd " + verb + " " + ref
	if len(rest) > 0 {
		line += " " + shell(rest[0])
	}
	if len(rest) > 1 {
		line += " …"
	}
	return line
}

// lateness says who did not answer, where only the clock here knows.
func lateness(err error, ref string, timeout time.Duration) error {
	e := interact.AsError(err)
	if e == nil || e.Code != interact.Timeout || e.Title != "" {
		return err
	}
	return interact.Errorf(interact.Timeout, "raise --timeout, or see whether the agent is busy: lmosd show "+shell(ref),
		"no answer from %s within %s", ref, timeout)
}

// resolve finds the agent, so that what was resolved is what is called, and its schemas type the input.
func (c *conversation) resolve(ctx context.Context) error {
	detail, err := c.client.Agent(ctx, c.asked)
	if err != nil {
		return err
	}
	c.agent, c.found = detail.Agent, time.Now()
	if c.thing, err = td.Parse(detail.TD); err != nil {
		return fmt.Errorf("read the description of %s: %w", c.asked, err)
	}
	return nil
}

func (c *conversation) call(ctx context.Context, name string, words []string) error {
	action, ok := c.thing.Actions[name]
	if !ok {
		return c.noAffordance("action", name, slices.Sorted(maps.Keys(c.thing.Actions)), "call")
	}
	input, err := c.input(action.Input, words)
	if err != nil {
		return err
	}
	output, media, err := c.client.Call(ctx, c.agent.Ref, name, interact.JSON, input)
	if err != nil {
		return misfit(err, strings.TrimSpace("lmosd call "+shell(c.asked)+" "+shell(name)+" "+sample(action.Input)))
	}
	return c.showOutput(name, output, media)
}

// noAffordance says what there is instead of name.
func (c *conversation) noAffordance(kind, name string, known []string, verb string) error {
	hint := "lmosd show " + shell(c.asked)
	if near := configs.Suggest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?  lmosd %s %s %s", near, verb, shell(c.asked), shell(near))
	}
	list := strings.Join(known, ", ")
	if list == "" {
		list = "none"
	}
	return &interact.Error{Code: interact.NoAffordance, Title: fmt.Sprintf("%s has no %s %q", c.asked, kind, name), Hint: hint,
		Err: fmt.Errorf("what it has: %s", list)}
}

// A callResult is the document of a call.
type callResult struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`  // CallResult
	Agent      string          `json:"agent"` // its id
	Ref        string          `json:"ref"`   // exact: id and owner
	Local      bool            `json:"local"` // the node that was asked offers the agent itself
	Action     string          `json:"action,omitempty"`
	Property   string          `json:"property,omitempty"`
	Status     string          `json:"status"` // completed
	Output     json.RawMessage `json:"output,omitempty"`
	MediaType  string          `json:"media_type,omitempty"` // of an output that is not JSON
	Took       float64         `json:"took_ms"`
	Timings    timings         `json:"timings"`
}

// timings are the parts of the time as this command measured them, in milliseconds.
type timings struct {
	Resolve float64 `json:"resolve_ms"` // until the agent was known
	Agent   float64 `json:"agent_ms"`   // from there until the answer was complete: mesh, queue and agent
}

func (c *conversation) result(output []byte, media string) *callResult {
	now := time.Now()
	r := &callResult{APIVersion: gateway.APIVersion, Kind: "CallResult", Agent: c.agent.ID, Ref: c.agent.Ref, Local: c.agent.Local,
		Status: "completed", Took: milliseconds(now.Sub(c.began)),
		Timings: timings{milliseconds(c.found.Sub(c.began)), milliseconds(now.Sub(c.found))}}
	switch {
	case len(output) == 0:
	case isJSON(media) && json.Valid(output):
		r.Output = output
	default:
		r.Output, r.MediaType = jsonString(string(output)), media
	}
	return r
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func (c *conversation) showOutput(action string, output []byte, media string) error {
	r := c.result(output, media)
	r.Action = action
	return c.show(view{doc: r, names: []string{c.agent.Ref}, people: func(s *screen, _ bool) { writeOutput(s, output, media) }})
}

// isJSON reports whether media is JSON or based on it (RFC 6839 §3.1).
func isJSON(media string) bool {
	t, _, err := mime.ParseMediaType(media)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// writeOutput prints an answer bare: a JSON string as its text, other JSON indented on a terminal, anything else as it is.
// An agent may be a stranger: on a terminal its text cannot command the terminal.
func writeOutput(s *screen, output []byte, media string) {
	var text *string // nil for null, which is printed
	switch {
	case len(output) == 0:
		return
	case isJSON(media) && json.Unmarshal(output, &text) == nil && text != nil:
		output = []byte(*text)
	case isJSON(media) && s.tty:
		var b bytes.Buffer
		if json.Indent(&b, output, "", "  ") == nil {
			output = b.Bytes()
		}
	}
	if s.tty {
		output = []byte(printable(strings.ToValidUTF8(string(output), string(utf8.RuneError))))
	}
	if isText(media) && !bytes.HasSuffix(output, []byte("\n")) {
		output = append(bytes.Clone(output), '\n')
	}
	// Whoever closed the pipe does not want the rest.
	_, _ = s.Write(output)
}

// isText reports whether a line end behind the output does no harm.
func isText(media string) bool {
	t, _, err := mime.ParseMediaType(media)
	return isJSON(media) || err == nil && strings.HasPrefix(t, "text/")
}
