package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/gofrs/flock"
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
	dir           string // "" in memory
}

// openStores opens the database below dir.
func openStores(engine, dir string, log *slog.Logger) (*stores, error) {
	if dir == "" || engine == EngineMemory {
		m := dssync.MutexWrap(ds.NewMapDatastore())
		return &stores{durable: m, fast: m, close: m.Close}, nil
	}
	path := filepath.Join(dir, "store")
	switch engine {
	case "", EnginePebble:
		return openPebble(path, dir, log)
	case EngineLevelDB:
		l, err := leveldb.NewDatastore(path, nil)
		if err != nil {
			return nil, storeError(path, err)
		}
		return &stores{durable: l, fast: l, close: l.Close, dir: dir}, nil
	}
	return nil, interact.Errorf(interact.ConfigInvalid, "storage.engine is pebble, leveldb or memory", "no storage engine is named %q", engine)
}

func openPebble(path, dir string, log *slog.Logger) (*stores, error) {
	opts := &pebble.Options{
		MemTableSize: 4 << 20,
		// Pinned so that an older lmosd can open the store after a downgrade.
		FormatMajorVersion: pebble.FormatColumnarBlocks,
		Logger:             pebbleLog{log},
	}
	durable, err := pebbleds.NewDatastore(path, pebbleds.WithPebbleOpts(opts), pebbleds.WithCacheSize(4<<20),
		pebbleds.WithPebbleWriteOptions(pebble.Sync))
	if err != nil {
		return nil, storeError(path, err)
	}
	fast, err := pebbleds.NewDatastore("", pebbleds.WithPebbleDB(durable.DB), pebbleds.WithPebbleWriteOptions(pebble.NoSync))
	if err != nil {
		return nil, errors.Join(storeError(path, err), durable.Close())
	}
	// Only the first view is closed: both are one database.
	return &stores{durable: durable, fast: fast, close: durable.Close, dir: dir}, nil
}

// own and peers name the node's parts of the database. The DHT and the directory name theirs themselves (/dht, /directory) and
// get the whole: a namespace inside one of the same name loses its prefix.
func (s *stores) own() ds.Batching   { return namespace.Wrap(s.durable, ds.NewKey("/own")) }
func (s *stores) peers() ds.Batching { return namespace.Wrap(s.fast, ds.NewKey("/peers")) }

// room returns an error of code DiskFull if the disk of the store has almost no space left.
func (s *stores) room() error {
	if s.dir == "" {
		return nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &st); err != nil {
		return nil // No answer is no reason to refuse.
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree {
		return interact.Errorf(interact.DiskFull, "free some space on the disk of "+s.dir,
			"the disk has %d bytes left; lmosd needs %d to store anything safely", free, minFree)
	}
	return nil
}

func storeError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return &interact.Error{Code: interact.StoreCorrupt, Title: "the data directory cannot be written",
			Hint: "make " + filepath.Dir(path) + " writable, or choose another with --data-dir", Err: err}
	case errors.Is(err, syscall.ENOSPC):
		return &interact.Error{Code: interact.DiskFull, Title: "the disk is full", Hint: "free some space on the disk of " + path, Err: err}
	}
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " does not open",
		Hint: "move " + path + " away and start again: the key stays, publish the agents once more", Err: err}
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

// lockDir takes the data directory for this process and writes its pid into the lock file. The error, of code
// DataDirLocked, names the process that holds it.
func lockDir(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, storeError(filepath.Join(dir, "store"), err)
	}
	path := filepath.Join(dir, "lock")
	lock := flock.New(path, flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, storeError(path, err)
	}
	if !ok {
		return nil, lockedError(dir, path)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return nil, errors.Join(storeError(path, err), lock.Close())
	}
	return lock.Close, nil
}

func lockedError(dir, path string) error {
	holder := "another process"
	if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
		holder = "process " + strings.TrimSpace(string(b))
	}
	return interact.Errorf(interact.DataDirLocked, "stop it, or start with another directory: lmosd run --data-dir DIR",
		"%s already runs on %s", holder, dir)
}
