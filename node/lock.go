package node

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"github.com/lmosd/lmosd/interact"
)

// lockDir takes the data directory for this process, makes it if it is not there, and writes its pid into the lock file.
// The error is of code DataDirLocked and names the process that holds it, or ConfigInvalid or DiskFull.
func lockDir(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, dirError(dir, err)
	}
	path := filepath.Join(dir, "lock")
	lock := flock.New(path, flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, dirError(dir, err)
	}
	if !ok {
		return nil, lockedError(dir, path)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(dirError(dir, err), lock.Close())
	}
	return lock.Close, nil
}

func lockedError(dir, path string) error {
	holder := "another process"
	if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
		holder = "process " + strings.TrimSpace(string(b))
	}
	return interact.Errorf(interact.DataDirLocked, "stop it, or start with another directory: lmosd run --data-dir DIR",
		"%s already runs on %s", holder, dir)
}
