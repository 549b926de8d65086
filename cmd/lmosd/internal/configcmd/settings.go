package configcmd

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
)

// Load returns the configuration with the key flags of cmd; a nil cmd has none. The error is a [*configs.Error], or an [*interact.Error]
// about an agent in it, or about a data folder that is not known.
func Load(c *cli.Console, cmd *cobra.Command) (*configs.Config, error) {
	conf, err := load(c, cmd)
	if err == nil && conf.Node.DataDir == "" {
		return nil, cli.Usage("set HOME, or name the folder: --data-dir DIR", "the data folder is not known: none of HOME, XDG_DATA_HOME and LMOSD_DATA_DIR is set")
	}
	return conf, err
}

// load is [Load] for commands that need no data folder: its path may be empty.
func load(c *cli.Console, cmd *cobra.Command) (*configs.Config, error) {
	flags := map[string][]string{}
	if cmd != nil {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if v, ok := f.Value.(*keyFlag); ok {
				flags[v.key.Name] = v.given
			}
		})
	}
	if c.Flags.DataDir != "" {
		flags["node.data_dir"] = []string{c.Flags.DataDir}
	}
	conf, err := configs.Load(configs.LoadOptions{File: File(c), Env: c.Env, Flags: flags})
	if err != nil {
		return nil, err
	}
	// The paths of the node and its socket must not depend on the working directory.
	if dir := conf.Node.DataDir; dir != "" {
		if conf.Node.DataDir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
	}
	return conf, checkAgents(conf)
}

// File returns the configuration file: that of the flag, or the default one; empty without one.
func File(c *cli.Console) string {
	if c.Flags.Config != "" {
		return c.Flags.Config
	}
	return configs.File(c.Env)
}

// AddKeyFlags adds a flag for each configuration key; [Load] reads them.
func AddKeyFlags(cmd *cobra.Command) {
	for _, k := range configs.Keys() {
		if k.Name == "apiVersion" || k.Name == "node.data_dir" {
			continue // the first has one value, the second is --data-dir
		}
		summary, _, _ := strings.Cut(k.Doc, ". ")
		f := cmd.Flags().VarPF(&keyFlag{key: k}, k.Name, "", strings.TrimSuffix(summary, "."))
		f.Annotations = map[string][]string{cli.KeyFlag: nil}
		f.DefValue = strings.TrimPrefix(strings.Trim(k.Default, `"`), "[]")
		if k.Type == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// AddHiddenKeyFlags is AddKeyFlags for a command that runs the node of lmosd run, whose help has the flags.
func AddHiddenKeyFlags(cmd *cobra.Command) {
	AddKeyFlags(cmd)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
}

// A keyFlag collects the values of one key; configs parses and checks them.
type keyFlag struct {
	key   configs.Key
	given []string
}

// Set implements [pflag.Value]: it appends to a list, and replaces other values.
func (f *keyFlag) Set(value string) error {
	if !f.key.List() {
		f.given = nil
	}
	f.given = append(f.given, value)
	return nil
}

// Type implements [pflag.Value].
func (f *keyFlag) Type() string { return f.key.Type }

// String implements [pflag.Value].
func (f *keyFlag) String() string { return strings.Join(f.given, ",") }

// hideKeyFlags hides the keys in the help of a command.
func hideKeyFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Value.(*keyFlag); ok {
			f.Hidden = true
		}
	})
}

// checkAgents checks the lines of the key agents.
func checkAgents(c *configs.Config) error {
	for i, line := range c.Agents {
		if _, err := expose.ParseLine(line); err != nil {
			return WrongAgent(c, i, err)
		}
	}
	return nil
}

// WrongAgent returns err as an error of the line i of the key agents of c.
func WrongAgent(c *configs.Config, i int, err error) error {
	e := *interact.AsError(err)
	e.Code, e.Title = interact.ConfigInvalid, fmt.Sprintf("agents[%d] (%s): %s", i, c.Origin("agents"), cmp.Or(e.Title, e.Error()))
	return &e
}
