// Package atomicfile replaces files as a whole.
package atomicfile

import (
	"io/fs"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Write replaces the file at path by data, durably: readers see all of the old content or all of the new one, and so do those that come
// after a crash. A file that exists keeps its permissions; a new one gets mode. The folder must exist.
func Write(path string, data []byte, mode fs.FileMode) error {
	// A temporary file in another folder could be on another file system.
	return renameio.WriteFile(path, data, mode, renameio.WithTempDir(filepath.Dir(path)))
}
