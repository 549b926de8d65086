package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
)

func newConfigCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "show, check and describe the configuration",
		Long:  "Shows, checks and describes the configuration of `lmosd run`. No node is asked: it is what a start now would use.",
		Example: `  lmosd config show --origin
  lmosd config describe > lmosd.yaml
  lmosd config validate lmosd.yaml`,
		Annotations: map[string]string{"scope": scopeLocal, "impact": readOnly, "see": "lmosd help config"},
		Args:        subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigShowCommand(a), newConfigGetCommand(a), newConfigValidateCommand(a), newConfigDescribeCommand(a))
	return cmd
}

func newConfigShowCommand(a *app) *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "print the configuration that holds",
		Long:  "Prints every key with the value that a start would use. It takes the keys as flags, as `lmosd run` does.",
		Example: `  lmosd config show
  lmosd config show --origin --profile lean`,
		Annotations: about(scopeLocal, readOnly),
		Args:        takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			return a.showConfig(c, origin)
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "say behind each value where it was written")
	addKeyFlags(cmd)
	hideKeyFlags(cmd)
	return cmd
}

// A configDocument is the document of `lmosd config show`.
type configDocument struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"` // Config
	Config     *configs.Config   `json:"config"`
	Origins    map[string]string `json:"origins"`
}

func (a *app) showConfig(c *configs.Config, origin bool) error {
	doc := configDocument{gateway.APIVersion, "Config", c, map[string]string{}}
	v := view{people: func(s *screen, _ bool) { s.text(string(c.YAML(origin))) }}
	for _, k := range configs.Keys() {
		doc.Origins[k.Name] = c.Origin(k.Name)
		v.names = append(v.names, k.Name)
	}
	v.doc = doc
	return a.show(v)
}

func newConfigGetCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get <key>",
		Short: "print one value",
		Long:  "Prints the value of one key as it is, a list with one element on a line. Of a section, all keys below it.",
		Example: `  lmosd config get http.listen
  lmosd config get mesh.bootstrap`,
		Annotations: about(scopeLocal, readOnly),
		Args:        takes(1, 1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return keyNames(), noFiles
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			return a.showKey(c, args[0])
		},
	}
	return cmd
}

func (a *app) showKey(c *configs.Config, key string) error {
	value, ok := c.Get(key)
	if !ok {
		return a.showSection(c, key)
	}
	doc := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"` // ConfigValue
		Key        string `json:"key"`
		Value      string `json:"value"`
		Origin     string `json:"origin"`
	}{gateway.APIVersion, "ConfigValue", key, value, c.Origin(key)}
	return a.show(view{doc: doc, names: []string{key}, people: func(s *screen, _ bool) {
		if value != "" {
			s.text(value + "\n")
		}
	}})
}

// showSection prints the keys below a section, or says that there is none of that name.
func (a *app) showSection(c *configs.Config, section string) error {
	all, err := json.Marshal(c)
	if err != nil {
		return err
	}
	values, ok := partOf(all, section)
	if !ok {
		return interact.Errorf(interact.ConfigUnknown, hintFor(section, keyNames(), "lmosd config describe shows every key"),
			"no key is called %q", section)
	}
	doc := struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"` // ConfigSection
		Key        string          `json:"key"`
		Values     json.RawMessage `json:"values"`
	}{gateway.APIVersion, "ConfigSection", section, values}
	text, err := configs.MarshalYAML(values)
	if err != nil {
		return err
	}
	return a.show(view{doc: doc, names: []string{section}, people: func(s *screen, _ bool) { s.text(string(text)) }})
}

// partOf returns the member of a JSON object that a path of names with dots leads to.
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
	var names []string
	for _, k := range configs.Keys() {
		names = append(names, k.Name)
	}
	return names
}

func newConfigValidateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "validate [file]",
		Short: "check a configuration",
		Long: "Checks a file with the environment and flags over it, without a file the one that a start would read.\n" +
			"Every problem is printed with its place. Exit code 2 if there is one.",
		Example: `  lmosd config validate
  lmosd config validate lmosd.yaml`,
		Annotations: about(scopeLocal, readOnly),
		Args:        takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.flags.config = args[0]
			}
			return a.validateConfig(cmd)
		},
	}
}

func (a *app) validateConfig(cmd *cobra.Command) error {
	_, err := a.config(cmd)
	if err != nil {
		var all *configs.Error
		if errors.As(err, &all) && a.forPeople() {
			a.showProblems(all.Problems[1:])
		}
		return err
	}
	file := a.flags.config
	if file == "" {
		file = configs.File(a.env)
	}
	doc := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"` // ConfigVerdict
		File       string `json:"file,omitempty"`
		Valid      bool   `json:"valid"`
	}{gateway.APIVersion, "ConfigVerdict", file, true}
	return a.show(view{doc: doc, names: []string{file}, people: func(s *screen, _ bool) {
		if file == "" {
			file = "no file, the defaults"
		}
		s.line(s.paint(green, "valid") + " " + oneLine(file))
	}})
}

// showProblems prints the problems behind the first, which ends the command.
func (a *app) showProblems(list []configs.Problem) {
	for _, p := range list {
		a.talk.line(oneLine(fmt.Sprintf("%s: %s", p.Where, p.Reason)) + "  " + a.talk.paint(dim, p.Code.String()))
		if p.Source != "" {
			a.talk.line(printable(p.Source))
		}
		a.talk.line("  hint   " + oneLine(p.Hint))
	}
}

func newConfigDescribeCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "describe",
		Short: "print a file with every key, its default and its meaning",
		Long: "Prints a configuration file that has every key at its default, and above each what it means and what raising or\n" +
			"lowering it does.",
		Example: `  lmosd config describe
  lmosd config describe > ~/.config/lmosd/lmosd.yaml`,
		Annotations: about(scopeLocal, readOnly),
		Args:        takes(0, 0),
		RunE:        func(*cobra.Command, []string) error { return a.describeConfig() },
	}
}

func (a *app) describeConfig() error {
	type key struct {
		Name    string   `json:"name"`
		Type    string   `json:"type"`
		Default string   `json:"default"`
		Env     string   `json:"env"`
		Doc     string   `json:"doc"`
		Values  []string `json:"values,omitempty"`
	}
	doc := struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"` // ConfigKeyList
		Items      []key  `json:"items"`
	}{APIVersion: gateway.APIVersion, Kind: "ConfigKeyList"}
	for _, k := range configs.Keys() {
		doc.Items = append(doc.Items, key{k.Name, k.Type, strings.Trim(k.Default, `"`), k.Env(), k.Doc, k.Values})
	}
	return a.show(view{doc: doc, names: keyNames(), people: func(s *screen, _ bool) { s.text(string(configs.Describe())) }})
}
