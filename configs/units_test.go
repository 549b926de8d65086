package configs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// A unitSetting is one line of a unit.
type unitSetting struct{ section, key, value string }

// parseUnit parses a unit strictly: sections, settings, comments and empty lines; no continued lines.
func parseUnit(t *testing.T, text string) (settings []unitSetting) {
	t.Helper()
	section := ""
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		key, value, isSetting := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line[1 : len(line)-1]
			if slices.ContainsFunc(settings, func(s unitSetting) bool { return s.section == section }) {
				t.Errorf("line %d: the section %s is there twice", i+1, section)
			}
		case !isSetting || section == "" || !regexp.MustCompile(`^[A-Z][A-Za-z]+$`).MatchString(key) || strings.HasSuffix(value, `\`) ||
			value != strings.TrimSpace(value):
			t.Errorf("line %d is not a setting: %q", i+1, line)
		default:
			settings = append(settings, unitSetting{section, key, value})
		}
	}
	return settings
}

// unitValues returns the values of a key, in the order of the file.
func unitValues(settings []unitSetting, key string) (list []string) {
	for _, s := range settings {
		if s.key == key {
			list = append(list, s.value)
		}
	}
	return list
}

// severalTimes are the keys whose values add up.
var severalTimes = []string{"Environment", "LoadCredential", "SystemCallFilter"}

func TestUnits(t *testing.T) {
	t.Parallel()
	for name, unit := range map[string]string{"system": SystemUnit, "user": UserUnit} {
		settings := parseUnit(t, unit)
		seen := map[string]bool{}
		for _, s := range settings {
			if !slices.Contains([]string{"Unit", "Service", "Install"}, s.section) {
				t.Errorf("%s: unknown section %s", name, s.section)
			}
			if seen[s.key] && !slices.Contains(severalTimes, s.key) {
				t.Errorf("%s: %s is there twice", name, s.key)
			}
			seen[s.key] = true
		}
		for key, want := range map[string]string{
			"Type": "notify", "NotifyAccess": "main", "WatchdogSec": "30", "ExecStart": "/usr/bin/lmosd run", "ExecReload": "/bin/kill -HUP $MAINPID",
			"Restart": "on-failure", "RestartPreventExitStatus": "2 6 8", "TimeoutStopSec": "20", "KillMode": "mixed", "NoNewPrivileges": "yes", "LimitCORE": "0",
		} {
			if got := unitValues(settings, key); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s is %q, expected %q", name, key, got, want)
			}
		}
		// A panic must not end the process with the exit code of a configuration, which no restart follows.
		if env := unitValues(settings, "Environment"); len(env) != 2 || !strings.HasPrefix(env[0], "LMOSD_DATA_DIR=%") || env[1] != "GOTRACEBACK=crash" {
			t.Errorf("%s: the environment is %q", name, env)
		}
		for _, family := range []string{"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} {
			if got := unitValues(settings, "RestrictAddressFamilies"); len(got) != 1 || !slices.Contains(strings.Fields(got[0]), family) {
				t.Errorf("%s: the node needs sockets of the family %s: %q", name, family, got)
			}
		}
		// Programs of agents must be able to start, and to compile at run time.
		if filter := strings.Join(unitValues(settings, "SystemCallFilter"), " "); !strings.HasPrefix(filter, "@system-service") || strings.Contains(filter, "~@process") {
			t.Errorf("%s: programs cannot start: %s", name, filter)
		}
		if seen["MemoryDenyWriteExecute"] {
			t.Errorf("%s: programs that compile at run time cannot start", name)
		}
	}
	system := parseUnit(t, SystemUnit)
	for key, want := range map[string][]string{
		"User": {"lmosd"}, "StateDirectory": {"lmosd"}, "ProtectSystem": {"strict"}, "CapabilityBoundingSet": {""},
		"LoadCredential": {identityCredential, "lmosd-passphrase"},
	} {
		if got := unitValues(system, key); !slices.Equal(got, want) {
			t.Errorf("%s is %q, expected %q", key, got, want)
		}
	}
	if !regexp.MustCompile(`(?m)^u lmosd - "[^"]+" /var/lib/lmosd /usr/sbin/nologin$`).MatchString(SystemUsers) {
		t.Errorf("the user of the service: %s", SystemUsers)
	}
}

// maxExposure is the limit for the result of systemd-analyze security, from 0 (best) to 10. A service of a user can have fewer limits.
const maxExposure = 2.0

// TestUnitsBySystemd lets systemd check the units.
func TestUnitsBySystemd(t *testing.T) {
	t.Parallel()
	analyze := testprogram.Path(t, "systemd-analyze")
	dir := t.TempDir()
	program := filepath.Join(dir, "lmosd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, unit := range map[string]string{"lmosd.service": SystemUnit, "lmosd-user.service": UserUnit} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/bin/lmosd", program)), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", filepath.Join(dir, "lmosd.service")).CombinedOutput()
	m := regexp.MustCompile(`Overall exposure level for lmosd\.service: ([0-9.]+)`).FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	exposure, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || exposure > maxExposure {
		t.Errorf("the exposure is %s, expected at most %v", m[1], maxExposure)
	}
	t.Logf("exposure %s", m[1])
}
