package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lmosd/lmosd/configs"
)

// config returns the configuration with the flags of cmd that are keys; a nil cmd has none.
func (a *app) config(cmd *cobra.Command) (*configs.Config, error) {
	flags := map[string][]string{}
	if cmd != nil {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if v, ok := f.Value.(*keyFlag); ok {
				flags[v.key.Name] = v.given
			}
		})
	}
	if a.flags.dataDir != "" {
		flags["node.data_dir"] = []string{a.flags.dataDir}
	}
	file := a.flags.config
	if file == "" {
		file = configs.File(a.env)
	}
	c, err := configs.Load(configs.LoadOptions{File: file, Env: a.env, Flags: flags})
	if err != nil {
		return nil, err
	}
	// What the node says about itself, and where others look for its socket, must not depend on where they stand.
	if c.Node.DataDir, err = filepath.Abs(c.Node.DataDir); err != nil {
		return nil, err
	}
	return c, checkAgents(c)
}

// addKeyFlags gives cmd a flag for each key of the configuration; [app.config] reads them.
func addKeyFlags(cmd *cobra.Command) {
	for _, k := range configs.Keys() {
		if k.Name == "apiVersion" || k.Name == "node.data_dir" {
			continue // the first has one value, the second is --data-dir
		}
		summary, _, _ := strings.Cut(k.Doc, ". ")
		f := cmd.Flags().VarPF(&keyFlag{key: k}, k.Name, "", strings.TrimSuffix(summary, "."))
		f.DefValue = strings.TrimPrefix(strings.Trim(k.Default, `"`), "[]")
		if k.Type == "bool" {
			f.NoOptDefVal = "true"
		}
	}
}

// A keyFlag collects what was given for one key; configs reads and checks it.
type keyFlag struct {
	key   configs.Key
	given []string
}

// Set implements [pflag.Value]: a list grows, anything else is replaced.
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

// hideKeyFlags leaves the keys out of the help of a command that takes them by the way.
func hideKeyFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Value.(*keyFlag); ok {
			f.Hidden = true
		}
	})
}
