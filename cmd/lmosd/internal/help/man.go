package help

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/buildinfo"
)

// A manPage is the manual page of a command, of a topic, or of the program.
type manPage struct {
	Name    string `json:"name"` // the argument of `lmosd man`
	Section int    `json:"section"`
	File    string `json:"file"`
	Short   string `json:"short"`
	write   func(m *manual)
}

// NewManCommand returns `lmosd man`.
func NewManCommand(to *cli.Console) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "man [page]",
		Short: "print the manual pages",
		Long: "Prints the manual page of the program, of a command or of a topic, in the format of man(7). With --dir, writes\n" +
			"all pages into a folder. -o json and -o name list the pages. The date of the pages is that of the commit, or\n" +
			"SOURCE_DATE_EPOCH.",
		Example: `  lmosd man call > lmosd-call.1
  lmosd man --dir man`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd help", "lmosd completion"),
		Args:        cli.Takes(0, 1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return namesOf(manPages(cmd.Root())), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pages := manPages(cmd.Root())
			date, err := manDate(to.Variable("SOURCE_DATE_EPOCH"))
			if err != nil {
				return err
			}
			render := func(p manPage) []byte { return p.render(date) }
			if dir != "" {
				return writePages(to, dir, pages, render)
			}
			if len(args) == 0 && !to.ForPeople() {
				return showPages(to, pages)
			}
			name := strings.Join(args, "")
			i := slices.IndexFunc(pages, func(p manPage) bool { return p.Name == cmp.Or(name, "lmosd") })
			if i < 0 {
				return cli.Similar(cli.Usage("", "no command or topic is called %q", name), name, namesOf(pages), "lmosd man -o name")
			}
			return to.Print(render(pages[i]))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "write all pages into the folder `DIR`")
	return cmd
}

func namesOf(pages []manPage) []string {
	return cli.Each(pages, func(p manPage) string { return p.Name })
}

// writePages writes the pages into a folder, which it creates.
func writePages(to *cli.Console, dir string, pages []manPage, render func(manPage) []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return unwritten(dir, err)
	}
	for i, p := range pages {
		pages[i].File = filepath.Join(dir, p.File)
		if err := atomicfile.Write(pages[i].File, render(p), 0o644); err != nil {
			return unwritten(dir, err)
		}
	}
	if err := showPages(to, pages); err != nil {
		return err
	}
	to.Next("man -l " + filepath.Join(dir, "lmosd.1"))
	return nil
}

func unwritten(dir string, err error) error {
	return &interact.Error{Code: interact.DiskFull, Title: "cannot write the manual pages to " + dir, Hint: "choose a folder that you can write to", Err: err}
}

func showPages(to *cli.Console, pages []manPage) error {
	files := cli.Each(pages, func(p manPage) string { return p.File })
	return to.Show(cli.View{Doc: cli.List[manPage]{Head: cli.NewHead("ManPageList"), Items: pages}, Names: namesOf(pages),
		People: cli.Line(fmt.Sprintf("%d manual pages: %s, …", len(files), files[0]))})
}

// manDate returns the date of the pages: SOURCE_DATE_EPOCH, or that of the commit, or none. The clock is not used, so that equal programs
// write equal pages.
func manDate(epoch string) (string, error) {
	if epoch != "" {
		n, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", cli.Usage("for example SOURCE_DATE_EPOCH=1767225600", "SOURCE_DATE_EPOCH is %q, expected seconds since 1970", epoch)
		}
		return time.Unix(n, 0).UTC().Format(time.DateOnly), nil
	}
	return buildinfo.Date(), nil
}

// manPages returns the pages of the program, of the commands that people see (section 1) and of the topics (section 7).
func manPages(root *cobra.Command) []manPage {
	pages := []manPage{{Name: "lmosd", Section: 1, File: "lmosd.1", Short: sentenceToShort(root.Short), write: func(m *manual) { m.program(root) }}}
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			pages = append(pages, manPage{Name: c.Name(), Section: 1, File: "lmosd-" + c.Name() + ".1", Short: c.Short, write: func(m *manual) { m.command(c) }})
		}
	}
	for _, name := range topicNames() {
		text, err := topics.ReadFile("help/" + name + ".txt")
		if err != nil {
			panic(err) // the folder is part of the program
		}
		p := manPage{Name: name, Section: 7, File: "lmosd-" + name + ".7", Short: "the topic " + name + " of lmosd",
			write: func(m *manual) { m.section("DESCRIPTION"); m.literal(string(text)) }}
		if slices.Contains(namesOf(pages), name) { // a command has the name, as config
			p.Name += ".7"
		}
		pages = append(pages, p)
	}
	return pages
}

// sentenceToShort is the reverse of [sentence], for the program itself.
func sentenceToShort(text string) string {
	return strings.ToLower(text[:1]) + strings.TrimSuffix(text[1:], ".")
}

