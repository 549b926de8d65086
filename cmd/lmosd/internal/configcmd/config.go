package configcmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
)

// NewConfigCommand returns `lmosd config`. The command edit prompts by confirm.
func NewConfigCommand(c *cli.Console, confirm Confirmer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show, change, check and describe the configuration",
		Long: "Shows, changes, checks and describes the configuration of `lmosd run`: the values that a start would use now.\n" +
			"Only reload and running use a node.",
		Example: `  lmosd config show --origin
  lmosd config set telemetry.log.level debug
  lmosd config describe > lmosd.yaml
  lmosd config validate lmosd.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd help config"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigShowCommand(c), newConfigGetCommand(c), newConfigSetCommand(c), newConfigEditCommand(c, confirm), newConfigValidateCommand(c), newConfigMigrateCommand(c),
		newConfigDescribeCommand(c), newConfigSchemaCommand(c))
	return cmd
}

func newConfigShowCommand(c *cli.Console) *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "print the effective configuration",
		Long:  "Prints every key with the value that a start would use. The keys are flags, as in `lmosd run`.",
		Example: `  lmosd config show
  lmosd config show --origin --profile lean`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := load(c, cmd)
			if err != nil {
				return err
			}
			return showConfig(c, conf, origin)
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "print the source of each value")
	AddKeyFlags(cmd)
	hideKeyFlags(cmd)
	return cmd
}

// A configDocument is the document of `lmosd config show`.
type configDocument struct {
	cli.Head
	Config  *configs.Config   `json:"config"`
	Origins map[string]string `json:"origins"`
}

func showConfig(c *cli.Console, conf *configs.Config, origin bool) error {
	doc := configDocument{cli.NewHead("Config"), conf, map[string]string{}}
	for _, name := range keyNames() {
		doc.Origins[name] = conf.Origin(name)
	}
	return c.Show(cli.View{Doc: doc, Names: keyNames(), People: func(s *terminal.Screen, _ bool) { s.Print(string(conf.YAML(origin))) }})
}

func newConfigGetCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get <key>",
		Short: "print one value",
		Long:  "Prints the value of one key, a list with one element per line. For a section, prints all keys below it.",
		Example: `  lmosd config get http.listen
  lmosd config get mesh.bootstrap`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(1, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return keyNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := load(c, cmd)
			if err != nil {
				return err
			}
			return showKey(c, conf, args[0])
		},
	}
	return cmd
}

func showKey(c *cli.Console, conf *configs.Config, key string) error {
	value, ok := conf.Get(key)
	if !ok {
		return showSection(c, conf, key)
	}
	doc := struct {
		cli.Head
		Key    string `json:"key"`
		Value  string `json:"value"`
		Origin string `json:"origin"`
	}{cli.NewHead("ConfigValue"), key, value, conf.Origin(key)}
	return c.Show(cli.View{Doc: doc, Names: []string{key}, People: func(s *terminal.Screen, _ bool) {
		if value != "" {
			s.Print(value + "\n")
		}
	}})
}

// showSection prints the keys of a section.
func showSection(c *cli.Console, conf *configs.Config, section string) error {
	all, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	values, ok := partOf(all, section)
	if !ok {
		return cli.Similar(interact.Errorf(interact.ConfigUnknown, "", "no key is called %q", section), section, keyNames(), "lmosd config describe")
	}
	doc := struct {
		cli.Head
		Key    string          `json:"key"`
		Values json.RawMessage `json:"values"`
	}{cli.NewHead("ConfigSection"), section, values}
	text, err := configs.MarshalYAML(values)
	if err != nil {
		return err
	}
	return c.Show(cli.View{Doc: doc, Names: []string{section}, People: func(s *terminal.Screen, _ bool) { s.Print(string(text)) }})
}

// partOf returns the member of a JSON object at a path of names with dots.
func partOf(object json.RawMessage, path string) (json.RawMessage, bool) {
	for name := range strings.SplitSeq(path, ".") {
		var members map[string]json.RawMessage
		if json.Unmarshal(object, &members) != nil || members[name] == nil {
			return nil, false
		}
		object = members[name]
	}
	return object, true
}

func keyNames() []string {
	return cli.Each(configs.Keys(), func(k configs.Key) string { return k.Name })
}

func newConfigValidateCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "validate [file]",
		Short: "check a configuration",
		Long: "Checks a file together with the environment and the flags. Without a file, checks the one that a start would read.\n" +
			"Every problem is printed with its place. The exit code is then 2.",
		Example: `  lmosd config validate
  lmosd config validate lmosd.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.Flags.Config = args[0]
			}
			return validateConfig(c, cmd)
		},
	}
}

func validateConfig(c *cli.Console, cmd *cobra.Command) error {
	_, err := load(c, cmd)
	if err != nil {
		var all *configs.Error
		if errors.As(err, &all) && len(all.Problems) > 1 && c.ForPeople() {
			showProblems(c, all.Problems)
			return cli.SilentError(cli.ExitOf(all.Problems[0].Code))
		}
		return err // the problem is its text
	}
	file := File(c)
	doc := struct {
		cli.Head
		File  string `json:"file,omitempty"`
		Valid bool   `json:"valid"`
	}{cli.NewHead("ConfigVerdict"), file, true}
	return c.Show(cli.View{Doc: doc, Names: []string{file}, People: func(s *terminal.Screen, _ bool) {
		file = cmp.Or(file, "no file, the defaults")
		s.Line(s.Paint(terminal.Green, "valid") + " " + terminal.OneLine(file))
	}})
}

// showProblems prints problems in the order of the file.
func showProblems(c *cli.Console, list []configs.Problem) {
	for _, p := range list {
		c.Talk.Line(terminal.OneLine(fmt.Sprintf("%s: %s", p.Where, p.Reason)) + "  " + c.Talk.Paint(terminal.Dim, p.Code.String()))
		if p.Source != "" {
			c.Talk.Line(terminal.Printable(p.Source))
		}
		c.Talk.Line("  hint   " + terminal.OneLine(c.Advice(p.Hint, p.Next, false)))
	}
}

func newConfigDescribeCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "describe",
		Short: "print a file with every key, its default and its meaning",
		Long: "Prints a configuration file with every key at its default. The comment above a key explains it, and what a\n" +
			"higher or lower value does.",
		Example: `  lmosd config describe
  lmosd config describe > ~/.config/lmosd/lmosd.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly),
		Args:        cli.Takes(0, 0),
		RunE:        func(*cobra.Command, []string) error { return describeConfig(c) },
	}
}

func describeConfig(c *cli.Console) error {
	type key struct {
		Name    string   `json:"name"`
		Type    string   `json:"type"`
		Default string   `json:"default"`
		Env     string   `json:"env"`
		Doc     string   `json:"doc"`
		Values  []string `json:"values,omitempty"`
	}
	doc := cli.List[key]{Head: cli.NewHead("ConfigKeyList")}
	for _, k := range configs.Keys() {
		doc.Items = append(doc.Items, key{k.Name, k.Type, strings.Trim(k.Default, `"`), k.Env(), k.Doc, k.Values})
	}
	return c.Show(cli.View{Doc: doc, Names: keyNames(), People: func(s *terminal.Screen, _ bool) { s.Print(string(configs.Describe())) }})
}
