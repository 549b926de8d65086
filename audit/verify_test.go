package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// sample writes a log of three files a chain and returns its folder and its head.
func sample(t testing.TB) (dir string, head Head) {
	t.Helper()
	dir = t.TempDir()
	l := open(t, Options{Dir: dir, Level: All, maxFile: 10 << 10})
	for i := range 80 {
		l.Decision(Decision{Op: "read", Thing: fmt.Sprint("allowed", i), Allow: true})
		l.Decision(Decision{Op: "write", Thing: fmt.Sprint("denied", i)})
	}
	l.Change(ChangeTrust, "partner globex added")
	closeLog(t, l)
	for _, c := range []string{mainChain, deniedChain} {
		if n, err := numbersOf(dir, c); err != nil || len(n) != 2 {
			t.Fatalf("%s has the files %v, %v", c, n, err)
		}
	}
	verified(t, dir, l.Head())
	return dir, l.Head()
}

// edit changes the lines of a file, without their ends.
func edit(t testing.TB, path string, change func(lines [][]byte) [][]byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := change(bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")))
	if err := os.WriteFile(path, append(bytes.Join(lines, []byte("\n")), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

// forge writes all lines of a file again with valid hashes, and with the signatures of another key if it is not nil.
func forge(t testing.TB, lines [][]byte, signer did.Signer) [][]byte {
	t.Helper()
	prev := ""
	for i, raw := range lines {
		l, err := ParseLine(raw)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			l.Prev = prev
		}
		if signer != nil && l.Event == EventCheckpoint {
			if err := l.sign(signer); err != nil {
				t.Fatal(err)
			}
		}
		if lines[i], err = l.appendTo(nil); err != nil {
			t.Fatal(err)
		}
		prev = hashOf(lines[i])
	}
	return lines
}

func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	const first, last = "000001.jsonl", "000002.jsonl"
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(name string, f func(t *testing.T, lines [][]byte) [][]byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, name), func(lines [][]byte) [][]byte { return f(t, lines) })
		}
	}
	replaced := func(lines [][]byte, i int) [][]byte {
		lines[i] = bytes.Replace(lines[i], []byte("allowed"), []byte("ALLOWED"), 1)
		return lines
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string // the first problem
	}{
		"an edited line": {change(first, func(_ *testing.T, lines [][]byte) [][]byte { return replaced(lines, 4) }),
			first + ":5: the line was changed: its hash differs from prev of the next line"},
		"an edited verdict": {change("denied-"+first, func(_ *testing.T, lines [][]byte) [][]byte {
			lines[7] = bytes.Replace(lines[7], []byte(`"deny"`), []byte(`"allow"`), 1)
			return lines
		}), "denied-" + first + ":8: the line was changed"},
		"the last line of a file that is not the newest": {change(first, func(_ *testing.T, lines [][]byte) [][]byte {
			lines[len(lines)-1] = bytes.Replace(lines[len(lines)-1], []byte(`"time":"2`), []byte(`"time":"1`), 1)
			return lines
		}), "the signature of the checkpoint does not verify"},
		"a removed line":  {change(first, func(_ *testing.T, lines [][]byte) [][]byte { return slices.Delete(lines, 4, 6) }), first + ":5: the line has number 7, expected 5: lines before it are missing"},
		"an added line":   {change(first, func(_ *testing.T, lines [][]byte) [][]byte { return slices.Insert(lines, 4, lines[3]) }), first + ":5: the line has number 4, expected 5"},
		"a text":          {change(first, func(_ *testing.T, lines [][]byte) [][]byte { lines[4] = []byte("#"); return lines }), first + ":5: not a line of the log"},
		"a removed end":   {change("denied-"+last, func(_ *testing.T, lines [][]byte) [][]byte { return lines[:3] }), "denied-" + last + ":3: the chain ends at line"},
		"an emptied file": {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, first), 0) }, first + ": the file is empty"},
		"a cut line": {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, last), -9) },
			": the line is incomplete: the file was cut, or the node ended while it wrote"},
		"a missing oldest file":      {remove(first), first + ": the file is missing"},
		"a missing newest file":      {remove("denied-" + last), "the chain ends at line"},
		"all denials missing":        {func(t *testing.T, dir string) { remove("denied-"+first)(t, dir); remove("denied-"+last)(t, dir) }, "denied-" + first + ": the chain ends at line 0, and a checkpoint names line"},
		"a missing head of a member": {remove(last), "the chain ends at line"},
		"a file of the other chain": {func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "denied-"+first), filepath.Join(dir, first)); err != nil {
				t.Fatal(err)
			}
		}, first + ":1: the first line of 000001.jsonl is expected in line 1"},
		"new hashes with the old signatures": {change(first, func(t *testing.T, lines [][]byte) [][]byte { return forge(t, replaced(lines, 4), nil) }),
			"the signature of the checkpoint does not verify with the key of"},
		"new hashes with signatures of another key": {change(first, func(t *testing.T, lines [][]byte) [][]byte { return forge(t, replaced(lines, 4), testKey(t, 2)) }),
			"the checkpoint is signed by " + string(testKey(t, 2).DID())},
		"a checkpoint without signature": {change(first, func(_ *testing.T, lines [][]byte) [][]byte {
			i := bytes.LastIndex(lines[len(lines)-1], []byte(sigMember))
			lines[len(lines)-1] = append(lines[len(lines)-1][:i], '}')
			return lines
		}), "the checkpoint has no signature at its end"},
		"a forged end after the last checkpoint, and the head of a member": {change(last, func(t *testing.T, lines [][]byte) [][]byte {
			lines = slices.Delete(lines, len(lines)-2, len(lines)-1)
			l, err := ParseLine(lines[len(lines)-1])
			if err != nil {
				t.Fatal(err)
			}
			l.N--
			if lines[len(lines)-1], err = l.appendTo(nil); err != nil {
				t.Fatal(err)
			}
			forge(t, lines, testKey(t, 1))
			return lines
		}), "and a noted head names line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, head := sample(t)
			c.damage(t, dir)
			r, err := Verify(dir, Check{Keys: []did.DID{testKey(t, 1).DID()}, Heads: []Head{head}})
			e := interact.AsError(err)
			if err == nil || e.Code != interact.AuditBroken || !strings.Contains(e.Title, c.want) {
				t.Errorf("got %v and %v, want %s", err, r.Problems, c.want)
			}
			if strings.HasPrefix(c.want, "000001") && r.Problems[0].File != first || r.Problems[0].String() == "" {
				t.Errorf("the problems are %v", r.Problems)
			}
		})
	}
	if _, err := Verify(t.TempDir(), Check{}); interact.AsError(err).Code != interact.AuditBroken {
		t.Errorf("a folder without a log: %v", err)
	}
}

