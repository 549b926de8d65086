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

// lock locks a file, which is made if it is missing and may be new, and reports whether it made it. The lock is on the content that is there now: whoever waits for it finds
// another content later.
func lock(path string, isNew bool, mode fs.FileMode) (release func(), made bool, err error) {
	if isNew {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, mode)
		switch {
		case err == nil:
			made, err = true, f.Close()
		case errors.Is(err, fs.ErrExist):
			_, err = os.Stat(path) // of the target of a link
		}
		if err != nil {
			return nil, made, err
		}
	}
	l := flock.New(path, flock.SetFlag(os.O_RDONLY))
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	switch _, err := l.TryLockContext(ctx, lockPoll); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, made, ErrChanged
	case err != nil:
		return nil, made, fmt.Errorf("lock the file: %w", err)
	}
	return func() { _ = l.Close() }, made, nil // the lock ends in any case
}
