package service

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/configcmd"
	"github.com/lmosd/lmosd/cmd/lmosd/internal/terminal"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/atomicfile"
	"github.com/lmosd/lmosd/internal/storage"
)

// NewCommand returns lmosd service.
func NewCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service",
		Short: "run the node as a service of systemd",
		Long: "Runs the node as a service of the system, with the user lmosd and a sandbox, or\n" +
			"of your user: it starts with the computer, or with your session, and again\n" +
			"after a failure.",
		Example: `  lmosd service install --dry-run
  lmosd service status`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadOnly, "lmosd run, lmosd config, lmosd upgrade"),
		Args:        cli.Subcommand,
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newInstallCommand(c), newUninstallCommand(c), newStatusCommand(c))
	return cmd
}

// A setup is one execution of lmosd service.
type setup struct {
	*cli.Console
	user    bool // the service is of this user
	places  places
	run     runner
	goos    string
	root    bool   // the user is root
	program string // of the service
}

func newSetup(c *cli.Console, user bool) *setup {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	return &setup{Console: c, user: user, run: programs(c), goos: goos, root: os.Geteuid() == 0, program: program,
		places: places{home: c.Variable("HOME"), xdg: c.Variable("XDG_CONFIG_HOME")}}
}

func userFlag(cmd *cobra.Command, user *bool) {
	cmd.Flags().BoolVar(user, "user", false, "the service of your user, not of the system")
}

func newInstallCommand(c *cli.Console) *cobra.Command {
	var user, dryRun, noStart bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "write the unit of the service, and start it",
		Long: "Checks the configuration, writes a unit of systemd for this program, enables\n" +
			"and starts it. The service of the system reads /etc/lmosd/lmosd.yaml, if it\n" +
			"exists, and has its data in /var/lib/lmosd; that of your user has the files of\n" +
			"lmosd run. --config and --data-dir name others. A unit that lmosd did not write\n" +
			"is not replaced.",
		Example: `  lmosd service install --dry-run
  lmosd service install --user`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd service status, lmosd config validate"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newSetup(c, user).install(cmd.Context(), dryRun, !noStart)
		},
	}
	userFlag(cmd, &user)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the unit and the commands, and change nothing")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "do not start the service now")
	return cmd
}

func newUninstallCommand(c *cli.Console) *cobra.Command {
	var user, dryRun bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "stop the service and remove its unit",
		Long: "Stops and disables the service, and removes the unit that lmosd service install\n" +
			"wrote. The data folder, with the key of the node, and the user lmosd are kept.",
		Example: `  lmosd service uninstall --user --dry-run
  lmosd service uninstall --user`,
		Annotations: cli.About(cli.ScopeLocal, cli.ReadWrite, "lmosd service install"),
		Args:        cli.Takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newSetup(c, user).uninstall(cmd.Context(), dryRun)
		},
	}
	userFlag(cmd, &user)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the commands, and change nothing")
	return cmd
}

// A document describes the service for programs.
type document struct {
	cli.Head
	Scope     string   `json:"scope"` // system or user
	Unit      string   `json:"unit"`
	File      string   `json:"file"`
	Installed bool     `json:"installed"`
	DataDir   string   `json:"data_dir,omitempty"`
	Config    string   `json:"config,omitempty"`
	Changed   bool     `json:"changed"` // the file of the unit
	DryRun    bool     `json:"dry_run,omitempty"`
	Text      string   `json:"text,omitempty"`     // of the unit, with dry_run
	Commands  []string `json:"commands,omitempty"` // that ran, or would run
	*state
}

// document returns the document of the service at a file.
func (s *setup) document(file string) *document {
	d := &document{Head: cli.NewHead("Service"), Scope: "system", Unit: unitName, File: file}
	if s.user {
		d.Scope = "user"
	}
	return d
}

// permitted returns an error if this user cannot write units of the wanted level.
func (s *setup) permitted() error {
	if !s.user && !s.root {
		return cli.Usage("use sudo; or --user for a service of your user", "only root can change a service of the system")
	}
	return nil
}

// homeless returns an error if the folders of the user are unknown.
func (s *setup) homeless() error {
	if s.user && !filepath.IsAbs(s.places.home) {
		return cli.Usage("set HOME; or make a service of the system, without --user", "the folder of your units is unknown: HOME is not set")
	}
	return nil
}

