package main

import (
	"github.com/spf13/cobra"
)

// groups are the headings of `lmosd --help`, in the order of a first day with lmosd.
var groups = []*cobra.Group{
	{ID: "use", Title: "USE THE MESH"},
	{ID: "offer", Title: "OFFER AGENTS"},
	{ID: "node", Title: "THE NODE"},
	{ID: "operate", Title: "OPERATE"},
	{ID: "develop", Title: "DEVELOP"},
}

// newRootCommand returns the whole tree of commands for one execution.
func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "lmosd",
		Short: "Agents that find and call each other, peer to peer, without a registry.",
		Example: `  lmosd run                                               start a node
  lmosd find --capability urn:example:weather:forecast    who can do this?
  lmosd call weather getWeather question="Rain in Bonn?"  ask one of them`,
		Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Errors are printed once, by app.fail; the usage of a command does not help with an agent that is away.
		SilenceErrors: true,
		SilenceUsage:  true,
		// A command that replaces this hook must call check itself.
		PersistentPreRunE: a.check,
	}
	a.flags.register(root.PersistentFlags())
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(a.help)
	root.SetHelpCommand(newHelpCommand(a))
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

// hideFlags keeps "[flags]" out of the use lines, which cobra puts even where a command has none of its own.
func hideFlags(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	for _, sub := range cmd.Commands() {
		hideFlags(sub)
	}
}

// commands returns the commands by group; help shows those of a group by name.
func (a *app) commands() map[string][]*cobra.Command {
	return map[string][]*cobra.Command{
		"use": {newFindCommand(a), newShowCommand(a), newCallCommand(a), newReadCommand(a), newWriteCommand(a), newWatchCommand(a),
			newTaskCommand(a), newPingCommand(a), newTraceCommand(a)},
		"offer":   {newExposeCommand(a), newPublishCommand(a), newUnpublishCommand(a), newValidateCommand(a)},
		"node":    {annotate(newRunCommand(a), scopeMesh, readWrite), newIDCommand(a), newStatusCommand(a), newPeersCommand(a)},
		"operate": {newConfigCommand(a)},
		"develop": {annotate(newDemoCommand(a), scopeLocal, readOnly), annotate(newTestnetCommand(a), scopeLocal, readWrite),
			newErrorsCommand(a), newVersionCommand(a), newCompletionCommand(a), newWeatherCommand()},
	}
}

// subcommand is the check of the arguments of a command that only has others below it.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage(hintFor(args[0], names, cmd.CommandPath()+" --help"), "%s has no command %q", cmd.CommandPath(), args[0])
}

// What a command reaches, and what it changes; in Annotations, for `lmosd help -o json`.
const (
	scopeLocal = "local" // this host
	scopeMesh  = "mesh"  // other nodes, too
	readOnly   = "ro"
	readWrite  = "rw"
)

func about(scope, impact string) map[string]string {
	return map[string]string{"scope": scope, "impact": impact}
}

// annotate says for a command and those below it what they reach and change, where they do not say it themselves.
func annotate(cmd *cobra.Command, scope, impact string) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = about(scope, impact)
	}
	for _, sub := range cmd.Commands() {
		annotate(sub, scope, impact)
	}
	return cmd
}
