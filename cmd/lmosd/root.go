package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/auditcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/contextcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/errcatalog"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/help"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/install"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/localnet"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/login"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/scaffold"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/service"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/validate"
)

// groups are the headings of lmosd --help.
var groups = []*cobra.Group{
	{ID: "use", Title: "USE THE MESH"},
	{ID: "clients", Title: "USE FROM AI CLIENTS"},
	{ID: "offer", Title: "OFFER AGENTS"},
	{ID: "node", Title: "THE NODE"},
	{ID: "trust", Title: "TRUST"},
	{ID: "operate", Title: "OPERATE"},
	{ID: "develop", Title: "DEVELOP"},
}

// newRootCommand returns the tree of commands for one execution, with what args need.
func newRootCommand(a *app, args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:   "lmosd",
		Short: "Agents that find and call each other, peer to peer, without a registry.",
		Example: `  lmosd run                                               start a node
  lmosd find weather                                      find agents
  lmosd call weather getWeather question="Rain in Bonn?"  call an action`,
		Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Console.Fail prints errors, once.
		SilenceErrors: true,
		SilenceUsage:  true,
		// A command that replaces this hook must call check itself.
		PersistentPreRunE: a.Check,
	}
	a.Flags.Register(root.PersistentFlags())
	if err := root.RegisterFlagCompletionFunc("node", contextcmd.CompleteNode(a.Console)); err != nil {
		panic(err) // the flag exists
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help.Print(a.Console, cmd) })
	root.SetHelpCommand(help.NewHelpCommand(a.Console))
	root.AddGroup(groups...)
	root.SetHelpCommandGroupID("develop")
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCommand has its place
	for _, c := range needed(args) {
		built := c.build(a)
		built.GroupID = c.group
		root.AddCommand(built)
	}
	hideFlags(root)
	return root
}

// hideFlags removes "[flags]" from the use lines.
func hideFlags(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	for _, sub := range cmd.Commands() {
		hideFlags(sub)
	}
}

// A command is one command of the program.
type command struct {
	group, name string
	build       func(*app) *cobra.Command
}

// allCommands returns all commands. Each is made only if the command line needs it, because their flags and texts cost more than most commands.
func allCommands() []command {
	console := func(build func(*cli.Console) *cobra.Command) func(*app) *cobra.Command {
		return func(a *app) *cobra.Command { return build(a.Console) }
	}
	return []command{
		{"use", "find", newFindCommand},
		{"use", "route", newRouteCommand},
		{"use", "show", newShowCommand},
		{"use", "call", newCallCommand},
		{"use", "delegate", newDelegateCommand},
		{"use", "read", newReadCommand},
		{"use", "write", newWriteCommand},
		{"use", "watch", newWatchCommand},
		{"use", "task", newTaskCommand},
		{"use", "ping", newPingCommand},
		{"use", "trace", newTraceCommand},
		{"offer", "expose", newExposeCommand},
		{"offer", "login", console(login.NewCommand)},
		{"offer", "logout", console(login.NewLogoutCommand)},
		{"offer", "publish", newPublishCommand},
		{"offer", "unpublish", newUnpublishCommand},
		{"offer", "move", newMoveCommand},
		{"offer", "hosting", newHostingCommand},
		{"offer", "new", func(a *app) *cobra.Command { return scaffold.NewCommand(a.Console, version) }},
		{"offer", "validate", console(validate.NewCommand)},
		{"node", "run", func(a *app) *cobra.Command { return annotate(newRunCommand(a), cli.ScopeMesh, cli.ReadWrite) }},
		{"node", "id", newIDCommand},
		{"node", "keys", newKeysCommand},
		{"node", "context", console(contextcmd.NewCommand)},
		{"node", "status", newStatusCommand},
		{"node", "doctor", newDoctorCommand},
		{"node", "console", newConsoleCommand},
		{"node", "peers", newPeersCommand},
		{"node", "net", newNetCommand},
		{"node", "wait", newWaitCommand},
		{"node", "top", newTopCommand},
		{"node", "events", newEventsCommand},
		{"node", "calls", newCallsCommand},
		{"trust", "audit", console(auditcmd.NewCommand)},
		{"operate", "metrics", newMetricsCommand},
		{"operate", "bridges", newBridgesCommand},
		{"operate", "config", newConfigCommand},
		{"operate", "service", console(service.NewCommand)},
		{"operate", "upgrade", console(service.NewUpgradeCommand)},
		{"node", "logs", newLogsCommand},
		{"trust", "group", newGroupCommand},
		{"trust", "org", newOrgCommand},
		{"trust", "policy", newPolicyCommand},
		{"trust", "token", newTokenCommand},
		{"trust", "trust", newTrustCommand},
		{"develop", "demo", func(a *app) *cobra.Command {
			return annotate(localnet.NewDemoCommand(a.Console), cli.ScopeLocal, cli.ReadOnly)
		}},
		{"develop", "testnet", func(a *app) *cobra.Command {
			return annotate(localnet.NewTestnetCommand(a.Console), cli.ScopeLocal, cli.ReadWrite)
		}},
		{"develop", "errors", console(errcatalog.NewCommand)},
		{"develop", "version", newVersionCommand},
		{"clients", "mcp", newMCPCommand},
		{"clients", "install", console(install.NewCommand)},
		{"develop", "completion", newCompletionCommand},
		{"develop", "man", console(help.NewManCommand)},
		{"develop", "weather-agent", func(*app) *cobra.Command { return localnet.NewWeatherCommand() }},
	}
}

// needed returns the commands for a command line: the one that it begins with, or all, such as for help, for manual pages and for the completion of words.
func needed(args []string) []command {
	all := allCommands()
	if len(args) == 0 || args[0] == "completion" || args[0] == "man" {
		return all
	}
	if i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] }); i >= 0 {
		return all[i : i+1]
	}
	return all
}

// annotate sets scope and impact of a command and its subcommands, unless they have them.
func annotate(cmd *cobra.Command, scope, impact string) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = cli.About(scope, impact)
	}
	for _, sub := range cmd.Commands() {
		annotate(sub, scope, impact)
	}
	return cmd
}
