package node

import (
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/publication"
)

// openCopied opens the stores of offers and of tasks, with copies beside them. What the store has lost is put back, and what was lost
// for good is named, in the log and in the status, until the folder that says so is deleted.
//
// Copies are as secret as the store. Who can write them can write the store, too: both are the node's user's alone.
func (n *Node) openCopied() error {
	n.offerStore, n.taskStore = n.stores.own(), n.stores.ledger()
	if n.stores.Path() == "" {
		return nil
	}
	dir := filepath.Join(n.opts.Dir, "own", n.opts.Network)
	offers, err := n.repair(&n.offerStore, dir, publication.Newer)
	var tasks storage.Loss
	if err == nil {
		tasks, err = n.repair(&n.taskStore, filepath.Join(dir, "tasks"), task.Newer)
	}
	return errors.Join(err, n.tellLoss(offers, tasks)) // A copy that does not read is found once.
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
		n.log.Warn("what the store has lost is put back when there is room: start again then", "err", err)
	case err != nil:
		return loss, n.stores.Failed(err)
	}
	return loss, nil
}

// tellLoss notes what a damaged store had lost.
func (n *Node) tellLoss(offers, tasks storage.Loss) error {
	text := "the store was damaged"
	if n.aside != "" {
		text += " and is now " + n.aside
	}
	found := n.aside != ""
	for _, part := range []struct {
		what   string
		values [][]byte
		name   func([]byte) string
	}{
		{"put back from copies", offers.Restored, publication.ThingOf},
		{"LOST", offers.Gone, publication.ThingOf},
		{"tasks put back from copies", tasks.Restored, task.NameOf},
		{"LOST tasks", tasks.Gone, task.NameOf},
	} {
		if len(part.values) > 0 {
			found, text = true, text+"; "+part.what+": "+names(part.values, part.name)
		}
	}
	if !found {
		return nil
	}
	text += "; peers and descriptions of others may be missing: they are found again"
	n.log.Error(text)
	if err := storage.Note(n.opts.Dir, n.aside, text); err != nil && !storage.Full(err) {
		return dirError(n.opts.Dir, err)
	}
	return nil
}

// maxNamed is how many of what was lost are named: a ledger may have thousands of tasks.
const maxNamed = 100

func names(values [][]byte, name func([]byte) string) string {
	var all []string
	for _, v := range values[:min(len(values), maxNamed)] {
		all = append(all, name(v))
	}
	if more := len(values) - maxNamed; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// losses yields what was lost by the folder that says so.
func (n *Node) losses() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if n.opts.Dir == "" {
			return
		}
		folders, texts := storage.Notes(n.opts.Dir)
		for i, f := range folders {
			text := texts[i]
			if text == "" {
				text = "a damaged store was moved to " + f
			}
			if !yield(f, text) {
				return
			}
		}
	}
}
