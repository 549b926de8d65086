package storage

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) {
	testmain.Run(m)
}

// A journal is a log that tests can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer // owned by mu
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (j *journal) has(text string) bool { return strings.Contains(j.String(), text) }

// A tightFS is full while full is set: half of each write succeeds.
type tightFS struct {
	vfs.FS
	full atomic.Bool
}

func (f *tightFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if f.full.Load() {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	file, err := f.FS.Create(name, c)
	return &tightFile{file, f}, err
}

func (f *tightFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(from, to, c)
	return &tightFile{file, f}, err
}

type tightFile struct {
	vfs.File
	fs *tightFS
}

func (f *tightFile) Write(b []byte) (int, error) {
	if f.fs.full.Load() {
		n, err := f.File.Write(b[:len(b)/2])
		return n, errors.Join(err, syscall.ENOSPC)
	}
	return f.File.Write(b)
}

// A disk fills up while a node runs: reads work, writes are refused at once and have no effect, messages are not repeated, and writes work
// when there is room again.
func TestFullDiskDoesNotStopTheNode(t *testing.T) {
	t.Parallel()
	a, b := ds.NewKey("/own/a"), ds.NewKey("/own/b")
	for name, write := range map[string]func(ds.Batching) error{
		"a new value": func(own ds.Batching) error { return own.Put(t.Context(), a, []byte("refused")) },
		"a new key":   func(own ds.Batching) error { return own.Put(t.Context(), b, []byte("refused")) },
		"a delete":    func(own ds.Batching) error { return own.Delete(t.Context(), a) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFullDisk(t, a, b, write)
		})
	}
}

