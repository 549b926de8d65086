//go:build unix

package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testprogram"
)

// helperMode is set where this test binary runs as a host that is killed.
const helperMode = "COMMAND_TEST_HELPER"

// helper runs a command and says its process, and waits to be killed.
func helper() {
	a, err := New(Options{Args: []string{"sh", "-c", "echo $$; exec sleep 1000"}, Chunk: "\n"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for r, err := range a.Do(context.Background(), &interact.Message{Type: interact.InvokeAction, Name: "run"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(r.Data))
	}
}

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

var until = poll.Until

// living reports whether there is a process in the group, or one of that id. A dead one that its parent, init, has not looked at
// yet is not living.
func living(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	if runtime.GOOS != "linux" {
		return true
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(b), ") ") // pid (comm) state ppid pgrp
		if f := strings.Fields(rest); len(f) > 2 && f[0] != "Z" && f[2] == strconv.Itoa(group) {
			return true
		}
	}
	return false
}

// gone waits until nothing of the group is left: what was killed may take a moment to die, and nothing else takes it away.
func gone(t *testing.T, group int) {
	t.Helper()
	until(t, "no process is left", func() bool { return !living(group) })
}

// started begins a call whose first line of output is the process, and returns what ends it: leave, and the rest of the replies.
func started(t *testing.T, a *Agent, ctx context.Context, m *interact.Message) (group int, next func() (*interact.Message,
	error, bool), leave func()) {
	t.Helper()
	next, leave = iter.Pull2(a.Do(ctx, m))
	r, err, ok := next()
	if !ok || err != nil {
		leave()
		t.Fatalf("got %v, %v", r, err)
	}
	group, err = strconv.Atoi(string(r.Data))
	if err != nil || !living(group) {
		leave()
		t.Fatalf("no process in %q", r.Data)
	}
	return group, next, leave
}

// family is a command with children, which says its process when all run.
const family = `sleep 1000 & sh -c 'sleep 1000; true' & (trap "" INT; sleep 1000) & echo $$; wait`

func TestDisconnectEndsTheProcessGroup(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: family, Chunk: "\n", Grace: time.Minute})
	group, _, leave := started(t, a, t.Context(), invoke(""))
	leave()
	gone(t, group)
}

func TestCancelEndsTheProcessGroup(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	a := newAgent(t, Options{Command: family, Chunk: "\n", Grace: time.Minute})
	group, next, leave := started(t, a, ctx, invoke(""))
	defer leave()
	cancel()
	_, err, _ := next()
	var e *interact.Error
	if !errors.As(err, &e) || e.Code != interact.Cancelled || !e.Started || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	gone(t, group)
}

func TestDeadlineEndsTheProcessGroup(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "echo $$ >&2; " + family, Grace: time.Minute})
	m := invoke("")
	m.Deadline = time.Now().Add(100 * time.Millisecond)
	e := fails(t, a, m)
	if e.Code != interact.Timeout || !e.Started || e.Remote || e.Hint == "" && e.Next == nil {
		t.Errorf("got %+v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if e := failsIn(ctx, t, a, invoke("")); e.Code != interact.Timeout || !e.Started {
		t.Errorf("the context's own deadline: got %+v", e)
	}
	m.Deadline = time.Now().Add(-time.Second)
	if e := fails(t, a, m); e.Code != interact.Timeout || e.Started {
		t.Errorf("a deadline that has passed: got %+v, want nothing begun", e)
	}
}

func TestSIGTERMComesFirst(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cleaned")
	a := newAgent(t, Options{Command: `trap 'echo yes > ` + file +
		`; exit 0' TERM; sleep 1000 & echo $$; wait; wait`, Chunk: "\n", Grace: time.Minute})
	group, _, leave := started(t, a, t.Context(), invoke(""))
	leave()
	if b, err := os.ReadFile(file); string(b) != "yes\n" {
		t.Errorf("got %q, %v; want what the command did at SIGTERM", b, err)
	}
	gone(t, group)
}

// TestTheGraceIsForTheChildrenToo has a shell that dies at once, and a child that cleans up.
func TestTheGraceIsForTheChildrenToo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "go"), filepath.Join(dir, "cleaned")
	mkfifo(t, fifo)
	child := `trap "cat ` + fifo + `; echo yes > ` + file + `; exit 0" TERM; sleep 1000 & echo $PPID; wait; wait`
	a := newAgent(t, Options{Command: `sh -c '` + child + `' ; true`, Chunk: "\n", Grace: time.Minute})
	group, _, leave := started(t, a, t.Context(), invoke(""))
	left := make(chan struct{})
	go func() { defer close(left); leave() }()
	if err := os.WriteFile(fifo, nil, 0); err != nil { // the child has opened it: it handles the signal
		t.Fatal(err)
	}
	<-left
	if b, err := os.ReadFile(file); string(b) != "yes\n" {
		t.Errorf("got %q, %v", b, err)
	}
	gone(t, group)
}

