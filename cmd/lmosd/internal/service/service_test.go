package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A host is a computer with a systemctl that records its calls.
type host struct {
	*testing.T
	dir    string // its root
	env    []string
	out    bytes.Buffer
	talk   bytes.Buffer
	flags  cli.Flags
	isUser bool // not root
	goos   string
}

// systemctl is the fake: it records its arguments, fails as the file "fails" says, and shows the file "shows".
const systemctl = `#!/bin/sh
here=${0%/bin/*}
echo "${0##*/} $*" >>"$here/calls"
if [ -e "$here/fails" ]; then case "$*" in $(cat "$here/fails")) echo "noise" >&2; echo "it fails on purpose" >&2; exit 1;; esac; fi
case "$*" in *show*Version*) echo Version=252;; *show*) cat "$here/shows" 2>/dev/null || echo LoadState=not-found;; esac
`

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{T: t, dir: t.TempDir(), goos: "linux"}
	h.env = []string{"HOME=" + filepath.Join(h.dir, "home/ada"), "PATH=" + filepath.Join(h.dir, "bin") + string(os.PathListSeparator) + os.Getenv("PATH")}
	for _, name := range []string{"systemctl", "systemd-sysusers", "install"} {
		h.write("bin/"+name, systemctl, 0o755)
	}
	return h
}

// write writes a file of the host.
func (h *host) write(name, text string, mode os.FileMode) string {
	h.Helper()
	file := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		h.Fatal(err)
	}
	return file
}

// read returns a file of the host, "" without it.
func (h *host) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(h.dir, name))
	return string(b)
}

// calls returns the calls of systemctl since the last time, without the question whether systemd is there.
func (h *host) calls() []string {
	text := h.read("calls")
	_ = os.Remove(filepath.Join(h.dir, "calls"))
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(s string) bool { return s == "" || strings.Contains(s, "Version") })
}

// setup returns an execution on the host.
func (h *host) setup(user bool) *setup {
	h.out.Reset()
	h.talk.Reset()
	c := cli.New(h.env, strings.NewReader(""), &h.out, &h.talk)
	c.Flags = h.flags
	if c.Flags.Output == "" {
		c.Flags.Output = "table"
	}
	s := newSetup(c, user)
	s.places.root, s.goos, s.root, s.program = h.dir, h.goos, !h.isUser, "/usr/local/bin/lmosd"
	return s
}

// fails checks the code, a part of the text, and that there is a hint.
func (h *host) fails(err error, code interact.Code, text string) {
	h.Helper()
	e := interact.AsError(err)
	if err == nil || e.Code != code || !strings.Contains(e.Error()+e.Title, text) {
		h.Fatalf("expected %v with %q, got %v", code, text, err)
	}
	var config *configs.Error
	if e.Hint == "" && len(e.Next) == 0 && !errors.As(err, &config) {
		h.Errorf("no hint: %v", err)
	}
}

const systemFile = "etc/systemd/system/lmosd.service"

func TestInstall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := h.setup(false).install(t.Context(), false, true); err != nil {
		t.Fatal(err)
	}
	want := marker + strings.Replace(configs.SystemUnit, "ExecStart=/usr/bin/lmosd run\n", "ExecStart=/usr/local/bin/lmosd run\n", 1)
	if got := h.read(systemFile); got != want {
		t.Errorf("the unit is %s", got)
	}
	started := []string{"systemd-sysusers --inline u lmosd - \"lmosd node\" /var/lib/lmosd /usr/sbin/nologin",
		"systemctl daemon-reload", "systemctl enable lmosd.service", "systemctl restart lmosd.service"}
	if got := h.calls(); !slices.Equal(got, started) {
		t.Errorf("calls: %q", got)
	}
	if !strings.Contains(h.out.String(), "wrote "+filepath.Join(h.dir, systemFile)+"\ndata\t/var/lib/lmosd\n") ||
		h.talk.String() != "next: lmosd service status   ·   sudo lmosd status --data-dir /var/lib/lmosd\n" {
		t.Errorf("printed %s%s", h.out.String(), h.talk.String())
	}

	// The second time changes nothing.
	if err := h.setup(false).install(t.Context(), false, true); err != nil {
		t.Fatal(err)
	}
	if got := h.calls(); !slices.Equal(got[len(got)-1:], []string{"systemctl enable --now lmosd.service"}) || !strings.Contains(h.out.String(), "is not changed") {
		t.Errorf("calls: %q, printed %s", got, h.out.String())
	}

	// Another configuration, which the unit names.
	h.flags.Config = h.write("etc/lmosd/lmosd.yaml", "profile: lan\n", 0o644)
	s := h.setup(false)
	u, _, err := s.plan()
	if !strings.HasPrefix(h.dir, "/tmp") && (err != nil || u.config != h.flags.Config) {
		t.Errorf("got %+v, %v", u, err)
	}

	h.flags = cli.Flags{}
	if err := h.setup(false).uninstall(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := h.calls(); !slices.Equal(got, []string{"systemctl disable --now lmosd.service", "systemctl daemon-reload"}) {
		t.Errorf("calls: %q", got)
	}
	if h.read(systemFile) != "" || !strings.HasSuffix(h.out.String(), "kept /var/lib/lmosd, with the key of the node\n") {
		t.Errorf("the unit is still there, or printed %s", h.out.String())
	}
	h.fails(h.setup(false).uninstall(t.Context(), false), interact.NotFound, "no service is installed")
}

