package audit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// testKey returns the n-th key of the tests.
func testKey(t testing.TB, n byte) *keystore.Key {
	t.Helper()
	k, err := keystore.FromSeed([32]byte{n})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// nodeKey returns a key for each number, nodeDID its DID.
func nodeKey(t testing.TB, n int) *keystore.Key {
	t.Helper()
	k, err := keystore.FromSeed([32]byte{byte(n), byte(n >> 8), 1})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func nodeDID(t testing.TB, n int) did.DID { return nodeKey(t, n).DID() }

// open opens a log in dir that the test closes.
func open(t testing.TB, o Options) *Log {
	t.Helper()
	if o.Signer == nil {
		o.Signer = testKey(t, 1)
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLog(t, l) })
	return l
}

func closeLog(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// run runs l until the returned function is called.
func run(t testing.TB, l *Log) (stop func()) {
	t.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- l.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// lines returns all lines of a log in dir.
func lines(t testing.TB, dir string) (list []Line) {
	t.Helper()
	r := NewReader(dir)
	for l, err := range r.New() {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, l)
	}
	if r.Unreadable > 0 {
		t.Errorf("%d lines are unreadable", r.Unreadable)
	}
	return list
}

// records returns the decisions and changes in short: "deny invoke weather/getWeather ×3".
func records(list []Line) (short []string) {
	for _, l := range list {
		switch l.Event {
		case EventFile, EventCheckpoint:
		case "":
			text := fmt.Sprintf("%s %s %s/%s", l.Verdict, l.Op, l.Thing, l.Name)
			if l.Times != 1 {
				text += fmt.Sprintf(" ×%d", l.Times)
			}
			short = append(short, text)
		default:
			text := l.Event
			if l.Detail != "" {
				text += ": " + l.Detail
			}
			if l.Times > 0 {
				text += fmt.Sprintf(" ×%d", l.Times)
			}
			short = append(short, text)
		}
	}
	return short
}

func equal(t testing.TB, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func verified(t testing.TB, dir string, heads ...Head) *Report {
	t.Helper()
	r, err := Verify(dir, Check{Keys: []did.DID{testKey(t, 1).DID()}, Heads: heads})
	if err != nil {
		t.Errorf("%v: %v", err, r.Problems)
	}
	return r
}

func TestLevels(t *testing.T) {
	t.Parallel()
	caller := did.NodePrincipal(nodeDID(t, 1), "")
	for level, want := range map[Level][]string{
		Off:        nil,
		Denied:     {"deny invoke a/x"},
		Restricted: {"allow read b/x", "deny invoke a/x"},
		All:        {"allow read b/x", "allow write c/x", "deny invoke a/x"},
	} {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir, Level: level})
		l.Decision(Decision{Who: caller, Op: "read", Thing: "b", Name: "x", Allow: true, Restricted: true})
		l.Decision(Decision{Who: caller, Op: "write", Thing: "c", Name: "x", Allow: true})
		l.Decision(Decision{Who: caller, Op: "invoke", Thing: "a", Name: "x", Code: interact.Forbidden})
		l.Change(ChangePolicy, "policy.yaml read again")
		closeLog(t, l)
		var got []string
		for _, r := range records(lines(t, dir)) {
			if r != "policy: policy.yaml read again" {
				got = append(got, r)
			}
		}
		if len(got) == len(records(lines(t, dir))) {
			t.Errorf("%s: the change is missing", level)
		}
		equal(t, got, want...)
		verified(t, dir)
	}
	if _, err := Open(Options{Dir: t.TempDir(), Signer: testKey(t, 1), Level: "loud"}); interact.AsError(err).Code != interact.ConfigInvalid {
		t.Errorf("an unknown level: %v", err)
	}
	if _, err := Open(Options{Dir: t.TempDir()}); err == nil {
		t.Error("a log without a signer is opened")
	}
}

// A nil Log records nothing.
func TestNilLog(t *testing.T) {
	t.Parallel()
	l, err := Open(Options{})
	if err != nil || l != nil {
		t.Fatalf("a log without a folder is %v, %v", l, err)
	}
	stop := run(t, l)
	defer stop()
	l.Decision(Decision{Op: "invoke"})
	l.Change(ChangeTrust, "x")
	if l.Level() != Off || l.Head() != (Head{}) || l.Close() != nil {
		t.Error("a nil log has a state")
	}
}

func TestLineOfADecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir})
		who := &did.Principal{DID: nodeDID(t, 1), Node: nodeDID(t, 1), Name: "crm", Via: did.Peer, Org: "did:webvh:QmYs:acme.example", Roles: []string{"customer-service"}}
		l.Decision(Decision{Who: who, Op: "invoke", Thing: "logistics@z6Mk", Name: "<track>", Rule: "policy.yaml:12", Code: interact.Forbidden,
			Trace: "4bf92f3577b34da6a3ce929d0e0e4736"})
		closeLog(t, l)
		b, err := os.ReadFile(filepath.Join(dir, "denied-000001.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Split(string(b), "\n")
		want := fmt.Sprintf(`{"n":2,"time":"2000-01-01T00:00:00Z","prev":%q,"who":"%s#crm","org":"did:webvh:QmYs:acme.example","roles":["customer-service"],`+
			`"via":"peer","op":"invoke","thing":"logistics@z6Mk","name":"<track>","verdict":"deny","rule":"policy.yaml:12","code":"LMOS-1403",`+
			`"trace":"4bf92f3577b34da6a3ce929d0e0e4736","times":1}`, hashOf([]byte(all[0])), nodeDID(t, 1))
		if all[1] != want {
			t.Errorf("got\n%s\nwant\n%s", all[1], want)
		}
	})
}

