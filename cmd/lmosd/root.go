package main

import (
	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/auditcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/errcatalog"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/help"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/install"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/localnet"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/login"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/validate"
)

// groups are the headings of lmosd --help.
var groups = []*cobra.Group{
	{ID: "use", Title: "USE THE MESH"},
	{ID: "offer", Title: "OFFER AGENTS"},
	{ID: "node", Title: "THE NODE"},
	{ID: "operate", Title: "OPERATE"},
	{ID: "develop", Title: "DEVELOP"},
}

// newRootCommand returns the tree of commands for one execution.
func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "lmosd",
		Short: "Agents that find and call each other, peer to peer, without a registry.",
		Example: `  lmosd run                                               start a node
  lmosd find --capability urn:example:weather:forecast    find agents
  lmosd call weather getWeather question="Rain in Bonn?"  call an action`,
		Args: cli.Subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Console.Fail prints errors, once.
		SilenceErrors: true,
		SilenceUsage:  true,
		// A command that replaces this hook must call check itself.
		PersistentPreRunE: a.Check,
	}
	a.Flags.Register(root.PersistentFlags())
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { help.Print(a.Console, cmd) })
	root.SetHelpCommand(help.NewHelpCommand(a.Console))
	root.AddGroup(groups...)
	root.SetHelpCommandGroupID("develop")
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCommand has its place
	for group, commands := range a.commands() {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
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

// commands returns the commands by group; help sorts each group by name.
func (a *app) commands() map[string][]*cobra.Command {
	return map[string][]*cobra.Command{
		"use": {newFindCommand(a), newRouteCommand(a), newShowCommand(a), newCallCommand(a), newDelegateCommand(a), newReadCommand(a), newWriteCommand(a), newWatchCommand(a),
			newTaskCommand(a), newPingCommand(a), newTraceCommand(a)},
		"offer": {newExposeCommand(a), login.NewCommand(a.Console), login.NewLogoutCommand(a.Console), newPublishCommand(a), newUnpublishCommand(a),
			newMoveCommand(a), newHostingCommand(a), validate.NewCommand(a.Console)},
		"node":    {annotate(newRunCommand(a), cli.ScopeMesh, cli.ReadWrite), newIDCommand(a), newKeysCommand(a), newStatusCommand(a), newPeersCommand(a), newNetCommand(a)},
		"operate": {auditcmd.NewCommand(a.Console), configcmd.NewConfigCommand(a.Console), newGroupCommand(a), newOrgCommand(a), newPolicyCommand(a), newTokenCommand(a), newTrustCommand(a)},
		"develop": {annotate(localnet.NewDemoCommand(a.Console), cli.ScopeLocal, cli.ReadOnly),
			annotate(localnet.NewTestnetCommand(a.Console), cli.ScopeLocal, cli.ReadWrite),
			errcatalog.NewCommand(a.Console), newVersionCommand(a), newMCPCommand(a), install.NewCommand(a.Console),
			newCompletionCommand(a), localnet.NewWeatherCommand()},
	}
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
