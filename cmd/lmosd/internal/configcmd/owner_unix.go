//go:build !windows

package configcmd

import (
	"io/fs"
	"os"
	"syscall"
)

// mayReplace returns an error if the file belongs to another user: a new one would not.
func mayReplace(info fs.FileInfo) error {
	if was, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() != 0 && int(was.Uid) != os.Geteuid() {
		return fs.ErrPermission
	}
	return nil
}

// keepOwner gives a file the owner that it had before it was replaced: root may change the file of a service.
func keepOwner(path string, before fs.FileInfo) error {
	was, ok := before.Sys().(*syscall.Stat_t)
	if !ok || int(was.Uid) == os.Geteuid() && int(was.Gid) == os.Getegid() {
		return nil
	}
	return os.Chown(path, int(was.Uid), int(was.Gid))
}