// Equal decisions of one second are one line; a change is written at once, after the decisions before it.
func TestAggregationAndChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir, Level: All})
		stop := run(t, l)
		defer stop()
		a, b := did.NodePrincipal(nodeDID(t, 1), ""), did.NodePrincipal(nodeDID(t, 1), "crm")
		call := func(who *did.Principal, thing string, allowed bool) {
			l.Decision(Decision{Who: who, Op: "invoke", Thing: thing, Name: "x", Allow: allowed})
		}
		synctest.Wait()
		for range 3 {
			call(a, "weather", false)
		}
		call(b, "weather", false)
		call(a, "weather", true)
		time.Sleep(500 * time.Millisecond)
		equal(t, records(lines(t, dir)))
		before := l.Head()
		l.Change(ChangeToken, "token dashboard created")
		synctest.Wait()
		equal(t, records(lines(t, dir)), "allow invoke weather/x", "token: token dashboard created")
		if h := l.Head(); h.N != before.N+2 {
			t.Errorf("the head is %v after %v", h, before)
		}
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		call(a, "weather", false)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		equal(t, records(lines(t, dir)), "allow invoke weather/x", "deny invoke weather/x ×3", "deny invoke weather/x", "token: token dashboard created", "deny invoke weather/x")
		verified(t, dir, l.Head(), before)
	})
}

// Changes that follow each other do not delay the denials.
func TestChangesDoNotDelayDenials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir})
		stop := run(t, l)
		defer stop()
		synctest.Wait()
		l.Decision(Decision{Op: "connect"})
		for i := range 4 {
			l.Change(ChangeTrust, fmt.Sprint(i))
			time.Sleep(300 * time.Millisecond)
		}
		synctest.Wait()
		if got := strings.Join(records(lines(t, dir)), "|"); !strings.Contains(got, "deny connect /") {
			t.Errorf("no denial in %s", got)
		}
	})
}

func TestCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir, Level: All})
		stop := run(t, l)
		signed := func() (n int) {
			for _, l := range lines(t, dir) {
				if l.Event == EventCheckpoint {
					n++
				}
			}
			return n
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := signed(); n != 0 {
			t.Errorf("%d checkpoints after 59 s", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := signed(); n != 2 { // of the first lines of both chains
			t.Errorf("%d checkpoints after 61 s", n)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := signed(); n != 2 {
			t.Errorf("%d checkpoints without lines", n)
		}
		for i := range 2500 {
			l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: true})
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := signed(); n != 4 {
			t.Errorf("%d checkpoints after 2500 lines", n)
		}
		stop()
		r := verified(t, dir)
		if m := r.Chains[0]; m.Signed != m.Head.N || m.Lines != m.Head.N || m.Checkpoints != 4 || m.Files != 1 {
			t.Errorf("the end is not signed: %+v", m)
		}
	})
}

