// Package contextcmd implements lmosd context: names for nodes, and the node that commands use by default.
package contextcmd

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/nodeaddr"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// NewCommand returns lmosd context.
func NewCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "name nodes, and select the one that commands use",
		Long: "A context is a name for a node on any host, for --node and LMOSD_NODE. Commands use the node of the current context if\n" +
			"neither is set. Without a current context, they use the node of this host.",
		Example: `  lmosd context add office --node https://node.example --token-file office.token
  lmosd context use office`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd help environment"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLs(c), newUse(c), newAdd(c), newRm(c))
	return cmd
}

// A store is the file of the contexts.
type store struct {
	*configs.Contexts
	path string
	c    *cli.Console
}

func open(c *cli.Console) (*store, error) {
	s := &store{path: configs.ContextsFile(c.Env), c: c}
	var err error
	s.Contexts, err = configs.ReadContexts(s.path)
	return s, err
}

func (s *store) write() error {
	if s.path == "" {
		return cli.Usage("set HOME, or XDG_CONFIG_HOME", "there is no home folder for the file of the contexts")
	}
	if err := s.Write(s.path); err != nil {
		return configcmd.FileError(s.path, "write", err)
	}
	return nil
}

func (s *store) names() []string { return slices.Sorted(maps.Keys(s.Contexts.Contexts)) }

// find returns a context. The error is of code [interact.NotFound].
func (s *store) find(name string) (configs.Context, error) {
	found, ok := s.Contexts.Contexts[name]
	if !ok {
		return found, cli.Similar(interact.Errorf(interact.NotFound, "", "no context is named %q", name), name, s.names(), "lmosd context ls")
	}
	return found, nil
}

