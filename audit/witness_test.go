package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// signedLine returns the line of a checkpoint of a node.
func signedLine(t testing.TB, key did.Signer, n uint64, at time.Time, detail string) []byte {
	t.Helper()
	l := &Line{N: n, Time: milliseconds(at), Prev: hashOf([]byte(detail)), Event: EventCheckpoint, Chain: mainChain}
	if err := l.sign(key); err != nil {
		t.Fatal(err)
	}
	raw, err := l.appendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A log shows its newest checkpoint, also after it was opened again, and others can verify it.
func TestCheckpointOfALog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	if _, _, line := l.Checkpoint(); line != nil {
		t.Errorf("a new log has the checkpoint %s", line)
	}
	l.Change(ChangeTrust, "partner globex added")
	closeLog(t, l)
	n, hash, line := l.Checkpoint()
	c, err := ParseCheckpoint(line)
	if err != nil || c.Head != (Head{n, hash}) || c.Head != l.Head() || c.By != testKey(t, 1).DID() || c.Time.IsZero() {
		t.Errorf("got %+v, %v, want the head %+v", c, err, l.Head())
	}
	again := open(t, Options{Dir: dir})
	if n2, hash2, line2 := again.Checkpoint(); n2 != n || hash2 != hash || !bytes.Equal(line2, line) {
		t.Errorf("after another start it is %d %s", n2, line2)
	}
	closeLog(t, again)
	other := open(t, Options{Dir: dir, Signer: testKey(t, 2)}) // after a change of the key
	if _, _, line := other.Checkpoint(); line != nil {
		t.Errorf("another node shows %s", line)
	}
}

func TestParseCheckpointRefuses(t *testing.T) {
	t.Parallel()
	good := signedLine(t, testKey(t, 1), 7, time.Now(), "a")
	if _, err := ParseCheckpoint(good); err != nil {
		t.Fatal(err)
	}
	other := &Line{N: 7, Time: milliseconds(time.Now()), Prev: hashOf(nil), Event: EventCheckpoint, Chain: deniedChain}
	if err := other.sign(testKey(t, 1)); err != nil {
		t.Fatal(err)
	}
	denied, _ := other.appendTo(nil)
	for name, raw := range map[string][]byte{
		"nothing":             nil,
		"another number":      bytes.Replace(good, []byte(`"n":7`), []byte(`"n":8`), 1),
		"another line end":    append(bytes.Clone(good), '\n'),
		"a second number":     bytes.Replace(good, []byte(`"n":7`), []byte(`"n":8,"n":7`), 1),
		"a space":             bytes.Replace(good, []byte(`"n":7`), []byte(`"n": 7`), 1),
		"the other chain":     denied,
		"another event":       bytes.Replace(good, []byte(`"event":"checkpoint"`), []byte(`"event":"file","file":1,"first":1`), 1),
		"a signature of none": bytes.Replace(good, []byte(testKey(t, 1).DID()), []byte(testKey(t, 2).DID()), 1),
		"too many bytes":      append(bytes.Clone(good), bytes.Repeat([]byte(" "), maxCheckpoint)...),
	} {
		if c, err := ParseCheckpoint(raw); err == nil {
			t.Errorf("%s: got %+v", name, c)
		}
	}
}

// A log that was cut or changed, and signed again with the key of the node, differs from the head that another member keeps.
func TestVerifyFindsALogThatWasSignedAgain(t *testing.T) {
	t.Parallel()
	const newest = "000002.jsonl"
	member := nodeDID(t, 7)
	for name, c := range map[string]struct {
		change func(lines [][]byte) [][]byte
		want   string
	}{
		"cut": {func(lines [][]byte) [][]byte { return lines[:2] }, "and member " + member.Short() + " names line %d: lines at the end are missing"},
		"changed": {func(lines [][]byte) [][]byte {
			lines[1] = bytes.Replace(lines[1], []byte("allowed"), []byte("ALLOWED"), 1)
			return lines
		}, "the hash of line %d differs from that of member " + member.Short()},
	} {
		dir, head := sample(t)
		edit(t, filepath.Join(dir, newest), func(lines [][]byte) [][]byte { return forge(t, c.change(lines), testKey(t, 1)) })
		keys := []did.DID{testKey(t, 1).DID()}
		before, _ := Verify(dir, Check{Keys: keys})
		if name == "changed" && len(before.Problems) > 0 { // of the chain of denials after a cut: its head is in the checkpoint that was cut
			t.Errorf("%s: the attacker has failed: %v", name, before.Problems)
		}
		r, err := Verify(dir, Check{Keys: keys, Members: map[did.DID][]Head{member: {head}}})
		want := fmt.Sprintf(c.want, head.N)
		if interact.AsError(err) == nil || interact.AsError(err).Code != interact.AuditBroken ||
			!slices.ContainsFunc(r.Problems, func(p Problem) bool { return strings.Contains(p.Text, want) && p.Line > 0 }) {
			t.Errorf("%s: got %v, %v, want %q", name, err, r.Problems, want)
		}
	}
}