func TestInstallForAUser(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.isUser = true
	h.fails(h.setup(false).install(t.Context(), false, true), interact.Usage, "only root")
	h.flags = cli.Flags{Output: "json", DataDir: filepath.Join(h.dir, `a "b" 100%`), Config: h.write("c.yaml", "{}", 0o600)}
	if err := h.setup(true).install(t.Context(), false, false); err != nil {
		t.Fatal(err)
	}
	var doc document
	if err := json.Unmarshal(h.out.Bytes(), &doc); err != nil || doc.Kind != "Service" || doc.Scope != "user" || !doc.Changed || !doc.Installed ||
		doc.DataDir != h.flags.DataDir || doc.Config != h.flags.Config || len(doc.Commands) != 2 {
		t.Errorf("got %s, %v", h.out.String(), err)
	}
	unit := h.read("home/ada/.config/systemd/user/lmosd.service")
	for _, want := range []string{"\nExecStart=/usr/local/bin/lmosd run --config " + h.flags.Config + "\n",
		"\nEnvironment=\"LMOSD_DATA_DIR=" + h.dir + `/a \"b\" 100%%"` + "\n"} {
		if !strings.Contains(unit, want) {
			t.Errorf("no %q in %s", want, unit)
		}
	}
	if got := dataDirOf(unit, ""); got != h.flags.DataDir {
		t.Errorf("the unit has the data folder %s", got)
	}
	if got := h.calls(); !slices.Equal(got, []string{"systemctl --user daemon-reload", "systemctl --user enable lmosd.service"}) {
		t.Errorf("calls: %q", got)
	}
	h.flags = cli.Flags{}
	if err := h.setup(true).install(t.Context(), false, true); err != nil { // without the flags: the default folder
		t.Fatal(err)
	}
	if !strings.Contains(h.talk.String(), "loginctl enable-linger") || !strings.Contains(h.talk.String(), "next: lmosd service status --user") ||
		!strings.Contains(h.out.String(), "data\t"+filepath.Join(h.dir, "home/ada/.local/share/lmosd")) {
		t.Errorf("printed %s%s", h.out.String(), h.talk.String())
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.isUser = true // a dry run needs no rights
	if err := h.setup(false).install(t.Context(), true, true); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(h.out.String(), "# "+filepath.Join(h.dir, systemFile)+"\n"+marker) ||
		!strings.HasSuffix(h.out.String(), "\n# commands\nsystemd-sysusers --inline 'u lmosd - \"lmosd node\" /var/lib/lmosd /usr/sbin/nologin'\n"+
			"systemctl daemon-reload\nsystemctl enable lmosd.service\nsystemctl restart lmosd.service\n") {
		t.Errorf("printed %s", h.out.String())
	}
	if h.read(systemFile) != "" || len(h.calls()) > 0 {
		t.Error("the dry run changed something")
	}
	h.write(systemFile, marker, 0o644)
	if err := h.setup(false).uninstall(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if got := h.out.String(); got != "# commands\nsystemctl disable --now lmosd.service\nrm "+filepath.Join(h.dir, systemFile)+"\nsystemctl daemon-reload\n" {
		t.Errorf("printed %s", got)
	}
}

// What cannot be installed is refused before anything is written.
func TestInstallIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user    bool
		prepare func(h *host)
		code    interact.Code
		text    string
	}{
		"a broken configuration": {true, func(h *host) { h.flags.Config = h.write("bad.yaml", "http:\n  lissten: a\n", 0o600) },
			interact.ConfigUnknown, "lissten"},
		"a broken configuration of the system": {false, func(h *host) { h.write("etc/lmosd/lmosd.yaml", "profile: x\n", 0o600) },
			interact.ConfigInvalid, "profile"},
		"an agent that cannot be": {true, func(h *host) { h.flags.Config = h.write("bad.yaml", "agents: ['exec:cat --nme a']\n", 0o600) }, interact.ConfigInvalid, "agents[0]"},
		"a missing configuration": {true, func(h *host) { h.flags.Config = filepath.Join(h.dir, "none.yaml") }, interact.ConfigFile, "none.yaml"},
		"a unit by hand":          {false, func(h *host) { h.write(systemFile, "[Service]\n", 0o644) }, interact.Usage, "lmosd did not write it"},
		"a hidden configuration":  {false, func(h *host) { h.flags.Config = h.write("c.yaml", "{}", 0o600) }, interact.Usage, "cannot see the configuration"},
		"a hidden data folder":    {false, func(h *host) { h.flags.DataDir = "/home/ada/data" }, interact.Usage, "cannot see the data folder"},
		"a path that no unit has": {true, func(h *host) { h.flags.DataDir = h.dir + "/a\nb" }, interact.Usage, "control characters"},
		"no home":                 {true, func(h *host) { h.env = []string{"PATH=" + filepath.Join(h.dir, "bin")} }, interact.Usage, "HOME is not set"},
		"no systemctl":            {false, func(h *host) { h.env = append(h.env, "PATH="+h.dir) }, interact.Usage, "no systemd"},
		"no systemd":              {false, func(h *host) { h.write("fails", "*Version*", 0o600) }, interact.Usage, "no systemd"},
		"no session":              {true, func(h *host) { h.write("fails", "*Version*", 0o600) }, interact.Usage, "of this user does not answer"},
		"a Mac":                   {false, func(h *host) { h.goos = "darwin" }, interact.Usage, "no systemd"},
		"Windows":                 {false, func(h *host) { h.goos = "windows" }, interact.Usage, "no systemd"},
		"a flag against the package": {false, func(h *host) {
			h.flags.DataDir = "/srv/lmosd"
			h.write("usr/lib/systemd/system/lmosd.service", "[Unit]\n", 0o644)
		}, interact.Usage, "a package installed the service"},
		"a second service of the same data": {true, func(h *host) {
			h.flags.DataDir = "/srv/mesh"
			h.write("etc/systemd/system/mesh.service", "[Service]\nExecStart=/usr/bin/lmosd run --data-dir /srv/mesh\n", 0o644)
		}, interact.DataDirLocked, "mesh.service"},
		"a second service of the system's data": {true, func(h *host) {
			h.flags.DataDir = "/var/lib/lmosd"
			h.write(systemFile, configs.SystemUnit, 0o644)
		}, interact.DataDirLocked, systemFile},
		"a read-only folder": {true, func(h *host) { h.write("home/ada/.config", "a file", 0o600) }, interact.Usage, "cannot be read or written"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			c.prepare(h)
			before := h.files()
			err := h.setup(c.user).install(t.Context(), false, true)
			h.fails(err, c.code, c.text)
			if calls := h.calls(); len(calls) > 0 {
				t.Errorf("it called %q", calls)
			}
			if after := h.files(); after != before {
				t.Errorf("there were %s, there are %s", before, after)
			}
		})
	}
}

