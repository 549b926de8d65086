//go:build unix && !linux

package command

import "syscall"

// dieWithParent does nothing: only Linux has this signal.
func dieWithParent(*syscall.SysProcAttr) {}
