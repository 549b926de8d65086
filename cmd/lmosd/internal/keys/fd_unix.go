//go:build unix

package keys

import "syscall"

// closeOnExec excludes a file descriptor from the processes that this one starts.
func closeOnExec(fd int) { syscall.CloseOnExec(fd) }
