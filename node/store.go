package node

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/storage"
)

// Storage engines.
const (
	EnginePebble  = storage.Pebble
	EngineLevelDB = storage.LevelDB
	EngineMemory  = storage.Memory
)

// stores are two views of one database. Own state (sequence numbers, what this node offers) goes through durable, whose
// writes are on disk when they return; caches go through fast and may lose their last seconds.
type stores struct {
	*storage.Store
	durable, fast ds.Batching
}

// openStores opens the database below dir. The engine is one of the above; empty means pebble.
func openStores(engine, dir string, o storage.Options) (*stores, error) {
	s, err := storage.Open(engine, dir, o)
	if err != nil {
		return nil, storeError(filepath.Join(dir, "store"), err)
	}
	return &stores{Store: s, durable: s.Durable(), fast: s.Fast()}, nil
}

// of returns the part of the database that belongs to a network, and the name of the home network (storage.Store.Network).
func (s *stores) of(network string) (part *stores, home string, err error) {
	durable, fast, home, err := s.Network(network, networkName.Match)
	if err != nil {
		return nil, "", s.Failed(err)
	}
	return &stores{s.Store, durable, fast}, home, nil
}

// lockDir takes the data directory for this process. The error is of code DataDirLocked and names the process that holds it, or
// ConfigInvalid or DiskFull.
func lockDir(dir string) (release func() error, err error) {
	release, err = storage.Lock(dir)
	if e, ok := errors.AsType[*storage.LockedError](err); ok {
		return nil, interact.Errorf(interact.DataDirLocked, "stop it, or start with another directory", "%s", e).Then(interact.StepRun, "data-dir", "DIR")
	}
	if err != nil {
		return nil, dirError(dir, err)
	}
	return release, nil
}

// own and peers name the node's parts of the database. The DHT and the directory name theirs themselves (/dht, /directory) and
// get the whole: a namespace inside one of the same name loses its prefix.
func (s *stores) own() ds.Batching { return namespace.Wrap(s.durable, ds.NewKey("/own")) }
func (s *stores) ledger() ds.Batching {
	return namespace.Wrap(s.durable, ds.NewKey("/tasks"))
}
func (s *stores) peers() ds.Batching { return namespace.Wrap(s.fast, ds.NewKey("/peers")) }

// Room returns an error of code DiskFull if nothing is stored now.
func (s *stores) Room() error {
	if err := s.Store.Room(); err != nil {
		return diskFull(s.Path(), err)
	}
	return nil
}

// Failed returns the error for people of a failed read or write.
func (s *stores) Failed(err error) error { return storeError(s.Path(), err) }

func storeError(path string, err error) error {
	switch {
	case storage.Full(err):
		return diskFull(path, err)
	case unwritable(err):
		return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be written", Err: err,
			Hint: "make " + filepath.Dir(path) + " writable, or choose another", Next: interact.Next(interact.StepRun, "data-dir", "DIR")}
	}
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be read", Err: err,
		Hint: "move it away and start again: the key stays, and agents come back from their copies; if identity.pem was replaced, move own/ away, " +
			"too: mv " + path + " " + path + ".bad"}
}

// dirError is the error of a data directory that cannot be used.
func dirError(dir string, err error) error {
	e := &interact.Error{Code: interact.ConfigInvalid, Title: dir + " cannot be the data directory", Err: err,
		Hint: "choose another", Next: interact.Next(interact.StepRun, "data-dir", "DIR")}
	switch {
	case storage.Full(err):
		return diskFull(dir, err)
	case unwritable(err):
		e.Title, e.Hint = "the data directory "+dir+" cannot be written", "make it writable, or choose another"
	}
	return e
}

func diskFull(path string, err error) error {
	return &interact.Error{Code: interact.DiskFull, Title: "the disk of " + path + " is full", Err: err,
		Hint: "free some space on it: what is stored is served, and changes are taken again when there is room"}
}

func unwritable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}
