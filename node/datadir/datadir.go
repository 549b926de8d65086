// Package datadir opens the data directory of a node: its lock and its stores.
package datadir

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"syscall"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/rotation"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/trust"
)

// Stores are views of one database. Writes to Durable are on disk when they return: sequence numbers, publications, tasks. Writes to Fast may
// lose the last seconds: caches.
type Stores struct {
	*storage.Store
	Durable, Fast ds.Batching
	// Own has the publications, and Ledger the tasks that consumers of this node started. Both are views of Durable with copies, see Restore.
	Own, Ledger ds.Batching
	Tokens      *tokens.Store // nil: no listener asks for them
	// CallerSecrets are those of the agents that this node calls over HTTP.
	CallerSecrets *publication.CallerSecrets
	Audit         *audit.Log // nil: nothing is recorded
	// Rotation is the replacement of the key of the node that is not completed; nil: none.
	Rotation *rotation.Pending

	copies []*storage.Copies // of Own and Ledger, after Restore
}

// Open opens the database below dir. An empty engine means pebble.
func Open(engine, dir string, o storage.Options) (*Stores, error) {
	s, err := storage.Open(engine, dir, o)
	if err != nil {
		return nil, storeError(filepath.Join(dir, "store"), err)
	}
	stores := newStores(s, s.Durable(), s.Fast())
	if stores.Rotation, err = rotation.Load(dir); err != nil {
		return nil, errors.Join(Error(dir, err), s.Close())
	}
	return stores, nil
}

// Of returns the part of the database that belongs to a network, and the name of the home network (storage.Store.Network).
func (s *Stores) Of(network string, valid func([]byte) bool) (part *Stores, home string, err error) {
	durable, fast, home, err := s.Network(network, valid)
	if err != nil {
		return nil, "", s.Failed(err)
	}
	part = newStores(s.Store, durable, fast)
	part.Rotation = s.Rotation
	return part, home, nil
}

func newStores(s *storage.Store, durable, fast ds.Batching) *Stores {
	return &Stores{Store: s, Durable: durable, Fast: fast, Own: namespace.Wrap(durable, ds.NewKey("/own")), Ledger: namespace.Wrap(durable, ds.NewKey("/tasks"))}
}

// Peers returns the store of bootstrap peers. The DHT and the directory add their own prefixes (/dht, /directory), so they get the whole
// database: a namespace inside one of the same name loses its prefix.
func (s *Stores) Peers() ds.Batching { return namespace.Wrap(s.Fast, ds.NewKey("/peers")) }

// Restore adds copies of their entries to the stores of publications and of tasks, in dir. It restores what the stores have lost from the
// copies. It reports what both have lost in the log, and in the status until the folder aside, of a damaged store that was moved, is deleted.
//
// Copies are as secret as the store: a user that can write them can also write the store.
func (s *Stores) Restore(ctx context.Context, dir, network, aside string, log *slog.Logger) error {
	if s.Path() == "" {
		return nil
	}
	copies := filepath.Join(dir, "own", network)
	things, tasks := storage.Part{Name: publication.ThingOf}, storage.Part{Kind: "tasks", Name: task.NameOf}
	var err error
	if things.Loss, err = s.repair(ctx, &s.Own, copies, publication.Newer, log); err == nil {
		tasks.Loss, err = s.repair(ctx, &s.Ledger, filepath.Join(copies, "tasks"), task.Newer, log)
	}
	// Also after an error: an unreadable copy is found only once.
	if text := storage.Describe(aside, things, tasks); text != "" {
		log.Error(text)
		if noted := storage.Note(dir, aside, text); noted != nil && !storage.Full(noted) {
			err = errors.Join(err, Error(dir, noted))
		}
	}
	return err
}

// repair adds copies in dir to a store, and restores from them what the store has lost.
func (s *Stores) repair(ctx context.Context, store *ds.Batching, dir string, newer func(a, b []byte) bool, log *slog.Logger) (storage.Loss, error) {
	copies, err := storage.NewCopies(*store, dir, newer, log)
	if err != nil {
		return storage.Loss{}, Error(dir, err)
	}
	*store, s.copies = copies, append(s.copies, copies)
	loss, err := copies.Repair(ctx)
	switch {
	case storage.Full(err):
		log.Warn("repair of the store postponed: the disk is full; start again when there is room", "err", err)
	case err != nil:
		return loss, s.Failed(err)
	}
	return loss, nil
}

// CloseCopies waits for the last copies of entries, which then have no copies any longer. The stores stay open.
func (s *Stores) CloseCopies() error {
	var err error
	for _, c := range s.copies {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Lock locks the data directory for this process. The error has the code DataDirLocked and names the process with the lock, or ConfigInvalid
// or DiskFull.
func Lock(dir string) (release func() error, err error) {
	release, err = storage.Lock(dir)
	if e, ok := errors.AsType[*storage.LockedError](err); ok {
		return nil, interact.Errorf(interact.DataDirLocked, "stop it, or start with another directory", "%s", e).Then(interact.StepRun, "data-dir", "DIR")
	}
	if err != nil {
		return nil, Error(dir, err)
	}
	return release, nil
}

// Room returns an error of code DiskFull if nothing can be stored now.
func (s *Stores) Room() error {
	if err := s.Store.Room(); err != nil {
		return diskFull(s.Path(), err)
	}
	return nil
}

// Failed returns the [*interact.Error] of a failed read or write.
func (s *Stores) Failed(err error) error { return storeError(s.Path(), err) }

func storeError(path string, err error) error {
	switch {
	case storage.Full(err):
		return diskFull(path, err)
	case storage.TooNew(err):
		return &interact.Error{Code: interact.StoreTooNew, Title: "a newer version of lmosd wrote the store " + path, Err: err,
			Hint: "start that version, or a later one; nothing was changed"}
	case unwritable(err):
		return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be written", Err: err,
			Hint: "make " + filepath.Dir(path) + " writable, or choose another", Next: interact.Next(interact.StepRun, "data-dir", "DIR")}
	}
	return &interact.Error{Code: interact.StoreCorrupt, Title: "the store " + path + " cannot be read", Err: err,
		Hint: "move it away and start again: the key stays, and publications are restored from copies; if identity.pem was replaced, move own/ away, " +
			"too: mv " + path + " " + path + ".bad"}
}

// Error returns the error of a data directory that cannot be used.
func Error(dir string, err error) error {
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
		Hint: "free some space; until then the node serves what is stored and refuses changes"}
}

func unwritable(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// Rotate hands what the node has to its next key, for the replacement in the data directory: the membership of its organization, if an issuer
// consents, the audit log, and the publications. Nothing changes before the consent is stored. It returns the number of withdrawn Things. The
// caller then closes the node and replaces the key file.
func (s *Stores) Rotate(ctx context.Context, t *trust.Trust, p *publication.Publisher, next did.Signer) (int, error) {
	r := s.Rotation
	if r == nil || r.To != next.DID() {
		return 0, errors.New("no rotation to this key was requested")
	}
	if !r.Confirmed {
		credential, err := t.Replace(ctx, r.Raw)
		if err == nil {
			_, err = r.Confirm(credential)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := s.Audit.Rotate(r.Raw); err != nil {
		return 0, err
	}
	return p.Succeed(ctx, next, r.SCID != "")
}