// An item is a context in a document.
type item struct {
	Name      string `json:"name"` // empty: the node of this host
	Node      string `json:"node,omitempty"`
	DataDir   string `json:"data_dir,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
	Current   bool   `json:"current"`
}

func (s *store) item(name string) item {
	found := s.Contexts.Contexts[name]
	return item{name, found.Node, found.DataDir, found.TokenFile, name == s.Current}
}

// A document is the document of lmosd context use, add and rm.
type document struct {
	cli.Head
	item
	Override string `json:"override,omitempty"` // what has precedence over the current context
}

// show prints a changed context and the next commands.
func (s *store) show(changed item, override, text string, next ...string) error {
	err := s.c.Show(cli.View{Doc: document{cli.NewHead("Context"), changed, override}, Names: []string{changed.Name}, People: cli.Line(text)})
	if err == nil {
		s.c.Flags.Node, s.c.Flags.DataDir = "", "" // they were those of the new context
		s.c.Next(next...)
	}
	return err
}

// override returns the variable that has precedence over the current context; "" if there is none.
func override(c *cli.Console) string {
	for _, name := range []string{"LMOSD_NODE", "LMOSD_DATA_DIR", "LMOSD_CONFIG"} {
		if c.Variable(name) != "" {
			return name
		}
	}
	return ""
}

// warn warns people of a variable that has precedence over the current context.
func warn(c *cli.Console, variable string) {
	if variable != "" && c.ForPeople() {
		c.Warn(variable + " is set and selects the node; the current context is not used")
	}
}

func newLs(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the contexts, and which is the current one",
		Long:    "Lists the contexts by name. It does not connect to the nodes.",
		Example: `  lmosd context ls
  lmosd context ls --jq .current`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(*cobra.Command, []string) error { return list(c) },
	}
}

func list(c *cli.Console) error {
	s, err := open(c)
	if err != nil {
		return err
	}
	doc := struct {
		cli.List[item]
		Current  string `json:"current"` // empty: the node of this host
		Override string `json:"override,omitempty"`
	}{cli.List[item]{Head: cli.NewHead("ContextList"), Items: []item{}}, s.Current, override(c)}
	for _, name := range s.names() {
		doc.Items = append(doc.Items, s.item(name))
	}
	err = c.Show(cli.View{Doc: doc, Names: s.names(), People: func(to *terminal.Screen, wide bool) { table(doc.Items, wide).Write(to) }})
	if err != nil || !c.ForPeople() {
		return err
	}
	_, found := s.Contexts.Contexts[s.Current]
	switch {
	case s.Current == "" && len(doc.Items) == 0:
		c.Talk.Line("no contexts: commands use the node of this host")
		c.Next("lmosd context add NAME --node URL")
	case s.Current == "":
		c.Talk.Line("no current context: commands use the node of this host")
		c.Next("lmosd context use NAME")
	case !found:
		c.Warn("the current context " + s.Current + " does not exist")
		c.Next("lmosd context use -   # the node of this host")
	default:
		warn(c, doc.Override)
	}
	return nil
}

func table(items []item, wide bool) *terminal.Table {
	return terminal.TableOf(items, wide, []terminal.Column[item]{
		{Name: "NAME", Keep: true, Cell: terminal.TextOf(func(i item) string { return i.Name })},
		{Name: "NODE", Cell: terminal.TextOf(func(i item) string { return i.Node })},
		{Name: "CURRENT", Keep: true, Cell: func(i item) terminal.Cell {
			if i.Current {
				return terminal.Text("current").In(terminal.Green)
			}
			return terminal.Text("")
		}},
		{Name: "TOKEN FILE", Wide: true, Cell: terminal.TextOf(func(i item) string { return i.TokenFile })},
		{Name: "DATA DIR", Wide: true, Cell: terminal.TextOf(func(i item) string { return i.DataDir })},
	})
}

func newUse(c *cli.Console) *cobra.Command {
	none := false
	cmd := &cobra.Command{
		Use:   "use <name> | -",
		Short: "make commands use the node of a context",
		Long:  "Makes a context the current one. With -, or --none, commands use the node of this host again.",
		Example: `  lmosd context use office
  lmosd context use -`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd status"),
		Args: func(cmd *cobra.Command, args []string) error {
			if none {
				return cli.Takes(0, 0)(cmd, args)
			}
			return cli.Takes(1, 1)(cmd, args)
		},
		ValidArgsFunction: completion(c, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if none || args[0] == "-" {
				return use(c, "")
			}
			return use(c, args[0])
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "no context: the node of this host")
	return cmd
}

// use makes a context the current one; "" stands for the node of this host.
func use(c *cli.Console, name string) error {
	s, err := open(c)
	if err != nil {
		return err
	}
	text := "commands use the node of this host"
	if name != "" {
		found, err := s.find(name)
		if err != nil {
			return err
		}
		text = "commands use " + name + " (" + found.Node + ")"
	}
	if s.Current != name {
		s.Current = name
		if err := s.write(); err != nil {
			return err
		}
	}
	by := override(c)
	warn(c, by)
	return s.show(s.item(name), by, text, "lmosd status")
}

func newAdd(c *cli.Console) *cobra.Command {
	token := ""
	cmd := &cobra.Command{
		Use:   "add <name> --node URL|SOCKET",
		Short: "add a context, or replace one",
		Long: "Adds a name for the node of --node: the URL of its API, or its socket. The token of --token-file is sent to this node\n" +
			"only; other users must not be able to read the file. --data-dir is the folder of a node on this host. A name has\n" +
			"letters, digits, dot, hyphen and underscore.",
		Example: `  lmosd context add office --node https://node.example --token-file office.token
  lmosd context add second --node /run/second/lmosd.sock`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd token create"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && c.Flags.Node == "" {
				return cli.Usage("it is the value of an option", "%s takes no argument %q", cmd.CommandPath(), args[1]).
					Then(cli.StepRetype, args[1], "--node="+args[1])
			}
			return cli.Takes(1, 1)(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Flags.Node == "" {
				return cli.Usage("for example", "%s needs the address of the node", cmd.CommandPath()).
					Then(cli.StepCommand, "lmosd context add "+terminal.Shell(args[0])+" --node http://127.0.0.1:4668")
			}
			return add(c, args[0], configs.Context{Node: c.Flags.Node, DataDir: c.Flags.DataDir, TokenFile: token})
		},
	}
	cmd.Flags().StringVar(&token, "token-file", "", "`FILE` with the access token for the node")
	return cmd
}

// validName are names that are neither a URL, a path, an address with a port, nor a flag.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func add(c *cli.Console, name string, added configs.Context) error {
	if !validName.MatchString(name) {
		return cli.Usage("use letters, digits, dot, hyphen and underscore, at most 64", "%q is no name for a context", name)
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	if added.Node, err = nodeaddr.Address(added.Node); err != nil {
		return err
	}
	for _, path := range []*string{&added.DataDir, &added.TokenFile} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil { // commands run in any folder
			return err
		}
	}
	if _, err := added.Token(name); err != nil {
		return err
	}
	text := "added " + name + " (" + added.Node + ")"
	if before, ok := s.Contexts.Contexts[name]; ok {
		text = "replaced " + name + " (" + added.Node + ", it was " + before.Node + ")"
	}
	s.Contexts.Contexts[name] = added
	if err := s.write(); err != nil {
		return err
	}
	return s.show(s.item(name), "", text, "lmosd context use "+name, "lmosd status --node "+name)
}

func newRm(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:     "rm <name>",
		Aliases: []string{"remove"},
		Short:   "remove a context",
		Long:    "Removes a context, and leaves its node and its token file as they are. If it is the current one, none is current then.",
		Example: `  lmosd context rm second
  lmosd context ls -o name | grep ^test- | xargs -rn1 lmosd context rm`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadWrite),
		Args:              cli.Takes(1, 1),
		ValidArgsFunction: completion(c, cobra.ShellCompDirectiveNoFileComp),
		RunE:              func(_ *cobra.Command, args []string) error { return remove(c, args[0]) },
	}
}

func remove(c *cli.Console, name string) error {
	s, err := open(c)
	if err != nil {
		return err
	}
	if _, err := s.find(name); err != nil {
		return err
	}
	text, removed := "removed "+name, s.item(name)
	if removed.Current {
		s.Current, removed.Current = "", false
		text += "; commands use the node of this host"
	}
	delete(s.Contexts.Contexts, name)
	if err := s.write(); err != nil {
		return err
	}
	return s.show(removed, "", text, "lmosd context ls")
}

// completion returns a function that completes the names of contexts. It ignores errors, which a shell cannot show.
func completion(c *cli.Console, directive cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := open(c)
		if err != nil || len(args) > 0 && directive == cobra.ShellCompDirectiveNoFileComp {
			return nil, directive
		}
		return cli.Each(s.names(), func(name string) string {
			return terminal.OneLine(name) + "\t" + terminal.OneLine(strings.TrimSpace(s.Contexts.Contexts[name].Node))
		}), directive
	}
}

// CompleteNode returns the function that completes the flag --node: names of contexts, else files.
func CompleteNode(c *cli.Console) cobra.CompletionFunc {
	return completion(c, cobra.ShellCompDirectiveDefault)
}