// install installs the service.
func (s *setup) install(ctx context.Context, dryRun, start bool) error {
	file := filepath.Join(s.places.own(s.user), unitName)
	doc := s.document(file)
	doc.DryRun = dryRun
	if err := s.homeless(); err != nil {
		return err
	}
	u, defaultDir, err := s.plan()
	if err == nil && !s.user {
		if err = u.visible(); dryRun && err != nil { // the unit is of interest nevertheless
			s.Warn(err.Error())
			err = nil
		}
	}
	if err != nil {
		return err
	}
	doc.DataDir, doc.Config = u.dataDir, u.config
	if !dryRun {
		if err := s.permitted(); err != nil {
			return err
		}
		if err := s.check(ctx); err != nil {
			return err
		}
	}
	packaged := s.places.packaged(s.user)
	before, err := os.ReadFile(file)
	switch {
	case err == nil && !bytes.HasPrefix(before, []byte(marker)):
		return cli.Usage("remove it, or change it by hand", "%s exists, and lmosd did not write it", file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return s.unwritable(file, err)
	case err != nil && packaged != "":
		if s.Flags.Config != "" || s.Flags.DataDir != "" {
			return cli.Usage("change the unit of the package: "+line("systemctl", s.leveled([]string{"edit", "lmosd"})),
				"a package installed the service: %s", packaged)
		}
		doc.File, file = packaged, ""
	}
	if err := s.free(ctx, u.dataDir, file, packaged); err != nil {
		return err
	}
	if !s.user && u.dataDir != defaultDir {
		if err := adoptable(u.dataDir); err != nil {
			return err
		}
	}
	text := u.text(defaultDir)
	doc.Changed = file != "" && string(before) != text
	steps := s.steps(u, doc.Changed, u.dataDir == defaultDir, start)
	for _, step := range steps {
		doc.Commands = append(doc.Commands, line(step[0], step[1:]))
	}
	if dryRun {
		doc.Text = text
		return s.showDryRun(doc)
	}
	if doc.Changed {
		if err := s.write(file, []byte(text)); err != nil {
			return err
		}
	}
	if err := s.do(ctx, steps); err != nil {
		return err
	}
	doc.Installed = true
	return s.showInstalled(doc, start)
}

// plan returns what the service runs, from the configuration that it will read, and its data folder without a configuration.
func (s *setup) plan() (u *unit, defaultDir string, err error) {
	if s.program == "" {
		return nil, "", &interact.Error{Code: interact.Internal, Title: "the path of this program is unknown", Hint: "start it by its path"}
	}
	u = &unit{user: s.user, program: s.program, config: cmp.Or(s.Flags.Config, s.Variable("LMOSD_CONFIG"))}
	// The service does not have the environment of this command.
	service := *s.Console
	service.Flags.DataDir = cmp.Or(s.Flags.DataDir, s.Variable("LMOSD_DATA_DIR"))
	if s.user {
		service.Env = []string{"HOME=" + s.places.home}
		defaultDir = filepath.Join(s.places.home, ".local/share/lmosd")
	} else {
		service.Env = nil
		defaultDir = systemDataDir
	}
	if u.config != "" {
		if u.config, err = filepath.Abs(u.config); err != nil {
			return nil, "", err
		}
	}
	if service.Flags.Config = u.config; u.config == "" {
		service.Flags.Config = s.foundConfig()
	}
	service.Env = append(service.Env, "LMOSD_DATA_DIR="+defaultDir)
	conf, err := configcmd.Load(&service, nil)
	if err != nil {
		return nil, "", err
	}
	u.dataDir = conf.Node.DataDir
	return u, defaultDir, u.plain()
}

// foundConfig returns the configuration that the service finds without a flag, or "".
func (s *setup) foundConfig() string {
	if s.user {
		return configs.File([]string{"HOME=" + s.places.home})
	}
	if file := filepath.Join(s.places.root, systemConfig); exists(file) {
		return file
	}
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// free returns an error if another service, or another process, uses the data folder.
func (s *setup) free(ctx context.Context, dir string, except ...string) error {
	if others := s.places.others(dir, except...); len(others) > 0 {
		return interact.Errorf(interact.DataDirLocked, "choose another folder (--data-dir), or remove that service",
			"another service has the data folder %s: %s", dir, strings.Join(others, ", "))
	}
	if !exists(filepath.Join(dir, "lock")) {
		return nil
	}
	release, err := storage.Lock(dir)
	locked, ok := errors.AsType[*storage.LockedError](err)
	if !ok {
		if err == nil {
			err = release()
		}
		return err
	}
	if now, err := s.state(ctx); err == nil && now != nil && now.PID != 0 && locked.Holder == fmt.Sprintf("process %d", now.PID) {
		return nil // the service itself
	}
	return interact.Errorf(interact.DataDirLocked, "stop it first; or choose another folder: --data-dir", "%s", locked)
}

// adoptable returns an error if a folder cannot become the data folder of the service, which gets another owner and mode: it has to be absent, empty, or
// that of a node.
func adoptable(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.IsDir() {
		return cli.Usage("name the folder itself: --data-dir", "%s is not a folder", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return cli.Usage("see the permissions of the folder", "the folder %s cannot be read: %v", dir, cli.Reason(err))
	}
	isNode := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "identity.pem" || e.Name() == "lock" })
	if len(entries) > 0 && !isNode {
		return cli.Usage("lmosd service install --data-dir "+filepath.Join(dir, "lmosd"), "the folder %s has files of others, and would get the owner and the mode of the service", dir)
	}
	return nil
}

// steps returns the commands that follow the unit: the user and the data folder of the service, and its start.
func (s *setup) steps(u *unit, changed, defaultDir, start bool) (steps [][]string) {
	if !s.user {
		users := configs.SystemUsers[strings.LastIndex(configs.SystemUsers, "\nu ")+1:]
		steps = append(steps, []string{"systemd-sysusers", "--inline", strings.TrimSpace(users)})
		if !defaultDir {
			steps = append(steps, []string{"install", "-d", "-o", "lmosd", "-g", "lmosd", "-m", "700", u.dataDir})
		}
	}
	control := func(args ...string) { steps = append(steps, append([]string{"systemctl"}, s.leveled(args)...)) }
	control("daemon-reload")
	switch {
	case !start:
		control("enable", unitName)
	case changed: // also of a service that runs
		control("enable", unitName)
		control("restart", unitName)
	default:
		control("enable", "--now", unitName)
	}
	return steps
}

// do runs commands in order until one fails.
func (s *setup) do(ctx context.Context, steps [][]string) error {
	for _, step := range steps {
		if _, err := s.run(ctx, step[0], step[1:]...); err != nil {
			command := line(step[0], step[1:])
			e := &interact.Error{Code: interact.Internal, Title: "a command failed: " + command, Err: err, Hint: "run it again: " + command}
			switch {
			case errors.Is(err, context.Canceled):
				return err
			case step[0] == "systemd-sysusers":
				e.Hint = "create the user, and run this command again: useradd --system --home-dir /var/lib/lmosd --shell /usr/sbin/nologin lmosd"
			case len(step) > 2 && step[len(step)-2] != "enable" && step[len(step)-1] == unitName:
				e.Title, e.Hint = "the service does not start", "see why: "+s.journal()
			}
			return e
		}
	}
	return nil
}

// journal returns the command that shows the log of the service.
func (s *setup) journal() string {
	if s.user {
		return "journalctl --user -u lmosd -e"
	}
	return "journalctl -u lmosd -e"
}

// write writes the file of a unit. After an error, the file is as it was.
func (s *setup) write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return s.unwritable(file, err)
	}
	if err := atomicfile.Write(file, text, 0o644); err != nil {
		return s.unwritable(file, err)
	}
	return nil
}

