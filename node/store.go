package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"
	dssync "github.com/ipfs/go-datastore/sync"
	leveldb "github.com/ipfs/go-ds-leveldb"
	pebbleds "github.com/ipfs/go-ds-pebble"

	"github.com/lmosd/lmosd/interact"
)

// Storage engines.
const (
	EnginePebble  = "pebble"  // the default: fast, +15 MB of memory
	EngineLevelDB = "leveldb" // for small machines; every write is synced
	EngineMemory  = "memory"  // for tests: nothing survives
)

// minFree is the free disk space below which nothing new is published: the store needs room to compact.
const minFree = 16 << 20

// stores are two views of one database. Own state (sequence numbers, what this node offers) goes through durable, whose
// writes are on disk when they return; caches go through fast and may lose their last seconds.
type stores struct {
	durable, fast ds.Batching
	close         func() error
	path          string                 // of the database; "" in memory
	free          func() (uint64, error) // bytes left on its disk; nil in memory
}

// openStores opens the database below dir. The engine is one of the above; empty means pebble.
func openStores(engine, dir string, log *slog.Logger) (*stores, error) {
	if dir == "" || engine == EngineMemory {
		m := dssync.MutexWrap(ds.NewMapDatastore())
		return &stores{durable: m, fast: m, close: m.Close}, nil
	}
	path := filepath.Join(dir, "store")
	if engine != EngineLevelDB {
		return openPebble(path, diskOf(dir), log)
	}
	l, err := leveldb.NewDatastore(path, nil)
	if err != nil {
		return nil, storeError(path, err)
	}
	return &stores{durable: l, fast: l, close: l.Close, path: path, free: diskOf(dir)}, nil
}

func openPebble(path string, free func() (uint64, error), log *slog.Logger) (*stores, error) {
	disk, watch := vfs.WithDiskHealthChecks(vfs.Default, 5*time.Second, nil, func(info vfs.DiskSlowInfo) {
		log.Warn("the disk is slow", "info", info.String())
	})
	opts := &pebble.Options{
		MemTableSize: 4 << 20,
		// Pinned so that an older lmosd can open the store after a downgrade.
		FormatMajorVersion: pebble.FormatColumnarBlocks,
		Logger:             pebbleLog{log},
		// The library's own is the same, and is not closed when the store does not open.
		FS: disk,
	}
	durable, err := pebbleds.NewDatastore(path, pebbleds.WithPebbleOpts(opts), pebbleds.WithCacheSize(4<<20),
		pebbleds.WithPebbleWriteOptions(pebble.Sync))
	if err != nil {
		return nil, errors.Join(storeError(path, err), watch.Close())
	}
	// Only the first view is closed: both are one database.
	closeAll := func() error { return errors.Join(durable.Close(), watch.Close()) }
	fast, err := pebbleds.NewDatastore("", pebbleds.WithPebbleDB(durable.DB), pebbleds.WithPebbleWriteOptions(pebble.NoSync))
	if err != nil {
		return nil, errors.Join(storeError(path, err), closeAll())
	}
	return &stores{durable: durable, fast: fast, close: closeAll, path: path, free: free}, nil
}

// own and peers name the node's parts of the database. The DHT and the directory name theirs themselves (/dht, /directory) and
// get the whole: a namespace inside one of the same name loses its prefix.
func (s *stores) own() ds.Batching { return namespace.Wrap(s.durable, ds.NewKey("/own")) }
func (s *stores) ledger() ds.Batching {
	return namespace.Wrap(s.durable, ds.NewKey("/tasks"))
}
func (s *stores) peers() ds.Batching { return namespace.Wrap(s.fast, ds.NewKey("/peers")) }

// room returns an error of code DiskFull if the disk of the store has almost no space left.
func (s *stores) room() error {
	if s.free == nil {
		return nil
	}
	free, err := s.free()
	if err != nil || free >= minFree {
		return nil // No answer is no reason to refuse.
	}
	return interact.Errorf(interact.DiskFull, "free some space on the disk of "+s.path,
		"the disk has %d bytes left; lmosd needs %d to store anything safely", free, minFree)
}

// diskOf returns the question how many bytes are left to us on the disk of dir.
func diskOf(dir string) func() (uint64, error) {
	return func() (uint64, error) {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			return 0, err
		}
		return st.Bavail * uint64(st.Bsize), nil
	}
}

// failed makes an error of a failed read or write one for people.
func (s *stores) failed(err error) error { return storeError(s.path, err) }

func storeError(path string, err error) error {
	switch {
	case full(err):
		return diskFull(path, err)
	case unwritable(err):
		return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be written", Err: err,
			Hint: "make " + filepath.Dir(path) + " writable, or choose another: lmosd run --data-dir DIR"}
	}
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be read", Err: err,
		Hint: "move it away and start again: the key stays, publish the agents once more: mv " + path + " " + path + ".bad"}
}

// dirError is the error of a data directory that cannot be used.
func dirError(dir string, err error) error {
	e := &interact.Error{Code: interact.ConfigInvalid, Title: dir + " cannot be the data directory", Err: err,
		Hint: "choose another: lmosd run --data-dir DIR"}
	switch {
	case full(err):
		return diskFull(dir, err)
	case unwritable(err):
		e.Title, e.Hint = "the data directory "+dir+" cannot be written", "make it writable, or choose another: lmosd run --data-dir DIR"
	}
	return e
}

func diskFull(path string, err error) error {
	return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + path + " is full", Hint: "free some space on it", Err: err}
}

func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func unwritable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// pebbleLog passes what the database says of itself to the node's log. A failed write of its log is fatal to it by design:
// going on would acknowledge what is not on disk.
type pebbleLog struct{ log *slog.Logger }

func (l pebbleLog) Infof(format string, args ...any) {
	l.log.Debug("store", "text", fmt.Sprintf(format, args...))
}
func (l pebbleLog) Errorf(format string, args ...any) {
	l.log.Error("store", "text", fmt.Sprintf(format, args...))
}
func (l pebbleLog) Fatalf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	l.log.Error("store cannot go on; what was acknowledged is safe", "text", text, "hint", "see the disk's space and health, then start lmosd again")
	os.Exit(1)
}
