package configcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/policy/access"
)

func newConfigSetCommand(c *cli.Console) *cobra.Command {
	var unset bool
	cmd := &cobra.Command{
		Use:   "set <key> [value…]",
		Short: "change one value in the configuration file",
		Long: "Writes the value of one key to the configuration file, or with --unset removes the key. Comments, order and all other\n" +
			"lines stay. The result is checked before it is written. A list has one argument for each element.",
		Example: `  lmosd config set http.hosts node.example
  lmosd config set telemetry.log.level debug
  lmosd config set http.hosts --unset`,
		Annotations:       cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd config get, lmosd config reload"),
		Args:              cli.Takes(1, -1),
		ValidArgsFunction: completeKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if unset == (len(args) > 1) {
				return cli.Usage("lmosd config set "+args[0]+" VALUE, or lmosd config set "+args[0]+" --unset", "expected a value, or --unset")
			}
			return setKey(c, args[0], args[1:], unset)
		},
	}
	cmd.Flags().BoolVar(&unset, "unset", false, "remove the key: its default applies")
	return cmd
}

// completeKey completes keys, and the values of keys with a fixed set.
func completeKey(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return keyNames(), cobra.ShellCompDirectiveNoFileComp
	}
	for _, k := range configs.Keys() {
		if k.Name == args[0] && k.Type == "bool" {
			return []string{"true", "false"}, cobra.ShellCompDirectiveNoFileComp
		} else if k.Name == args[0] && k.Values != nil {
			return k.Values, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// A target is the file that a command changes.
type target struct {
	path   string // links resolved
	before []byte // empty for a new file
	c      *cli.Console
}

// openTarget reads the file with an absolute path; empty is the default file, which may be missing.
func openTarget(c *cli.Console, path string) (*target, error) {
	if path = cmp.Or(path, configs.UserFile(c.Env)); !filepath.IsAbs(path) {
		if path == configs.UserFile(c.Env) {
			return nil, cli.Usage("set HOME, or name the file: lmosd config set -c FILE", "there is no home folder for the configuration file")
		}
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays
	}
	t := &target{path: path, c: c}
	source, err := os.ReadFile(path)
	switch {
	case err == nil:
		t.before = source
	case !errors.Is(err, fs.ErrNotExist):
		return nil, FileError(path, "read", err)
	}
	return t, nil
}

// FileError returns the error of a configuration file that cannot be read or written, as the verb says: "read" or "write".
func FileError(path, verb string, err error) error {
	if errors.Is(err, atomicfile.ErrChanged) {
		return &interact.Error{Code: interact.ConfigFile, Title: "the file " + path + " was changed by another program meanwhile, and is not overwritten",
			Hint: "repeat the command: it begins with the file as it is now"}
	}
	hint := "see the permissions of the file and its folder"
	if errors.Is(err, fs.ErrPermission) {
		hint = "run the command as the owner of the file and its folder"
	}
	return &interact.Error{Code: interact.ConfigFile, Title: "the file " + path + " cannot be " + map[string]string{"read": "read", "write": "written"}[verb],
		Err: cli.Reason(err), Hint: hint}
}

// check loads the configuration with another content of the file.
func (t *target) check(next []byte) (*configs.Config, error) {
	file := t.path
	if main, err := filepath.Abs(File(t.c)); err == nil && File(t.c) != "" {
		if file = main; sameFile(main, t.path) {
			file = t.path
		}
	}
	flags := map[string][]string{}
	if t.c.Flags.DataDir != "" {
		flags["node.data_dir"] = []string{t.c.Flags.DataDir}
	}
	conf, err := configs.Load(configs.LoadOptions{File: file, Env: t.c.Env, Flags: flags, Texts: map[string][]byte{t.path: next}})
	if err != nil {
		return nil, err
	}
	return conf, checkAgents(conf)
}

// sameFile reports whether two absolute paths are of one file.
func sameFile(a, b string) bool {
	real, err := filepath.EvalSymlinks(a)
	return a == b || err == nil && real == b
}

// write replaces the file, unless another program has changed it since it was read. Its mode and its owner stay.
func (t *target) write(next []byte) error {
	mode := fs.FileMode(0o600)
	info, err := os.Stat(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(t.path), 0o700)
	case err == nil:
		mode, err = info.Mode().Perm(), mayReplace(info)
	}
	if err == nil {
		err = atomicfile.Swap(t.path, t.before, next, mode)
	}
	if err == nil && info != nil {
		err = keepOwner(t.path, info)
	}
	if err != nil {
		return FileError(t.path, "write", err)
	}
	return nil
}

// A change is the document of lmosd config set, edit and migrate.
type change struct {
	cli.Head
	File    string   `json:"file"`
	Key     string   `json:"key,omitempty"`
	Changed []string `json:"changed"`            // the lines, after "-" or "+"
	Reload  []string `json:"reload"`             // keys that a running node applies
	Restart []string `json:"restart"`            // keys that need a restart
	Backup  string   `json:"backup,omitempty"`   // the file before
	Rules   []string `json:"rules,omitempty"`    // access rules that were added
	By      string   `json:"override,omitempty"` // what overrides the key
}

// show prints a change and what puts it in force.
func (c *change) show(console *cli.Console) error {
	err := console.Show(cli.View{Doc: c, Names: []string{c.File}, People: func(s *terminal.Screen, _ bool) {
		for _, row := range c.Changed {
			color := terminal.Green
			if row[0] == '-' {
				color = terminal.Red
			}
			s.Line(s.Paint(color, terminal.Printable(row)))
		}
		if len(c.Changed) == 0 {
			s.Line("no change in " + terminal.OneLine(c.File))
		}
	}})
	if err != nil || !console.ForPeople() {
		return err
	}
	switch {
	case c.By != "":
		console.Warn(c.Key + " has another value: " + c.By + " overrides the file")
	case len(c.Restart) > 0:
		console.Talk.Line("in force after a restart of the node: " + strings.Join(c.Restart, ", "))
	}
	if len(c.Reload) > 0 && c.By == "" {
		console.Next("lmosd config reload")
	}
	return nil
}

// differences sets the keys whose values differ.
func (c *change) differences(before, after *configs.Config) {
	c.Reload, c.Restart = []string{}, []string{}
	if before == nil || after == nil {
		return
	}
	live, restart := configs.NewRunning(before).Changes(after)
	c.Reload, c.Restart = append(c.Reload, live...), append(c.Restart, restart...)
}

func setKey(c *cli.Console, key string, values []string, unset bool) error {
	t, err := openTarget(c, File(c))
	if err != nil {
		return err
	}
	before, err := t.check(t.before)
	if err == nil {
		// A fragment that has the key overrides the file.
		if place, _, found := strings.Cut(before.Origin(key), ".yaml:"); found && place+".yaml" != t.path && filepath.Base(filepath.Dir(place)) == "conf.d" {
			if t, err = openTarget(c, place+".yaml"); err != nil {
				return err
			}
		}
	}
	source := t.before
	if len(source) == 0 && !unset {
		source = configs.NewFile()
	}
	next, err := configs.Edit(t.path, source, key, values, unset)
	if err != nil {
		return err
	}
	after, err := t.check(next)
	if err != nil {
		return err
	}
	done := &change{Head: cli.NewHead("ConfigChange"), File: t.path, Key: key, Changed: append([]string{}, configs.Diff(t.before, next)...)}
	if before == nil { // the change corrects it
		before = configs.Default()
	}
	if done.differences(before, after); !bytes.Equal(t.before, next) {
		if err := t.write(next); err != nil {
			return err
		}
	}
	if origin := after.Origin(key); !unset && !strings.HasPrefix(origin, t.path) {
		done.By = origin
	}
	return done.show(c)
}

func newConfigSchemaCommand(c *cli.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "print the JSON Schema of the configuration file",
		Long: "Prints the JSON Schema (2020-12) of the configuration file, for editors and programs. x-reloadable marks the keys that\n" +
			"a running node applies. Editors with a YAML language server find it beside a file with the first line\n" +
			"# yaml-language-server: $schema=" + configs.SchemaFile,
		Example: `  lmosd config schema > ~/.config/lmosd/` + configs.SchemaFile + `
  lmosd config schema --jq .properties.http.properties.listen.default`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd config describe"),
		Args:        cli.Takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return c.Show(cli.View{Doc: rawDocument(configs.Schema()), Names: []string{configs.SchemaID},
				People: func(s *terminal.Screen, _ bool) { s.Print(string(configs.Schema())) }})
		},
	}
}

