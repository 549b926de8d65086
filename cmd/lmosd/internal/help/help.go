// Package help renders the help of commands and topics, and the command tree as JSON.
package help

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
)

// topics are help pages without a command: `lmosd help exit-codes`.
//
//go:embed help/*.txt
var topics embed.FS

func topicNames() []string {
	entries, err := fs.ReadDir(topics, "help")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txt"))
	}
	return names
}

// NewHelpCommand returns `lmosd help`.
func NewHelpCommand(to *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command|topic]",
		Short: "explain a command or a topic",
		Long: "Explains a command, or one of the topics " + strings.Join(topicNames(), ", ") + ".\n" +
			"With -o json: the whole tree of commands, with flags, scope and impact.",
		Example: `  lmosd help call
  lmosd help exit-codes
  lmosd help -o json --jq '.commands[].path'`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return helpNames(cmd.Root()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return explain(to, cmd.Root(), args) },
	}
}

func helpNames(root *cobra.Command) []string {
	names := topicNames()
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return names
}

// explain prints the page of a command or topic, or the tree for programs.
func explain(to *cli.Console, root *cobra.Command, args []string) error {
	if !to.ForPeople() {
		return to.Show(cli.View{Doc: treeOf(root), Names: helpNames(root)})
	}
	if len(args) == 1 {
		if text, err := topics.ReadFile("help/" + args[0] + ".txt"); err == nil {
			return to.Print([]byte(terminal.Reflow(string(text), to.Out.PageWidth())))
		}
	}
	c, rest, err := root.Find(args)
	if err != nil || len(rest) > 0 {
		return cli.Similar(cli.Usage("", "no command or topic is called %q", strings.Join(args, " ")), args[0], helpNames(root), "lmosd --help")
	}
	c.InitDefaultHelpFlag()
	return c.Help()
}

// Print prints the help page of cmd.
func Print(to *cli.Console, cmd *cobra.Command) {
	p := &page{width: to.Out.PageWidth()}
	if cmd.HasParent() {
		p.command(cmd)
	} else {
		p.root(cmd)
	}
	// Help that cannot be written has no reader.
	_ = to.Print([]byte(p.String()))
}

// A page is a text of at most width columns, except for longer words.
type page struct {
	strings.Builder
	width int
}

// text adds lines, broken to the width.
func (p *page) text(format string, args ...any) {
	p.WriteString(terminal.Reflow(fmt.Sprintf(format, args...), p.width))
}

// examples adds command lines. A wide one is continued as in a shell, so that it can be copied.
func (p *page) examples(lines string) {
	for line := range strings.Lines(lines + "\n") {
		rest := strings.TrimRight(line, "\n")
		for terminal.Columns(rest) > p.width {
			i := breakable(rest, p.width-len(continued))
			if i < 0 {
				break
			}
			p.WriteString(rest[:i] + continued + "\n")
			rest = "     " + rest[i:]
		}
		p.WriteString(rest + "\n")
	}
}

const continued = " \\" // the end of a line of a shell that the next line continues

// breakable returns the index of the last space of a command line that is between words and within width columns, or of the first one after
// that; -1 without one.
func breakable(line string, width int) int {
	at, quote := -1, rune(0)
	words := false
	for i, r := range line {
		switch {
		case at >= 0 && terminal.Columns(line[:i]) > width:
			return at
		case quote == 0 && r == ' ' && words:
			at = i
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case r == quote:
			quote = 0
		}
		words = words || r != ' '
	}
	return at
}

func (p *page) root(root *cobra.Command) {
	p.text("%s\n\n", root.Short)
	p.examples(root.Example + "\n")
	for _, g := range root.Groups() {
		p.text("%s\n", g.Title)
		p.rows(root, g.ID)
	}
	p.text("EVERY COMMAND\n")
	for _, r := range commonFlags {
		p.row(r.names, r.text)
	}
	p.text("\nlmosd help COMMAND, or a topic: %s\n", strings.Join(topicNames(), ", "))
}

