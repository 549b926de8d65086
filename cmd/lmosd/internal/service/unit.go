package service

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
	"github.com/lmosd/lmosd/configs"
)

// unitName is the name of the service, for the system and for each user.
const unitName = "lmosd.service"

// marker is the first line of a unit that this program wrote, and may replace and remove.
const marker = "# Written by `lmosd service install`; `lmosd service uninstall` removes it.\n"

// The parts of the units that an installation replaces.
const (
	shippedProgram = "/usr/bin/lmosd"
	systemDataDir  = "/var/lib/lmosd"
	systemConfig   = "/etc/lmosd/lmosd.yaml"
	stateLines     = "StateDirectory=lmosd\nStateDirectoryMode=0700\n"
)

// A unit is what a service runs.
type unit struct {
	user    bool // of the user that runs the command, else of the system
	program string
	config  string // a file; "" lets the node find its own
	dataDir string
}

// text returns the file of the unit. Its paths must be [unit.plain].
func (u *unit) text(defaultDir string) string {
	text := configs.SystemUnit
	if u.user {
		text = configs.UserUnit
	}
	start := quoted(strings.ReplaceAll(u.program, "$", "$$")) + " run"
	if u.config != "" {
		start += " --config " + quoted(strings.ReplaceAll(u.config, "$", "$$"))
	}
	text = strings.Replace(text, "ExecStart="+shippedProgram+" run\n", "ExecStart="+start+"\n", 1)
	if u.dataDir != defaultDir {
		lines := strings.Split(text, "\n")
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "Environment=LMOSD_DATA_DIR=") })
		lines[i] = "Environment=" + quoted("LMOSD_DATA_DIR="+u.dataDir)
		text = strings.Replace(strings.Join(lines, "\n"), stateLines, "ReadWritePaths="+quoted(u.dataDir)+"\n", 1)
	}
	return marker + text
}

// quoted returns one word of a setting, in which systemd expands no specifier (systemd.syntax(7)).
func quoted(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if !strings.ContainsAny(word, " \t\"'\\;") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// plain returns an error if a path cannot be part of a unit.
func (u *unit) plain() error {
	for _, path := range []string{u.program, u.config, u.dataDir} {
		if strings.ContainsFunc(path, unicode.IsControl) {
			return cli.Usage("choose another path", "a unit cannot have the path %q: it has control characters", path)
		}
	}
	return nil
}

// dataDirOf returns the data folder in the text of a unit of lmosd, or "". The specifiers are those of the shipped units.
func dataDirOf(text, home string) string {
	expand := strings.NewReplacer("%S", "/var/lib", "%h", home, "%%", "%", `\"`, `"`, `\\`, `\`)
	dir := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, "Environment="); ok {
			if value, ok = strings.CutPrefix(strings.Trim(value, `"`), "LMOSD_DATA_DIR="); ok {
				dir = expand.Replace(value)
			}
		}
		if _, flag, ok := strings.Cut(line, " --data-dir"); ok && strings.HasPrefix(line, "ExecStart=") { // of units by hand
			dir, _, _ = strings.Cut(strings.TrimLeft(flag, " ="), " ")
			return expand.Replace(dir)
		}
	}
	return dir
}

// places are the folders of units, below root in tests.
type places struct {
	root string // "" outside tests
	home string // of the user; "" is unknown
	xdg  string // XDG_CONFIG_HOME
}

// own returns the folder for units that an administrator, or a user, writes.
func (p *places) own(user bool) string {
	switch {
	case !user:
		return filepath.Join(p.root, "/etc/systemd/system")
	case filepath.IsAbs(p.xdg):
		return filepath.Join(p.xdg, "systemd/user")
	}
	return filepath.Join(p.home, ".config/systemd/user")
}

// packaged returns the file of the unit that a package installed, or "".
func (p *places) packaged(user bool) string {
	level := "system"
	if user {
		level = "user"
	}
	for _, dir := range []string{"/usr/lib/systemd/", "/lib/systemd/", "/usr/local/lib/systemd/"} {
		file := filepath.Join(p.root, dir+level, unitName)
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// others returns the other units whose node has the same data folder.
func (p *places) others(dir string, except ...string) (files []string) {
	folders := []string{p.own(false), filepath.Join(p.root, "/usr/lib/systemd/system"), filepath.Join(p.root, "/run/systemd/system")}
	if p.home != "" {
		folders = append(folders, p.own(true))
	}
	for _, folder := range folders {
		found, _ := filepath.Glob(filepath.Join(folder, "*.service")) // the pattern is valid
		for _, file := range found {
			if slices.Contains(except, file) {
				continue
			}
			text, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(text), "lmosd") && dataDirOf(string(text), p.home) == dir {
				files = append(files, file)
			}
		}
	}
	return files
}

// hiddenFolders are the folders that the sandbox of the system service hides (ProtectHome, PrivateTmp).
var hiddenFolders = []string{"/home", "/root", "/run/user", "/tmp", "/var/tmp"}

// visible returns an error if the sandbox of the system service hides a path of u.
func (u *unit) visible() error {
	for _, p := range []struct{ what, path, better string }{
		{"program", u.program, "/usr/local/bin"}, {"configuration", u.config, "/etc/lmosd"}, {"data folder", u.dataDir, "/var/lib"}} {
		for _, dir := range hiddenFolders {
			if strings.HasPrefix(p.path, dir+"/") || p.path == dir {
				return cli.Usage("move it to another folder, such as "+p.better+"; or make a service of your user: --user",
					"the system service cannot see the %s %s: its sandbox hides %s", p.what, p.path, dir)
			}
		}
	}
	return nil
}