// A rawDocument is JSON of another kind than the documents of lmosd.
type rawDocument []byte

// MarshalJSON implements [json.Marshaler].
func (d rawDocument) MarshalJSON() ([]byte, error) { return d, nil }

// A Confirmer prompts for yes or no.
type Confirmer func(ctx context.Context, c *cli.Console, question string) (bool, error)

func newConfigEditCommand(c *cli.Console, confirm Confirmer) *cobra.Command {
	return &cobra.Command{
		Use:   "edit",
		Short: "change the configuration file in an editor",
		Long: "Opens a copy of the configuration file in $VISUAL or $EDITOR, and checks it when the editor ends. A file with an error\n" +
			"is opened again, or kept as the copy: the configuration file never has one.",
		Example: `  lmosd config edit
  EDITOR=nano lmosd config edit -c lmosd.yaml`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd config set, lmosd config validate"),
		Args:        cli.Takes(0, 0),
		RunE:        func(cmd *cobra.Command, _ []string) error { return editFile(cmd.Context(), c, confirm) },
	}
}

func editFile(ctx context.Context, c *cli.Console, confirm Confirmer) error {
	editor := cmp.Or(c.Variable("VISUAL"), c.Variable("EDITOR"))
	if editor == "" {
		return cli.Usage("EDITOR=vi lmosd config edit, or lmosd config set KEY VALUE", "neither VISUAL nor EDITOR names an editor")
	}
	t, err := openTarget(c, File(c))
	if err != nil {
		return err
	}
	before, _ := t.check(t.before) // a file with an error may be corrected
	source := t.before
	if len(source) == 0 {
		source = configs.Describe()
	}
	dir, err := os.MkdirTemp("", "lmosd-config-")
	if err != nil {
		return err
	}
	copied := filepath.Join(dir, filepath.Base(t.path))
	if err := os.WriteFile(copied, source, 0o600); err != nil {
		return err
	}
	for {
		next, err := edited(ctx, c, editor, copied)
		if err != nil {
			return kept(err, copied)
		}
		if bytes.Equal(next, source) {
			_ = os.RemoveAll(dir) // only the copy is lost
			done := &change{Head: cli.NewHead("ConfigChange"), File: t.path, Changed: []string{}}
			done.differences(nil, nil)
			return done.show(c)
		}
		after, err := t.check(next)
		if err == nil {
			if err := t.write(next); err != nil {
				return kept(err, copied)
			}
			_ = os.RemoveAll(dir) // only the copy is lost
			done := &change{Head: cli.NewHead("ConfigChange"), File: t.path, Changed: append([]string{}, configs.Diff(t.before, next)...)}
			done.differences(before, after)
			return done.show(c)
		}
		if !c.Interactive() {
			return kept(err, copied)
		}
		var all *configs.Error
		if errors.As(err, &all) {
			showProblems(c, all.Problems)
		} else {
			c.Talk.Line(terminal.OneLine(err.Error()))
		}
		if again, e := confirm(ctx, c, "edit it again?"); e != nil || !again {
			return kept(errors.Join(err, e), copied)
		}
	}
}

