package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/validate"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newPublishCommand(a *app) *cobra.Command {
	var o api.PublishOptions
	cmd := &cobra.Command{
		Use:   "publish <file…>",
		Short: "publish an agent: sign, store and announce its description",
		Long: "Signs Thing Descriptions with the key of the node, stores them and announces them to the mesh; - reads standard\n" +
			"input. The forms of a description name the server of the agent. Publishing a changed file updates the agent;\n" +
			"publishing the same file changes nothing. Without peers, the description is announced later. The callers in --for\n" +
			"may find and call it until it is withdrawn, also when it is published again without --for.",
		Example: `  lmosd publish weather.td.json
  lmosd publish weather.td.json --for globex --for own/operators
  lmosd publish agents/*.td.json
  curl -s http://127.0.0.1:8080/td | lmosd publish -`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd validate, lmosd unpublish"),
		Args:        cli.Takes(1, -1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runPublish(cmd.Context(), args, o) },
	}
	cmd.Flags().StringArrayVar(&o.For, "for", nil, expose.ForUsage)
	cmd.Flags().BoolVar(&o.CallerSecret, "caller-secret", false, callerSecretUsage)
	return cmd
}

// callerSecretUsage is the usage of the flag for a caller secret.
const callerSecretUsage = "print a secret that the node sends to the HTTP agent"

func newUnpublishCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "unpublish <name…>",
		Short: "withdraw an agent from the mesh",
		Long: "Withdraws agents that this node publishes. Connected nodes remove them within a second, other nodes when they\n" +
			"receive the tombstone, at the latest when the record expires. The server of the agent keeps running.",
		Example: `  lmosd unpublish weather
  lmosd find --owner z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH -o name | xargs lmosd unpublish`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd publish"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withdraw(cmd.Context(), args, (*api.Client).Unpublish, func(ref string) string { return "lmosd unpublish " + ref })
		},
	}
}

func newMoveCommand(a *app) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "move <name> --to <owner>",
		Short: "announce that an agent has moved to another node",
		Long: "Withdraws an agent that this node publishes and names its new owner: the DID in --to, or the owner of the agent\n" +
			"that --to names. References to the old agent then resolve to the agent of the new owner with the same id, or\n" +
			"with an id in which the new owner replaces the old one. The move is announced for 30 days.",
		Example: `  lmosd move weather --to did:key:z6MkpTHR8VNsBxYAAWHut2Geadd9jSwuBV8xRoAnwWsdvktH
  lmosd move weather --to weather@z6MkpTHR8VNs`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd publish, lmosd unpublish, lmosd id"),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: a.completeAgent,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return cli.Usage("", "--to is missing: it names the new owner").
					Then(cli.StepCommand, "lmosd move "+terminal.Shell(args[0])+" --to DID   # that lmosd id prints on the other node")
			}
			return a.withdraw(cmd.Context(), args, func(c *api.Client, ctx context.Context, ref string) (*api.Publication, error) {
				return c.Move(ctx, ref, to)
			},
				func(ref string) string { return "lmosd move " + ref + " --to " + terminal.Shell(to) })
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "DID of the new `OWNER`, or the name of the agent there")
	return cmd
}

// withdraw withdraws agents by name. again is the command line with another name.
func (a *app) withdraw(ctx context.Context, names []string, do func(*api.Client, context.Context, string) (*api.Publication, error),
	again func(ref string) string) error {
	return a.each(ctx, names, func(ctx context.Context, c *api.Client, ref string) (*api.Publication, error) {
		if err := nameless(ref); err != nil {
			return nil, err
		}
		p, err := do(c, ctx, ref)
		return p, clarify(err, ref, again)
	})
}

// runPublish reads all files before it publishes the first: a wrong file name changes nothing.
func (a *app) runPublish(ctx context.Context, files []string, o api.PublishOptions) error {
	contents := map[string][]byte{}
	for _, name := range files {
		b, err := input.Content(a.Console, name, td.MaxTD)
		if err != nil {
			return err
		}
		contents[name] = b
	}
	return a.each(ctx, files, func(ctx context.Context, c *api.Client, name string) (*api.Publication, error) {
		p, err := c.PublishWith(ctx, contents[name], o)
		if err != nil {
			return nil, inFile(err, name)
		}
		a.remarks(p, name, contents[name])
		return p, nil
	})
}

