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
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/validate"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newPublishCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "publish <file…>",
		Short: "publish an agent: sign, store and announce its description",
		Long: "Signs Thing Descriptions with the key of the node, stores them and announces them to the mesh; - reads standard\n" +
			"input. The forms of a description name the server of the agent. Publishing a changed file updates the agent;\n" +
			"publishing the same file changes nothing. Without peers, the description is announced later.",
		Example: `  lmosd publish weather.td.json
  lmosd publish agents/*.td.json
  curl -s http://127.0.0.1:8080/td | lmosd publish -`,
		Annotations: cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd validate, lmosd unpublish"),
		Args:        cli.Takes(1, -1),
		RunE:        func(cmd *cobra.Command, args []string) error { return a.runPublish(cmd.Context(), args) },
	}
}

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
			return a.each(cmd.Context(), args, func(ctx context.Context, c *api.Client, ref string) (*api.Publication, error) {
				if err := nameless(ref); err != nil {
					return nil, err
				}
				p, err := c.Unpublish(ctx, ref)
				return p, clarify(err, ref, func(ref string) string { return "lmosd unpublish " + ref })
			})
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
				return cli.Usage("lmosd move "+terminal.Shell(args[0])+" --to DID   # that lmosd id prints on the other node",
					"--to says whose the agent is now")
			}
			return a.each(cmd.Context(), args, func(ctx context.Context, c *api.Client, ref string) (*api.Publication, error) {
				if err := nameless(ref); err != nil {
					return nil, err
				}
				p, err := c.Move(ctx, ref, to)
				return p, clarify(err, ref, func(ref string) string { return "lmosd move " + ref + " --to " + terminal.Shell(to) })
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "DID of the new `OWNER`, or the name of the agent there")
	return cmd
}

// runPublish reads all files before it publishes the first: a wrong name changes nothing.
func (a *app) runPublish(ctx context.Context, files []string) error {
	contents := map[string][]byte{}
	for _, name := range files {
		b, err := input.Content(a.Console, name, td.MaxTD)
		if err != nil {
			return err
		}
		contents[name] = b
	}
	return a.each(ctx, files, func(ctx context.Context, c *api.Client, name string) (*api.Publication, error) {
		p, err := c.Publish(ctx, contents[name])
		if err != nil {
			return nil, inFile(err, name)
		}
		a.remarks(p, name, contents[name])
		return p, nil
	})
}

// remarks adds to p what its author should know: all of it for programs, for people what keeps the agent from being called,
// and where the rest is.
func (a *app) remarks(p *api.Publication, name string, raw []byte) {
	t, err := td.Parse(raw)
	if err != nil {
		return // the node read it, and said what it had to
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

// inFile puts the name of the file before what is wrong with it.
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

// each does change for every argument and shows what came of it: one Publication, or a list. It stops at the first that
// fails; what was done before stays, and can be done again without harm.
func (a *app) each(ctx context.Context, args []string,
	change func(context.Context, *api.Client, string) (*api.Publication, error)) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
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
		a.warnOpen(done[len(done)-1].Callers)
		a.nextAfterPublish(done[len(done)-1])
		return nil
	}
	return a.Show(publications(done))
}

// publications is the view of what was changed, for programs.
func publications(done []*api.Publication) cli.View {
	v := cli.View{Doc: struct {
		APIVersion string             `json:"apiVersion"`
		Kind       string             `json:"kind"` // PublicationList
		Items      []*api.Publication `json:"items"`
	}{api.APIVersion, "PublicationList", done}}
	if len(done) == 1 {
		v.Doc = done[0]
	}
	for _, p := range done {
		v.Names = append(v.Names, p.Ref)
	}
	return v
}

func (a *app) showPublication(p *api.Publication) {
	g := api.Agent{Name: p.Name, Owner: p.Owner, Ref: p.Ref}
	verb := "updated"
	switch {
	case p.MovedTo != "":
		verb = "moved"
	case p.Withdrawn:
		verb = "withdrawn"
	case p.Created:
		verb = "published"
	}
	a.Out.Line(a.Out.Paint(terminal.Green, verb) + " " + terminal.OneLine(copyable(g)) + " · " + reached(p) + " · " +
		terminal.Millis(p.Took))
	a.Note("id %s · revision %d · record %s · description %s", p.ID, p.Seq, terminal.Size(p.RecordSize), terminal.Size(p.TDSize))
	for _, w := range p.Warnings {
		a.Talk.Item(a.Talk.Paint(terminal.Yellow, "warning: "), 9, cli.Place(w))
	}
}

// nextAfterPublish leads to what was published, from wherever.
func (a *app) nextAfterPublish(p *api.Publication) {
	name := terminal.Shell(copyable(api.Agent{Name: p.Name, Owner: p.Owner, Ref: p.Ref}))
	switch {
	case p.Successor != "":
		a.Next("lmosd show " + terminal.Shell(p.Successor))
	case p.MovedTo != "":
		a.Next("lmosd publish FILE   # on " + p.MovedTo.Short() + ", which does not offer it yet, as far as is known")
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

// reached says how far a publication got.
func reached(p *api.Publication) string {
	if p.Pending {
		return "pending: no peers yet; it is announced when there are some"
	}
	return fmt.Sprintf("gossip %s, dht %d/%d", terminal.Count(p.GossipPeers, "peer", "peers"), p.Replicas, p.Wanted)
}
