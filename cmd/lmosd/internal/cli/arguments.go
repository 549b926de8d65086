package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// FileExists returns the error of a file that a command would overwrite.
func FileExists(file string) error {
	return Usage("choose another file, or delete it", "%s exists, and is not overwritten", file)
}

// HintFor returns "did you mean …?" if one of known is similar to word, else otherwise.
func HintFor(word string, known []string, otherwise string) string {
	if s := configs.Suggest(word, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return otherwise
}

// Similar completes e, an error about word: if one of known is similar, with the hint "did you mean …?" and the command line with it in
// place of word; else with a command.
func Similar(e *interact.Error, word string, known []string, command string) *interact.Error {
	near := Nearest(word, known)
	if near == "" {
		return e.Then(StepCommand, command)
	}
	return InPlaceOf(e, word, near)
}

// Nearest returns the one of known that begins with word, or else is similar to it; "" if there is none.
func Nearest(word string, known []string) string {
	if begin := strings.ToLower(word); len(begin) >= 3 {
		for _, k := range known {
			if strings.HasPrefix(strings.ToLower(k), begin) {
				return k
			}
		}
	}
	return configs.Suggest(word, known)
}

// InPlaceOf completes e, an error about word, with the hint "did you mean …?" and the command line with right in place of word.
func InPlaceOf(e *interact.Error, word, right string) *interact.Error {
	e.Hint = fmt.Sprintf("did you mean %q?", right)
	return e.Then(StepRetype, word, right)
}

// Takes returns a check of the number of arguments. A negative high means no limit.
func Takes(low, high int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return missing(cmd, args)
		case high >= 0 && len(args) > high:
			return Usage("leave it out", "%s takes no argument %q", cmd.CommandPath(), args[high]).Then(StepRetype, args[high], "")
		}
		return nil
	}
}

// missing returns the error for a missing argument, with its name in the use line of cmd and the first example.
func missing(cmd *cobra.Command, args []string) error {
	names := strings.Fields(strings.ReplaceAll(cmd.Use, " | ", "|"))[1:]
	e := Usage("", "%s needs %s", cmd.CommandPath(), names[min(len(args), len(names)-1)])
	e.Err = errors.New("expected " + cmd.UseLine())
	if example := firstExample(cmd); example != "" {
		e.Hint = "for example"
		return e.Then(StepCommand, example)
	}
	return e.Then(StepCommand, cmd.CommandPath()+" --help")
}

// firstExample returns the first example of cmd that begins with its name, or "".
func firstExample(cmd *cobra.Command) string {
	for line := range strings.Lines(cmd.Example) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, cmd.CommandPath()+" ") {
			return line
		}
	}
	return ""
}

// shorts are the flags that people expect behind a letter, in the order of preference.
var shorts = map[string][]string{
	"a": {"all", "action"}, "d": {"data-dir"}, "f": {"follow", "watch"}, "j": {"jq"}, "l": {"limit", "level"}, "n": {"limit", "name", "node"},
	"q": {"quiet"}, "t": {"timeout", "type"}, "w": {"watch", "wait"}, "y": {"yes"},
}

// FlagError converts an error of the flag parser, with the most similar flag, or a value that fits the flag.
func FlagError(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help"
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		return wrongValue(value, help)
	case !errors.As(err, &unknown):
		return Usage("", "%v", err).Then(StepCommand, help)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	name := unknown.GetSpecifiedName()
	if replacement, ok := configs.Retired(name, "DID"); ok { // the parser does not tell the value
		return Usage(replacement, "the key %s does not exist any more", name)
	}
	flag, near := "--"+name, Nearest(name, names)
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		flag = "-" + short
		known := slices.DeleteFunc(slices.Clone(shorts[short[:1]]), func(name string) bool { return !slices.Contains(names, name) })
		near = cmp.Or(append(known, "")...)
	}
	e := Usage("", "%s has no flag %s", cmd.CommandPath(), flag)
	switch {
	case near != "":
		return InPlaceOf(e, flag, "--"+near)
	case name != "" && strings.Contains(cmd.Use, "k=v"):
		e.Hint = "inputs are written as name=value"
		return e.Then(StepRetype, flag, name+"=")
	}
	return e.Then(StepCommand, help)
}

// wrongValue returns the error for a value of another type than that of its flag.
func wrongValue(value *pflag.InvalidValueError, help string) error {
	flag, text := value.GetFlag(), value.GetValue()
	kind, example := "", ""
	switch flag.Value.Type() {
	case "duration":
		kind, example = "a time with its unit", timeOf(text)
	case "int", "int64", "uint", "uint64":
		kind, example = "a whole number", "10"
	case "bool":
		kind, example = "true or false", "true"
	default:
		return Usage("", "%v", value).Then(StepCommand, help)
	}
	e := Usage("for example", "--%s is %s, got %q", flag.Name, kind, text)
	return e.Then(StepRetype, text, example)
}

// timeOf returns the time that text probably means, as the flag parser reads it: 5 is 5s, 30d is 720h, "2 min" is 2m; else 10s.
func timeOf(text string) string {
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
	n, err := strconv.Atoi(number)
	if unit := strings.TrimSpace(strings.TrimPrefix(text, number)); err == nil && n > 0 && n < 1<<16 {
		switch {
		case strings.HasPrefix(unit, "d"):
			return strconv.Itoa(24*n) + "h"
		case unit == "", strings.HasPrefix(unit, "s"):
			return number + "s"
		case unit[0] == 'm', unit[0] == 'h':
			return number + unit[:1]
		}
	}
	return "10s"
}

// synonyms are the subcommands that people expect under another name, in the order of preference.
var synonyms = map[string][]string{
	"accept": {"join", "admit"}, "add": {"create", "connect", "put", "invite", "up", "allow"}, "create": {"add", "init", "up"}, "delete": {"rm", "remove", "revoke"},
	"get": {"show", "ls"}, "info": {"show", "status"}, "list": {"ls"}, "new": {"create", "add"}, "remove": {"rm", "revoke", "leave"},
	"rm": {"remove", "revoke"}, "show": {"get", "explain", "status"}, "start": {"up"}, "switch": {"use"}, "stop": {"down", "cancel"}, "kill": {"cancel", "down"}, "follow": {"tail", "wait"},
}

// Subcommand checks the arguments of a command that has only subcommands.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e, names := Usage("", "%s has no command %q", cmd.CommandPath(), args[0]), Subcommands(cmd)
	for _, name := range synonyms[args[0]] {
		if slices.Contains(names, name) {
			return InPlaceOf(e, args[0], name)
		}
	}
	if slices.Contains([]string{"list", "ls"}, args[0]) && cmd.Runnable() {
		e.Hint = "leave it out"
		return e.Then(StepRetype, args[0], "")
	}
	return Similar(e, args[0], names, cmd.CommandPath()+" --help")
}

// Subcommands returns the names of the commands below cmd.
func Subcommands(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// Scopes and effects of commands, in Annotations for `lmosd help -o json`.
const (
	ScopeLocal = "local" // this host
	ScopeMesh  = "mesh"  // also other nodes
	ReadOnly   = "ro"    // no changes
	ReadWrite  = "rw"
	Danger     = "danger" // cannot be undone: the command prompts, or needs --yes
)

// KeyFlag is the annotation of a flag that sets a configuration key. Help pages do not list these flags.
const KeyFlag = "key"

// About returns the annotations of a command: scope, effect, and related commands.
func About(scope, impact string, see ...string) map[string]string {
	return map[string]string{"scope": scope, "impact": impact, "see": strings.Join(see, ", ")}
}