func truncate(t testing.TB, path string, size int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if size < 0 {
		size += info.Size()
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

// A different head at the number of a line is found, and a head of a line that was rotated away is not checked.
func TestHeads(t *testing.T) {
	t.Parallel()
	dir, head := sample(t)
	verified(t, dir, head, Head{})
	_, err := Verify(dir, Check{Heads: []Head{{head.N, hashOf(nil)}}})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the hash of line %d differs from that of a noted head", head.N)) {
		t.Errorf("got %v", err)
	}
	l := open(t, Options{Dir: dir, Level: All, Keep: 1, maxFile: 10 << 10})
	for i := range 200 {
		l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: true})
	}
	closeLog(t, l)
	verified(t, dir, head, l.Head())
}

// More than 1,000 lines without a checkpoint are not a valid log, even if the hashes are.
func TestVerifyWantsCheckpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, Level: All})
	for i := range 1500 {
		l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: true})
	}
	closeLog(t, l)
	edit(t, filepath.Join(dir, "000001.jsonl"), func(lines [][]byte) [][]byte {
		lines = slices.DeleteFunc(lines, func(l []byte) bool { return bytes.Contains(l, []byte(EventCheckpoint)) })
		for i := range lines {
			l, err := ParseLine(lines[i])
			if err != nil {
				t.Fatal(err)
			}
			l.N = uint64(i + 1)
			if lines[i], err = l.appendTo(nil); err != nil {
				t.Fatal(err)
			}
		}
		return forge(t, lines, nil)
	})
	_, err := Verify(dir, Check{})
	if err == nil || !strings.Contains(err.Error(), "000001.jsonl:1002: more than 1000 lines have no checkpoint") {
		t.Errorf("got %v", err)
	}
}

