package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
)

// Copies are a datastore with a second copy of each entry, in a file with checksums (copylog.go). An engine treats a truncated log like one after a
// crash, and loses the entries behind the cut without an error; Copies detects and restores them.
//
// An entry is written to the store first and deleted from it last, so that a crash between leaves the store ahead of its copy, never
// behind: a copy that is ahead means a loss. Put does not wait for the copy, which follows with those of other entries.
type Copies struct {
	ds.Batching
	dir   string
	newer func(a, b []byte) bool // whether a is a later state of an entry than b, or b is empty
	warn  *limited

	mu      sync.Mutex
	written *sync.Cond // a batch was written, or running changed
	next    *copyBatch // the entries that are not written yet; owned by mu
	running bool       // a goroutine writes; owned by mu
	log     *copyLog   // owned by Repair, and then by the goroutine
}

// A copyBatch is a set of copies that are written together.
type copyBatch struct {
	entries map[ds.Key][]byte // nil is a deletion
	bytes   int
	done    chan struct{} // closed when err is valid
	err     error
}

// Limits of the copies that are not written yet.
const (
	copyPause = 20 * time.Millisecond // between batches
	maxBatch  = 16 << 20              // bytes; a Put waits while there are more
)

// NewCopies returns inner with copies in the directory dir, which it creates. If the directory or the file in it cannot be created, the disk counts as
// full. [Copies.Close] waits for the last copies.
func NewCopies(inner ds.Batching, dir string, newer func(a, b []byte) bool, log *slog.Logger) (*Copies, error) {
	c := &Copies{Batching: inner, dir: dir, newer: newer, warn: newLimited(log), next: newCopyBatch()}
	c.written = sync.NewCond(&c.mu)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if Full(err) {
			return c, nil
		}
		return nil, err
	}
	var err error
	if c.log, err = openCopyLog(filepath.Join(dir, copyName)); err != nil && !Full(err) {
		return nil, err
	}
	return c, nil
}

func newCopyBatch() *copyBatch {
	return &copyBatch{entries: map[ds.Key][]byte{}, done: make(chan struct{})}
}

const copyName = "copies.log"

// Put stores a value, and then its copy. A failed copy does not fail the Put.
func (c *Copies) Put(ctx context.Context, key ds.Key, value []byte) error {
	if err := c.Batching.Put(ctx, key, value); err != nil {
		return err
	}
	c.copy(key, value)
	return nil
}

// Delete deletes the copy of a value, and then the value.
func (c *Copies) Delete(ctx context.Context, key ds.Key) error {
	b := c.copy(key, nil)
	<-b.done
	if b.err != nil {
		return b.err
	}
	return c.Batching.Delete(ctx, key)
}

// copy adds a copy to the next batch, which it returns. A nil value deletes the copy.
func (c *Copies) copy(key ds.Key, value []byte) *copyBatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.next.bytes > maxBatch {
		c.written.Wait()
	}
	b := c.next
	b.bytes += len(value) - len(b.entries[key])
	b.entries[key] = value
	if !c.running {
		c.running = true
		go c.write()
	}
	return b
}

// write writes batches until nothing is left.
func (c *Copies) write() {
	for {
		c.mu.Lock()
		b := c.next
		if len(b.entries) == 0 {
			c.running = false
			c.written.Broadcast()
			c.mu.Unlock()
			return
		}
		c.next = newCopyBatch()
		c.written.Broadcast()
		c.mu.Unlock()
		if b.err = c.writeBatch(b.entries); b.err != nil {
			c.warn.write(slog.LevelWarn, "copies of stored values not written", "err", b.err)
		}
		close(b.done)
		time.Sleep(copyPause)
	}
}

func (c *Copies) writeBatch(entries map[ds.Key][]byte) (err error) {
	if c.log == nil { // the disk was full at the start
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			return err
		}
		if c.log, err = openCopyLog(filepath.Join(c.dir, copyName)); err != nil {
			return err
		}
	}
	if err := c.log.write(entries); err != nil {
		return err
	}
	if c.log.isWasteful() {
		if err := c.log.rewrite(); err != nil { // The entries are durable, and the next batch tries again.
			c.warn.write(slog.LevelWarn, "file of copies not written again", "err", err)
		}
	}
	return nil
}

// settle waits until all copies are written, or have failed.
func (c *Copies) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running {
		c.written.Wait()
	}
}

// Close waits for the last copies and closes their file. The store stays open, and is not used any longer.
func (c *Copies) Close() error {
	c.settle()
	if c.log == nil {
		return nil
	}
	return c.log.file.Close()
}

// A Loss lists the entries that a store had lost.
type Loss struct {
	Restored [][]byte // restored values
	Gone     [][]byte // remains of unreadable copies whose values the store does not have
}

