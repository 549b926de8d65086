// Package persist keeps the state of Things in a datastore: it reads all entries at the start, and writes changed ones every second.
package persist

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"

	"github.com/lmosd/lmosd/internal/cbor"
	"github.com/lmosd/lmosd/internal/heartbeat"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/td"
)

// A Kind is a kind of entry: its prefix in the datastore. Keys are those of the Things in hex.
type Kind string

// The kinds of entries.
const (
	Seqs          Kind = "/directory/1/seq"    // the sequence number, which must never be lost
	Descriptions  Kind = "/directory/1/desc"   // of living Things
	Vectors       Kind = "/directory/1/vector" // if there is one
	Equivocations Kind = "/directory/1/fork"   // if there is one
)

// Key returns the datastore key of an entry.
func (k Kind) Key(key [32]byte) ds.Key {
	return ds.NewKey(string(k)).ChildString(hex.EncodeToString(key[:]))
}

const (
	// SaveEvery is the interval of writes.
	SaveEvery   = time.Second
	saveTimeout = 10 * time.Second
	saveAtOnce  = 1024        // marks of one batch
	logInterval = time.Minute // between log messages about failed writes
	maxEntry    = td.MaxRecord + td.MaxTD + 1024
)

// ErrCorrupt marks an unusable entry.
var ErrCorrupt = errors.New("corrupt")

// An Entry is the new state of an entry. A nil Value deletes it; others are encoded as CBOR.
type Entry struct {
	Kind  Kind
	Value any
}

// Options configure a [Store].
type Options struct {
	// Datastore has the entries. Nil stores nothing.
	Datastore ds.Batching
	// Snapshot returns what to write for a mark.
	Snapshot func(k Kind, key [32]byte) []Entry
	// OnCorrupt is called for each corrupt entry.
	OnCorrupt func()
	Log       *slog.Logger
}

// A Store writes entries that are marked as changed. Its methods are safe for concurrent use.
type Store struct {
	o      Options
	saving sync.Mutex // held while writing; acquired before all other mutexes

	mu    sync.Mutex
	marks map[mark]bool // owned by mu
}

type mark struct {
	kind Kind
	key  [32]byte
}

// New returns a store without marks.
func New(o Options) *Store { return &Store{o: o, marks: map[mark]bool{}} }

// Enabled reports whether there is a datastore.
func (s *Store) Enabled() bool { return s.o.Datastore != nil }

// Mark marks an entry that must be written.
func (s *Store) Mark(k Kind, key [32]byte) {
	if s.Enabled() {
		s.mu.Lock()
		s.marks[mark{k, key}] = true
		s.mu.Unlock()
	}
}

// Unmark removes a mark.
func (s *Store) Unmark(k Kind, key [32]byte) {
	s.mu.Lock()
	delete(s.marks, mark{k, key})
	s.mu.Unlock()
}

// Len returns the number of marks.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.marks)
}

// Each calls f for each entry of a kind, until f returns an error that does not wrap [ErrCorrupt]. Corrupt entries are deleted and logged.
func (s *Store) Each(ctx context.Context, k Kind, f func(key [32]byte, value []byte) error) error {
	if !s.Enabled() {
		return nil
	}
	for entry, err := range storage.Entries(ctx, s.o.Datastore, query.Query{Prefix: string(k)}) {
		if err != nil {
			return err
		}
		key, err := k.parse(entry.Key)
		if err == nil {
			err = f(key, entry.Value)
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrCorrupt):
			s.o.OnCorrupt()
			s.o.Log.Warn("corrupt directory entry deleted", "key", entry.Key, "err", err)
			if err := s.o.Datastore.Delete(ctx, ds.RawKey(entry.Key)); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

func (k Kind) parse(text string) (key [32]byte, err error) {
	hexed, ok := strings.CutPrefix(text, string(k)+"/")
	if n, err := hex.Decode(key[:], []byte(hexed[:min(len(hexed), 64)])); !ok || err != nil || n != 32 || len(hexed) != 64 {
		return key, fmt.Errorf("%w: not the key of a Thing", ErrCorrupt)
	}
	return key, nil
}

// Get decodes an entry into v.
func (s *Store) Get(ctx context.Context, k Kind, key [32]byte, v any) error {
	if !s.Enabled() {
		return ds.ErrNotFound
	}
	raw, err := s.o.Datastore.Get(ctx, k.Key(key))
	if err != nil {
		return err
	}
	return Unmarshal(raw, v)
}

// Unmarshal decodes the value of an entry. The error wraps [ErrCorrupt].
func Unmarshal(value []byte, v any) error {
	if len(value) > maxEntry {
		return fmt.Errorf("%w: %d bytes", ErrCorrupt, len(value))
	}
	if err := cbor.Unmarshal(value, v); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// Run writes marked entries every second until ctx ends.
func (s *Store) Run(ctx context.Context) {
	if !s.Enabled() {
		return
	}
	tick := time.NewTicker(SaveEvery)
	defer tick.Stop()
	var logged time.Time
	loop := heartbeat.Start(ctx, "directory store", SaveEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			loop.Beat()
			if err := s.Flush(ctx); err != nil && ctx.Err() == nil && time.Since(logged) > logInterval {
				s.o.Log.Error("directory write failed, retried later", "err", err)
				logged = time.Now()
			}
		}
	}
}

// FlushLast writes marked entries, within 10 s.
func (s *Store) FlushLast() error {
	ctx, cancel := context.WithTimeout(context.Background(), saveTimeout)
	defer cancel()
	return s.Flush(ctx)
}

// Flush writes marked entries and returns when they are durable. After an error the next call tries again.
func (s *Store) Flush(ctx context.Context) error {
	if !s.Enabled() {
		return nil
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	wrote := false
	for {
		marks := s.take(saveAtOnce)
		if len(marks) == 0 {
			break
		}
		if err := s.write(ctx, marks); err != nil {
			for _, m := range marks {
				s.Mark(m.kind, m.key)
			}
			return fmt.Errorf("write the directory's store: %w", err)
		}
		wrote = true
	}
	if !wrote {
		return nil
	}
	return s.o.Datastore.Sync(ctx, ds.NewKey("/directory"))
}

// take removes up to limit marks.
func (s *Store) take(limit int) (marks []mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range s.marks {
		if len(marks) == limit {
			break
		}
		delete(s.marks, m)
		marks = append(marks, m)
	}
	return marks
}

// write writes marked entries as one batch.
func (s *Store) write(ctx context.Context, marks []mark) error {
	b, err := s.o.Datastore.Batch(ctx)
	if err != nil {
		return err
	}
	for _, m := range marks {
		for _, e := range s.o.Snapshot(m.kind, m.key) {
			if err := put(ctx, b, e, m.key); err != nil {
				return err
			}
		}
	}
	return b.Commit(ctx)
}

func put(ctx context.Context, b ds.Batch, e Entry, key [32]byte) error {
	if e.Value == nil {
		return b.Delete(ctx, e.Kind.Key(key))
	}
	raw, err := cbor.Marshal(e.Value)
	if err != nil {
		return err
	}
	return b.Put(ctx, e.Kind.Key(key), raw)
}