// edited runs the editor and returns the file.
func edited(ctx context.Context, c *cli.Console, editor, file string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", file) // as git does: the variable may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = c.Stdin, os.Stderr, os.Stderr, c.Env
	if err := cmd.Run(); err != nil {
		return nil, cli.Usage("set VISUAL or EDITOR to an editor that runs here", "the editor %q failed: %v", editor, err)
	}
	return os.ReadFile(file)
}

// kept returns err with the place of the copy.
func kept(err error, copied string) error {
	e := *interact.AsError(err)
	e.Hint = cmp.Or(e.Hint, "correct it") + "; the edited copy is " + copied
	return &e
}

func newConfigMigrateCommand(c *cli.Console) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "replace keys of earlier versions in the configuration file",
		Long: "Replaces the keys that this version does not have any more by what they are now: other keys, or access rules in the\n" +
			"file of trust.policy_file. Comments stay. The file before is kept beside it, with the time in its name.",
		Example: `  lmosd config migrate --check
  lmosd config migrate`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd config validate"),
		Args:        cli.Takes(0, 0),
		RunE:        func(*cobra.Command, []string) error { return migrate(c, check) },
	}
	cmd.Flags().BoolVar(&check, "check", false, "only report what is to do; exit with 1 if there is something")
	return cmd
}

