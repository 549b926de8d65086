package storage

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ds "github.com/ipfs/go-datastore"
)

// On a full disk nothing is restored: lost entries are reported, and not as restored.
func TestRepairOnFullDisk(t *testing.T) {
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
	if err := errors.Join(c.Put(ctx, gone, []byte("1")), c.Put(ctx, kept, []byte("2")), s.Durable().Delete(ctx, gone), s.Durable().Delete(ctx, kept)); err != nil {
		t.Fatal(err)
	}
	c.settle()
	_, err := c.log.file.WriteAt([]byte("x"), c.log.at[gone].from)
	if err := errors.Join(err, c.Close(), s.Close()); err != nil {
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

// The newest folders of damaged stores and lists of their loss are kept; folders with other names belong to the user.
func TestDamagedStoresAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var want []string
	for i := range maxAside + 2 {
		at := filepath.Join(dir, fmt.Sprintf("store.damaged-2020010%dT000000.000", i+1))
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if i > 2 {
			want = append(want, at)
		}
	}
	users := filepath.Join(dir, "store.damaged-0-keep")
	if err := errors.Join(os.Mkdir(users, 0o700), os.Mkdir(filepath.Join(dir, "store"), 0o700)); err != nil {
		t.Fatal(err)
	}
	at, err := Aside(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Note(dir, at, "text"); err != nil {
		t.Fatal(err)
	}
	folders, texts := notes(dir)
	if want = append([]string{users}, append(want, at)...); !slices.Equal(folders, want) || texts[len(texts)-1] != "text" {
		t.Errorf("kept are %q, with %q; want %q", folders, texts, want)
	}
	if err := Note(dir, "", "later"); err != nil {
		t.Fatal(err)
	}
	if folders, texts = notes(dir); len(folders) != maxAside+1 || folders[2] != at || texts[3] != "later" {
		t.Errorf("then kept are %q, with %q", folders, texts)
	}
}

// Damage that is found while a store is open does not end the process: damaged entries fail to read, and the next start fails.
func TestDamageFoundInUse(t *testing.T) {
	t.Parallel()
	dir, j, key := t.TempDir(), new(journal), ds.NewKey("/a")
	o := Options{Log: j.logger()}
	s := open(t, Pebble, dir, o)
	if err := s.Durable().Put(t.Context(), key, bytes.Repeat([]byte("value"), 1000)); err != nil {
		t.Fatal(err)
	}
	var tables []string
	for range 2 { // the log becomes a table at the next open
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Pebble, dir, o)
		tables, _ = filepath.Glob(filepath.Join(dir, "store", "*.sst"))
	}
	if err := s.Close(); err != nil || len(tables) != 1 || s.Hurt() {
		t.Fatal(tables, s.Hurt(), err)
	}
	b, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(tables[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, Pebble, dir, o)
	if _, err := s.Durable().Get(t.Context(), key); !Damaged(err) || !s.Hurt() || !j.has("the store is damaged") {
		t.Errorf("hurt %v: %v: %s", s.Hurt(), err, j)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(Pebble, dir, o); !Damaged(err) {
		t.Errorf("it is opened again: %v", err)
	}
}

func notes(dir string) (folders, texts []string) {
	for f, text := range Notes(dir) {
		folders, texts = append(folders, f), append(texts, text)
	}
	return folders, texts
}

func TestDescribeLoss(t *testing.T) {
	t.Parallel()
	name := func(e []byte) string { return Salvage(e, "id") }
	entries := func(n int) (all [][]byte) {
		for range n {
			all = append(all, []byte(`{"id":"a\"b","cut`))
		}
		return all
	}
	const end = "; peers and descriptions of others may be missing: they are found again"
	for want, c := range map[string]struct {
		aside string
		parts []Part
	}{
		"": {parts: []Part{{Name: name}}},
		"the store was damaged and is now /aside" + end: {aside: "/aside"},
		`the store was damaged; put back from copies: a\"b, a\"b; LOST tasks: (unreadable)` + end: {parts: []Part{
			{Loss: Loss{Restored: entries(2)}, Name: name}, {Loss: Loss{Gone: [][]byte{[]byte("garbage")}}, Kind: "tasks", Name: name}}},
		"the store was damaged; LOST: " + strings.Repeat(`a\"b, `, maxNamed) + "and 7 more" + end: {parts: []Part{{Loss: Loss{Gone: entries(maxNamed + 7)}, Name: name}}},
	} {
		if got := Describe(c.aside, c.parts...); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