// 10,000 denials are few lines: of one caller, of one with ten thousand names, and of ten thousand nodes. Their number is kept, and nothing
// else is delayed or rotated away.
func TestFlood(t *testing.T) {
	t.Parallel()
	const n = 10_000
	nodes := make([]*did.Principal, n)
	one := nodeDID(t, 0)
	for i := range nodes {
		nodes[i] = did.NodePrincipal(did.DID(fmt.Sprintf("did:key:z%d", i)), "")
	}
	for name, c := range map[string]struct {
		decision func(i int) Decision
		most     int
	}{
		"equal":        {func(int) Decision { return Decision{Who: nodes[0], Op: "invoke", Thing: "a"} }, 1},
		"many Things":  {func(i int) Decision { return Decision{Who: nodes[0], Op: "invoke", Thing: fmt.Sprint(i)} }, 140},
		"many names":   {func(i int) Decision { return Decision{Who: did.NodePrincipal(one, fmt.Sprint(i)), Op: "invoke"} }, 140},
		"many nodes":   {func(i int) Decision { return Decision{Who: nodes[i], Op: "connect"} }, 4100},
		"long texts":   {func(i int) Decision { return Decision{Who: nodes[i%4], Op: "find", Thing: strings.Repeat("ü", 1<<10)} }, 4},
		"without name": {func(i int) Decision { return Decision{Op: "find", Thing: fmt.Sprint(i)} }, 140},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, Options{Dir: dir})
				stop := run(t, l)
				synctest.Wait()
				l.Change(ChangeTrust, "before")
				for i := range n {
					l.Decision(c.decision(i))
				}
				l.Change(ChangeTrust, "after")
				time.Sleep(time.Second)
				synctest.Wait()
				stop()
				var sum uint64
				count := 0
				for _, l := range lines(t, dir) {
					if l.Verdict == deny {
						sum += l.Times
						count++
					}
				}
				if sum != n || count > c.most {
					t.Errorf("%d denials in %d lines, want %d in at most %d", sum, count, n, c.most)
				}
				info, err := os.Stat(filepath.Join(dir, "denied-000001.jsonl"))
				if err != nil || info.Size() > 2<<20 {
					t.Errorf("the file has %d bytes, %v", info.Size(), err)
				}
				verified(t, dir)
			})
		})
	}
}

// A long flood has a bounded number of lines.
func TestLongFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir})
		stop := run(t, l)
		var sent, sum uint64
		for second := range 900 {
			for i := range 20 {
				l.Decision(Decision{Who: did.NodePrincipal(did.DID(fmt.Sprintf("did:key:z%d", i%10*second)), ""), Op: "invoke", Thing: fmt.Sprint(second, i)})
				sent++
			}
			time.Sleep(time.Second)
		}
		stop()
		count := 0
		for _, l := range lines(t, dir) {
			if l.Verdict == deny {
				count++
				sum += l.Times
			}
		}
		if most := int(denialLimits.total.Burst) + 901*4 + 16; sum != sent || count > most {
			t.Errorf("%d of %d denials in %d lines, want at most %d", sum, sent, count, most)
		}
	})
}

func TestFilesRotate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, Keep: 3, Level: All, maxFile: 20 << 10})
	var heads []Head
	for i := range 100 {
		for j := range 10 {
			l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i, j), Allow: true})
			l.Decision(Decision{Op: "write", Thing: fmt.Sprint(i, j)})
		}
		l.writing.Lock()
		l.write(true)
		l.writing.Unlock()
		heads = append(heads, l.Head())
	}
	closeLog(t, l)
	numbers, err := numbersOf(dir, mainChain)
	if err != nil || len(numbers) != 3 || numbers[0] < 3 {
		t.Errorf("the files are %v, %v", numbers, err)
	}
	verified(t, dir, heads...)

	// With fewer files to keep, and with more, the log continues.
	for _, keep := range []int{2, 5} {
		l := open(t, Options{Dir: dir, Keep: keep, Level: All, maxFile: 20 << 10})
		for i := range 500 {
			l.Decision(Decision{Op: "read", Thing: fmt.Sprint(i), Allow: true})
		}
		closeLog(t, l)
		if numbers, err := numbersOf(dir, mainChain); err != nil || len(numbers) > keep {
			t.Errorf("keep %d: the files are %v, %v", keep, numbers, err)
		}
		verified(t, dir)
	}
}

