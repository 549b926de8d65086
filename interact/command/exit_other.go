//go:build !linux

package command

import "os/exec"

// awaitExit returns when the process has exited. Without Linux's way to look at it first it is reaped here, and for the moment
// until what is left of its group is killed the number of an empty group could be given to another.
func awaitExit(cmd *exec.Cmd) (wait func() error) {
	exit := cmd.Wait()
	return func() error { return exit }
}
