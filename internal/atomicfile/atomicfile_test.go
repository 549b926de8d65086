package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	check := func(content string, mode fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content || info.Mode() != mode {
			t.Errorf("%q with mode %v, %v; want %q with %v", got, info.Mode(), err, content, mode)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("the folder has %v, %v; want one file", all, err)
		}
	}
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("new", 0o600)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := Write(path, []byte("replaced"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("replaced", 0o640)
	old := make([]byte, 8)
	if n, _ := before.Read(old); string(old[:n]) != "new" {
		t.Errorf("a reader of the old file sees %q", old[:n])
	}
	if err := Write(filepath.Join(dir, "absent", "a"), nil, 0o600); err == nil {
		t.Error("a missing folder is not an error")
	}
}

// Of writers at once, each loses nothing that another one has written.
func TestSwap(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	var swapped, refused atomic.Int64
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for range 50 {
				before, err := os.ReadFile(path)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
				switch err := Swap(path, before, append(before, 'x'), 0o640); {
				case err == nil:
					swapped.Add(1)
				case errors.Is(err, ErrChanged):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	if got, err := os.ReadFile(path); err != nil || string(got) != strings.Repeat("x", int(swapped.Load())) || swapped.Load() == 0 {
		t.Errorf("%d bytes after %d changes, %v; %d were refused", len(got), swapped.Load(), err, refused.Load())
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("got %v, %v", info, err)
	}
	dangling := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	if err := Swap(dangling, nil, []byte("x"), 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nothing: %v", err)
	}
	for name, before := range map[string]string{"a": "", "absent": "x"} {
		if err := Swap(filepath.Join(filepath.Dir(path), name), []byte(before), nil, 0o600); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