// remarks adds warnings about the description to p: all of them for programs; for people, those that prevent calls, with the command
// that prints the rest.
func (a *app) remarks(p *api.Publication, name string, raw []byte) {
	t, err := td.Parse(raw)
	if err != nil {
		return // the node accepted it
	}
	known := p.Warnings
	p.Warnings = append(validate.Obstacles(t), known...)
	if !a.ForPeople() {
		for _, w := range t.Warnings {
			if !slices.Contains(known, w) {
				p.Warnings = append(p.Warnings, w)
			}
		}
		return
	}
	if n := len(t.Warnings); n > 0 && name != "-" {
		a.Note("%s for other programs: lmosd validate %s", terminal.Count(n, "warning", "warnings"), terminal.Shell(name))
	}
}

// inFile adds the name of the file to an error about its content.
func inFile(err error, name string) error {
	var e *interact.Error
	if !errors.As(err, &e) || e.Code != interact.BadTD && e.Code != interact.NotJSON && e.Code != interact.TooLarge {
		return err
	}
	named := *e
	named.Title = input.Called(name) + ": " + e.Error()
	named.Err = nil
	named.Hint, named.Next = "", interact.Next(interact.StepValidate, name)
	return &named
}

// each applies change to each argument and prints the result: one Publication, or a list. It stops at the first failure; earlier
// changes stay, and can be repeated.
func (a *app) each(ctx context.Context, args []string,
	change func(context.Context, *api.Client, string) (*api.Publication, error)) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	var done []*api.Publication
	for _, arg := range args {
		p, err := change(ctx, client, arg)
		if err != nil {
			return err
		}
		done = append(done, p)
		if a.ForPeople() {
			a.showPublication(p)
		}
	}
	if a.ForPeople() {
		last := done[len(done)-1]
		a.printCallers(last.Callers, last.For, last.Visibility)
		a.nextAfterPublish(done[len(done)-1])
		return nil
	}
	v := cli.View{Doc: cli.List[*api.Publication]{Head: cli.NewHead("PublicationList"), Items: done},
		Names: cli.Each(done, func(p *api.Publication) string { return p.Ref })}
	if len(done) == 1 {
		v.Doc = done[0]
	}
	return a.Show(v)
}

func (a *app) showPublication(p *api.Publication) {
	g := api.Agent{Name: p.Name, Owner: p.Owner, Ref: p.Ref}
	verb := "updated"
	switch {
	case p.MovedTo != "":
		verb = "moved"
	case p.Hosted != nil && p.Withdrawn:
		verb = "ended"
	case p.Hosted != nil:
		verb = "hosted"
	case p.Withdrawn:
		verb = "withdrawn"
	case p.Created:
		verb = "published"
	}
	a.Out.Line(a.Out.Paint(terminal.Green, verb) + " " + terminal.OneLine(render.Name(g)) + " · " + reached(p) + " · " +
		terminal.Millis(p.Took))
	a.showHosted(p)
	a.showCallerSecret(p.CallerSecret)
	a.Note("id %s · revision %d · record %s · description %s", p.ID, p.Seq, terminal.Size(p.RecordSize), terminal.Size(p.TDSize))
	for _, w := range p.Warnings {
		a.Warn(w.String())
	}
}

// showCallerSecret prints a new caller secret.
func (a *app) showCallerSecret(secret string) {
	if secret != "" {
		s := &terminal.Sheet{}
		s.Add("caller secret", secret)
		s.Write(a.Out)
		a.Talk.Line("each request of the node to the agent has it in the header Lmos-Caller-Secret; it is not shown again")
	}
}

// nextAfterPublish suggests to find or show the publication.
func (a *app) nextAfterPublish(p *api.Publication) {
	name := terminal.Shell(render.Name(api.Agent{Name: p.Name, Owner: p.Owner, Ref: p.Ref}))
	switch {
	case p.Successor != "":
		a.Next("lmosd show " + terminal.Shell(p.Successor))
	case p.MovedTo != "":
		a.Next("lmosd publish FILE   # on " + p.MovedTo.Short() + ", which does not offer it yet, as far as is known")
	case p.Hosted != nil:
		a.Next("lmosd hosting ls")
	case p.Withdrawn:
		a.Next("lmosd find")
	case p.Capability != "":
		a.Next("lmosd find --capability " + terminal.Shell(p.Capability) + "   # on any node")
	case p.Action != "":
		a.Next("lmosd show " + name + "   # on any node")
	default:
		a.Next("lmosd show " + name)
	}
}

// reached describes the peers that received a publication.
func reached(p *api.Publication) string {
	if p.Visibility != td.Public {
		return "visibility " + p.Visibility.String()
	}
	if p.Pending {
		return "pending: no peers yet; it is announced when there are some"
	}
	if p.Hosted != nil { // the DHT names its hosts, and stores no record
		return "gossip " + terminal.Count(p.GossipPeers, "peer", "peers")
	}
	return fmt.Sprintf("gossip %s, dht %d/%d", terminal.Count(p.GossipPeers, "peer", "peers"), p.Replicas, p.Wanted)
}
