package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path by data: readers see the whole old content or the whole new content. The folder must exist. Windows has no
// mode bits.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteBy(path, mode, func(w io.Writer) error { _, err := io.Copy(w, bytes.NewReader(data)); return err })
}

// WriteBy is [Write] of what a function writes. An error of the function leaves the file as it was. The module that does this elsewhere does not
// support Windows.
func WriteBy(path string, _ fs.FileMode, write func(w io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// lock locks nothing: an open file cannot be replaced.
func lock(string, bool, fs.FileMode) (release func(), made bool, err error) {
	return func() {}, false, nil
}
