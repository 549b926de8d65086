package node

import (
	"errors"
	"path/filepath"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/publication"
)

// openCopied opens the stores of publications and of tasks, with copies of their entries. It puts back what the store has lost, and names
// what both have lost, in the log and in the status, until the folder with the note is deleted.
//
// Copies are as secret as the store. A user that can write them can write the store, too.
func (n *Node) openCopied() error {
	n.offerStore, n.taskStore = n.stores.own(), n.stores.ledger()
	if n.stores.Path() == "" {
		return nil
	}
	dir := filepath.Join(n.opts.Dir, "own", n.opts.Network)
	things, tasks := storage.Part{Name: publication.ThingOf}, storage.Part{Kind: "tasks", Name: task.NameOf}
	var err error
	if things.Loss, err = n.repair(&n.offerStore, dir, publication.Newer); err == nil {
		tasks.Loss, err = n.repair(&n.taskStore, filepath.Join(dir, "tasks"), task.Newer)
	}
	// In any case: an unreadable copy is found only once.
	if text := storage.Describe(n.aside, things, tasks); text != "" {
		n.log.Error(text)
		if noted := storage.Note(n.opts.Dir, n.aside, text); noted != nil && !storage.Full(noted) {
			err = errors.Join(err, dirError(n.opts.Dir, noted))
		}
	}
	return err
}

// repair adds copies in dir to a store, and puts back from there what the store has lost.
func (n *Node) repair(store *ds.Batching, dir string, newer func(a, b []byte) bool) (storage.Loss, error) {
	copies, err := storage.NewCopies(*store, dir, newer, n.log)
	if err != nil {
		return storage.Loss{}, dirError(dir, err)
	}
	*store = copies
	loss, err := copies.Repair(n.life)
	switch {
	case storage.Full(err):
		n.log.Warn("repair of the store postponed: the disk is full; start again when there is room", "err", err)
	case err != nil:
		return loss, n.stores.Failed(err)
	}
	return loss, nil
}