// Lines that cannot be written are counted, the failure is logged once, and the chain stays valid.
func TestDiskErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var logged bytes.Buffer
	l := open(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&logged, nil))})
	write := func() {
		l.writing.Lock()
		defer l.writing.Unlock()
		l.write(true)
	}
	good := l.main.file
	readOnly, err := os.Open(good.Name())
	if err != nil {
		t.Fatal(err)
	}
	l.main.file = readOnly
	for i := range 3 {
		l.Change(ChangeTrust, fmt.Sprint("lost ", i))
		write()
	}
	l.main.file = good
	if err := readOnly.Close(); err != nil {
		t.Error(err)
	}
	if _, err := good.WriteAt([]byte(`{"n":`), l.main.size); err != nil { // what the failed writes left
		t.Fatal(err)
	}
	l.Change(ChangeTrust, "after")
	write()
	closeLog(t, l)
	got := records(lines(t, dir))
	if len(got) != 2 || got[0] != "trust: after" || !strings.HasPrefix(got[1], "lost: the file was not written: ") || !strings.HasSuffix(got[1], " ×3") {
		t.Errorf("got %q", got)
	}
	verified(t, dir)
	for text, want := range map[string]int{"lines are lost": 1, "audit line lost": 3, `detail="lost 2"`: 1, "written again": 1} {
		if n := strings.Count(logged.String(), text); n != want {
			t.Errorf("%q was logged %d times, want %d:\n%s", text, n, want, logged.String())
		}
	}
}

func TestTooManyChangesAreCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	for range maxChanges + 5 {
		l.Change(ChangeTrust, "x")
	}
	closeLog(t, l)
	got := records(lines(t, dir))
	if len(got) != maxChanges+1 || got[len(got)-1] != "lost: too many changes at once ×5" {
		t.Errorf("%d lines, the last is %q", len(got), got[len(got)-1])
	}
}

// Decision allocates once for a new line, and not for a repetition or a decision that the level leaves out.
func TestDecisionAllocations(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir()})
	who := did.NodePrincipal(nodeDID(t, 1), "crm")
	d := Decision{Who: who, Op: "invoke", Thing: "weather", Name: "getWeather", Rule: "default", Code: interact.Forbidden, Trace: "4bf92f35"}
	l.Decision(d)
	if n := testing.AllocsPerRun(1000, func() { l.Decision(d) }); n > 0 {
		t.Errorf("%v allocations for a repeated denial", n)
	}
	d.Allow = true
	if n := testing.AllocsPerRun(1000, func() { l.Decision(d) }); n > 0 {
		t.Errorf("%v allocations for a decision that is not recorded", n)
	}
	d.Allow = false
	things := make([]string, 20_000)
	for i := range things {
		things[i] = fmt.Sprint(i)
	}
	i := 0
	if n := testing.AllocsPerRun(len(things)-1, func() { d.Thing = things[i]; i++; l.Decision(d) }); n > 1 {
		t.Errorf("%v allocations for a denial of a flood", n)
	}
}

func BenchmarkDecision(b *testing.B) {
	who := did.NodePrincipal(nodeDID(b, 1), "crm")
	for _, c := range []struct {
		name  string
		allow bool
		many  bool
	}{{"left out", true, false}, {"repeated", false, false}, {"flood", false, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := open(b, Options{Dir: b.TempDir()})
			stop := run(b, l)
			things := make([]string, 1<<16)
			for i := range things {
				things[i] = fmt.Sprint(i)
			}
			d := Decision{Who: who, Op: "invoke", Thing: "weather", Name: "getWeather", Rule: "default", Code: interact.Forbidden, Allow: c.allow}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if c.many {
					d.Thing = things[i%len(things)]
					i++
				}
				l.Decision(d)
			}
			stop()
		})
	}
}
