// Package testprogram finds the programs of others that tests use. Without them a test is skipped, or fails in CI.
package testprogram

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// packages are the packages of Debian that have another name than the program. .ci/run installs all of them.
var packages = map[string]string{
	"avahi-browse":        "avahi-utils",
	"busybox":             "busybox-static",
	"coap-client-notls":   "libcoap3-bin",
	"coap-client-openssl": "libcoap3-bin",
	"coap-server-openssl": "libcoap3-bin",
	"dbus-daemon":         "dbus",
	"groff":               "groff-base",
	"ip":                  "iproute2",
	"mosquitto_passwd":    "mosquitto",
	"mosquitto_rr":        "mosquitto-clients",
	"nft":                 "nftables",
	"node":                "nodejs",
	"nsenter":             "util-linux",
	"pivot_root":          "util-linux",
	"promtool":            "prometheus",
	"pyproject-build":     "python3-build",
	"setpriv":             "util-linux",
	"setsid":              "util-linux",
	"systemctl":           "systemd",
	"systemd-analyze":     "systemd",
	"unshare":             "util-linux",
}

// Find returns the path of the first of the programs that is on PATH.
func Find(names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: apt-get install %s", names[0], cmp.Or(packages[names[0]], names[0]))
}

// Path is like Find, and ends the test if no program is there.
func Path(t testing.TB, names ...string) string {
	t.Helper()
	path, err := Find(names...)
	if err != nil {
		Missing(t, err)
	}
	return path
}

// Modules returns the path of node. It ends the test if the modules of npm are not in dir.
func Modules(t testing.TB, dir string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
		Missing(t, fmt.Errorf("%s has no modules of npm: npm ci --prefix %[1]s", dir))
	}
	return Path(t, "node")
}

// CI reports whether the tests run in CI, where all that they need is there.
func CI() bool { return os.Getenv("CI") != "" }

// Missing skips the test because of err, or fails it in CI.
func Missing(t testing.TB, err error) {
	t.Helper()
	if CI() {
		t.Fatal(err)
	}
	t.Skip(err)
}
