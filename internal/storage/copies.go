package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/internal/atomicfile"
)

// Copies are a datastore with a second copy of each entry: a file with a checksum. An engine treats a truncated log like one after a
// crash, and loses the entries behind the cut without an error; Copies detects and restores them.
//
// An entry is written to the store first and deleted from it last, so that a crash between leaves the store ahead of its copy, never
// behind: a copy that is ahead means a loss.
type Copies struct {
	ds.Batching
	dir   string
	newer func(a, b []byte) bool // whether a is a later state of an entry than b, or b is empty
	log   *limited
}

// NewCopies returns inner with copies in the directory dir, which it creates. If the directory cannot be created, the disk counts as full.
func NewCopies(inner ds.Batching, dir string, newer func(a, b []byte) bool, log *slog.Logger) (*Copies, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil && !Full(err) {
		return nil, err
	}
	return &Copies{Batching: inner, dir: dir, newer: newer, log: newLimited(log)}, nil
}

const copySuffix = ".copy"

func (c *Copies) path(key ds.Key) string {
	return filepath.Join(c.dir, hex.EncodeToString([]byte(key.String()))+copySuffix)
}

// Put stores a value, and then its copy. A failed copy does not fail the Put.
func (c *Copies) Put(ctx context.Context, key ds.Key, value []byte) error {
	if err := c.Batching.Put(ctx, key, value); err != nil {
		return err
	}
	c.copy(key, value)
	return nil
}

func (c *Copies) copy(key ds.Key, value []byte) {
	sum := sha256.Sum256(value)
	data := append([]byte(hex.EncodeToString(sum[:])+"\n"), value...)
	if err := atomicfile.Write(c.path(key), data, 0o600); err != nil {
		c.log.write(slog.LevelWarn, "copy of a stored value not written", "err", err)
	}
}

// Delete deletes the copy of a value, and then the value.
func (c *Copies) Delete(ctx context.Context, key ds.Key) error {
	if err := os.Remove(c.path(key)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return c.Batching.Delete(ctx, key)
}

// A Loss lists the entries that a store had lost.
type Loss struct {
	Restored [][]byte // restored values
	Gone     [][]byte // remains of unreadable copies whose values the store does not have
}

// Repair restores lost entries, and copies entries without a copy. It is called once, before the first read. The Loss is valid also with
// an error.
func (c *Copies) Repair(ctx context.Context) (loss Loss, err error) {
	files, err := os.ReadDir(c.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return loss, err
	}
	known := map[ds.Key]bool{} // entries with a copy
	for _, f := range files {
		name, err := hex.DecodeString(strings.TrimSuffix(f.Name(), copySuffix))
		if err != nil || !strings.HasSuffix(f.Name(), copySuffix) {
			continue // of an interrupted write
		}
		key := ds.NewKey(string(name))
		gone := len(loss.Gone)
		if err := c.repair(ctx, key, &loss); err != nil {
			return loss, err
		}
		if len(loss.Gone) == gone {
			known[key] = true
		}
	}
	res, err := c.Query(ctx, query.Query{})
	if err != nil {
		return loss, err
	}
	defer res.Close()
	for r := range res.Next() {
		if r.Error != nil {
			return loss, r.Error
		}
		if key := ds.RawKey(r.Key); !known[key] {
			c.copy(key, r.Value)
		} else {
			delete(known, key)
		}
	}
	if len(known) > 0 { // a query ends at a damaged block without an error, also if a later value of the same key reads
		return loss, fmt.Errorf("%w: %d stored entries are not listed", errUnreadable, len(known))
	}
	return loss, nil
}

func (c *Copies) repair(ctx context.Context, key ds.Key, loss *Loss) error {
	stored, err := c.Get(ctx, key)
	missing := errors.Is(err, ds.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	raw, err := os.ReadFile(c.path(key))
	if err != nil {
		return err
	}
	sum, value, _ := strings.Cut(string(raw), "\n")
	whole := sha256.Sum256([]byte(value))
	switch reads := sum == hex.EncodeToString(whole[:]); {
	case !reads && missing:
		loss.Gone = append(loss.Gone, raw)
		return os.Remove(c.path(key)) // the caller reports the loss once
	case !reads, !missing && !c.newer([]byte(value), stored):
		if value != string(stored) {
			c.copy(key, stored)
		}
		return nil
	}
	if err := c.Batching.Put(ctx, key, []byte(value)); err != nil {
		return fmt.Errorf("restore lost entries: %w", err)
	}
	loss.Restored = append(loss.Restored, []byte(value))
	return nil
}