// A crash leaves an incomplete line: it is moved aside, a line records that, and the chain goes on.
func TestOpenAfterACrash(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		crash func(t *testing.T, dir string)
		want  string
	}{
		"in the middle of a line": {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, "000002.jsonl"), -7) }, "incomplete-000002-"},
		"with zeros at the end": {func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, "denied-000002.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(make([]byte, 200<<10)); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"before the first line of a file": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "000003.jsonl"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"in the first line of a file": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "denied-000003.jsonl"), []byte(`{"n":9`), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "incomplete-denied-000003-0"},
		"before a checkpoint": {func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "000002.jsonl"), func(l [][]byte) [][]byte { return l[:len(l)-1] })
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := sample(t)
			c.crash(t, dir)
			for range 2 {
				l := open(t, Options{Dir: dir, Level: All, maxFile: 10 << 10})
				l.Decision(Decision{Op: "write", Thing: "after the crash"})
				closeLog(t, l)
			}
			if name == "with zeros at the end" {
				if _, err := Verify(dir, Check{}); err == nil || !strings.Contains(err.Error(), "denied-000002.jsonl") {
					t.Errorf("got %v", err)
				}
				return
			}
			verified(t, dir)
			recovered := 0
			for _, l := range lines(t, dir) {
				if l.Event == EventRecovered {
					recovered++
					if !strings.Contains(l.Detail, c.want) {
						t.Errorf("the line says %q, want %s", l.Detail, c.want)
					}
				}
				if l.Broken != "" {
					t.Errorf("a file was started: %s", l.Broken)
				}
			}
			files, err := filepath.Glob(filepath.Join(dir, "incomplete-*"))
			if want := min(len(c.want), 1); err != nil || recovered != want || len(files) != want {
				t.Errorf("%d lines and the files %v, want %d", recovered, files, want)
			}
		})
	}
}

// A damaged newest file is logged at open, stays as it is, and the next file names the place. The log goes on.
func TestOpenADamagedLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file   string
		damage func(lines [][]byte) [][]byte
		want   string
	}{
		"an edited line": {"000002.jsonl", func(l [][]byte) [][]byte {
			l[2] = bytes.Replace(l[2], []byte("allowed"), []byte("ALLOWED"), 1)
			return l
		}, "000002.jsonl:4: the line does not follow the line before"},
		"a removed line": {"000002.jsonl", func(l [][]byte) [][]byte { return slices.Delete(l, 2, 3) }, "000002.jsonl:3: the line does not follow"},
		"a removed end":  {"denied-000002.jsonl", func(l [][]byte) [][]byte { return l[:4] }, "denied-000002.jsonl: the chain ends at line"},
		"a text":         {"denied-000002.jsonl", func(l [][]byte) [][]byte { l[4] = []byte("x"); return l }, "denied-000002.jsonl:5: not a line"},
		"a forged checkpoint": {"000002.jsonl", func(l [][]byte) [][]byte {
			n := len(l) - 1
			l[n] = bytes.Replace(l[n], []byte(`"sig":"`), []byte(`"sig":"A`), 1)
			return l
		}, "the signature of the checkpoint"},
		"a changed file before":      {"000001.jsonl", func(l [][]byte) [][]byte { return l[:len(l)-1] }, "000002.jsonl:1: the line does not follow"},
		"a file before without text": {"000001.jsonl", func([][]byte) [][]byte { return [][]byte{[]byte("x")} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, head := sample(t)
			edit(t, filepath.Join(dir, c.file), c.damage)
			damaged, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			l := open(t, Options{Dir: dir, Level: All})
			l.Decision(Decision{Op: "write", Thing: "after"})
			l.Change(ChangeTrust, "after")
			closeLog(t, l)
			broken := ""
			r := NewReader(dir)
			for l, err := range r.New() {
				if err != nil {
					t.Fatal(err)
				}
				broken += l.Broken
			}
			if !strings.Contains(broken, c.want) || c.want == "" && broken != "" {
				t.Errorf("the new file says %q, want %s", broken, c.want)
			}
			if now, err := os.ReadFile(filepath.Join(dir, c.file)); err != nil || !bytes.Equal(now, damaged) {
				t.Errorf("the damaged file was changed: %v", err)
			}
			report, err := Verify(dir, Check{Heads: []Head{head}})
			if err == nil || !strings.HasPrefix(report.Problems[0].File, c.file[:5]) {
				t.Errorf("verify finds %v", report.Problems)
			}
			// The lines after the damage are a valid chain.
			again := open(t, Options{Dir: dir})
			again.Change(ChangeTrust, "again")
			closeLog(t, again)
			if now, _ := Verify(dir, Check{Heads: []Head{head}}); len(now.Problems) != len(report.Problems) {
				t.Errorf("after another start: %v", now.Problems)
			}
		})
	}
}

