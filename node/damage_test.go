package node

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
)

// killed returns the image of a data directory as kill -9 leaves it: five agents are published and a task is begun and acknowledged,
// nothing is closed.
func killed(t *testing.T) (o Options, image, task string) {
	t.Helper()
	o = quiet()
	o.Dir, image = t.TempDir(), t.TempDir()
	n := start(t, o)
	for i := range 5 {
		if _, err := n.Publish(t.Context(), tool(fmt.Sprintf("Agent %d", i), fmt.Sprintf("urn:x:%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	enough := make(chan struct{})
	thing, _, err := n.mesh.publisher.Attach(t.Context(), []byte(sleepDraft), sleeper(enough))
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range asConsumer(n).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: thing, Name: "sleep", Detach: true}) {
		if err != nil {
			t.Fatal(err)
		}
		task = r.ActionID
		break
	}
	for file, last := range map[string]string{"copies.log": "urn:x:4", "tasks/copies.log": task} { // copies follow soon
		poll.Until(t, "a copy of "+last, func() bool {
			b, err := os.ReadFile(filepath.Join(o.Dir, "own", "test", filepath.FromSlash(file)))
			return err == nil && bytes.Contains(b, []byte(last))
		})
	}
	copyDir(t, o.Dir, image)
	close(enough)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	return o, image, task
}

// restarted returns the image as it is after another start and kill -9.
func restarted(t *testing.T, o Options, image string) string {
	t.Helper()
	next := t.TempDir()
	o.Dir = image
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	copyDir(t, image, next)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	return next
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"identity.pem", "api.token"} {
		_ = os.Chmod(filepath.Join(to, secret), 0o600)
	}
}

// After truncated or flipped bytes in the store, each agent and each task is either restored or reported as lost. A tail of unacknowledged writes
// after a crash is not damage.
func TestLossesOfADamagedStoreAreReported(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	o, image, task := killed(t)
	try := func(name string, harm func(dir string), check func(there int, said string)) {
		dir := t.TempDir()
		copyDir(t, image, dir)
		harm(dir)
		o.Dir = dir
		n, err := New(o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		there, said := 0, fmt.Sprint(n.Status().Warnings)
		for i := range 5 {
			if of := n.mesh.index.Get(fmt.Sprintf("urn:x:%d", i)); of != nil && of.Description != nil {
				there++
			} else if !strings.Contains(said, fmt.Sprintf("urn:x:%d", i)) {
				t.Errorf("%s: urn:x:%d is lost without a log message: %s", name, i, said)
			}
		}
		if _, ok := n.ledger.Get(task); !ok && !strings.Contains(said, task) {
			t.Errorf("%s: a task is lost without a log message: %s", name, said)
		}
		check(there, said)
		if err := n.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	all := func(there int, said string) {
		if there != 5 {
			t.Errorf("%d of 5 agents are there: %s", there, said)
		}
	}
	silent := func(there int, said string) {
		if all(there, said); strings.Contains(said, "W021") {
			t.Errorf("the rest of a crash is reported as damage: %s", said)
		}
	}
	logs := func(dir string) []string {
		found, _ := filepath.Glob(filepath.Join(dir, "store", "*.log"))
		return found
	}
	try("as it was", func(string) {}, silent)
	try("torn tail", func(dir string) { change(t, logs(dir), func(b []byte) []byte { return append(b, "torn"...) }) }, silent)
	try("empty log", func(dir string) { change(t, logs(dir), func([]byte) []byte { return nil }) }, all)
	try("no copies", func(dir string) { _ = os.RemoveAll(filepath.Join(dir, "own")) }, silent)
	files, err := filepath.Glob(filepath.Join(image, "store", "*"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for range 5 {
		at := r.Float64()
		try(fmt.Sprintf("cut at %.2f", at), func(dir string) {
			change(t, logs(dir), func(b []byte) []byte { return b[:int(at*float64(len(b)))] })
		}, all)
	}
	for range 7 {
		file, at, bit := filepath.Base(files[r.IntN(len(files))]), r.Float64(), byte(1)<<r.IntN(8)
		if file == "LOCK" {
			continue
		}
		try(fmt.Sprintf("bit %d of %s at %.4f", bit, file, at), func(dir string) {
			change(t, []string{filepath.Join(dir, "store", file)}, func(b []byte) []byte {
				if len(b) > 0 {
					b[int(at*float64(len(b)))] ^= bit
				}
				return b
			})
		}, all)
	}
	try("a copy and the log", func(dir string) {
		change(t, logs(dir), func([]byte) []byte { return nil })
		copies, _ := filepath.Glob(filepath.Join(dir, "own", "test", "copies.log"))
		change(t, copies, func(b []byte) []byte {
			for part := b; ; { // the last copy of the Thing counts
				i := bytes.Index(part, []byte(`"thing":"urn:x:3"`))
				if i < 0 {
					return b
				}
				part = part[i+20:]
				part[0] ^= 1
			}
		})
		copies, _ = filepath.Glob(filepath.Join(dir, "own", "test", "tasks", "copies.log"))
		change(t, copies, func(b []byte) []byte { b[0] ^= 1; return b })
	}, func(there int, said string) {
		if there != 4 || !strings.Contains(said, "LOST: urn:x:3;") || !strings.Contains(said, "LOST tasks: "+task+" (sleep of ") {
			t.Errorf("%d agents are there, and the status says %s", there, said)
		}
	})
	image = restarted(t, o, image) // the log becomes tables, and later states are in the log
	tables, err := filepath.Glob(filepath.Join(image, "store", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal("there are no tables", err)
	}
	for range 10 {
		table, at := filepath.Base(tables[r.IntN(len(tables))]), r.Float64()
		try(fmt.Sprintf("zeros in %s at %.4f", table, at), func(dir string) {
			change(t, []string{filepath.Join(dir, "store", table)}, func(b []byte) []byte {
				from := int(at * float64(len(b)))
				clear(b[from:min(from+512, len(b))])
				return b
			})
		}, all)
	}
}

// change rewrites files.
func change(t *testing.T, files []string, to func([]byte) []byte) {
	t.Helper()
	if len(files) == 0 {
		t.Fatal("no such file")
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, to(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
