//go:build unix

package command

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// isolate has the command run in a process group of its own, which a signal reaches as a whole, and which one to lmosd's group,
// of a terminal's Ctrl-C say, does not reach: lmosd ends its commands itself.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// terminate sends SIGTERM to the group of p.
func terminate(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

// kill sends SIGKILL to the group of p, if it exists.
func kill(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// scarce reports whether a process could not be started for want of processes, memory or files.
func scarce(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EMFILE) || errors.Is(err,
		syscall.ENFILE)
}
