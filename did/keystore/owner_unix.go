//go:build unix

package keystore

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses what belongs to another user: who owns a file can open it to himself again. Root can do that
// anyway.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if me := os.Geteuid(); ok && int(st.Uid) != me && st.Uid != 0 {
		return &PermissionError{
			Path: path,
			Why:  fmt.Sprintf("it belongs to user %d, this process is user %d", st.Uid, me),
			Hint: fmt.Sprintf("chown %d %s", me, quote(path)),
		}
	}
	return nil
}