// testFullDisk begins the write when the disk is full.
func testFullDisk(t *testing.T, a, b ds.Key, write func(ds.Batching) error) {
	var j journal
	fs, ctx := &tightFS{FS: vfs.Default}, t.Context()
	s, err := Open(Pebble, t.TempDir(), Options{Log: j.logger(), fs: fs, Free: func() (uint64, error) { return 1 << 40, nil }})
	if err != nil {
		t.Fatal(err)
	}
	resume := make(chan time.Time)
	s.disk.after = func(time.Duration) <-chan time.Time { return resume }
	own := s.Durable()
	if err := own.Put(ctx, a, []byte("before")); err != nil {
		t.Fatal(err)
	}
	fs.full.Store(true)
	if err := write(own); !Full(err) {
		t.Fatalf("without room a write gives %v", err)
	}
	for range 100 {
		for what, err := range map[string]error{"put": own.Put(ctx, b, []byte("x")), "delete": own.Delete(ctx, a), "cache": s.Fast().Put(ctx, b, []byte("x")),
			"room": s.Room()} {
			if !Full(err) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	if lines := strings.Count(j.String(), "level=ERROR"); lines != 1 {
		t.Errorf("%d errors are logged, want one:\n%s", lines, &j)
	}
	if got, err := s.Fast().Get(ctx, ds.NewKey("/other")); !errors.Is(err, ds.ErrNotFound) {
		t.Errorf("reading gives %q, %v", got, err)
	}
	fs.full.Store(false)
	close(resume)
	for s.closed() { // until the waiting writes are done
		runtime.Gosched()
	}
	s.mu.Lock() // and undone
	undone, err := s.durable.Get(ctx, a)
	_, errNew := s.durable.Get(ctx, b)
	s.mu.Unlock()
	if string(undone) != "before" || err != nil || !errors.Is(errNew, ds.ErrNotFound) {
		t.Errorf("refused writes were applied: %q, %v, %v", undone, err, errNew)
	}
	if err := errors.Join(own.Put(ctx, b, []byte("after")), s.Close()); err != nil {
		t.Error(err)
	}
	if !j.has("has room") {
		t.Errorf("the log does not report that has room:\n%s", &j)
	}
}

// A store that is opened on a full disk can be read, and accepts changes as soon as has room.
func TestReadOnFullDisk(t *testing.T) {
	t.Parallel()
	ctx, a := t.Context(), ds.NewKey("/own/a")
	s, free := onFullDisk(t, a)
	if got, err := s.Durable().Get(ctx, a); string(got) != "1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := s.Durable().Put(ctx, a, []byte("2")); !Full(err) {
		t.Errorf("a change gives %v", err)
	}
	res, err := s.Fast().Query(ctx, query.Query{Prefix: "/own"})
	if err != nil {
		t.Fatal(err)
	}
	free.Store(1 << 40)
	if err := s.unlock(); err != nil || !s.locked.Load() { // a read runs
		t.Errorf("unlock: %v, locked %v", err, s.locked.Load())
	}
	if all, err := res.Rest(); len(all) != 1 || err != nil {
		t.Errorf("%d entries, %v", len(all), err)
	}
	free.Store(0)
	var waits []time.Duration
	passed := make(chan time.Time)
	close(passed)
	s.disk.after = func(wait time.Duration) <-chan time.Time {
		if waits = append(waits, wait/time.Second); len(waits) == 6 {
			free.Store(1 << 40)
		}
		return passed
	}
	if !s.Run(ctx) || s.Run(ctx) || !slices.Equal(waits, []time.Duration{1, 2, 4, 8, 10, 10}) {
		t.Errorf("Run did not open it once, at the sixth attempt; it waited %d s", waits)
	}
	if err := errors.Join(s.Durable().Put(ctx, a, []byte("3")), s.Close()); err != nil {
		t.Error(err)
	}
	s = open(t, Pebble, filepath.Dir(s.Path()), s.o)
	if got, err := s.Durable().Get(ctx, a); string(got) != "3" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A store that cannot be reopened, neither for writing nor for reading, fails with the cause until it can.
func TestReopenFails(t *testing.T) {
	t.Parallel()
	ctx, a := t.Context(), ds.NewKey("/own/a")
	s, free := onFullDisk(t, a)
	free.Store(1 << 40)
	away := s.Path() + ".away"
	if err := errors.Join(os.Rename(s.Path(), away), os.WriteFile(s.Path(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.unlock(); err == nil {
			t.Fatal("a file was opened as a database")
		}
		_, got := s.Durable().Get(ctx, a)
		_, has := s.Fast().Has(ctx, a)
		_, query := s.Fast().Query(ctx, query.Query{})
		for what, err := range map[string]error{"get": got, "has": has, "query": query, "put": s.Durable().Put(ctx, a, nil)} {
			if err == nil || !strings.Contains(err.Error(), s.Path()) {
				t.Errorf("%s: %v; want the store that does not open", what, err)
			}
		}
	}
	if err := errors.Join(os.Remove(s.Path()), os.Rename(away, s.Path()), s.unlock()); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Durable().Get(ctx, a); string(got) != "1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if err := errors.Join(s.Durable().Put(ctx, a, []byte("2")), s.Close()); err != nil {
		t.Error(err)
	}
}

// onFullDisk returns a store that is opened on a full disk, with the value 1 of a key. The disk has as many bytes as free.
func onFullDisk(t *testing.T, key ds.Key) (s *Store, free *atomic.Uint64) {
	t.Helper()
	free = new(atomic.Uint64)
	free.Store(1 << 40)
	dir, o := t.TempDir(), Options{Log: slog.New(slog.DiscardHandler), Free: func() (uint64, error) { return free.Load(), nil }}
	s = open(t, Pebble, dir, o)
	if err := errors.Join(s.Durable().Put(t.Context(), key, []byte("1")), s.Close()); err != nil {
		t.Fatal(err)
	}
	free.Store(0)
	return open(t, Pebble, dir, o), free
}

func open(t testing.TB, engine, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(engine, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheSameIsLoggedOnceInAWhile(t *testing.T) {
	t.Parallel()
	var j journal
	now, code := time.Unix(1e9, 0), 0
	l := pebbleLog{newLimited(j.logger()), func(c int) { code = c }}
	l.now = func() time.Time { return now }
	l.Infof("flushed %d", 1)
	for i := range 1000 {
		l.Errorf("lost %d", i)
		l.Errorf("lost more %d", i)
	}
	now = now.Add(every)
	l.Errorf("lost %d", 1000)
	if !j.has(`level=DEBUG msg=store text="flushed 1"`) || !j.has(`text="lost 0"`) || !j.has(`text="lost 1000" "left out"=999`) ||
		strings.Count(j.String(), "\n") != 4 {
		t.Errorf("the log has %s", &j)
	}
	l.Fatalf("fatal commit error: %v", errors.New("bad"))
	if code != 1 {
		t.Errorf("exit %d", code)
	}
	l.Fatalf("fatal commit error: %v", fmt.Errorf("write: %w", syscall.ENOSPC))
	if code != 9 {
		t.Errorf("exit %d without room", code)
	}
}

func TestLockOnFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	release, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir)
	if e := new(LockedError); !errors.As(err, &e) || e.Holder != fmt.Sprintf("process %d", os.Getpid()) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(release(), os.Remove(filepath.Join(dir, "lock"))); err != nil {
		t.Error(err)
	}
}

// A cache whose write waits for room blocks neither a sync nor Close. The disk does not report that it is full, like one with quotas.
func TestFullCacheDoesNotBlock(t *testing.T) {
	t.Parallel()
	fs, ctx := &tightFS{FS: vfs.Default}, t.Context()
	s := open(t, Pebble, t.TempDir(), Options{Log: slog.New(slog.DiscardHandler), fs: fs, Free: func() (uint64, error) { return 1 << 40, nil }})
	resume := make(chan time.Time)
	s.disk.after = func(time.Duration) <-chan time.Time { return resume }
	ended, inner := make(chan error, 1), s.close
	s.close = func() error {
		err := inner()
		ended <- err
		return err
	}
	cache, a := s.Fast(), ds.NewKey("/a")
	fs.full.Store(true)
	b, err := cache.Batch(ctx)
	if err = errors.Join(err, b.Put(ctx, a, []byte("1"))); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(ctx); err != nil && !Full(err) {
		t.Errorf("a batch gives %v", err)
	}
	if err := cache.Sync(ctx, a); !Full(err) && !s.closed() {
		t.Errorf("to sync gives %v; want that there is no room", err)
	}
	if err := cache.Put(ctx, a, []byte("2")); !Full(err) {
		t.Errorf("to put gives %v; want that there is no room", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	fs.full.Store(false)
	close(resume)
	if err := <-ended; err != nil { // the waiting write is done
		t.Error(err)
	}
}

// Unreadable files are damage, independent of their path and the text of the error. Errors of the system are not damage, and nothing is moved
// aside.
func TestDamageIsRecognized(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "lock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for err, want := range map[error]bool{errors.New("bad block of " + dir): true, errors.New("lock held by current process"): false,
		errors.New("format major version 99 is not known"): false, syscall.ENOENT: true, syscall.EMFILE: false, syscall.EIO: false,
		syscall.ENOMEM: false, syscall.EACCES: false, syscall.EROFS: false, syscall.ENOSPC: false, syscall.EAGAIN: false} {
		if err := unreadable(dir, fmt.Errorf("open: %w", err)); Damaged(err) != want {
			t.Errorf("%v: damaged is %v", err, !want)
		}
	}
}

// A folder of the engine LevelDB, which earlier builds had, is not taken for a damaged store: it stays where it is.
func TestOtherEngines(t *testing.T) {
	t.Parallel()
	dir, o := t.TempDir(), Options{Log: slog.New(slog.DiscardHandler)}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "store"), 0o700), os.WriteFile(filepath.Join(dir, "store", "CURRENT"), []byte("MANIFEST-000001\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "store", "MANIFEST-000001"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Pebble, dir, o); err == nil || Damaged(err) {
		t.Errorf("a store of another engine gives %v, damaged: %v", err, Damaged(err))
	}
	if _, err := Open("leveldb", t.TempDir(), o); err == nil {
		t.Error("an unknown engine is opened")
	}
}

// Queries have what is below their prefix, and a second Close does not disturb another query.
func TestQueries(t *testing.T) {
	t.Parallel()
	s := open(t, Pebble, t.TempDir(), Options{Log: slog.New(slog.DiscardHandler)})
	d := s.Durable()
	for _, key := range []string{"/a", "/a/1", "/a/2", "/ab", "/b/1"} {
		if err := d.Put(t.Context(), ds.NewKey(key), []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	list := func(q query.Query) (all []string) {
		for e, err := range Entries(t.Context(), d, q) {
			if err != nil {
				t.Fatal(err)
			}
			if want := e.Key; q.KeysOnly && e.Value != nil || !q.KeysOnly && string(e.Value) != want {
				t.Errorf("%s has %q", e.Key, e.Value)
			}
			all = append(all, e.Key)
		}
		return all
	}
	for prefix, want := range map[string][]string{
		"": {"/a", "/a/1", "/a/2", "/ab", "/b/1"}, "/": {"/a", "/a/1", "/a/2", "/ab", "/b/1"}, "/a": {"/a/1", "/a/2"}, "b": {"/b/1"}, "/c": nil,
	} {
		for _, keysOnly := range []bool{false, true} {
			if got := list(query.Query{Prefix: prefix, KeysOnly: keysOnly}); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
				t.Errorf("%q has %q, want %q", prefix, got, want)
			}
		}
	}
	if got := list(query.Query{Limit: 2}); len(got) != 2 {
		t.Errorf("two of all are %q", got)
	}
	first, err := d.Query(t.Context(), query.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := d.Query(t.Context(), query.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if all, err := second.Rest(); err != nil || len(all) != 5 {
		t.Errorf("%d entries after the other query was closed again, %v", len(all), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
