package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/verify"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newShowCommand(a *app) *cobra.Command {
	var pretty, raw, check bool
	cmd := &cobra.Command{
		Use:   "show <agent>",
		Short: "show an agent: description, owner, hosts, signature",
		Long: "Shows the verified description of an agent: its owner, its hosts, the signer and the time of the signature, and\n" +
			"its capabilities. --verify checks record, description and proof again in this process, without trust in the\n" +
			"node.",
		Example: `  lmosd show weather
  lmosd show weather@z6MkpTHR8VNs --td
  lmosd show weather --verify`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd find, lmosd call, lmosd help names"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if pretty && raw || raw && check || check && pretty {
				return cli.Usage("", "--td, --raw and --verify are different answers; choose one").Then(cli.StepCommand, "lmosd show --help")
			}
			if !pretty && !raw && !check {
				detail, err := a.agent(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.showAgent(cmd.Context(), detail)
			}
			detail, content, err := a.described(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case check:
				return verify.Show(cmd.Context(), a.Console, detail, content)
			case verify.Hash(content) != detail.Signature.Hash:
				return interact.Errorf(interact.BadSignature, "", "what the node gave is not the description that was signed").
					Then(cli.StepCommand, "lmosd show "+terminal.Shell(args[0])+" --verify")
			case raw:
				return a.Print(content)
			}
			return a.showTD(content)
		},
	}
	cmd.Flags().BoolVar(&pretty, "td", false, "print the Thing Description, indented on a terminal")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the Thing Description byte for byte as it was signed")
	cmd.Flags().BoolVar(&check, "verify", false, "check record, description and proof here, step by step")
	return cmd
}

// agent returns the agent with the name ref.
func (a *app) agent(ctx context.Context, ref string) (*api.AgentDetail, error) {
	if err := nameless(ref); err != nil {
		return nil, err
	}
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	detail, err := client.Agent(ctx, ref)
	if better := a.swapped(ctx, err, "show", []string{ref}); better != err {
		return nil, better
	}
	return detail, clarify(err, ref, func(ref string) string { return "lmosd show " + ref })
}

// described returns an agent and the bytes of its description. It repeats both requests if the agent was updated in between.
func (a *app) described(ctx context.Context, ref string) (detail *api.AgentDetail, content []byte, err error) {
	client, err := a.client()
	if err != nil {
		return nil, nil, err
	}
	for range 3 {
		if detail, err = a.agent(ctx, ref); err != nil {
			return nil, nil, err
		}
		if content, err = client.Thing(ctx, detail.Agent.Ref); err != nil {
			return nil, nil, err
		}
		if verify.Hash(content) == detail.Signature.Hash {
			break
		}
	}
	return detail, content, nil
}

func (a *app) showTD(content []byte) error {
	if !a.Out.TTY {
		return a.Print(append(bytes.TrimSpace(content), '\n'))
	}
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(content), "", "  "); err != nil {
		return err
	}
	return a.Print([]byte(terminal.Printable(b.String()) + "\n"))
}

func (a *app) showAgent(ctx context.Context, d *api.AgentDetail) error {
	// A description of a newer version may not parse here; the rest is still shown.
	t, err := td.Parse(d.TD)
	if err != nil {
		t = &td.Thing{}
		a.Note("the description is not understood here: %v", err)
	}
	err = a.Show(cli.View{Doc: d, Names: []string{d.Agent.Ref}, People: func(s *terminal.Screen, _ bool) {
		sheet := render.Agent(d, t, time.Now())
		a.addMore(ctx, sheet, d.Agent.Ref, t)
		sheet.Add("for WoT", a.consumerTD(ctx, d.Agent.Ref))
		sheet.Write(s)
	}})
	if err != nil {
		return err
	}
	a.doubts(d.Warnings)
	a.nextAfterShow(d.Agent, t)
	return nil
}

// consumerTD returns the URL of the description for WoT consumers, with forms of the node; empty if the node has no HTTP listener.
func (a *app) consumerTD(ctx context.Context, ref string) string {
	base := a.target.Addr
	if !strings.HasPrefix(base, "http") {
		status, err := a.status(ctx)
		if err != nil || status.API == "" {
			return ""
		}
		base = status.API
	}
	return strings.TrimSuffix(base, "/") + "/things/" + url.PathEscape(ref) + "/td"
}

// nextAfterShow suggests to use the first affordance of the agent.
func (a *app) nextAfterShow(g api.Agent, t *td.Thing) {
	name := terminal.Shell(render.Name(g))
	switch {
	case len(g.Actions) > 0:
		var schema *td.Schema
		if action := t.Actions[g.Actions[0]]; action != nil {
			schema = action.InputWithVariables()
		}
		a.Next(strings.TrimSpace("lmosd call " + name + " " + terminal.Shell(g.Actions[0]) + " " + input.Sample(schema)))
	case len(g.Properties) > 0:
		a.Next("lmosd read " + name + " " + terminal.Shell(g.Properties[0]))
	default:
		a.Next("lmosd find")
	}
}
