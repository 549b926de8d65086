package persist

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
)

// A disk is a datastore whose writes fail while full is set.
type failingStore struct {
	ds.Batching
	full atomic.Bool
}

func (d *failingStore) Batch(ctx context.Context) (ds.Batch, error) {
	if d.full.Load() {
		return nil, errors.New("no space left on device")
	}
	return d.Batching.Batch(ctx)
}

func open(d ds.Batching, values map[[32]byte]string) (s *Store, corrupt *int) {
	corrupt = new(int)
	return New(Options{Datastore: d, OnCorrupt: func() { *corrupt++ }, Log: slog.New(slog.DiscardHandler),
		Snapshot: func(k Kind, key [32]byte) []Entry {
			if v, ok := values[key]; ok {
				return []Entry{{k, v}}
			}
			return []Entry{{Kind: k}}
		}}), corrupt
}

// read returns all entries of a kind.
func read(t *testing.T, s *Store, k Kind) map[[32]byte]string {
	t.Helper()
	all := map[[32]byte]string{}
	if err := s.Each(t.Context(), k, func(key [32]byte, value []byte) error {
		var v string
		err := Unmarshal(value, &v)
		all[key] = v
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Marked entries are written within a second, deleted without a value, and written again after an error.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		values := map[[32]byte]string{{1}: "one", {2}: "two"}
		d := &failingStore{Batching: dssync.MutexWrap(ds.NewMapDatastore())}
		s, _ := open(d, values)
		go s.Run(t.Context())
		s.Mark(Seqs, [32]byte{1})
		s.Mark(Vectors, [32]byte{2})
		s.Mark(Vectors, [32]byte{1})
		s.Unmark(Vectors, [32]byte{1})
		time.Sleep(SaveEvery)
		synctest.Wait()
		if seqs, vectors := read(t, s, Seqs), read(t, s, Vectors); seqs[[32]byte{1}] != "one" || len(vectors) != 1 || s.Len() != 0 {
			t.Errorf("got %v and %v, %d marks", seqs, vectors, s.Len())
		}
		var got string
		if err := s.Get(t.Context(), Vectors, [32]byte{2}, &got); err != nil || got != "two" {
			t.Errorf("got %q, %v", got, err)
		}
		d.full.Store(true)
		delete(values, [32]byte{1})
		s.Mark(Seqs, [32]byte{1})
		if err := s.Flush(t.Context()); err == nil || s.Len() != 1 {
			t.Errorf("full disk: got %v, %d marks", err, s.Len())
		}
		d.full.Store(false)
		time.Sleep(SaveEvery)
		synctest.Wait()
		if seqs := read(t, s, Seqs); len(seqs) != 0 || s.Len() != 0 {
			t.Errorf("after the error: got %v, %d marks", seqs, s.Len())
		}
	})
}

// More marks than fit into one batch are written by one flush.
func TestFlushWritesAll(t *testing.T) {
	t.Parallel()
	values := map[[32]byte]string{}
	s, _ := open(dssync.MutexWrap(ds.NewMapDatastore()), values)
	for i := range 3 * saveAtOnce {
		key := [32]byte{byte(i), byte(i >> 8)}
		values[key] = "x"
		s.Mark(Descriptions, key)
	}
	if err := s.FlushLast(); err != nil || len(read(t, s, Descriptions)) != 3*saveAtOnce {
		t.Errorf("%d entries, %v", len(read(t, s, Descriptions)), err)
	}
}

// Corrupt entries are counted and deleted. Other errors end the iteration.
func TestCorruptEntries(t *testing.T) {
	t.Parallel()
	d := dssync.MutexWrap(ds.NewMapDatastore())
	s, corrupt := open(d, nil)
	for key, value := range map[string]string{
		Seqs.Key([32]byte{1}).String(): "\x61a", Seqs.Key([32]byte{2}).String(): "\xff", string(Seqs) + "/x": "\x61a",
		Seqs.Key([32]byte{3}).String(): strings.Repeat("x", maxEntry+1), Seqs.Key([32]byte{4}).String() + "00": "\x61a",
	} {
		if err := d.Put(t.Context(), ds.RawKey(key), []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	read(t, s, Seqs)
	if all := read(t, s, Seqs); len(all) != 1 || all[[32]byte{1}] != "a" || *corrupt != 4 {
		t.Errorf("got %v, %d corrupt", all, *corrupt)
	}
	want := errors.New("no")
	if err := s.Each(t.Context(), Seqs, func([32]byte, []byte) error { return want }); err != want {
		t.Errorf("got %v", err)
	}
}

// Without a datastore nothing is marked or read.
func TestWithoutADatastore(t *testing.T) {
	t.Parallel()
	s, _ := open(nil, nil)
	s.Mark(Seqs, [32]byte{1})
	s.Run(t.Context())
	if err := s.Flush(t.Context()); err != nil || s.Len() != 0 || len(read(t, s, Seqs)) != 0 || s.Get(t.Context(), Seqs, [32]byte{1}, nil) == nil {
		t.Errorf("%d marks, %v", s.Len(), err)
	}
}