func migrate(c *cli.Console, check bool) error {
	t, err := openTarget(c, File(c))
	if err != nil {
		return err
	}
	m, err := configs.Migrate(t.path, t.before)
	if err != nil {
		return err
	}
	after, err := t.check(m.Text)
	if err != nil {
		return err
	}
	done := &change{Head: cli.NewHead("ConfigChange"), File: t.path, Changed: append([]string{}, configs.Diff(t.before, m.Text)...)}
	done.differences(nil, nil)
	done.Rules = cli.Each(m.Rules, access.Rule.Text)
	if len(m.Rules) > 0 && !check && !after.Explicit("node.data_dir") && t.path != configs.UserFile(c.Env) && c.Flags.Config == "" {
		return cli.Usage("lmosd config migrate --data-dir /var/lib/lmosd", "the keys of %s become access rules in the data folder of its node, which the file does not name", t.path)
	}
	if len(m.Keys) > 0 && !check {
		done.Backup = t.path + "." + time.Now().UTC().Format("20060102T150405Z") + ".bak"
		if err := atomicfile.Write(done.Backup, t.before, 0o600); err != nil {
			return FileError(done.Backup, "write", err)
		}
		// The rules come first: they may only restrict callers, as the keys do.
		if err := addRules(c, after, m.Rules); err != nil {
			return err
		}
		if err := t.write(m.Text); err != nil {
			return err
		}
	}
	if err := done.show(c); err != nil {
		return err
	}
	if c.ForPeople() {
		for _, rule := range done.Rules {
			c.Talk.Line("access rule in " + terminal.OneLine(after.PolicyFile()) + ": " + terminal.OneLine(rule))
		}
		if done.Backup != "" {
			c.Talk.Line("the file before: " + terminal.OneLine(done.Backup))
		}
	}
	if check && len(m.Keys) > 0 {
		c.Next("lmosd config migrate")
		return cli.SilentError(cli.ExitInternal)
	}
	return nil
}

// addRules appends access rules to their file, unless it has them. A new file has the owner of its folder: a node that is a service of another user reads it.
func addRules(c *cli.Console, conf *configs.Config, rules []access.Rule) error {
	if len(rules) == 0 {
		return nil
	}
	file := conf.PolicyFile()
	t, err := openTarget(c, file)
	if err != nil {
		return err
	}
	text := t.before
	for _, rule := range rules {
		if slices.Contains(strings.Split(string(text), "\n"), "  - "+rule.Text()) {
			continue
		}
		if text, err = access.Append(filepath.Base(file), text, rule); err != nil {
			return &interact.Error{Code: interact.PolicyInvalid, Title: fmt.Sprintf("the access rules in %s cannot be changed", file), Err: err, Hint: "correct the file"}
		}
	}
	if err := t.write(text); err != nil || len(t.before) > 0 {
		return err
	}
	folder, err := os.Stat(filepath.Dir(t.path))
	if err == nil {
		err = keepOwner(t.path, folder)
	}
	if err != nil {
		return FileError(file, "write", err)
	}
	return nil
}