// Repair restores lost entries, and copies entries without a copy. It is called once, before the first read. The Loss is valid also with
// an error.
func (c *Copies) Repair(ctx context.Context) (Loss, error) {
	r := repair{Copies: c, listed: map[ds.Key]bool{}, copies: map[ds.Key][]byte{}}
	if c.log == nil {
		return r.Loss, nil
	}
	for _, step := range []func(context.Context) error{r.adopt, r.readStore, r.readCopies, r.readGaps} {
		if err := step(ctx); err != nil {
			return r.Loss, err
		}
	}
	if err := r.writeCopies(); err != nil {
		c.warn.write(slog.LevelWarn, "copies of stored values not written", "err", err)
	}
	for _, e := range r.lost {
		if err := c.Batching.Put(ctx, ds.RawKey(e.Key), e.Value); err != nil {
			return r.Loss, fmt.Errorf("restore lost entries: %w", err)
		}
		r.Restored = append(r.Restored, e.Value)
	}
	return r.Loss, nil
}

// A repair compares a store with its copies.
type repair struct {
	*Copies
	Loss
	listed map[ds.Key]bool   // entries of the store
	lost   []query.Entry     // which the store does not have, or only in an earlier state
	copies map[ds.Key][]byte // to be written; nil deletes one
	bytes  int               // in copies
}

// readStore compares all entries of the store with their copies.
func (r *repair) readStore(ctx context.Context) error {
	for e, err := range Entries(ctx, r.Batching, query.Query{}) {
		if err != nil {
			return err
		}
		key := ds.RawKey(e.Key)
		r.listed[key] = true
		if r.log.has(key, e.Value) {
			continue
		}
		if _, ok := r.log.at[key]; ok {
			value, whole, err := r.log.value(key)
			switch {
			case err != nil:
				return err
			case bytes.Equal(value, e.Value):
				continue
			case whole && r.newer(value, e.Value):
				r.lost = append(r.lost, query.Entry{Key: e.Key, Value: value})
				continue
			}
		}
		r.copies[key] = e.Value
		if r.bytes += len(e.Value); r.bytes > maxBatch {
			if err := r.writeCopies(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *repair) writeCopies() error {
	if len(r.copies) == 0 {
		return nil
	}
	err := r.log.write(r.copies)
	r.bytes, r.copies = 0, map[ds.Key][]byte{}
	return err
}

// readCopies finds the entries that the store does not list.
func (r *repair) readCopies(ctx context.Context) error {
	for _, key := range slices.SortedFunc(maps.Keys(r.log.at), func(a, b ds.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if r.listed[key] {
			continue
		}
		switch _, err := r.Get(ctx, key); {
		case err == nil: // a query ends at a damaged block without an error, also if a later value of the same key reads
			return fmt.Errorf("%w: a stored entry is not listed", errUnreadable)
		case !errors.Is(err, ds.ErrNotFound):
			return err
		}
		value, whole, err := r.log.value(key)
		switch {
		case err != nil:
			return err
		case whole:
			r.lost = append(r.lost, query.Entry{Key: key.String(), Value: value})
		default:
			r.Gone = append(r.Gone, value)
			r.copies[key] = nil // the caller reports the loss once
		}
	}
	return nil
}

// readGaps reports the gaps of the copies whose entries neither the store nor the copies have, and removes the gaps. An unfinished write at the end, or
// one whose blocks the disk did not write, is of a crash: the store has its entry.
func (r *repair) readGaps(context.Context) error {
	for i, g := range r.log.gaps {
		key, content, err := r.log.gap(g)
		if err != nil {
			return err
		}
		_, copied := r.log.at[key]
		atEnd := i == len(r.log.gaps)-1 && g.from == r.log.size
		if isKey := key != (ds.Key{}); !copied && !r.listed[key] && (isKey || !atEnd && len(bytes.Trim(content, "\x00")) > 0) {
			r.Gone = append(r.Gone, content)
		}
	}
	if len(r.log.gaps) == 0 {
		return nil
	}
	return r.log.rewrite()
}

// legacySuffix is that of files with one copy each, which earlier versions wrote: the hex form of a SHA-256, and the value.
const legacySuffix = ".copy"

// adopt moves the copies of earlier versions into the file. Those that are damaged are lost if the store does not have their entries.
func (r *repair) adopt(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(r.dir, "*"+legacySuffix))
	if err != nil || len(files) == 0 {
		return err
	}
	entries := map[ds.Key][]byte{}
	for _, f := range files {
		name, err := hex.DecodeString(strings.TrimSuffix(filepath.Base(f), legacySuffix))
		if err != nil {
			continue // of an interrupted write
		}
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		key := ds.NewKey(string(name))
		if _, ok := r.log.at[key]; ok {
			continue
		}
		sum, value, _ := strings.Cut(string(raw), "\n")
		if whole := sha256.Sum256([]byte(value)); sum == hex.EncodeToString(whole[:]) {
			entries[key] = []byte(value)
		} else if has, err := r.Has(ctx, key); err != nil {
			return err
		} else if !has {
			r.Gone = append(r.Gone, raw)
		}
	}
	if err := r.log.write(entries); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
