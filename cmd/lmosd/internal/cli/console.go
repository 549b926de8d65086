// Package cli provides what all commands share: environment, streams, global flags, output formats and error output.
package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// A Console is one execution of a command line: its environment, its streams, and the flags that every command has.
type Console struct {
	Env   []string         // NAME=value, as os.Environ gives it; of equal names the last counts
	Stdin io.Reader        // for input that is named "-"
	Out   *terminal.Screen // data
	Talk  *terminal.Screen // everything else: errors, hints, coverage, next commands
	Flags Flags            // as they were given, once the command line was read
	// Lead makes the commands in a hint of this program act on the node of this command. Nil leaves hints as they are.
	Lead func(hint string) string
	// Flagged returns the flags, each behind a space, that make a command act on the node of this command; remote is advice of another
	// node. Nil returns none.
	Flagged func(command string, remote bool) string
}

// New returns a console whose flags are not read yet; see [Flags.Register].
func New(env []string, stdin io.Reader, stdout, stderr io.Writer) *Console {
	c := &Console{Env: env, Stdin: stdin}
	c.Out, c.Talk = terminal.NewScreen(stdout, c.Variable), terminal.NewScreen(stderr, c.Variable)
	return c
}

// Variable returns the last value of a variable of the environment, "" without one.
func (c *Console) Variable(name string) string {
	value := ""
	for _, e := range c.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// Flags are those of every command. There are six, and no more: each shows on every help page. Empty means not given.
type Flags struct {
	Config  string // a file
	DataDir string // a folder
	Node    string // URL, socket, or name of a context
	Output  string // one of table, wide, json, jsonl, yaml, name; [Console.Check] sees to it
	Verbose bool
	jq      string // implies the output json
}

// Register makes f what set reads.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringVarP(&f.Config, "config", "c", "", "configuration `FILE`")
	set.StringVar(&f.DataDir, "data-dir", "", "folder `DIR` of the node's key, store and socket")
	set.StringVar(&f.Node, "node", "", "node to ask: `URL`, socket, or name of a context")
	set.StringVarP(&f.Output, "output", "o", "table", "`FORM` of what is printed: "+strings.Join(outputs, "|"))
	set.StringVar(&f.jq, "jq", "", "print what the jq `EXPR` gives; implies -o json")
	set.BoolVarP(&f.Verbose, "verbose", "v", false, "say more on standard error")
}

// Check looks at the flags that every command has, before the command does anything. It is a hook for cobra; the error is of code
// [interact.Usage].
func (c *Console) Check(*cobra.Command, []string) error {
	if !slices.Contains(outputs, c.Flags.Output) {
		return Usage(HintFor(c.Flags.Output, outputs, "-o json"), "-o is %s, expected one of %s", c.Flags.Output, strings.Join(outputs, ", "))
	}
	if c.Flags.jq == "" {
		return nil
	}
	c.Flags.Output = "json"
	_, err := c.query()
	return err
}

// Programs reports whether a program reads the output: errors are JSON then, too.
func (c *Console) Programs() bool {
	return slices.Contains([]string{"json", "jsonl"}, c.Flags.Output) || c.Flags.jq != ""
}

// ForPeople reports whether the output is for people: then hints and next commands go to standard error.
func (c *Console) ForPeople() bool { return c.Flags.Output == "table" || c.Flags.Output == "wide" }

// Interactive reports whether a person can be asked: standard input and standard error are terminals.
func (c *Console) Interactive() bool { return c.Talk.TTY && terminal.Is(c.Stdin) }

// Next tells people the commands that come next. What stands behind three spaces and "#" in one is a comment.
func (c *Console) Next(commands ...string) {
	if !c.ForPeople() {
		return
	}
	for i, command := range commands {
		command, comment, found := strings.Cut(command, "   #")
		command = terminal.OneLine(command + c.Same())
		if found {
			command += c.Talk.Paint(terminal.Dim, "   #"+comment)
		}
		commands[i] = command
	}
	c.Talk.Line(c.Talk.Paint(terminal.Dim, "next: ") + strings.Join(commands, c.Talk.Paint(terminal.Dim, "   ·   ")))
}

// Same returns the flags that lead another command to the node of this one, each behind a space.
func (c *Console) Same() string { return c.Folder() + given("--node", c.Flags.Node) }

// Folder returns the flags that lead another command to the configuration and the folder of this one, each behind a space.
func (c *Console) Folder() string {
	return given("--config", c.Flags.Config) + given("--data-dir", c.Flags.DataDir)
}

func given(flag, value string) string {
	if value == "" {
		return ""
	}
	return " " + flag + " " + terminal.Shell(value)
}

// Note tells those who asked for more, on one line.
func (c *Console) Note(format string, args ...any) {
	if c.Flags.Verbose {
		c.Talk.Line(terminal.OneLine(fmt.Sprintf(format, args...)))
	}
}

// Warn writes a warning to standard error.
func (c *Console) Warn(text string) {
	c.Talk.Item(c.Talk.Paint(terminal.Yellow, "warning: "), 9, text)
}

// Print writes b, which is data, as it is.
func (c *Console) Print(b []byte) error {
	_, err := c.Out.Write(b)
	return err
}

// WantsJSON reports whether args ask for JSON, without understanding the rest of them: those of a line that could not be read.
func WantsJSON(args []string) bool {
	for i, arg := range args {
		form, joined := strings.CutPrefix(arg, "--output=")
		switch {
		case arg == "--":
			return false
		case arg == "--jq" || strings.HasPrefix(arg, "--jq="):
			return true
		case !joined && (arg == "-o" || arg == "--output") && i+1 < len(args):
			form = args[i+1]
		case !joined:
			form = strings.TrimPrefix(strings.TrimPrefix(arg, "-o"), "=")
			if form == arg {
				continue
			}
		}
		if form == "json" || form == "jsonl" {
			return true
		}
	}
	return false
}
