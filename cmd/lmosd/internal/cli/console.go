package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
)

// A Console is one execution of a command line: its environment, its streams, and the flags that every command has.
type Console struct {
	Env   []string         // NAME=value, as in os.Environ; the last of equal names counts
	Stdin io.Reader        // for the input "-"
	Out   *terminal.Screen // data
	Talk  *terminal.Screen // errors, hints, coverage, next commands
	Flags Flags            // set after the command line was parsed
	Args  []string         // the command line without the name of the program, for hints that repeat it
	// Flagged returns the flags, each after a space, that make a command act on the node of this command; remote advice comes from another
	// node. Nil returns none.
	Flagged func(command string, remote bool) string

	line *statusLine // nil: standard error is no terminal
}

// New returns a console without flags; see [Flags.Register].
func New(env []string, stdin io.Reader, stdout, stderr io.Writer) *Console {
	c := &Console{Env: env, Stdin: stdin}
	c.Out, c.Talk = terminal.NewScreen(stdout, c.Variable), terminal.NewScreen(stderr, c.Variable)
	if c.Talk.Live {
		c.line = newStatusLine(c.Talk)
		c.Talk.Writer = c.line.guard(c.Talk.Writer)
		if c.Out.TTY {
			c.Out.Writer = c.line.guard(c.Out.Writer)
		}
	}
	return c
}

// Variable returns the last value of an environment variable, or "".
func (c *Console) Variable(name string) string {
	value := ""
	for _, e := range c.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// Flags are the flags of every command. There are only six, because every help page shows them. Empty means unset.
type Flags struct {
	Config  string // a file
	DataDir string // a folder
	Node    string // URL, socket, or name of a context
	Output  string // one of table, wide, json, jsonl, yaml, name; checked by [Console.Check]
	Verbose bool
	jq      string // implies the output json
}

// Register defines the flags in set.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringVarP(&f.Config, "config", "c", "", "configuration `FILE`")
	set.StringVar(&f.DataDir, "data-dir", "", "folder `DIR` of the node's key, store and socket")
	set.StringVar(&f.Node, "node", "", "node to connect to: `URL`, socket, or name of a context")
	set.StringVarP(&f.Output, "output", "o", "table", "`FORMAT` of the output: "+strings.Join(outputs, "|"))
	set.StringVar(&f.jq, "jq", "", "print the result of the jq `EXPR`; implies -o json")
	set.BoolVarP(&f.Verbose, "verbose", "v", false, "print more on standard error")
}

// Check checks the flags of every command before the command runs. It is a hook of cobra; the error is of code [interact.Usage].
func (c *Console) Check(*cobra.Command, []string) error {
	if !slices.Contains(outputs, c.Flags.Output) {
		e := Usage("", "-o is %s, expected one of %s", c.Flags.Output, strings.Join(outputs, ", "))
		return InPlaceOf(e, c.Flags.Output, cmp.Or(configs.Suggest(c.Flags.Output, outputs), "json"))
	}
	if c.Flags.jq == "" {
		return nil
	}
	c.Flags.Output = "json"
	_, err := c.query()
	return err
}

// Programs reports whether a program reads the output: then errors are JSON, too.
func (c *Console) Programs() bool {
	return slices.Contains([]string{"json", "jsonl"}, c.Flags.Output) || c.Flags.jq != ""
}

// ForPeople reports whether a person reads the output: then hints and next commands go to standard error.
func (c *Console) ForPeople() bool { return c.Flags.Output == "table" || c.Flags.Output == "wide" }

// Interactive reports whether a person can be prompted: standard input and standard error are terminals.
func (c *Console) Interactive() bool { return c.Talk.TTY && terminal.Is(c.Stdin) }

// Next prints the next commands for people. The text after three spaces and "#" is a comment.
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

// Same returns the flags that make another command act on the node of this one, each after a space.
func (c *Console) Same() string { return c.Folder() + given("--node", c.Flags.Node) }

// Folder returns the flags that make another command use the configuration and the folder of this one, each after a space.
func (c *Console) Folder() string {
	return c.Settings() + given("--data-dir", c.Flags.DataDir)
}

// Settings returns the flag that makes another command use the configuration file of this one, after a space.
func (c *Console) Settings() string { return given("--config", c.Flags.Config) }

func given(flag, value string) string {
	if value == "" {
		return ""
	}
	return " " + flag + " " + terminal.Shell(value)
}

// Note prints a line in verbose mode.
func (c *Console) Note(format string, args ...any) {
	if c.Flags.Verbose {
		c.Talk.Line(terminal.OneLine(fmt.Sprintf(format, args...)))
	}
}

// Warn writes a warning to standard error.
func (c *Console) Warn(text string) {
	c.Talk.Item(c.Talk.Paint(terminal.Yellow, "warning: "), 9, text)
}

// Print writes b, which is data, unchanged.
func (c *Console) Print(b []byte) error {
	_, err := c.Out.Write(b)
	return err
}

// WantsJSON reports whether args request JSON, for command lines that could not be parsed.
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
