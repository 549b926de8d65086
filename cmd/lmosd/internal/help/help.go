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
			return to.Print(text)
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
	var b strings.Builder
	if cmd.HasParent() {
		commandPage(&b, cmd)
	} else {
		rootPage(&b, cmd)
	}
	// Help that cannot be written has no reader.
	_ = to.Print([]byte(b.String()))
}

func rootPage(b *strings.Builder, root *cobra.Command) {
	fmt.Fprintf(b, "%s\n\n%s\n\n", root.Short, root.Example)
	for _, g := range root.Groups() {
		fmt.Fprintf(b, "%s\n", g.Title)
		writeRows(b, root, g.ID)
	}
	b.WriteString("EVERY COMMAND\n")
	for line := range strings.Lines(root.PersistentFlags().FlagUsages()) {
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	fmt.Fprintf(b, "\nlmosd help <command>, or a topic: %s\n", strings.Join(topicNames(), ", "))
}

func commandPage(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, sentence(cmd.Short)), cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(b, "  %-12s%s\n", c.Name(), c.Short)
			}
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n%s\n", cmd.Example)
	}
	if flags := ownFlags(cmd); flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\nFlags:\n%s", flags.FlagUsagesWrapped(helpWidth))
	}
	b.WriteString("\nFlags of every command: -c --data-dir --node -o --jq -v (lmosd --help)\n")
	if see := cmd.Annotations["see"]; see != "" {
		fmt.Fprintf(b, "See also: %s\n", see)
	}
}

// helpWidth is the width of a help page, in columns.
const helpWidth = 120

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