// Of another node the newest checkpoint is kept. One that contradicts it is kept as evidence, survives a restart, and is logged once.
func TestWitness(t *testing.T) {
	t.Parallel()
	dir, key, now := t.TempDir(), testKey(t, 2), time.Now()
	var logged bytes.Buffer
	l := open(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&logged, nil))})
	take := func(line []byte) {
		t.Helper()
		if err := l.Take(key.DID(), line); err != nil {
			t.Fatal(err)
		}
	}
	lacks := func(line []byte) bool {
		c, err := ParseCheckpoint(line)
		if err != nil {
			t.Fatal(err)
		}
		return l.Lacks(key.DID(), c.N, c.Hash)
	}
	older, first, second := signedLine(t, key, 3, now.Add(-time.Minute), "a"), signedLine(t, key, 5, now, "a"), signedLine(t, key, 9, now.Add(time.Minute), "a")
	if !lacks(first) {
		t.Error("the first checkpoint is not news")
	}
	take(first)
	take(second)
	take(older) // arrives late
	if got := l.Kept(key.DID()); !slices.EqualFunc(got, [][]byte{first, second}, bytes.Equal) {
		t.Errorf("kept %s", got)
	}
	if lacks(second) || lacks(first) || !lacks(signedLine(t, key, 10, now, "a")) {
		t.Error("known checkpoints are news, or a new one is none")
	}
	if forks, _ := l.Equivocations(); len(forks) > 0 || logged.Len() > 0 {
		t.Errorf("a fork of %v without a contradiction: %s", forks, logged.String())
	}
	fork := signedLine(t, key, 9, now.Add(time.Minute), "b")
	take(fork)
	take(signedLine(t, key, 9, now.Add(2*time.Minute), "c"))
	if err := l.Take(key.DID(), signedLine(t, testKey(t, 3), 11, now, "a")); err == nil {
		t.Error("a checkpoint that another node signed was taken")
	}
	check := func() {
		t.Helper()
		forks, folder := l.Equivocations()
		if !slices.Equal(forks, []did.DID{key.DID()}) || folder != filepath.Join(dir, "members") {
			t.Errorf("forks: %v in %s", forks, folder)
		}
		if got := l.Kept(key.DID()); !slices.EqualFunc(got, [][]byte{first, second, second, fork}, bytes.Equal) {
			t.Errorf("kept %s", got)
		}
	}
	check()
	if n := strings.Count(logged.String(), "level=WARN"); n != 1 || !strings.Contains(logged.String(), string(key.DID())) {
		t.Errorf("%d warnings: %s", n, logged.String())
	}
	closeLog(t, l)
	l = open(t, Options{Dir: dir})
	check()
}

// A node whose log became shorter has a lower number at a later time.
func TestWitnessOfAShorterLog(t *testing.T) {
	t.Parallel()
	key, now := testKey(t, 2), time.Now()
	l := open(t, Options{Dir: t.TempDir()})
	for _, line := range [][]byte{signedLine(t, key, 5, now, "a"), signedLine(t, key, 2, now.Add(time.Minute), "b")} {
		if err := l.Take(key.DID(), line); err != nil {
			t.Fatal(err)
		}
	}
	if forks, _ := l.Equivocations(); len(forks) != 1 || len(l.Kept(key.DID())) != 3 {
		t.Errorf("forks: %v, kept: %s", forks, l.Kept(key.DID()))
	}
}

// Many checkpoints leave some of each age, so that old lines stay protected.
func TestOldCheckpointsAreThinned(t *testing.T) {
	t.Parallel()
	var all []kept
	start := time.Now()
	now := start
	for i := range 20_000 { // two weeks
		now = start.Add(time.Duration(i) * time.Minute)
		all = thin(append(all, kept{Received: now}), now)
	}
	if len(all) != maxKept || !all[0].Received.Equal(start) || !all[maxKept-1].Received.Equal(now) {
		t.Fatalf("kept %v", all)
	}
	for i, k := range all[:maxKept-1] {
		if pause, age := all[i+1].Received.Sub(k.Received), now.Sub(k.Received); pause > 5*time.Minute && pause > age*3/4 {
			t.Errorf("no checkpoint between the ages %v and %v", age, age-pause)
		}
	}
}

func TestWitnessIsBounded(t *testing.T) {
	t.Parallel()
	w, err := openWitness(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	put := func(n int) did.DID {
		key := nodeKey(t, n)
		c, err := ParseCheckpoint(signedLine(t, key, 1, now, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.take(c, now.Add(time.Duration(n)*time.Second)); err != nil {
			t.Fatal(err)
		}
		return key.DID()
	}
	first := put(0)
	if err := w.write(); err != nil {
		t.Fatal(err)
	}
	for n := range maxMembers {
		put(n + 1)
	}
	if err := w.write(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(w.dir)
	if err != nil || len(w.members) != maxMembers || w.members[first] != nil || len(files) != maxMembers {
		t.Errorf("%d members, %d files, %v", len(w.members), len(files), err)
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	line := signedLine(f, testKey(f, 1), 7, time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), "a")
	f.Add(line)
	f.Add(bytes.Replace(line, []byte("7"), []byte("8"), 1))
	f.Add([]byte(`{"kept":[{"received":"2026-11-27T12:00:00Z","line":"{}"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := ParseCheckpoint(raw); err == nil && (c.N == 0 || !bytes.Equal(c.Line, raw) || hashOf(raw) != c.Hash) {
			t.Errorf("%s became %+v", raw, c)
		}
		if m, err := parseMember(raw, testKey(t, 1).DID()); err == nil && len(m.Kept) > maxKept {
			t.Errorf("%d are kept", len(m.Kept))
		}
	})
}