func TestSIGKILLFollowsTheGracePeriod(t *testing.T) {
	t.Parallel()
	const grace = 150 * time.Millisecond
	var log bytes.Buffer
	a := newAgent(t, Options{Command: `trap "" TERM; sleep 1000 & sleep 1000 & echo $$; wait; wait; sleep 1000`, Chunk: "\n",
		Grace: grace,
		Agent: "stubborn", Log: slog.New(slog.NewTextHandler(&log, nil))})
	group, _, leave := started(t, a, t.Context(), invoke(""))
	begun := time.Now()
	leave()
	if took := time.Since(begun); took < grace {
		t.Errorf("ended after %v, within the grace", took)
	}
	gone(t, group)
	if !strings.Contains(log.String(), "command killed") || !strings.Contains(log.String(), "stubborn") {
		t.Errorf("the log has %q", log.String())
	}
}

func TestBackgroundProcessesEnd(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"a background process that is silent": `sleep 1000 >/dev/null 2>&1 & echo $$`,
		"one that holds the output":           `sleep 1000 & echo $$`,
		"one that ignores the signal":         `(trap "" TERM HUP; exec sleep 1000) & echo $$`,
		"after a failure":                     `sleep 1000 & echo $$; exec 1>&-; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, Options{Command: command, Grace: 50 * time.Millisecond})
			got := ask(t, a, invoke(""))
			group, err := strconv.Atoi(strings.TrimPrefix(got, "application/json "))
			if err != nil {
				t.Fatalf("got %q", got)
			}
			gone(t, group)
		})
	}
}

// TestOutputAfterTheEnd has a child that still writes when the shell is gone: that is output, too.
func TestOutputAfterTheEnd(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("it looks at /proc")
	}
	// The shell stays a zombie until the call ends, so the child reads its state.
	a := newAgent(t, Options{Grace: time.Minute,
		Command: `(while grep -q '^State:.[^Z]' /proc/$$/status; do sleep 0.01; done; echo late) & echo early`})
	if got := ask(t, a, invoke("")); got != `application/json "early\nlate"` {
		t.Errorf("got %q", got)
	}
}

// TestProcessThatLeavesTheGroup keeps the pipes open from outside of the group. The call does not wait for it.
func TestProcessThatLeavesTheGroup(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "setsid")
	file := filepath.Join(t.TempDir(), "pid")
	a := newAgent(t, Options{Command: `setsid sh -c 'echo $$ > ` + file + `.new; mv ` + file + `.new ` + file +
		`; exec sleep 1000' & while ! test -e ` + file + `; do sleep 0.01; done; echo mine`, Grace: 20 * time.Millisecond})
	for _, accept := range []string{"", octets} {
		m := invoke(`"` + strings.Repeat("x", 1<<20) + `"`) // it is not read
		m.Accept = accept
		got := replies(t, a, m)
		if len(got) == 0 || !strings.Contains(got[0], "mine") || !strings.HasPrefix(got[len(got)-1], "completed") {
			t.Errorf("got %q", got)
		}
		b, _ := os.ReadFile(file)
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_ = os.Remove(file)
	}
}

// TestProcessThatLeavesTheGroupAndFloods writes without end from outside of the group.
func TestProcessThatLeavesTheGroupAndFloods(t *testing.T) {
	t.Parallel()
	testprogram.Path(t, "setsid")
	a := newAgent(t, Options{Command: `setsid cat /dev/zero & head -c 10 /dev/zero >/dev/null`, Grace: 20 * time.Millisecond,
		MaxOutput: 1 << 30})
	m := invoke("")
	m.Accept = octets
	got := replies(t, a, m)
	if last := got[len(got)-1]; last != "completed application/json " {
		t.Errorf("got %.100q", last)
	}
}