func (s *setup) unwritable(file string, err error) error {
	if storage.Full(err) {
		return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + file + " is full", Err: cli.Reason(err), Hint: "free some space; nothing was changed"}
	}
	return &interact.Error{Code: interact.Usage, Title: "the unit " + file + " cannot be read or written", Err: cli.Reason(err),
		Hint: "make the folder writable; print the unit with --dry-run"}
}

// uninstall removes the service.
func (s *setup) uninstall(ctx context.Context, dryRun bool) error {
	if err := s.homeless(); err != nil {
		return err
	}
	if !dryRun {
		if err := s.permitted(); err != nil {
			return err
		}
	}
	file := filepath.Join(s.places.own(s.user), unitName)
	doc := s.document(file)
	doc.DryRun = dryRun
	text, err := os.ReadFile(file)
	packaged := s.places.packaged(s.user)
	switch {
	case errors.Is(err, fs.ErrNotExist) && packaged == "":
		return s.missing()
	case errors.Is(err, fs.ErrNotExist):
		doc.File = packaged
		if text, err = os.ReadFile(packaged); err != nil {
			return s.unwritable(packaged, err)
		}
	case err != nil:
		return s.unwritable(file, err)
	case !bytes.HasPrefix(text, []byte(marker)):
		return cli.Usage("remove it by hand", "lmosd did not write %s, and does not remove it", file)
	default:
		doc.Changed = true
	}
	doc.DataDir, doc.Installed = dataDirOf(string(text), s.places.home), !doc.Changed || dryRun
	end := append([]string{"systemctl"}, s.leveled([]string{"disable", "--now", unitName})...)
	reload := append([]string{"systemctl"}, s.leveled([]string{"daemon-reload"})...)
	doc.Commands = []string{line(end[0], end[1:])}
	if doc.Changed {
		doc.Commands = append(doc.Commands, "rm "+terminal.Shell(file), line(reload[0], reload[1:]))
	}
	if dryRun {
		return s.showDryRun(doc)
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	if err := s.do(ctx, [][]string{end}); err != nil {
		return err
	}
	if doc.Changed {
		if err := os.Remove(file); err != nil {
			return s.unwritable(file, err)
		}
		if err := s.do(ctx, [][]string{reload}); err != nil {
			return err
		}
	}
	return s.showUninstalled(doc)
}

// missing returns the error of a service that is not installed.
func (s *setup) missing() error {
	return (&interact.Error{Code: interact.NotFound, Title: "no service is installed"}).Then(cli.StepCommand, "lmosd service install"+s.level())
}
