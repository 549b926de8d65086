package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// Usage returns an error about the command line.
func Usage(hint, format string, args ...any) *interact.Error {
	return interact.Errorf(interact.Usage, hint, format, args...)
}

// HintFor returns "did you mean …?" if one of known is similar to word, else otherwise.
func HintFor(word string, known []string, otherwise string) string {
	if s := configs.Suggest(word, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return otherwise
}

// Similar completes e, an error about word: with the hint "did you mean …?" if one of known is similar, else with a command.
func Similar(e *interact.Error, word string, known []string, command string) *interact.Error {
	if e.Hint = HintFor(word, known, ""); e.Hint == "" {
		e.Then(StepCommand, command)
	}
	return e
}

// Takes returns a check of the number of arguments. A negative high means no limit.
func Takes(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return missing(cmd, args)
		case high >= 0 && len(args) > high:
			return Usage("", "%s takes no argument %q", cmd.CommandPath(), args[high]).Then(StepCommand, cmd.UseLine())
		}
		return nil
	}
}

// missing returns the error for a missing argument, with its name in the use line of cmd.
func missing(cmd *cobra.Command, args []string) error {
	names := strings.Fields(strings.ReplaceAll(cmd.Use, " | ", "|"))[1:]
	return Usage("", "%s needs %s", cmd.CommandPath(), names[min(len(args), len(names)-1)]).Then(StepCommand, cmd.UseLine())
}

// FlagError converts an error of the flag parser, with the most similar flag.
func FlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return Usage("", "%v", err).Then(StepCommand, cmd.CommandPath()+" --help")
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	flag := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		flag = "-" + short
	}
	if replacement, ok := configs.Retired(unknown.GetSpecifiedName(), "DID"); ok { // the parser does not tell the value
		return Usage(replacement, "the key %s does not exist any more", unknown.GetSpecifiedName())
	}
	return Similar(Usage("", "%s has no flag %s", cmd.CommandPath(), flag), flag, names, cmd.CommandPath()+" --help")
}

// Subcommand checks the arguments of a command that has only subcommands.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return Similar(Usage("", "%s has no command %q", cmd.CommandPath(), args[0]), args[0], names, cmd.CommandPath()+" --help")
}

// Scopes and effects of commands, in Annotations for `lmosd help -o json`.
const (
	ScopeLocal = "local" // this host
	ScopeMesh  = "mesh"  // also other nodes
	ReadOnly   = "ro"    // no changes
	ReadWrite  = "rw"
	Danger     = "danger" // cannot be undone: the command prompts, or needs --yes
)

// About returns the annotations of a command: scope, effect, and related commands.
func About(scope, impact string, see ...string) map[string]string {
	return map[string]string{"scope": scope, "impact": impact, "see": strings.Join(see, ", ")}
}
