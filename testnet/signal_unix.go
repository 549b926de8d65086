//go:build unix

package testnet

import (
	"os/exec"
	"syscall"
)

// Detach makes cmd independent of the terminal: Ctrl-C there is for the starter, not for the nodes.
func Detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// Suspend stops a process until [Resume].
func Suspend(pid int) error { return kill(pid, syscall.SIGSTOP) }

// Resume continues a process after [Suspend].
func Resume(pid int) error { return kill(pid, syscall.SIGCONT) }

func kill(pid int, sig syscall.Signal) error { return syscall.Kill(pid, sig) }
