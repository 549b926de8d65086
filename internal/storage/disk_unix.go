//go:build unix

package storage

import (
	"errors"
	"syscall"
)

// FreeOn returns a function for the bytes available on the disk of dir.
func FreeOn(dir string) func() (uint64, error) {
	return func() (uint64, error) {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			return 0, err
		}
		return st.Bavail * uint64(st.Bsize), nil
	}
}

// Full reports whether err means a full disk or an exceeded quota.
func Full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
