//go:build unix

package p2p

import "syscall"

// files returns the limit of open file descriptors, within bounds.
func files() int {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return 1024
	}
	return int(min(lim.Cur/2, maxFiles))
}
