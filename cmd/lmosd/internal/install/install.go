// Package install implements lmosd install: it adds lmosd mcp to the configuration of an MCP client, or removes it.
package install

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/mcpclients"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/td"
)

// An installer is one execution of the command.
type installer struct{ *cli.Console }

// installFlags select the entry and its file.
type installFlags struct {
	thing, file    string
	dryRun, remove bool
}

// NewCommand returns `lmosd install`.
func NewCommand(c *cli.Console) *cobra.Command {
	a := &installer{c}
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install <client>",
		Short: "add lmosd to the configuration of an MCP client",
		Long: "Adds lmosd to an MCP client, which then starts lmosd mcp and sees the mesh, or one agent, as an MCP server; restart\n" +
			"a running client. The rest of its file is not changed, and the old file is kept next to it, as .bak, or .bak.2 and\n" +
			"so on. The entry includes --node, --data-dir and --config, or their variables. Clients: " + strings.Join(mcpclients.Names(), ", ") + ".",
		Example: `  lmosd install claude
  lmosd install cursor --thing weather
  lmosd install zed --dry-run
  lmosd install claude --remove`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd mcp"),
		Args:        cli.Takes(1, 1),
		ValidArgs:   mcpclients.Names(),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := mcpclients.Find(args[0])
			if err != nil {
				return err
			}
			return a.install(client, f)
		},
	}
	cmd.Flags().StringVar(&f.thing, "thing", "", "only this `AGENT`, with its own names")
	cmd.Flags().StringVar(&f.file, "file", "", "the client's configuration, if it is another `FILE`")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show what would change, and write nothing")
	cmd.Flags().BoolVar(&f.remove, "remove", false, "remove the entry")
	return cmd
}

// An installation is what `lmosd install` did.
type installation struct {
	cli.Head
	Client  string `json:"client"`
	Server  string `json:"server"`
	File    string `json:"file"`
	Backup  string `json:"backup,omitempty"`
	Changed bool   `json:"changed"`
	DryRun  bool   `json:"dry_run,omitempty"`
	Diff    string `json:"diff,omitempty"`
}

// install writes the entry into the client's file, or removes it.
func (a *installer) install(c *mcpclients.Client, f installFlags) error {
	doc := installation{Head: cli.NewHead("Installation"), Client: c.Name, File: f.file, DryRun: f.dryRun}
	server, err := a.serverEntry(f.thing)
	if err != nil {
		return err
	}
	doc.Server = server.Name
	if doc.File == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return &interact.Error{Code: interact.Usage, Title: "the home folder is not known", Err: err, Hint: "name the file: --file FILE"}
		}
		doc.File = filepath.FromSlash(c.File(runtime.GOOS, filepath.ToSlash(home), a.Variable, func(file string) bool {
			_, err := os.Stat(filepath.FromSlash(file))
			return err == nil
		}))
	}
	doc.File = behind(doc.File)
	before, err := os.ReadFile(doc.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unwritable(doc.File, err)
	}
	var after []byte
	if f.remove {
		after, err = c.Remove(before, server.Name)
	} else {
		after, err = c.Add(before, server)
	}
	if err != nil {
		failed := *interact.AsError(err)
		failed.Title = doc.File + ": " + failed.Title
		return &failed
	}
	doc.Diff = mcpclients.Diff(doc.File, before, after)
	if doc.Changed = doc.Diff != ""; doc.Changed && !f.dryRun {
		if doc.Backup, err = replace(doc.File, before, after); err != nil {
			return unwritable(doc.File, err)
		}
	}
	return a.showInstallation(&doc, c.Title)
}

// behind returns the target of a link, also if it does not exist: the target is written, and the link is kept.
func behind(file string) string {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		return real
	}
	to, err := os.Readlink(file)
	switch {
	case err != nil:
		return file
	case filepath.IsAbs(to):
		return to
	}
	return filepath.Join(filepath.Dir(file), to)
}

// serverEntry returns the command with which the client starts this program.
func (a *installer) serverEntry(thing string) (s mcpclients.Server, err error) {
	if s.Command, err = os.Executable(); err != nil {
		return s, &interact.Error{Code: interact.Internal, Title: "this program does not know where it is", Err: err, Hint: "start it by its path"}
	}
	s.Name, s.Args = "lmosd", []string{"mcp"}
	if thing != "" {
		s.Name += "-" + td.Slug(thing)
		s.Args = append(s.Args, "--thing", thing)
	}
	for _, where := range []struct{ flag, given, variable string }{
		{"--config", a.Flags.Config, "LMOSD_CONFIG"}, {"--data-dir", a.Flags.DataDir, "LMOSD_DATA_DIR"}, {"--node", a.Flags.Node, "LMOSD_NODE"}} {
		word := cmp.Or(where.given, a.Variable(where.variable)) // the client has another environment
		if word == "" {
			continue
		}
		if where.flag != "--node" {
			if word, err = filepath.Abs(word); err != nil {
				return s, cli.Usage("name it from the root", "%s cannot be found", cmp.Or(where.given, where.variable))
			}
		}
		s.Args = append(s.Args, where.flag, word)
	}
	return s, nil
}

// replace writes a file atomically, and keeps a backup next to it.
func replace(file string, before, after []byte) (backup string, err error) {
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
		if backup, err = keep(file, before, mode); err != nil {
			return "", err
		}
	} else if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return backup, atomicfile.Write(file, after, mode)
}

// maxBackups limits the backups of one file.
const maxBackups = 1000

// keep writes the old content of a file to the first of .bak, .bak.2, .bak.3 and so on that is free or has the same content, and returns
// its name: a backup never replaces a different one.
func keep(file string, content []byte, mode fs.FileMode) (string, error) {
	for n := 1; n <= maxBackups; n++ {
		backup := file + ".bak"
		if n > 1 {
			backup += "." + strconv.Itoa(n)
		}
		switch err := create(backup, content, mode); {
		case err == nil:
			return backup, nil
		case !errors.Is(err, fs.ErrExist):
			return "", err
		}
		if kept, err := os.ReadFile(backup); err == nil && bytes.Equal(kept, content) {
			return backup, nil
		}
	}
	return "", fmt.Errorf("there are already %s next to it", terminal.Count(maxBackups, "backup", "backups"))
}

// create writes a new file. The error is [fs.ErrExist] if it exists.
func create(file string, content []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil { // the umask applied to the mode
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

func unwritable(file string, err error) error {
	return &interact.Error{Code: interact.Usage, Title: "the configuration " + file + " cannot be read or written", Err: cli.Reason(err),
		Hint: "is it the client's? --file FILE names another"}
}

// showInstallation prints the result.
func (a *installer) showInstallation(doc *installation, title string) error {
	err := a.Show(cli.View{Doc: doc, Names: []string{doc.File}, People: func(s *terminal.Screen, _ bool) {
		switch {
		case !doc.Changed:
			s.Line(title + ": nothing to change in " + doc.File)
		case doc.DryRun:
			s.Line(strings.TrimSuffix(doc.Diff, "\n"))
		default:
			s.Line(strings.TrimSuffix(doc.Diff, "\n"))
			s.Line(title + ": wrote " + doc.File)
			if doc.Backup != "" {
				s.Line("as it was: " + doc.Backup)
			}
		}
	}})
	if err == nil && doc.Changed && !doc.DryRun {
		a.Next("lmosd status   # is a node running? " + title + " must be restarted")
	}
	return err
}
