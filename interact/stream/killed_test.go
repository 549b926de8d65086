package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// hostProcess is the variable with the transport and the ledger of a process that is a host.
const hostProcess = "LMOSD_TEST_STREAM_HOST"

// TestHostProcess is a host in a process of its own, for other tests. Its ledger has a line per action that it began.
func TestHostProcess(t *testing.T) {
	transport, ledger, ok := strings.Cut(os.Getenv(hostProcess), " ")
	if !ok {
		t.Skip("a process of another test")
	}
	f, err := os.OpenFile(ledger, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := newHost(t, transport)
	newBinding(t, h, Options{}).Serve(interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		if m.Name == "unsafe" {
			if _, err := fmt.Fprintf(f, "%s\n", m.Data); err != nil {
				return nil, err
			}
		}
		return done(m, answerTo(string(m.Data))), nil
	}))
	if err := json.NewEncoder(os.Stdout).Encode(at(t, h)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the other process ends
}

func answerTo(input string) string { return "answer to " + input }

// A process is a host in a process of its own.
type process struct {
	cmd    *exec.Cmd
	where  td.Host
	ledger string
}

func startProcess(t *testing.T, transport string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self, "-test.run=^TestHostProcess$"), ledger: filepath.Join(t.TempDir(), "ledger")}
	p.cmd.Env = append(os.Environ(), hostProcess+"="+transport+" "+p.ledger)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.where)
	}
	if err != nil {
		t.Fatalf("the process printed %q: %v", line, err)
	}
	return p
}

// began returns how often the host began each unsafe action.
func (p *process) began(t *testing.T) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(p.ledger)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		all[strings.TrimSpace(line)]++
	}
	return all
}

// One of two hosts is killed, or stops without a word, in the middle of 10,000 calls: no answer is wrong, no unsafe action runs twice, and what can be
// repeated does not fail. What an unsafe action of the lost host returns says that it may have begun.
func TestLostHost(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, transport string) { testLostHost(t, transport, signal) })
		})
	}
}

// lostCalls is the number of calls of TestLostHost, and lostWorkers how many run at a time.
const (
	lostCalls   = 10_000
	lostWorkers = 16
)

func testLostHost(t *testing.T, transport string, signal syscall.Signal) {
	lost, other := startProcess(t, transport), startProcess(t, transport)
	caller := newBinding(t, newHost(t, transport), Options{DialTimeout: 2 * time.Second})
	thing := caller.at([]td.Host{lost.where, other.where})
	for _, h := range thing.hosts { // both are connected and fast, so that both get calls from the start
		if _, err := interact.Call(t.Context(), caller.at([]td.Host{h}), &interact.Message{Type: interact.ReadProperty, Name: "p"}); err != nil {
			t.Fatal(err)
		}
	}
	thing.measure()
	var (
		next     atomic.Int32
		workers  sync.WaitGroup
		mu       sync.Mutex
		ended    time.Time // of the host
		after    []time.Duration
		answered = map[string]bool{}
		unknown  = map[string]bool{} // unsafe actions that may have begun
	)
	call := func(n int32) {
		arg := fmt.Sprint(n)
		m := &interact.Message{Type: interact.InvokeAction, Name: []string{"unsafe", "idempotent", ""}[n%3], Data: []byte(arg), From: alice()}
		if m.Name == "" {
			m.Type, m.Name = interact.ReadProperty, "p"
		}
		began := time.Now()
		r, err := interact.Call(t.Context(), thing, m)
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		if !ended.IsZero() && began.Add(took).After(ended) {
			after = append(after, took)
		}
		switch e := interact.AsError(err); {
		case err == nil && string(r.Data) != answerTo(arg):
			t.Errorf("call %d: got %q", n, r.Data)
		case err == nil:
			answered[arg] = m.Name == "unsafe"
		case m.Name == "unsafe" && e.Started && e.Code == interact.Unreachable:
			unknown[arg] = true
		default:
			t.Errorf("call %d, %s: %v, started %t", n, m.Name, err, e.Started)
		}
	}
	for range lostWorkers {
		workers.Go(func() {
			for n := next.Add(1); n <= lostCalls; n = next.Add(1) {
				if n == lostCalls/3 {
					if err := lost.cmd.Process.Signal(signal); err != nil {
						t.Error(err)
					}
					mu.Lock()
					ended = time.Now()
					mu.Unlock()
				}
				call(n)
			}
		})
	}
	workers.Wait()
	if signal == syscall.SIGSTOP { // it goes on with what it has received
		if err := lost.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if _, err := interact.Call(t.Context(), caller.at([]td.Host{lost.where}), ask("a", "")); err != nil {
			t.Error(err)
		}
	}
	first, second := lost.began(t), other.began(t)
	if len(first) < lostCalls/200 {
		t.Errorf("the lost host began %d actions only", len(first))
	}
	for arg, unsafe := range answered {
		if n := first[arg] + second[arg]; unsafe && n != 1 {
			t.Errorf("action %s was answered and ran %d times", arg, n)
		}
	}
	for arg := range unknown {
		if n := first[arg] + second[arg]; n > 1 {
			t.Errorf("action %s ran %d times", arg, n)
		}
	}
	if n := len(answered) + len(unknown); n != lostCalls {
		t.Errorf("%d of %d calls have a result", n, lostCalls)
	}
	slices.Sort(after)
	if len(after) == 0 {
		t.Fatal("no call ended after the host was lost")
	}
	t.Logf("%d calls ended after the loss: p50 %v, p99 %v, longest %v; %d unsafe actions may have begun", len(after), after[len(after)/2], after[len(after)*99/100],
		after[len(after)-1], len(unknown))
}
