package netns

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/internal/testprogram"
)

// env is the environment variable of a process that [Command] started: the name of its test, "=", and its role.
const env = "LMOSD_TEST_NETNS"

// Role returns the role of this process in the test: empty unless [Command] started it.
func Role(t *testing.T) string {
	name, role, _ := strings.Cut(os.Getenv(env), "=")
	if name != t.Name() {
		return ""
	}
	return role
}

// Command returns a command that runs the test again, with a role, in a new network namespace without interfaces except loopback, which is
// down. Without root it makes a user namespace, too. The process ends after two minutes at the latest.
func Command(t *testing.T, role string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), env+"="+t.Name()+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// Run runs the test again, with a role, in a new network namespace, and waits. The test fails or is skipped as that run is. It is skipped
// where namespaces are not permitted or the program ip is missing, which fails if the variable CI is set.
func Run(t *testing.T, role string) {
	t.Helper()
	testprogram.Path(t, "ip")
	out, err := Command(t, role).CombinedOutput()
	switch {
	case errors.Is(err, os.ErrPermission):
		t.Skipf("no network namespace for a test here: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("in a network namespace: %s", out)
	}
}

// IP runs the program ip once for each line of arguments. The test is skipped if a command fails.
func IP(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", line, err, out)
		}
	}
}
