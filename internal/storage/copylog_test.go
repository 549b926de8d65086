package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
)

func openLog(t *testing.T, name string) *copyLog {
	t.Helper()
	l, err := openCopyLog(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

// The file has the last value of each key, also after it was written again, and stays small.
func TestCopyLog(t *testing.T) {
	t.Parallel()
	name, want := filepath.Join(t.TempDir(), copyName), map[ds.Key][]byte{}
	l, r := openLog(t, name), rand.New(rand.NewPCG(1, 1))
	for range 400 {
		batch := map[ds.Key][]byte{}
		for range 1 + r.IntN(4) {
			key := ds.NewKey(fmt.Sprint(r.IntN(40)))
			batch[key] = bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(60_000))
			if r.IntN(5) == 0 {
				batch[key] = nil
			}
			if want[key] = batch[key]; batch[key] == nil {
				delete(want, key)
			}
		}
		if err := l.write(batch); err != nil {
			t.Fatal(err)
		}
		if l.isWasteful() {
			if err := l.rewrite(); err != nil || l.size != l.live {
				t.Fatalf("%d bytes for %d, %v", l.size, l.live, err)
			}
		}
	}
	for _, l := range []*copyLog{l, openLog(t, name)} {
		if len(l.at) != len(want) || len(l.gaps) != 0 {
			t.Fatalf("%d entries, %d gaps; want %d and none", len(l.at), len(l.gaps), len(want))
		}
		for key, v := range want {
			if got, whole, err := l.value(key); err != nil || !whole || !bytes.Equal(got, v) {
				t.Errorf("%s: whole %v, %v", key, whole, err)
			}
		}
	}
	if info, err := os.Stat(name); err != nil || info.Size() != l.size || info.Mode() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// After any damage each entry reads as it was, or as an earlier state, or is known to be damaged, or begins a gap.
func TestDamagedCopyLog(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, name := rand.New(rand.NewPCG(seed, 0)), filepath.Join(t.TempDir(), copyName)
	l := openLog(t, name)
	for version := range 2 {
		for i := range 10 {
			if err := l.write(map[ds.Key][]byte{ds.NewKey(fmt.Sprint("key", i)): fmt.Appendf(nil, "value %d of %d", version, i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 300 {
		damaged := bytes.Clone(whole)
		switch n % 3 {
		case 0:
			damaged[r.IntN(len(damaged))] ^= 1 << r.IntN(8)
		case 1:
			damaged = damaged[:r.IntN(len(damaged))]
		case 2:
			from := r.IntN(len(damaged))
			clear(damaged[from:min(from+r.IntN(200), len(damaged))])
		}
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, name)
		for i := range 10 {
			key := ds.NewKey(fmt.Sprint("key", i))
			if _, ok := l.at[key]; !ok {
				if len(l.gaps) == 0 && len(damaged) == len(whole) {
					t.Errorf("%d: %s is missing without a gap", n, key)
				}
				continue
			}
			got, ok, err := l.value(key)
			if err != nil {
				t.Fatal(err)
			}
			if s := string(got); ok && s != fmt.Sprintf("value 1 of %d", i) && s != fmt.Sprintf("value 0 of %d", i) {
				t.Errorf("%d: %s reads as %q", n, key, s)
			}
		}
		if err := l.write(map[ds.Key][]byte{ds.NewKey("more"): []byte("m")}); err != nil {
			t.Fatal(err)
		}
		if again := openLog(t, name); len(again.at) != len(l.at) {
			t.Errorf("%d: %d entries after a write, want %d", n, len(again.at), len(l.at))
		}
	}
}

func FuzzCopyLog(f *testing.F) {
	f.Add(appendEntry(appendEntry(nil, ds.NewKey("a"), []byte("1")), ds.NewKey("b"), nil))
	f.Add([]byte(copyMarker + "\xff\xff\xff\xff" + copyMarker))
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(t.TempDir(), copyName)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, name)
		for key := range l.at {
			if _, _, err := l.value(key); err != nil {
				t.Error(err)
			}
		}
		for _, g := range l.gaps {
			if _, _, err := l.gap(g); err != nil {
				t.Error(err)
			}
		}
	})
}

// Repair takes the copies of earlier versions over, restores from them, and reports the damaged ones that the store does not have.
func TestLegacyCopies(t *testing.T) {
	t.Parallel()
	dir, store, ctx := t.TempDir(), dssync.MutexWrap(ds.NewMapDatastore()), t.Context()
	legacy := func(key, value, sum string) {
		if sum == "" {
			whole := sha256.Sum256([]byte(value))
			sum = hex.EncodeToString(whole[:])
		}
		if err := os.WriteFile(filepath.Join(dir, hex.EncodeToString([]byte(key))+legacySuffix), []byte(sum+"\n"+value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	legacy("/lost", "2", "")
	legacy("/same", "2", "")
	legacy("/behind", "1", "")
	legacy("/damaged", "2", "00")
	legacy("/gone", "2", "00")
	for key, value := range map[string]string{"/same": "2", "/behind": "2", "/damaged": "2", "/new": "2"} {
		if err := store.Put(ctx, ds.NewKey(key), []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	for again := range 2 {
		c, err := NewCopies(store, dir, func(a, b []byte) bool { return string(a) > string(b) }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		loss, err := c.Repair(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if again == 0 && (len(loss.Restored) != 1 || len(loss.Gone) != 1 || string(loss.Gone[0]) != "00\n2") || again == 1 && len(loss.Restored)+len(loss.Gone) > 0 {
			t.Errorf("%d: restored %q, gone %q", again, loss.Restored, loss.Gone)
		}
		var have []string
		for key := range c.log.at {
			value, whole, err := c.log.value(key)
			stored, missing := store.Get(ctx, key)
			if err := errors.Join(err, missing); err != nil || !whole || string(stored) != "2" || string(value) != "2" {
				t.Errorf("%d: %s is %q, its copy %q, whole %v, %v", again, key, stored, value, whole, err)
			}
			have = append(have, key.String())
		}
		slices.Sort(have)
		if want := []string{"/behind", "/damaged", "/lost", "/new", "/same"}; !slices.Equal(have, want) {
			t.Errorf("%d: copies of %v, want %v", again, have, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*"+legacySuffix)); len(files) > 0 {
		t.Errorf("%d files are left", len(files))
	}
}
