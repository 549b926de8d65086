package storage

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
)

// A countingFS counts the syncs of the log of a database. Each waits until all writers wait for one.
type countingFS struct {
	vfs.FS
	syncs, writers, waiting atomic.Int32
}

func (f *countingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	if filepath.Ext(name) == ".log" {
		file = &countedFile{file, f}
	}
	return file, err
}

type countedFile struct {
	vfs.File
	fs *countingFS
}

func (f *countedFile) Sync() error { return f.count(f.File.Sync) }

func (f *countedFile) SyncData() error { return f.count(f.File.SyncData) }

func (f *countedFile) SyncTo(n int64) (bool, error) {
	return true, f.count(f.File.Sync)
}

func (f *countedFile) count(sync func() error) error {
	if f.fs.writers.Load() > 0 {
		f.fs.syncs.Add(1)
	}
	for f.fs.waiting.Load() < f.fs.writers.Load() {
		runtime.Gosched()
	}
	for range 1000 { // they are about to add their writes to the log
		runtime.Gosched()
	}
	return sync()
}

// Durable writes that wait at the same time share a sync of the disk.
func TestWritesShareSyncs(t *testing.T) {
	t.Parallel()
	const writers, each = 16, 20
	fs := &countingFS{FS: vfs.Default}
	s := open(t, Pebble, t.TempDir(), Options{Log: slog.New(slog.DiscardHandler), fs: fs, Free: func() (uint64, error) { return 1 << 40, nil }})
	copies, err := NewCopies(s.Durable(), t.TempDir(), func(a, b []byte) bool { return false }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	fs.writers.Store(writers)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			defer fs.writers.Add(-1)
			for i := range each {
				fs.waiting.Add(1)
				err := copies.Put(t.Context(), ds.NewKey(fmt.Sprintf("%d/%d", w, i)), []byte("x"))
				fs.waiting.Add(-1)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := fs.syncs.Load(); n == 0 || n > writers*each/2 {
		t.Errorf("%d syncs for %d writes of %d writers", n, writers*each, writers)
	}
	if copies.settle(); len(copies.log.at) != writers*each {
		t.Errorf("%d copies of %d values", len(copies.log.at), writers*each)
	}
	if err := copies.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
