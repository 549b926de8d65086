// Package storage opens the datastore of a node, locks the data directory, serves reads on a full disk, and reports the loss of a
// damaged store.
//
// Errors of a full disk wrap [syscall.ENOSPC]. Messages of an engine are logged, each at most every 10 s.
package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/failstore"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/internal/backoff"
)

// Storage engines.
const (
	Pebble = "pebble" // the default
	Memory = "memory" // for tests: nothing survives
)

// Room on the disk, in bytes. Below MinFree only required writes, such as withdrawals, are accepted, and the database can still
// compact. Below openNeeds a store is opened read-only: opening for writing creates a log, a table and a manifest.
const (
	MinFree   = 16 << 20
	openNeeds = 8 << 20
)

// Options configure a [Store].
type Options struct {
	Log  *slog.Logger
	Free func() (uint64, error) // free bytes of the disk; nil: from the system
	fs   vfs.FS                 // for tests; nil: the system's
}

// A Store is one database with two views. A write through Durable is on disk when it returns; a crash loses the last
// seconds of writes through Fast.
//
// On a full disk reads work, and writes fail with an error that wraps ENOSPC. A store opened on a full disk is read-only until [Store.Run]
// finds room.
type Store struct {
	path string // of the database; "" in memory
	o    Options
	disk *disk

	// mu is held for reading by each operation, and by each query until its results are closed; for writing while the database is
	// reopened, which does not wait for readers but retries later.
	mu      sync.RWMutex
	durable ds.Batching // owned by mu, as all below
	fast    ds.Batching
	close   func() error
	locked  atomic.Bool // read-only: opened on a full disk
}

// Open opens the store below dir; without one, or with the engine Memory, it is in memory.
func Open(engine, dir string, o Options) (*Store, error) {
	s := &Store{o: o}
	if !slices.Contains([]string{"", Pebble, Memory}, engine) {
		return nil, fmt.Errorf("there is no storage engine %q", engine)
	}
	if dir == "" || engine == Memory {
		m := dssync.MutexWrap(ds.NewMapDatastore())
		s.durable, s.fast, s.close = m, m, m.Close
		return s, nil
	}
	s.path = filepath.Join(dir, "store")
	if s.o.Free == nil {
		s.o.Free = FreeOn(dir)
	}
	s.disk = newDisk(o.Log)
	if s.disk.base = o.fs; o.fs == nil {
		s.disk.base = vfs.Default
	}
	free, err := s.o.Free()
	s.locked.Store(err == nil && free < openNeeds)
	if s.locked.Load() {
		if _, err := os.Stat(s.path); errors.Is(err, os.ErrNotExist) {
			return nil, s.full(free) // the store is empty and cannot be created
		}
		o.Log.Warn("disk full, store is read-only until there is room", "path", s.path, "free", free)
	}
	if s.Hurt() && !s.locked.Load() { // otherwise a new one could not be created
		return nil, fmt.Errorf("%w: damage was found when it was last used", errUnreadable)
	}
	if err := s.open(); err != nil {
		return nil, unreadable(s.path, err)
	}
	return s, nil
}

// open opens the database, read-only if locked.
func (s *Store) open() (err error) {
	s.durable, s.fast, s.close, err = openPebble(s.path, s.locked.Load(), s.disk, s.o.Log, s.hurt)
	return err
}

// Path returns the path of the database, or "" in memory.
func (s *Store) Path() string { return s.path }

// Size returns the bytes of the database on the disk; 0 in memory.
func (s *Store) Size() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	size := uint64(0)
	if d, ok := s.durable.(ds.PersistentDatastore); ok {
		size, _ = d.DiskUsage(context.Background()) // the engine has no error
	}
	return size
}

// Durable returns the view for data that must survive a crash.
func (s *Store) Durable() ds.Batching { return &view{s: s, durable: true} }

// Fast returns the view for data that can be fetched again.
func (s *Store) Fast() ds.Batching { return &view{s: s} }

// Room returns an error that wraps ENOSPC if no new data should be stored now.
func (s *Store) Room() error {
	if s.disk == nil {
		return nil
	}
	free, err := s.o.Free()
	if s.closed() || err == nil && free < MinFree {
		return s.full(free)
	}
	return nil // An unknown size does not block writes.
}

// closed reports whether no write is possible now.
func (s *Store) closed() bool { return s.disk != nil && (s.locked.Load() || s.disk.isStuck()) }

func (s *Store) full(free uint64) error {
	return fmt.Errorf("the disk of %s has %d bytes left; %d are needed to store anything safely: %w", s.path, free, MinFree, syscall.ENOSPC)
}

// Run reopens a store that was opened on a full disk for writing, as soon as there is room. It returns whether it did so, at the latest
// when ctx ends. It returns false at once for other stores.
func (s *Store) Run(ctx context.Context) (opened bool) {
	opened = s.locked.Load()
	for pauses := (backoff.Backoff{First: time.Second, Max: 10 * time.Second}); s.locked.Load(); {
		select {
		case <-ctx.Done():
			return false
		case <-s.disk.after(pauses.Next()):
		}
		if err := s.unlock(); err != nil {
			s.o.Log.Error("the store could not be opened for writing", "path", s.path, "err", err, "hint", reopenHint)
		}
	}
	return opened
}

const reopenHint = "it is tried again; if that does not help, see the disk's health and the permissions of the data directory, then start lmosd again"

// unlock reopens the database if the disk has room and no read runs.
func (s *Store) unlock() error {
	if free, err := s.o.Free(); err != nil || free < MinFree || !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	if !s.locked.Load() {
		return nil
	}
	err := s.close() // It must not be closed twice, even if this fails.
	s.locked.Store(false)
	reopened := s.open()
	if reopened == nil {
		s.o.Log.Info("disk has room again, changes are stored", "path", s.path)
		return nil
	}
	s.locked.Store(true)
	err = errors.Join(err, reopened)
	if again := s.open(); again != nil { // otherwise it stays readable
		err = errors.Join(err, again)
		s.fail(err)
	}
	return err
}

// fail lets all reads and writes fail with err until the database opens again.
func (s *Store) fail(err error) {
	err = fmt.Errorf("the store %s does not open again: %w", s.path, err)
	closed := failstore.NewFailstore(ds.NewNullDatastore(), func(string) error { return err })
	s.durable, s.fast, s.close = closed, closed, func() error { return nil }
}

// Close closes the store. On a full disk the database stays open: acknowledged writes are on the disk.
func (s *Store) Close() error {
	if s.disk == nil {
		return s.close()
	}
	done := make(chan error, 1)
	go func() { done <- s.close() }()
	select {
	case err := <-done:
		return err
	case <-s.disk.stuckNow():
		s.o.Log.Warn("disk full, store left open; acknowledged writes are durable", "path", s.path)
		return nil
	}
}