// files returns the files of the host, other than the record of the calls.
func (h *host) files() string {
	var files []string
	_ = filepath.WalkDir(h.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(path) != "calls" {
			files = append(files, path)
		}
		return nil
	})
	return fmt.Sprint(files)
}

// A node in a terminal that uses the data folder is not disturbed; the service itself may be installed again.
func TestTheDataFolderIsInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.flags.DataDir = filepath.Join(h.dir, "data")
	release, err := storage.Lock(h.flags.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	h.fails(h.setup(true).install(t.Context(), false, true), interact.DataDirLocked, fmt.Sprintf("process %d", os.Getpid()))
	h.write("shows", fmt.Sprintf("LoadState=loaded\nMainPID=%d\n", os.Getpid()), 0o600)
	if err := h.setup(true).install(t.Context(), false, true); err != nil {
		t.Error(err)
	}
}

// The unit of a package is enabled and disabled, and not replaced or removed.
func TestTheUnitOfAPackage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	file := h.write("usr/lib/systemd/system/lmosd.service", configs.SystemUnit, 0o644)
	if err := h.setup(false).install(t.Context(), false, true); err != nil {
		t.Fatal(err)
	}
	if got := h.calls(); h.read(systemFile) != "" || got[len(got)-1] != "systemctl enable --now lmosd.service" {
		t.Errorf("calls: %q", got)
	}
	if err := h.setup(false).uninstall(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := h.calls(); !slices.Equal(got, []string{"systemctl disable --now lmosd.service"}) || !exists(file) ||
		!strings.Contains(h.out.String(), "belongs to a package") || !strings.Contains(h.out.String(), "kept /var/lib/lmosd") {
		t.Errorf("calls: %q, printed %s", got, h.out.String())
	}
	h.write(systemFile, "[Service]\n", 0o644)
	h.fails(h.setup(false).uninstall(t.Context(), false), interact.Usage, "lmosd did not write")
}

