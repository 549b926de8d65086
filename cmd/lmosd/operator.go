package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/prompt"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/render"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

func newLogsCommand(a *app) *cobra.Command {
	var q api.LogQuery
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "print the newest log records, or change what is logged",
		Long: "Prints the newest log records of the running node, the oldest first: it keeps 2,000 of them. With --follow, it\n" +
			"prints the records that follow, until Ctrl-C. A logger is the package that logs; --logger gateway includes those\n" +
			"below its path, such as gateway/tdd. Secrets are not in the records.",
		Example: `  lmosd logs --level warn
  lmosd logs -f --logger gateway
  lmosd logs level gateway debug`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd events, lmosd audit, lmosd doctor"),
		Args:        cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			if follow {
				return a.followLogs(cmd.Context(), client, q)
			}
			return a.listLogs(cmd.Context(), client, q)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "print the records that follow")
	flags.StringVar(&q.Level, "level", "", "only records of at least `LEVEL`: debug, info, warn or error")
	flags.StringVar(&q.Logger, "logger", "", "only records of `LOGGER`, and of those below its path")
	flags.IntVar(&q.Limit, "limit", 100, "the newest `N` records, at most 2000")
	cmd.AddCommand(newLogLevelCommand(a))
	return cmd
}

func (a *app) listLogs(ctx context.Context, client *api.Client, q api.LogQuery) error {
	list, err := client.Logs(ctx, q)
	if err != nil {
		return err
	}
	return a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(r api.LogRecord) string { return strconv.FormatUint(r.Seq, 10) }),
		People: func(s *terminal.Screen, wide bool) { render.Logs(s, list.Items, wide) }})
}

// A logDocument is a record or a gap as lmosd logs --follow prints it.
type logDocument struct {
	cli.Head
	*api.LogRecord
	Gap *api.LogGap `json:"gap,omitempty"`
}

func (a *app) followLogs(ctx context.Context, client *api.Client, q api.LogQuery) error {
	if a.ForPeople() && !a.Out.TTY {
		a.Out.Line(render.LogHeader)
	}
	for e, err := range client.FollowLogs(ctx, q) {
		switch {
		case err != nil && ctx.Err() != nil:
			return cli.SilentError(cli.ExitInterrupted) // Ctrl-C is how it ends
		case err != nil:
			return err
		}
		view := cli.View{Doc: logDocument{cli.NewHead("LogRecord"), e.Record, e.Gap}}
		if e.Gap != nil {
			view.Doc = logDocument{Head: cli.NewHead("LogGap"), Gap: e.Gap}
			view.People = func(s *terminal.Screen, _ bool) { render.LogGap(s, e.Gap) }
		} else {
			view.Names = []string{strconv.FormatUint(e.Record.Seq, 10)}
			view.People = func(s *terminal.Screen, _ bool) { render.Log(s, *e.Record) }
		}
		if err := a.ShowNext(view); err != nil {
			return err
		}
	}
	return nil
}

func newLogLevelCommand(a *app) *cobra.Command {
	var reset bool
	cmd := &cobra.Command{
		Use:   "level <logger> <level>",
		Short: "set what a logger of the running node logs",
		Long: "Sets the lowest level that a logger of the running node logs, at once and until the node stops: debug, info, warn or\n" +
			"error. The logger \"*\" stands for all that have no level of their own. With --reset, the level of the logger ends.",
		Example: `  lmosd logs level gateway debug
  lmosd logs level '*' warn
  lmosd logs level gateway --reset`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd logs"),
		Args:        cli.Takes(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return []string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.complete(cmd, func(ctx context.Context, c *api.Client) ([]string, error) {
				list, err := c.Logs(ctx, api.LogQuery{Limit: 1})
				if err != nil {
					return nil, err
				}
				return append(list.Loggers, "*"), nil
			})
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if reset == (len(args) == 2) {
				return cli.Usage("lmosd logs level gateway debug, or lmosd logs level gateway --reset", "expected a level, or --reset")
			}
			level := ""
			if !reset {
				level = args[1]
			}
			return a.setLogLevel(cmd.Context(), args[0], level)
		},
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "end the level of the logger")
	return cmd
}

func (a *app) setLogLevel(ctx context.Context, logger, level string) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	now, err := client.SetLogLevel(ctx, logger, level)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: now, Names: []string{logger}, People: func(s *terminal.Screen, _ bool) { render.LogLevels(now.LogLevels).Write(s) }})
	if err == nil && level != "" && logger != "*" {
		a.Next("lmosd logs -f --logger " + terminal.Shell(logger))
	}
	return err
}

func newDoctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "check the running node: what does not work, and what to do",
		Long: "Lets the node check its listeners, clock, disk, certificate, peers, reachability, relays, directory, organization,\n" +
			"audit log and bridges. It asks no other host, and takes 5 s at most. Exit code 1 if a check failed.",
		Example: `  lmosd doctor
  lmosd doctor -o json --jq '.items[] | select(.status != "pass")'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd net, lmosd logs"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.examine(cmd.Context()) },
	}
}

func (a *app) examine(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	d, err := client.Doctor(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: d, Names: cli.Each(d.Items, func(c api.DoctorCheck) string { return c.Name }),
		People: func(s *terminal.Screen, _ bool) { render.Doctor(s, d, a.hint) }})
	if err == nil && !d.OK {
		return cli.SilentError(cli.ExitInternal)
	}
	return err
}

func newBridgesCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bridges",
		Short: "list the bridges to other protocols, and their use",
		Long:  "Lists the bridges that serve clients of other protocols (MCP, A2A), with their requests since the start of the node.",
		Example: `  lmosd bridges
  lmosd bridges discovered`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd status, lmosd install"),
		Args:        cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			list, err := client.Bridges(cmd.Context())
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(b api.BridgeInfo) string { return b.Name }),
				People: func(s *terminal.Screen, wide bool) { render.Bridges(list.Items, wide).Write(s) }})
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "discovered",
		Short: "list what was introduced on the local network",
		Long: "Lists the introductions of things and directories by DNS-SD on the local network, and those of mesh.introductions,\n" +
			"with the things that each has brought. Nodes of the same mesh are in the state mesh.",
		Example:     "  lmosd bridges discovered\n  lmosd bridges discovered -o wide",
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd find"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return a.listDiscovered(cmd.Context()) },
	})
	return cmd
}

func (a *app) listDiscovered(ctx context.Context) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	list, err := client.Discovered(ctx)
	if err != nil {
		return err
	}
	err = a.Show(cli.View{Doc: list, Names: cli.Each(list.Items, func(d api.Discovery) string { return d.Name }),
		People: func(s *terminal.Screen, wide bool) { render.Discovered(list.Items, wide).Write(s) }})
	if err == nil && len(list.Items) == 0 && a.ForPeople() {
		a.Talk.Line("nothing was introduced")
	}
	return err
}

func newTrustStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "print the organization, partners, groups and what waits",
		Long: "Prints the organization of the node with the numbers of partners, groups, foreign credentials and open invitations,\n" +
			"and what waits for a person: nodes that ask to join, partners whose words are to be compared, offers of groups.",
		Example: `  lmosd trust status
  lmosd trust status -o json --jq '.waiting[] | .kind + " " + .name'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd trust ls, lmosd org status, lmosd group ls"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			t, err := client.TrustOverview(cmd.Context())
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: t, Names: cli.Each(t.Waiting, func(w api.TrustWaiting) string { return w.Name }),
				People: func(s *terminal.Screen, wide bool) {
					render.Trust(t).Write(s)
					if len(t.Waiting) > 0 {
						render.Waiting(t.Waiting, wide, a.hint).Write(s)
					}
				}})
		},
	}
}

// newConfigCommand returns lmosd config with the command that asks the node.
func newConfigCommand(a *app) *cobra.Command {
	cmd := configcmd.NewConfigCommand(a.Console, prompt.Confirm)
	cmd.AddCommand(newConfigReloadCommand(a))
	cmd.AddCommand(&cobra.Command{
		Use:   "running",
		Short: "print the configuration of the running node",
		Long: "Prints every key with the value that the running node has, and where it is from, without secrets. A file that was\n" +
			"changed since the start has other values: `lmosd config show` prints those that a start would use now.",
		Example: `  lmosd config running
  lmosd config running -o json --jq '.items[] | select(.origin != "default")'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd config show"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			c, err := client.Config(cmd.Context())
			if err != nil {
				return err
			}
			return a.Show(cli.View{Doc: c, Names: cli.Each(c.Items, func(i api.ConfigItem) string { return i.Key }),
				People: func(s *terminal.Screen, wide bool) { render.Config(c.Items, wide).Write(s) }})
		},
	})
	return cmd
}
