//go:build unix

package command

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// isolate runs the command in its own process group. lmosd sends signals to the whole group; signals to the group of lmosd, such as
// Ctrl-C of a terminal, do not reach the command.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// terminate sends SIGTERM to the group of p.
func terminate(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

// kill sends SIGKILL to the group of p, if it exists.
func kill(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// scarce reports whether a process could not be started because of a limit of processes, memory or files.
func scarce(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EMFILE) ||
		errors.Is(err, syscall.ENFILE)
}
