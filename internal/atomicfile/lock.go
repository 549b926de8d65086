//go:build !windows

package atomicfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// The time for a lock: other holders only write a file.
const (
	lockWait = 10 * time.Second
	lockPoll = 5 * time.Millisecond
)

// lock locks a file, which is made if it is missing and may be new. The lock is on the content that is there now: whoever waits for it finds
// another content later.
func lock(path string, isNew bool, mode fs.FileMode) (release func(), err error) {
	if isNew {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, mode)
		switch {
		case err == nil:
			err = f.Close()
		case errors.Is(err, fs.ErrExist):
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	switch _, err := l.TryLockContext(ctx, lockPoll); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrChanged
	case err != nil:
		return nil, fmt.Errorf("lock the file: %w", err)
	}
	return func() { _ = l.Close() }, nil // the lock ends in any case
}
