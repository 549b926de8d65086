//go:build unix

package keystore

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// hasModes is set where the mode of a file says who can read it.
const hasModes = true

// checkOwner rejects files of other users, because a file's owner can make it readable for others. It accepts files of root.
func checkOwner(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if me := os.Geteuid(); ok && int(st.Uid) != me && st.Uid != 0 {
		return &PermissionError{
			Path:   path,
			Reason: fmt.Sprintf("it belongs to user %d, this process is user %d", st.Uid, me),
			Hint:   fmt.Sprintf("chown %d %s", me, quote(path)),
		}
	}
	return nil
}

// isRoots reports whether a file belongs to root.
func isRoots(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}
