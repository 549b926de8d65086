package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestEngines(t *testing.T) {
	t.Parallel()
	for engine, persists := range map[string]bool{"": true, storage.Pebble: true, storage.Memory: false} {
		t.Run("engine "+engine, func(t *testing.T) {
			t.Parallel()
			dir, key := t.TempDir(), ds.NewKey("/a")
			s := openAt(t, engine, dir)
			for name, part := range map[string]ds.Batching{"own": s.Own, "peers": s.Peers()} {
				if err := part.Put(t.Context(), key, []byte(name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openAt(t, engine, dir)
			defer s.Close()
			for name, part := range map[string]ds.Batching{"own": s.Own, "peers": s.Peers()} {
				got, err := part.Get(t.Context(), key)
				if persists && (err != nil || string(got) != name) {
					t.Errorf("after a restart %s has %q, %v; want its own entry", name, got, err)
				}
				if !persists && !errors.Is(err, ds.ErrNotFound) {
					t.Errorf("memory has %q after a restart", got)
				}
			}
			if err := s.Room(); err != nil {
				t.Errorf("no room on this disk: %v", err)
			}
		})
	}
}

func openAt(t testing.TB, engine, dir string) *Stores {
	t.Helper()
	s, err := Open(engine, dir, storage.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDamagedStoreIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openAt(t, storage.Pebble, dir)
	if err := errors.Join(s.Own.Put(t.Context(), ds.NewKey("/a"), []byte("b")), s.Close()); err != nil {
		t.Fatal(err)
	}
	damage(t, filepath.Join(dir, "store"), "MANIFEST*")
	_, err := Open(storage.Pebble, dir, storage.Options{Log: slog.New(slog.DiscardHandler)})
	if e := wantCode(t, err, interact.StoreCorrupt); !strings.Contains(e.Hint, "mv "+dir) {
		t.Errorf("%v (%s) does not say what to move away", e, e.Hint)
	}
	file := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(storage.Pebble, filepath.Dir(file), storage.Options{Log: slog.New(slog.DiscardHandler)})
	wantCode(t, err, interact.StoreCorrupt)
}

// A store of a newer version is reported as such, stays where it is, and opens again with its format.
func TestAStoreOfANewerVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openAt(t, storage.Pebble, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The engine has the version of the format in the name of a file.
	newer := filepath.Join(dir, "store", "marker.format-version.999999.999")
	if err := os.WriteFile(newer, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(storage.Pebble, dir, storage.Options{Log: slog.New(slog.DiscardHandler)})
	if wantCode(t, err, interact.StoreTooNew); storage.Damaged(err) {
		t.Error("it would be moved aside")
	}
	if err := os.Remove(newer); err != nil {
		t.Fatal(err)
	}
	if err := openAt(t, storage.Pebble, dir).Close(); err != nil {
		t.Error(err)
	}
}

// damage overwrites files of a database.
func damage(t testing.TB, dir, pattern string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no %s (%v)", dir, pattern, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte(strings.Repeat("garbage ", 20)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullDiskRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		free uint64
		err  error
		want interact.Code
	}{
		"almost full":        {free: storage.MinFree - 1, want: interact.DiskFull},
		"room enough":        {free: storage.MinFree},
		"a disk that is shy": {err: errors.New("no answer")},
	} {
		dir := t.TempDir()
		s, err := Open("", dir, storage.Options{Log: slog.New(slog.DiscardHandler), Free: func() (uint64, error) { return c.free, c.err }})
		if err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"room": s.Room(), "put": s.Peers().Put(t.Context(), ds.NewKey("/a"), []byte("b"))} {
			if got := s.Failed(err); err == nil && c.want != 0 || err != nil && interact.AsError(got).Code != c.want {
				t.Errorf("%s: %s: got %v, want %v", name, what, err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), dir) {
				t.Errorf("%s: %s does not say which disk: %s", name, what, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := storage.FreeOn("/nowhere/at/all")(); err == nil {
		t.Error("a disk that is not there has room")
	}
	_, err := Open("", t.TempDir(), storage.Options{Log: slog.New(slog.DiscardHandler), Free: func() (uint64, error) { return 0, nil }})
	wantCode(t, err, interact.DiskFull) // there is nothing to serve
}

func TestErrorsOfADiskHaveHints(t *testing.T) {
	t.Parallel()
	path := func(err error) error {
		return fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "/data/store", Err: err})
	}
	for name, c := range map[string]struct {
		cause              error
		wantStore, wantDir interact.Code
		says               string
	}{
		"read-only disk":      {syscall.EROFS, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be written"},
		"no permission":       {syscall.EACCES, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be written"},
		"not permitted":       {syscall.EPERM, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be written"},
		"disk full":           {syscall.ENOSPC, interact.DiskFull, interact.DiskFull, "is full"},
		"quota used up":       {syscall.EDQUOT, interact.DiskFull, interact.DiskFull, "is full"},
		"a file in the way":   {syscall.ENOTDIR, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be"},
		"broken bits":         {syscall.EIO, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be"},
		"a part that is gone": {syscall.ENOENT, interact.StoreCorrupt, interact.ConfigInvalid, "cannot be"},
	} {
		inStore, ofDir := storeError("/data/store", path(c.cause)), Error("/data", path(c.cause))
		for err, want := range map[error]interact.Code{inStore: c.wantStore, ofDir: c.wantDir} {
			e := wantCode(t, err, want)
			if !strings.Contains(e.Title, c.says) || !strings.Contains(e.Title, "/data") || !errors.Is(e, c.cause) {
				t.Errorf("%s: %q does not say that it %s and why", name, e, c.says)
			}
		}
	}
}

func TestOneProcessLocksADirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "data")
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v; want 0700", info.Mode(), err)
	}
	_, err = Lock(dir)
	e := wantCode(t, err, interact.DataDirLocked)
	if want := fmt.Sprintf("process %d already runs on %s", os.Getpid(), dir); e.Error() != want {
		t.Errorf("got %q, want %q", e, want)
	}
	if err := os.Truncate(filepath.Join(dir, "lock"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); !strings.HasPrefix(wantCode(t, err, interact.DataDirLocked).Error(), "another process") {
		t.Errorf("without a pid: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir)
	if err != nil {
		t.Fatalf("the directory stays locked: %v", err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
}

func TestInvalidDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lockIsDir := t.TempDir()
	if err := os.Mkdir(filepath.Join(lockIsDir, "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"a file":                           file,
		"below a file":                     filepath.Join(file, "data"),
		"in the kernel":                    "/proc/lmosd",
		"a directory in place of the lock": lockIsDir,
	} {
		_, err := Lock(dir)
		if e := wantCode(t, err, interact.ConfigInvalid); !strings.Contains(e.Title, dir) || !strings.Contains(fmt.Sprint(e.Next), "run [data-dir") {
			t.Errorf("%s: %q (%s)", name, e, e.Hint)
		}
	}
}

// wantCode returns the [*interact.Error] of err, which has a code and a hint.
func wantCode(t testing.TB, err error, want interact.Code) *interact.Error {
	t.Helper()
	e := (*interact.Error)(nil)
	if !errors.As(err, &e) || e.Code != want {
		t.Fatalf("got %v, want %v", err, want)
	}
	if e.Hint == "" && e.Next == nil {
		t.Errorf("%v has no hint", err)
	}
	return e
}

func TestMain(m *testing.M) { testmain.Run(m) }
