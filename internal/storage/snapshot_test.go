package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	ds "github.com/ipfs/go-datastore"
)

// A copy that is made while the database is written has all that was acknowledged before it began.
func TestSnapshotOfADatabaseInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(Pebble, dir, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	put := func(i int) {
		if err := s.Durable().Put(t.Context(), ds.NewKey(fmt.Sprint("/k", i)), make([]byte, 4096)); err != nil {
			t.Error(err)
		}
	}
	const before = 500
	for i := range before {
		put(i)
	}
	for name, content := range map[string]string{"identity.pem": "key", "lock": "12", "own/lmos/things": "copies", "store.damaged-20260101T000000.000/a": "old"} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := before; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(i)
			}
		}
	}()
	to := t.TempDir()
	err = Snapshot(dir, to)
	close(stop)
	<-ended
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	if Size(to) < before*4096/2 {
		t.Errorf("the copy has %d bytes", Size(to))
	}
	for name, want := range map[string]bool{"identity.pem": true, "own/lmos/things": true, "lock": false, "store.damaged-20260101T000000.000": false} {
		if _, err := os.Stat(filepath.Join(to, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	again, err := Open(Pebble, to, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for i := range before {
		if _, err := again.Durable().Get(t.Context(), ds.NewKey(fmt.Sprint("/k", i))); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}

func TestSnapshotOfOtherFiles(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Skip(err) // a long path
	}
	defer l.Close()
	if err := Snapshot(dir, to); err != nil { // without a database
		t.Fatal(err)
	}
	if err := os.Symlink(to, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Snapshot(dir, t.TempDir()); err == nil {
		t.Error("a link to a folder was copied")
	}
	if err := Snapshot(filepath.Join(dir, "gone"), to); err == nil {
		t.Error("a missing folder was copied")
	}
}
