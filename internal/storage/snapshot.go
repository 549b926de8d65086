package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// ErrBusy means that the database changed during each attempt to copy it.
var ErrBusy = errors.New("the database changed while it was copied")

// attempts is the number of attempts to copy a database in use.
const attempts = 10

// Snapshot copies the data directory dir to the empty folder to, also while a process uses it. The copy is what the process would find after
// a crash: files of the database never change, except its logs, which grow, and the list of files, which changes with each of them.
func Snapshot(dir, to string) error {
	store := filepath.Join(dir, "store")
	err := ErrBusy
	for range attempts {
		before := content(store)
		if err = copyTree(store, filepath.Join(to, "store"), nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && maps.Equal(before, content(store)) || len(before) == 0 {
			err = nil
			break
		}
		err = ErrBusy
		if err := os.RemoveAll(filepath.Join(to, "store")); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return copyTree(dir, to, func(name string) bool {
		return name == "store" || name == "lock" || strings.HasPrefix(name, asideName)
	})
}

// content returns the files of a database with their sizes; logs grow and have none.
func content(store string) map[string]int64 {
	files := map[string]int64{}
	entries, _ := os.ReadDir(store) // what cannot be read is found when it is copied
	for _, e := range entries {
		size := int64(0)
		if info, err := e.Info(); err == nil && filepath.Ext(e.Name()) != ".log" {
			size = info.Size()
		}
		files[e.Name()] = size
	}
	return files
}

// Size returns the bytes of the regular files below dir.
func Size(dir string) (n uint64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil {
				n += uint64(info.Size())
			}
		}
		return nil
	})
	return n
}

// copyTree copies the folders and regular files below from, except those of the top level that skip accepts. Files that were removed in
// between are an error of an engine only: elsewhere files are replaced as a whole.
func copyTree(from, to string, skip func(name string) bool) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case skip != nil && skip(name) && e.IsDir():
			return fs.SkipDir
		case skip != nil && skip(name):
			return nil
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		case e.Type()&fs.ModeSymlink != 0:
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
				return fmt.Errorf("%s is a link to a folder, which is not copied", path)
			}
		case !e.Type().IsRegular():
			return nil // sockets
		}
		err = copyFile(path, filepath.Join(to, name))
		if skip != nil && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
