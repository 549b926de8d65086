package node

import (
	"encoding/json"
	"fmt"
	"iter"
	"path/filepath"
	"regexp"
	"strings"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/internal/storage"
)

// ownStore returns where offers are kept: in the store, with copies beside it. What the store has lost is put back, and what was lost
// for good is named, in the log and in the status, until the folder that says so is deleted.
//
// Copies are as secret as the store. Who can write them can write the store, too: both are the node's user's alone.
func (n *Node) ownStore() (ds.Batching, error) {
	if n.stores.Path() == "" {
		return n.stores.own(), nil
	}
	dir := filepath.Join(n.opts.Dir, "own", n.opts.Network)
	own, err := storage.NewCopies(n.stores.own(), dir, laterOffer, n.log)
	if err != nil {
		return nil, dirError(dir, err)
	}
	loss, err := own.Repair(n.life)
	switch {
	case storage.Full(err):
		n.log.Warn("what the store has lost is put back when there is room: start again then", "err", err)
	case err != nil:
		return nil, n.stores.failed(err)
	}
	return own, n.tellLoss(loss)
}

// tellLoss notes what a damaged store had lost.
func (n *Node) tellLoss(loss storage.Loss) error {
	if n.aside == "" && len(loss.Restored) == 0 && len(loss.Gone) == 0 {
		return nil
	}
	text := "the store was damaged"
	if n.aside != "" {
		text += " and is now " + n.aside
	}
	if len(loss.Restored) > 0 {
		text += "; put back from copies: " + names(loss.Restored)
	}
	if len(loss.Gone) > 0 {
		text += "; LOST: " + names(loss.Gone)
	}
	text += "; peers, descriptions of others and tasks begun may be missing: they are found again, tasks are not"
	n.log.Error(text)
	if err := storage.Note(n.opts.Dir, n.aside, text); err != nil && !storage.Full(err) {
		return dirError(n.opts.Dir, err)
	}
	return nil
}

// thingOf finds the id of a thing in what is left of an offer.
var thingOf = regexp.MustCompile(`"thing":"((?:[^"\\]|\\.)*)"`)

func names(offers [][]byte) string {
	var all []string
	for _, of := range offers {
		name := "one whose name does not read"
		if m := thingOf.FindSubmatch(of); m != nil {
			name = string(m[1])
		}
		all = append(all, fmt.Sprintf("%.200s", name))
	}
	return strings.Join(all, ", ")
}

// laterOffer reports whether a is a later state of an offer than b, or b does not read.
func laterOffer(a, b []byte) bool {
	var x, y struct{ Seq uint64 }
	if json.Unmarshal(a, &x) != nil {
		return false
	}
	return json.Unmarshal(b, &y) != nil || x.Seq > y.Seq
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
