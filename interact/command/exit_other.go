//go:build !linux

package command

import "os/exec"

// awaitExit returns when the process has exited. Only Linux can wait without reaping it. Here the process is reaped first: until its group
// is killed, another process may get the id of an empty group.
func awaitExit(cmd *exec.Cmd) (wait func() error) {
	exit := cmd.Wait()
	return func() error { return exit }
}
