package service

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// mounted runs f in a thread of its own that has a file system at dir which the other threads and processes do not see. It skips the test if
// this user cannot mount.
func mounted(t *testing.T, dir, kind, options string, flags uintptr, f func()) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS)
		if err == nil {
			err = errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount(kind, dir, kind, flags, options))
		}
		if err == nil {
			f()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		if os.Geteuid() != 0 {
			t.Skipf("this user cannot mount: %v", err)
		}
		testprogram.Missing(t, err)
	}
}

// A full disk leaves the folder of units as it was.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]string{"nothing installed": "", "a unit to replace": marker + "# old\n"} {
		h := newHost(t)
		dir := filepath.Join(h.dir, filepath.Dir(systemFile))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		var left []string
		var unit string
		mounted(t, dir, "tmpfs", "size=16k", 0, func() {
			if old != "" {
				h.write(systemFile, old, 0o644)
			}
			for i := range 8 { // until the disk is full
				_ = os.WriteFile(filepath.Join(dir, strings.Repeat("x", i+1)), make([]byte, 4096), 0o600)
			}
			err = h.setup(false).install(t.Context(), false, true)
			left, _ = filepath.Glob(filepath.Join(dir, "*lmosd*"))
			hidden, _ := filepath.Glob(filepath.Join(dir, ".*"))
			left, unit = append(left, hidden...), h.read(systemFile)
		})
		h.fails(err, interact.DiskFull, "is full")
		if unit != old || len(left) != min(len(old), 1) {
			t.Errorf("%s: the unit is %q, files %v", name, unit, left)
		}
		if calls := h.calls(); len(calls) > 0 {
			t.Errorf("%s: it called %q", name, calls)
		}
	}
}

// A read-only root is reported with the file.
func TestAReadOnlyRoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := filepath.Join(h.dir, filepath.Dir(systemFile))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	mounted(t, dir, "tmpfs", "", syscall.MS_RDONLY, func() { err = h.setup(false).install(t.Context(), false, true) })
	h.fails(err, interact.Usage, filepath.Join(h.dir, systemFile)+" cannot be read or written")
	if !errors.Is(err, syscall.EROFS) {
		t.Errorf("got %v", err)
	}
}
