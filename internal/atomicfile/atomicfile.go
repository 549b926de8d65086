//go:build !windows

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Write replaces the file at path by data, durably: readers see the whole old content or the whole new content, also after a crash. An
// existing file keeps its permissions; a new file has mode. The folder must exist.
func Write(path string, data []byte, mode fs.FileMode) error {
	// A temporary file in another folder could be on another file system.
	return renameio.WriteFile(path, data, mode, renameio.WithTempDir(filepath.Dir(path)))
}

// WriteBy is [Write] of what a function writes. An error of the function leaves the file as it was.
func WriteBy(path string, mode fs.FileMode, write func(w io.Writer) error) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(mode))
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		return errors.Join(err, f.Cleanup())
	}
	return f.CloseAtomicallyReplace()
}
