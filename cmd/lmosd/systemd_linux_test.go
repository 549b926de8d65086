package main

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// systemdScript starts systemd as process 1 of a host, and runs a shell there.
//
//go:embed testdata/systemd.sh
var systemdScript string

// A server is a host with systemd.
type server struct{ *host }

// newServer boots a host on which systemd is process 1. The test is skipped where the system does not permit it.
func newServer(t *testing.T) *server {
	t.Helper()
	for _, program := range []string{"systemctl", "dbus-daemon", "ip", "unshare", "nsenter", "setpriv", "pivot_root"} {
		testprogram.Path(t, program)
	}
	probe := exec.Command("unshare", "--mount", "--pid", "--fork", "--cgroup", "--net", "--ipc", "--uts", "sh", "-c", `own=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts) &&
test -n "$own" && probe=$(mktemp -d "$own/lmosd-probe.XXXXXX") && rmdir "$probe" && mount --make-rprivate / && mount -t tmpfs none /mnt &&
mkdir /mnt/upper /mnt/work /mnt/usr && mount -t overlay -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work none /mnt/usr && mount -t proc none /proc && mount -t sysfs -o ro none /sys &&
mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup`)
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("namespaces with an overlay and cgroups are not permitted: %v %s", err, out)
	}
	program, err := exec.LookPath("lmosd") // TestMain puts this program there
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", systemdScript)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ROOT=" + folder(t), "PROGRAM=" + program, "PACKAGE=" + os.Getenv("LMOSD_PACKAGE"), "SCRIPT=" + systemdScript,
		"GORACE=atexit_sleep_ms=0"}
	s := &server{newHost(t, "server", cmd)}
	if printed, _, err := s.ask("true"); err != nil {
		t.Skipf("systemd does not start in namespaces of this machine: %v\n%s", err, printed)
	}
	return s
}

// ok runs a command that has to succeed, and returns what it printed.
func (s *server) ok(command string) string {
	s.t.Helper()
	out, code := s.run(command)
	if code != 0 {
		log, _ := s.run("journalctl -u lmosd -n 30 --no-pager -o cat")
		s.t.Fatalf("%s\nexit code %d\n%s\nthe log:\n%s", command, code, out, log)
	}
	return strings.TrimSpace(out)
}

// is compares properties of the service: a list of NAME=VALUE, in the order of systemd.
func (s *server) is(when, want string) {
	s.t.Helper()
	var names []string
	for _, field := range strings.Fields(want) {
		name, _, _ := strings.Cut(field, "=")
		names = append(names, name)
	}
	if got := strings.Join(strings.Fields(s.ok("systemctl show lmosd -p "+strings.Join(names, ","))), " "); got != want {
		log, _ := s.run("journalctl -u lmosd -n 30 --no-pager -o cat")
		s.t.Fatalf("%s: the service is %s, want %s\nthe log:\n%s", when, got, want, log)
	}
}

// until waits until a command succeeds.
func (s *server) until(command string) {
	s.t.Helper()
	s.ok("for i in $(seq 600); do (" + command + ") >/dev/null 2>&1 && break; sleep 0.1; done; " + command)
}

// restarted waits until systemd has started the service again, for the n-th time.
func (s *server) restarted(n string) {
	s.t.Helper()
	s.until("test $(systemctl show -P NRestarts,ActiveState --value lmosd | tr -d '\\n') = " + n + "active")
}

