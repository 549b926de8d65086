package storage

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	ds "github.com/ipfs/go-datastore"
)

// On a full disk nothing is put back: what was lost for good is told nevertheless, and what was not put back is not said to be.
func TestRepairOnAFullDisk(t *testing.T) {
	t.Parallel()
	free := uint64(1 << 40)
	o := Options{Log: slog.New(slog.DiscardHandler), Free: func() (uint64, error) { return free, nil }}
	dir, at, ctx := t.TempDir(), t.TempDir(), t.Context()
	copies := func(s *Store) *Copies {
		c, err := NewCopies(s.Durable(), at, func(a, b []byte) bool { return string(a) > string(b) }, o.Log)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	s := open(t, Pebble, dir, o)
	c, gone, kept := copies(s), ds.NewKey("/a"), ds.NewKey("/b")
	if err := errors.Join(c.Put(ctx, gone, []byte("1")), c.Put(ctx, kept, []byte("2")), s.Durable().Delete(ctx, gone), s.Durable().Delete(ctx, kept),
		os.WriteFile(c.path(gone), []byte("flipped"), 0o600), s.Close()); err != nil {
		t.Fatal(err)
	}
	free = 0
	s = open(t, Pebble, dir, o)
	loss, err := copies(s).Repair(ctx)
	if !Full(err) || len(loss.Gone) != 1 || len(loss.Restored) != 0 {
		t.Errorf("without room: %v, %d lost, %d put back", err, len(loss.Gone), len(loss.Restored))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	free = 1 << 40
	s = open(t, Pebble, dir, o)
	loss, err = copies(s).Repair(ctx)
	if err != nil || len(loss.Gone) != 0 || len(loss.Restored) != 1 {
		t.Errorf("with room: %v, %d lost, %d put back", err, len(loss.Gone), len(loss.Restored))
	}
	if got, err := s.Durable().Get(ctx, kept); string(got) != "2" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
