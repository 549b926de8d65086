package command

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process when lmosd dies, also by SIGKILL.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// waitid(2)
const (
	pPID    = 1
	wExited = 4
	wNoWait = 0x01000000
)

// awaitExit returns when the process has exited and is a zombie. The returned function reaps it.
func awaitExit(cmd *exec.Cmd) (wait func() error) {
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(cmd.Process.Pid), 0, wExited|wNoWait, 0, 0)
		switch err {
		case 0:
			return cmd.Wait
		case syscall.EINTR:
		default: // a sandbox may forbid it
			exit := cmd.Wait()
			return func() error { return exit }
		}
	}
}