func (p manPage) render(date string) []byte {
	m := &manual{}
	title := strings.TrimSuffix(p.File, filepath.Ext(p.File))
	m.line(".TH %s %d %q %q %q", strings.ToUpper(title), p.Section, date, "lmosd "+buildinfo.Version(), "lmosd manual")
	m.section("NAME")
	m.line(`%s \- %s`, plain(title), plain(p.Short))
	p.write(m)
	return []byte(m.String())
}

// A manual is text in the format of man(7).
type manual struct {
	strings.Builder
	atStart bool // the last line is the heading of a section, or starts a paragraph
}

func (m *manual) line(format string, args ...any) {
	fmt.Fprintf(m, format+"\n", args...)
	m.atStart = false
}

func (m *manual) section(title string) {
	m.line(".SH %s", title)
	m.atStart = true
}

func (m *manual) subsection(title string) {
	m.line(".SS %s", title)
	m.atStart = true
}

// paragraph starts a paragraph. At the start of a section, formatters warn about it.
func (m *manual) paragraph() {
	if !m.atStart {
		m.line(".PP")
		m.atStart = true
	}
}

func (m *manual) program(root *cobra.Command) {
	m.section("SYNOPSIS")
	m.line(`.B lmosd\fR \fIcommand\fR [\fIflags\fR]`)
	m.section("DESCRIPTION")
	m.text(root.Short)
	m.paragraph()
	m.line("Each command has a page of its own.")
	for _, g := range root.Groups() {
		m.subsection(g.Title)
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.IsAvailableCommand() {
				m.line(".TP\n.BR lmosd\\-%s (1)\n%s", plain(c.Name()), plain(sentence(c.Short)))
			}
		}
	}
	m.section("OPTIONS")
	m.flags(root.PersistentFlags())
	m.section("EXAMPLES")
	m.literal(root.Example)
	m.section("EXIT STATUS")
	m.line("See")
	m.line(`.BR lmosd\-exit\-codes (7).`)
	m.section("SEE ALSO")
	for i, name := range topicNames() {
		m.line(`.BR lmosd\-%s (7)%s`, plain(name), map[bool]string{true: ".", false: ","}[i == len(topicNames())-1])
	}
}

func (m *manual) command(c *cobra.Command) {
	m.section("SYNOPSIS")
	m.synopsis(c)
	m.section("DESCRIPTION")
	m.text(cmp.Or(c.Long, sentence(c.Short)))
	if c.HasAvailableSubCommands() {
		m.section("COMMANDS")
		m.subcommands(c)
	}
	m.section("OPTIONS")
	m.flags(ownFlags(c))
	m.paragraph()
	m.line("The flags of every command are in\n.BR lmosd (1).")
	m.section("EXAMPLES")
	m.literal(c.Example)
	m.section("SEE ALSO")
	m.line(".BR lmosd (1)")
	if see := c.Annotations["see"]; see != "" {
		m.paragraph()
		m.line("%s", plain(see))
	}
}

// subcommands writes the commands below c, of any depth.
func (m *manual) subcommands(c *cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		m.subsection(plain(strings.TrimPrefix(sub.CommandPath(), "lmosd ")))
		m.synopsis(sub)
		m.text(cmp.Or(sub.Long, sentence(sub.Short)))
		m.flags(sub.LocalFlags())
		m.literal(sub.Example)
		m.subcommands(sub)
	}
}

// synopsis writes how c is called, with the command in bold.
func (m *manual) synopsis(c *cobra.Command) {
	args := strings.TrimPrefix(c.UseLine(), c.CommandPath())
	m.line(`\fB%s\fR%s`, plain(c.CommandPath()), plain(args))
}

func (m *manual) flags(set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		m.line(".TP")
		if f.Shorthand != "" {
			fmt.Fprintf(m, `\fB\-%s\fR, `, f.Shorthand)
		}
		fmt.Fprintf(m, `\fB\-\-%s\fR`, plain(f.Name))
		if name != "" {
			fmt.Fprintf(m, ` \fI%s\fR`, plain(name))
		}
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		m.line("\n%s", plain(usage))
	})
}

// text writes paragraphs. Indented lines keep their form.
func (m *manual) text(text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		m.paragraph()
		for line := range strings.Lines(paragraph) {
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, " ") {
				m.line(".br")
			}
			m.line("%s", plain(strings.TrimLeft(line, " ")))
		}
	}
}

// literal writes text that keeps its line ends and columns.
func (m *manual) literal(text string) {
	m.paragraph()
	m.line(".nf")
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		m.line("%s", plain(line))
	}
	m.line(".fi")
}

// plain escapes a line: no character has a meaning in roff, and all are ASCII, so that pages do not depend on the locale.
func plain(line string) string {
	var b strings.Builder
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		b.WriteString(`\&`)
	}
	for _, r := range line {
		switch {
		case r == '\\':
			b.WriteString(`\(rs`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r > 126:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
