// Package atomicfile replaces files as a whole.
package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
)

// ErrChanged is the error of [Swap] for a file with another content than the expected one.
var ErrChanged = errors.New("another program has changed the file")

// Swap is [Write] for a file that has the content before; a missing file is an empty one. For another content the error is [ErrChanged], and
// the file stays. Only one caller on this host writes a file at a time, except on Windows.
func Swap(path string, before, data []byte, mode fs.FileMode) error {
	release, made, err := lock(path, len(before) == 0, mode)
	if err != nil {
		return err
	}
	defer release()
	switch now, err := os.ReadFile(path); {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case !bytes.Equal(now, before):
		return ErrChanged
	}
	if err := Write(path, data, mode); err != nil {
		if made { // an empty configuration would hide the default one
			err = errors.Join(err, os.Remove(path))
		}
		return err
	}
	return nil
}
