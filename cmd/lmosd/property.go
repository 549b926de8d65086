package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/input"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newReadCommand(a *app) *cobra.Command {
	var timeout time.Duration
	var watch bool
	var with withFlag
	cmd := &cobra.Command{
		Use:   "read <agent> [property]",
		Short: "read a property of an agent",
		Long: "Reads a property and prints its value: a string unchanged, other values as JSON. Without a property, prints all\n" +
			"readable values as one JSON object. With --watch, prints each new value, as lmosd watch does.",
		Example: `  lmosd read weather modelConfiguration
  lmosd read weather
  lmosd read weather units --watch
  lmosd read weather modelConfiguration --jq .output.temperature`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadOnly, "lmosd write, lmosd watch, lmosd show"),
		Args:              cli.Takes(1, 2),
		ValidArgsFunction: a.completeProperty,
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.interact(cmd.Context(), 0, "read", args, func(ctx context.Context, c *conversation) error {
					if err := with.use(c, nil); err != nil {
						return err
					}
					return c.observe(ctx, args[1:], watchFlags{timeout: timeout})
				})
			}
			return a.interact(cmd.Context(), timeout, "read", args, func(ctx context.Context, c *conversation) error {
				if err := with.use(c, nil); err != nil {
					return err
				}
				return c.read(ctx, append(args, "")[1])
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "print each new value as it arrives, until Ctrl-C or --timeout")
	with.add(cmd)
	addTimeout(cmd, &timeout)
	return cmd
}

func newWriteCommand(a *app) *cobra.Command {
	var timeout time.Duration
	var with withFlag
	cmd := &cobra.Command{
		Use:   "write <agent> <property> <value | k=v… | k:=JSON | @file | ->",
		Short: "set a property of an agent",
		Long: "Sets a property. The value gets its type from the schema: a word for a string or number, k=v for the members of\n" +
			"an object, :=JSON for any value, @file or - for the content of a file.",
		Example: `  lmosd write weather units celsius
  lmosd write weather modelConfiguration temperature=0.2 model=small
  lmosd write weather modelConfiguration ':={"temperature":0.2}'`,
		Annotations:       cli.About(cli.ScopeMesh, cli.ReadWrite, "lmosd read, lmosd call"),
		Args:              cli.Takes(3, -1),
		ValidArgsFunction: a.completeProperty,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.interact(cmd.Context(), timeout, "write", args, func(ctx context.Context, c *conversation) error {
				if err := with.use(c, args[2:]); err != nil {
					return err
				}
				return c.write(ctx, args[1], args[2:])
			})
		},
	}
	with.add(cmd)
	addTimeout(cmd, &timeout)
	return cmd
}

func (c *conversation) read(ctx context.Context, name string) error {
	if name != "" {
		if _, err := c.property(name, "read"); err != nil {
			return err
		}
	}
	value, media, err := c.client.Read(ctx, c.agent.Ref, name)
	if err != nil {
		return err
	}
	r := c.result(value, media, nil)
	r.Property = name
	return c.showValue(r, value, media)
}

// observe prints the changes of one property, or of all properties.
func (c *conversation) observe(ctx context.Context, names []string, f watchFlags) error {
	if len(names) > 0 {
		if _, err := c.property(names[0], "read"); err != nil {
			return err
		}
	}
	topics, err := c.topics(names, true)
	if err != nil {
		return err
	}
	topics = slices.DeleteFunc(topics, func(t topic) bool { return t.kind == eventKind })
	if len(topics) == 0 {
		return interact.Errorf(interact.NotAllowed, "", "%s has no property that can be observed", c.asked).Then(interact.StepRead, c.asked)
	}
	return c.watch(ctx, topics, f)
}

func (c *conversation) write(ctx context.Context, name string, words []string) error {
	p, err := c.property(name, "write")
	if err != nil {
		return err
	}
	if p.ReadOnly {
		return interact.Errorf(interact.NotAllowed, "", "the property %q of %s is read only", name, c.asked).Then(interact.StepRead, c.asked, name)
	}
	value, err := input.Read(c.Console, p.WithVariables(p.Schema), words)
	if err != nil {
		return err
	}
	if err := c.client.Write(ctx, c.agent.Ref, name, interact.JSON, value); err != nil {
		return misfit(err, "lmosd show "+terminal.Shell(c.asked)+"   # what "+name+" may be")
	}
	r := c.result(nil, "", nil)
	r.Property = name
	err = c.Show(cli.View{Doc: r, Names: []string{c.agent.Ref}, People: cli.Line("wrote " + name + " of " + render.Name(c.agent))})
	if err == nil {
		c.Next("lmosd read " + terminal.Shell(c.asked) + " " + terminal.Shell(name))
	}
	return err
}

func (c *conversation) property(name, verb string) (*td.Property, error) {
	if p, ok := c.thing.Properties[name]; ok {
		return p, nil
	}
	return nil, c.noAffordance("property", name, slices.Sorted(maps.Keys(c.thing.Properties)), verb)
}