// A service that does not start stays installed; the error names its log.
func TestTheServiceDoesNotStart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("fails", "*restart*", 0o600)
	err := h.setup(false).install(t.Context(), false, true)
	h.fails(err, interact.Internal, "the service does not start")
	if e := interact.AsError(err); e.Err.Error() != "it fails on purpose" || e.Hint != "see why: journalctl -u lmosd -e" || h.read(systemFile) == "" {
		t.Errorf("got %+v", e)
	}
	h.write("fails", "*--inline*", 0o600)
	h.fails(h.setup(false).install(t.Context(), false, true), interact.Internal, "systemd-sysusers")
	h.write("fails", "*enable*", 0o600)
	h.fails(h.setup(false).install(t.Context(), false, false), interact.Internal, "a command failed: systemctl enable")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	unit := h.write(systemFile, configs.SystemUnit, 0o644)
	h.write("shows", "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nStateChangeTimestamp=Sun 2026-11-29 22:41:22 UTC\nResult=success\n"+
		"ExecMainStatus=0\nNRestarts=2\nMainPID=4711\nMemoryCurrent=52428800\nStatusText=3 peers, 2 agents\nFragmentPath="+unit+"\n", 0o600)
	if err := h.setup(false).status(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"service\tlmosd.service (system)\n", "state\tactive\n", "since\t2026-11-29T22:41:22Z, ", "enabled\tyes\n", "restarts\t2\n",
		"process\t4711\n", "memory\t", "node\t3 peers, 2 agents\n", "unit\t" + unit + "\n", "data\t/var/lib/lmosd\n"} {
		if !strings.Contains(h.out.String(), want) {
			t.Errorf("no %q in %s", want, h.out.String())
		}
	}
	if want := "log: journalctl -u lmosd -e\nnext: sudo lmosd status --data-dir /var/lib/lmosd\n"; h.talk.String() != want {
		t.Errorf("got %s", h.talk.String())
	}
	h.flags.Output = "json"
	if err := h.setup(false).status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := h.out.String(), `{"apiVersion":"lmosd/v1","kind":"Service","scope":"system","unit":"lmosd.service","file":"`+unit+
		`","installed":true,"data_dir":"/var/lib/lmosd","changed":false,"active":"active","enabled":true,"since":"2026-11-29T22:41:22Z","restarts":2,"pid":4711,`+
		`"memory_bytes":52428800,"node":"3 peers, 2 agents"}`+"\n"; got != want {
		t.Errorf("got %s, expected %s", got, want)
	}

	h.flags.Output = ""
	h.write("shows", "LoadState=loaded\nActiveState=failed\nUnitFileState=disabled\nStateChangeTimestamp=\nResult=exit-code\nExecMainStatus=2\n"+
		"MemoryCurrent=[not set]\nFragmentPath="+unit+"\n", 0o600)
	var exit cli.SilentError
	if err := h.setup(true).status(t.Context()); !errors.As(err, &exit) || int(exit) != cli.ExitNoNode {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(h.out.String(), "state\tfailed (exit-code, exit code 2)\nenabled\tno, it does not start with your session\nrestarts\t0\nunit\t") ||
		!strings.Contains(h.talk.String(), "log: journalctl --user -u lmosd -e\nnext: systemctl --user start lmosd") {
		t.Errorf("got %s%s", h.out.String(), h.talk.String())
	}
	h.write("shows", "LoadState=not-found\n", 0o600)
	h.fails(h.setup(false).status(t.Context()), interact.NotFound, "no service is installed")
}

// The examples of the help are commands, and every command has its place.
func TestTheCommand(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range NewCommand(cli.New(nil, nil, &bytes.Buffer{}, &bytes.Buffer{})).Commands() {
		names = append(names, c.Name())
		for line := range strings.Lines(c.Long) {
			if len(line) > 81 {
				t.Errorf("%s: a line has %d columns", c.Name(), len(line)-1)
			}
		}
	}
	if !slices.Equal(names, []string{"install", "status", "uninstall"}) {
		t.Errorf("got %v", names)
	}
}

// A copy that cannot be removed is reported, because it has the key of the node.
func TestCopyThatStays(t *testing.T) {
	t.Parallel()
	u := &upgradeCheck{OK: true}
	dir := t.TempDir() + "/." // cannot be removed
	if err := u.remove(dir); !errors.Is(err, errFailed) || u.OK || len(u.Items) != 1 || u.Items[0].Name != "removal" || !strings.Contains(u.Items[0].Hint, dir) {
		t.Errorf("got %v, %+v", err, u)
	}
	if err := u.remove(t.TempDir()); err != nil || len(u.Items) != 1 {
		t.Errorf("got %v, %+v", err, u)
	}
}