// A running node may write while the log is verified.
func TestVerifyWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, Level: All, maxFile: 30 << 10, Keep: 2})
	stop := run(t, l)
	for i := range 400 {
		l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: true})
		l.Decision(Decision{Op: "write", Thing: fmt.Sprint(i)})
		l.Change(ChangePolicy, "x")
		if i%40 == 0 {
			verified(t, dir, l.Head())
		}
	}
	stop()
	closeLog(t, l)
	verified(t, dir, l.Head())
}

func TestReaderFollows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := NewReader(filepath.Join(dir, "audit"))
	read := func() (list []Line) {
		for l, err := range r.New() {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, l)
		}
		return list
	}
	if got := read(); len(got) != 0 {
		t.Errorf("a missing folder has %v", got)
	}
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	l := open(t, Options{Dir: filepath.Join(dir, "audit"), Level: All, maxFile: 1 << 10, Now: func() time.Time { return now }})
	for i := range 20 {
		now = now.Add(time.Second)
		l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: i%2 == 0})
		l.writing.Lock()
		l.write(true)
		l.writing.Unlock()
		want := "allow"
		if i%2 == 1 {
			want = "deny"
		}
		equal(t, records(read()), fmt.Sprintf("%s read %d/", want, i))
	}
	all := lines(t, filepath.Join(dir, "audit"))
	if !slices.IsSortedFunc(all, func(a, b Line) int { return a.Time.Compare(b.Time) }) {
		t.Error("the lines of both chains are not in the order of their times")
	}
	for range r.New() {
		t.Error("a line is read twice")
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "abc": "abc", "0123456789": "0123456789", "0123456789a": "0123456…", "01234ü78901": "01234ü…",
		"012345üü901": "012345…", "a\xffb": "a�b", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff": "�…"} {
		if got := shorten(text, 10); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	dir, _ := sample(f)
	b, err := os.ReadFile(filepath.Join(dir, "000002.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(b[:min(len(b), 2000)]) {
		f.Add(bytes.TrimSuffix(line, []byte("\n")))
	}
	f.Add(b[bytes.LastIndex(b[:len(b)-1], []byte("\n"))+1 : len(b)-1])
	f.Add([]byte(`{"n":1,"time":"2026-11-24T12:00:00Z","prev":""}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := ParseLine(raw)
		if err != nil {
			return
		}
		again, err := l.appendTo(nil)
		if err != nil {
			t.Fatalf("%s does not encode: %v", raw, err)
		}
		twice, err := ParseLine(again)
		if err != nil {
			t.Fatalf("%s does not parse: %v", again, err)
		}
		a, _ := json.Marshal(l)
		b, _ := json.Marshal(twice)
		if !bytes.Equal(a, b) {
			t.Errorf("%s became %s", a, b)
		}
		n, prev, ok := positionOf(again)
		if ok && l.N < 1e18 && (n != l.N || prev != l.Prev) {
			t.Errorf("%s has the position %d %s", again, n, prev)
		}
		_ = checkSignature(raw, l.By) // must not panic
		positionOf(raw)
	})
}