// TestSystemUnit follows docs/service.md on a host on which systemd is process 1, and then lets the service meet what happens in years: a
// wrong configuration, a crash, a node that hangs, a key in a credential. LMOSD_PACKAGE names a Debian package, which is installed in the end.
func TestSystemUnit(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	follow(t, "docs/service.md", map[string]*host{"": s.host})
	if t.Failed() {
		return
	}
	s.ok("test -f /var/lib/lmosd/identity.pem && getent passwd lmosd && ! systemctl cat lmosd")

	s.ok("lmosd service install --no-start")
	s.is("after an installation without a start", "ActiveState=inactive UnitFileState=enabled")
	s.ok("mkdir -p /etc/lmosd && printf 'apiVersion: lmosd/v1\\ntelemetry: {log: {level: info}}\\n' >/etc/lmosd/lmosd.yaml")
	s.ok("systemctl start lmosd") // returns when the node has reported that it is ready
	s.is("after the start", "Type=notify Result=success NRestarts=0 ActiveState=active SubState=running")
	did := s.ok("lmosd status -o json --jq .did")
	pid := s.ok("systemctl show -P MainPID lmosd")

	// A reload applies a changed key. An error changes nothing, and the node runs on.
	s.ok("sed -i s/info/debug/ /etc/lmosd/lmosd.yaml && systemctl reload lmosd")
	s.until("lmosd config running -o json | grep -A3 telemetry.log.level | grep debug")
	s.ok("cp /etc/lmosd/lmosd.yaml good.yaml && echo nonsense: 1 >>/etc/lmosd/lmosd.yaml && systemctl reload lmosd")
	s.until("journalctl -u lmosd -o cat | grep nonsense")
	s.is("after a reload with an error", "MainPID="+pid+" NRestarts=0 ActiveState=active")
	s.ok("! lmosd service install")
	// Nor does a restart mend it: the service ends with the exit code of a configuration.
	s.ok("! systemctl restart lmosd")
	s.is("with an error in the configuration", "Result=exit-code NRestarts=0 ExecMainStatus=2 ActiveState=failed")
	s.ok("cp good.yaml /etc/lmosd/lmosd.yaml && systemctl start lmosd")

	// After the end of the process by a signal or a panic, systemd starts it again; so it does with a node that does not answer.
	s.ok("kill -9 $(systemctl show -P MainPID lmosd)")
	s.restarted("1")
	s.ok("kill -ABRT $(systemctl show -P MainPID lmosd)") // ends it as a panic does
	s.restarted("2")
	s.ok(`printf '[Service]\nWatchdogSec=10\nTimeoutAbortSec=5\n' >/etc/systemd/system/lmosd.service.d/watchdog.conf && systemctl daemon-reload && systemctl restart lmosd`)
	pid = s.ok("systemctl show -P MainPID lmosd")
	s.ok("kill -STOP " + pid)
	s.until("journalctl -u lmosd -o cat | grep 'Watchdog timeout'")
	s.until("test $(systemctl show -P ActiveState lmosd) = active && test $(systemctl show -P MainPID lmosd) != " + pid)
	s.ok("rm /etc/systemd/system/lmosd.service.d/watchdog.conf && systemctl daemon-reload")

	// The key is that of the credential, which the page has made.
	s.ok("mv /var/lib/lmosd/identity.pem . && systemctl restart lmosd")
	if now := s.ok("lmosd status -o json --jq .did"); now != did {
		t.Errorf("the node with the credential is %s, was %s", now, did)
	}
	s.ok("test ! -e /var/lib/lmosd/identity.pem && mv identity.pem /var/lib/lmosd/ && rm -r /etc/systemd/system/lmosd.service.d && systemctl daemon-reload")

	// Programs of agents run as the user of the service, in its sandbox, and end with it.
	s.ok(`printf '#!/bin/sh\nsleep 1000 & touch /usr/local/bin/x || id -un\n' >/usr/local/bin/hello && chmod 755 /usr/local/bin/hello`)
	s.ok(`printf 'agents: ["exec:/usr/local/bin/hello --name hello"]\n' >>/etc/lmosd/lmosd.yaml && systemctl reload lmosd`)
	s.until("lmosd call hello run x")
	if out := s.ok("lmosd call hello run x 2>/dev/null"); out != "lmosd" {
		t.Errorf("the program of an agent prints %q", out)
	}
	s.ok("systemctl stop lmosd")
	s.is("after a stop", "Result=success ExecMainStatus=0 ActiveState=inactive")
	s.ok("! pgrep -f 'sleep 1000'")
	s.ok("! lmosd status && lmosd service uninstall")

	if os.Getenv("LMOSD_PACKAGE") == "" {
		return
	}
	s.ok("rm /usr/local/bin/lmosd && hash -r && dpkg --force-confold -i lmosd.deb")
	s.ok("test $(command -v lmosd) = /usr/bin/lmosd && lmosd service install")
	s.is("of the package", "ActiveState=active FragmentPath="+filepath.Join("/lib/systemd/system", "lmosd.service")+" UnitFileState=enabled")
	pid = s.ok("systemctl show -P MainPID lmosd")
	s.ok("dpkg --force-confold -i lmosd.deb") // an upgrade
	s.ok("systemctl is-active lmosd && test $(systemctl show -P MainPID lmosd) != " + pid)
	s.ok("dpkg -r lmosd && ! systemctl is-active lmosd && dpkg -P lmosd && test -f /var/lib/lmosd/identity.pem")
}