// TestSlowConsumerReceivesAllEvents reads long after the process is gone: what was written before counts all the same.
func TestSlowConsumerReceivesAllEvents(t *testing.T) {
	t.Parallel()
	const size = 60_000 // less than a pipe holds
	a := newAgent(t, Options{Command: fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x`, size), Grace: time.Millisecond})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	p, err := a.start(ctx, cancel, invoke(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-p.gone
	_ = p.stdout.SetReadDeadline(time.Now().Add(-time.Hour)) // so long was the consumer away
	if err := p.whole(func(r *interact.Message, err error) bool {
		if err != nil || len(r.Data) != size+2 {
			t.Errorf("got %v", err)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
}

// TestCutResponsesAreIncomplete ends a call whose process is gone, and whose output was not read yet.
func TestCutResponsesAreIncomplete(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: "echo 1", Grace: time.Millisecond})
	ctx, cancel := context.WithCancelCause(t.Context())
	p, err := a.start(ctx, cancel, invoke(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	<-p.gone
	cancel(nil)
	var e *interact.Error
	err = p.whole(func(r *interact.Message, err error) bool { t.Errorf("got %v, %v", r, err); return true })
	if !errors.As(err, &e) || e.Code != interact.Cancelled || p.stopped {
		t.Errorf("got %v, stopped %v", err, p.stopped)
	}
}

// TestBackPressure has a consumer that takes one part and no more: the process is held up at what the pipe takes.
func TestBackPressure(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "count")
	a := newAgent(t, Options{Command: `i=0; while :; do i=$((i+1)); echo $i > ` + file + `; head -c 4096 /dev/zero; done`})
	m := invoke("")
	m.Accept = octets
	next, leave := iter.Pull2(a.Do(t.Context(), m))
	defer leave()
	if _, err, _ := next(); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		b, _ := os.ReadFile(file)
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n
	}
	last, same := 0, 0
	until(t, "it stands still", func() bool {
		n := count()
		if same++; n != last || n == 0 {
			last, same = n, 0
		}
		return same > 100
	})
	if last*4096 > 4<<20 {
		t.Errorf("it wrote %d bytes that were not requested", last*4096)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Command: family, Chunk: "\n", Grace: time.Minute, MaxConcurrent: 2})
	one, next, leave := started(t, a, t.Context(), invoke(""))
	defer leave()
	two, _, leaveTwo := started(t, a, t.Context(), invoke(""))
	defer leaveTwo() // a consumer that is busy elsewhere does not hold up Close
	waits := make(chan *interact.Error)
	go func() { waits <- fails(t, a, invoke("")) }()
	until(t, "the third waits", func() bool { return a.waiting.Load() == 1 })
	a.Close()
	gone(t, one)
	gone(t, two)
	if e := <-waits; e.Code != interact.Unreachable || e.Started {
		t.Errorf("the waiting call: got %+v", e)
	}
	_, err, _ := next()
	var e *interact.Error
	if !errors.As(err, &e) || e.Code != interact.Unreachable || !e.Started {
		t.Errorf("the served call: got %+v", err)
	}
	if e := fails(t, a, invoke("")); e.Code != interact.Unreachable || e.Started {
		t.Errorf("a later call: got %+v", e)
	}
	a.Close()
}

func TestCloseAmongCalls(t *testing.T) {
	t.Parallel()
	for range 10 {
		a := newAgent(t, Options{Args: []string{"cat"}, MaxConcurrent: 4})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				r, err := interact.Call(t.Context(), a, invoke("1"))
				var e *interact.Error
				if err == nil && string(r.Data) != "1" || err != nil && (!errors.As(err, &e) || e.Code != interact.Unreachable) {
					t.Errorf("got %v, %v", r, err)
				}
			})
		}
		a.Close()
		wg.Wait()
	}
}

// TestProcessEndsWithItsHost kills a host, without a chance to clean up.
func TestProcessEndsWithItsHost(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a signal for that")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := exec.Command(self)
	host.Env = append(os.Environ(), helperMode+"=1")
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	group, _ := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || group == 0 || !living(group) {
		t.Fatalf("got %q, %v", line, err)
	}
	_ = host.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	_ = host.Wait()
	gone(t, group)
}

// TestThreadsThatEnd starts a process from a goroutine whose thread dies with it (prctl(2), PR_SET_PDEATHSIG).
func TestThreadsThatEnd(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "go")
	mkfifo(t, fifo)
	a := newAgent(t, Options{Command: "read -r x < " + fifo + "; echo $x"})
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	started := make(chan *process)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		p, err := a.start(ctx, cancel, invoke(""), nil)
		if err != nil {
			t.Error(err)
		}
		started <- p
	}()
	p := <-started
	if err := os.WriteFile(fifo, []byte("alive\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.whole(func(r *interact.Message, err error) bool {
		if err != nil || string(r.Data) != `"alive"` {
			t.Errorf("got %v, %v", r, err)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	a := newAgent(t, Options{Args: []string{"cat"}})
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			want := fmt.Sprintf(`{"n":%d}`, i)
			if r, err := interact.Call(t.Context(), a, invoke(want)); err != nil || string(r.Data) != want {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
	wg.Wait()
}