func (p *page) command(cmd *cobra.Command) {
	p.text("%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, sentence(cmd.Short)), cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		p.text("\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				p.text("  %-10s  %s\n", c.Name(), c.Short)
			}
		}
	}
	if cmd.Example != "" {
		p.WriteString("\nExamples:\n")
		p.examples(cmd.Example)
	}
	if flags := listed(ownFlags(cmd)); flags.HasAvailableFlags() {
		p.text("\nFlags:\n%s", usages(flags))
	}
	p.text("\nFlags of every command: -c --data-dir --node -o --jq -v (lmosd --help)\n")
	if see := cmd.Annotations["see"]; see != "" {
		p.text("See also: %s\n", see)
	}
}

// listed returns the flags of a set that its page lists: one stands for all that set configuration keys.
func listed(all *pflag.FlagSet) *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		switch _, key := f.Annotations[cli.KeyFlag]; {
		case !key:
			flags.AddFlag(f)
		case !f.Hidden && flags.Lookup("KEY") == nil:
			flags.String("KEY", "", "`VALUE` of a configuration key: --http.listen ADDR (lmosd config describe lists all)")
		}
	})
	return flags
}

// usages returns a line for each flag, without the room for letters if no flag has one.
func usages(flags *pflag.FlagSet) string {
	const letter = "    " // as -v, has
	letters := false
	flags.VisitAll(func(f *pflag.Flag) { letters = letters || f.Shorthand != "" })
	text := flags.FlagUsages()
	if !letters {
		text = strings.ReplaceAll("\n"+text, "\n"+letter, "\n")[1:]
	}
	return text
}

// ownFlags returns the flags of cmd and of its parents, without --help and the flags of every command.
func ownFlags(cmd *cobra.Command) *pflag.FlagSet {
	flags := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	add := func(f *pflag.Flag) {
		if f.Name != "help" && cmd.Root().PersistentFlags().Lookup(f.Name) != f {
			flags.AddFlag(f)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return flags
}

// sentence capitalizes a short text and adds a period.
func sentence(short string) string {
	if short == "" {
		return ""
	}
	return strings.ToUpper(short[:1]) + short[1:] + "."
}

// A Tree is the document of `lmosd help -o json`.
type Tree struct {
	cli.Head
	Commands []Command `json:"commands"`
	Topics   []string  `json:"topics"`
}

// A Command is the description of a command for programs.
type Command struct {
	Path    string     `json:"path"`
	Use     string     `json:"use"`
	Short   string     `json:"short"`
	Group   string     `json:"group,omitempty"`
	Scope   string     `json:"scope,omitempty"`  // local or mesh
	Impact  string     `json:"impact,omitempty"` // ro, rw or danger
	Example string     `json:"example,omitempty"`
	Flags   []flagInfo `json:"flags,omitempty"`
}

type flagInfo struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Usage   string `json:"usage"`
}

func treeOf(root *cobra.Command) Tree {
	t := Tree{Head: cli.NewHead("Help"), Topics: topicNames()}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		t.Commands = append(t.Commands, infoOf(c))
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(root)
	slices.SortFunc(t.Commands, func(x, y Command) int { return strings.Compare(x.Path, y.Path) })
	return t
}

func infoOf(c *cobra.Command) Command {
	info := Command{Path: c.CommandPath(), Use: c.UseLine(), Short: c.Short, Group: c.GroupID, Scope: c.Annotations["scope"],
		Impact: c.Annotations["impact"], Example: c.Example}
	flags := ownFlags(c)
	if !c.HasParent() {
		flags = c.PersistentFlags()
	}
	flags.VisitAll(func(f *pflag.Flag) {
		info.Flags = append(info.Flags, flagInfo{f.Name, f.Value.Type(), f.DefValue, f.Usage})
	})
	return info
}
