package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// A LockedError means that another process uses the directory.
type LockedError struct {
	Dir    string
	Holder string // "process 12", or "another process"
}

func (e *LockedError) Error() string { return fmt.Sprintf("%s already runs on %s", e.Holder, e.Dir) }

// Lock takes the data directory dir for this process, creates it if needed, and writes the pid into the lock file if there
// is room. The error is a *LockedError, or that of the file system.
func Lock(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "lock")
	lock := flock.New(path, flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	if !ok {
		e := &LockedError{Dir: dir, Holder: "another process"}
		if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
			e.Holder = "process " + strings.TrimSpace(string(b))
		}
		return nil, e
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil && !Full(err) {
		return nil, errors.Join(err, lock.Close())
	}
	return lock.Close, nil
}
