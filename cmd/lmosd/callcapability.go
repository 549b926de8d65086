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
	"github.com/lmosd/lmosd/td"
)

// capabilityFlags are the flags of a call of any agent that provides a capability.
type capabilityFlags struct {
	capability, trust string
	explain           bool
}

func (f *capabilityFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.capability, "capability", "", "call a provider of `ID[@RANGE]`, not <agent>")
	flags.StringVar(&f.trust, "trust", string(api.TrustOwn), "`OWNERS` of providers: own, partner or any")
	flags.BoolVar(&f.explain, "explain", false, "print the providers and the choice")
}

// args checks the arguments of a call, which has no <agent> with a capability.
func (f *capabilityFlags) args(cmd *cobra.Command, args []string) error {
	switch {
	case f.capability == "" && (cmd.Flags().Changed("capability") || cmd.Flags().Changed("trust") || f.explain):
		return cli.Usage("", "--trust and --explain are for --capability ID").Then(cli.StepCommand, cmd.CommandPath()+" --help")
	case f.capability == "" && len(args) == 1:
		if err := splitCall(args[0]); err != nil {
			return err
		}
		return cli.Usage("its actions", "lmosd call needs <action>").Then(cli.StepCommand, "lmosd show "+terminal.Shell(args[0]))
	case f.capability == "":
		return cli.Takes(2, -1)(cmd, args)
	case len(args) == 0:
		return cli.Usage("", "%s --capability needs <action>", cmd.CommandPath()).
			Then(cli.StepCommand, cmd.CommandPath()+" --capability "+terminal.Shell(f.capability)+" <action>")
	}
	return nil
}

// query returns the query for the candidates.
func (f *capabilityFlags) query(action string) (q td.Query, err error) {
	id, version := f.capability, ""
	if i := strings.LastIndexByte(id, '@'); i > 0 {
		id, version = id[:i], id[i+1:]
	}
	if _, err := td.ParseRange(version); version != "" && err != nil {
		return q, cli.Usage("for example --capability urn:example:weather:forecast@^1.2", "--capability: %v", err)
	}
	switch api.Trust(f.trust) {
	case api.TrustOwn, api.TrustPartner, api.TrustAny:
	default:
		return q, cli.Usage("--trust own, partner or any", "--trust %s is unknown", f.trust)
	}
	return td.Query{Capability: []string{id}, Version: version, Action: action}, nil
}

// completeProvided completes the actions of the agents that provide the capability.
func (a *app) completeProvided(cmd *cobra.Command, f *capabilityFlags, args []string) ([]string, cobra.ShellCompDirective) {
	q, err := f.query("")
	switch {
	case len(args) > 0:
		return nil, cobra.ShellCompDirectiveDefault
	case err != nil:
		return nil, noFiles
	}
	return a.complete(cmd, func(ctx context.Context, c *api.Client) (names []string, err error) {
		list, err := c.Choose(ctx, q, api.Trust(f.trust), completeTime/2)
		if err != nil {
			return nil, err
		}
		for _, g := range list.Items {
			names = append(names, g.Actions...)
		}
		slices.Sort(names)
		return slices.Compact(names), nil
	})
}

// callCapability calls an action of the first agent that answers, of those that provide the capability.
func (a *app) callCapability(ctx context.Context, f callFlags, action string, words []string) error {
	q, err := f.by.query(action)
	if err != nil {
		return err
	}
	switch {
	case f.via != "":
		return cli.Usage("leave --via out", "--via is a path to one agent, and --capability may call another one")
	case f.with.set():
		return cli.Usage("leave --with out, or name the agent", "a delegation is for one agent, and --capability may call another one")
	case f.key != "":
		return cli.Usage("leave --idempotency-key out, or name the agent", "a key holds at one agent, and --capability may call another one")
	}
	ctx, cancel, err := limited(ctx, f.timeout, "10s")
	if err != nil {
		return err
	}
	defer cancel()
	client, err := a.client()
	if err != nil {
		return err
	}
	c := &conversation{app: a, client: client, asked: f.by.capability, began: time.Now()}
	list, err := client.Choose(ctx, q, api.Trust(f.by.trust), 0)
	if err == nil {
		c.candidates, c.explain, c.asked = list.Items, f.by.explain, list.Items[0].Ref
		c.explainCandidates()
		if err = c.resolve(ctx); err == nil {
			err = c.call(ctx, f, action, words)
		}
	}
	return lateness(err, c.asked, f.timeout)
}

// explainCandidates prints the candidates in their order to standard error, if requested; a document has them.
func (c *conversation) explainCandidates() {
	if !c.explain || !c.ForPeople() {
		return
	}
	render.Choices(c.candidates).Write(c.Talk)
}

// invoke invokes the action of the agent, or of the first candidate that answers, which then is the agent.
func (c *conversation) invoke(ctx context.Context, action string, o api.CallOptions) (*api.CallResult, error) {
	if c.candidates == nil {
		return c.client.Invoke(ctx, c.agent.Ref, action, o)
	}
	r, agent, err := c.client.InvokeFirst(ctx, c.candidates, action, o)
	if agent != nil {
		c.agent, c.asked, c.here = *agent, agent.Ref, agent.Local
	}
	if err == nil && c.ForPeople() && c.Talk.TTY {
		c.Talk.Line(c.Talk.Paint(terminal.Dim, "answered by "+terminal.OneLine(render.Name(c.agent))+": "+render.Reason(c.agent)))
	}
	return r, err
}
