package testnet

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Detach makes cmd independent of the console: Ctrl-C there is for the starter, not for the nodes.
func Detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// Suspend is not supported.
func Suspend(int) error { return errors.ErrUnsupported }

// Resume is not supported.
func Resume(int) error { return errors.ErrUnsupported }

// kill ends a process, because Windows has no signals. Signal 0 only checks that it runs.
func kill(pid int, sig syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if sig == 0 {
		return p.Release()
	}
	return p.Kill()
}
