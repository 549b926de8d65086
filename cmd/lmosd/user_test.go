package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lmosd/lmosd/examples/weather/agent"
	"github.com/lmosd/lmosd/testnet"
)

// A user has a home folder, a shell's environment, and this program as real processes.
type user struct {
	t    *testing.T
	home string
	env  []string
	addr string // of the weather agent, once there is one
	// prepare changes a program before it starts; nil: no change.
	prepare func(*exec.Cmd)
}

// newUser returns a user with a home of its own, whose path is short enough for sockets below it.
func newUser(t *testing.T, env ...string) *user {
	t.Helper()
	receiveSignals()
	dir := folder(t)
	return &user{t: t, home: dir, env: append([]string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"),
		// A program with the race detector sleeps for a second before it exits.
		"GORACE=atexit_sleep_ms=0"}, env...)}
}

// receiveSignals lets the programs that tests start receive SIGHUP and SIGINT, also if the tests run under nohup or in the background of a
// script: a program inherits a signal that is ignored, not one that has a handler.
var receiveSignals = sync.OnceFunc(func() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
})

// patient returns a context with a timeout that only a hang exceeds: a story of the demo takes more than a minute with the race detector on a busy
// machine.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if err := testnet.Until(patient(t), what, cond); err != nil {
		t.Fatal(err)
	}
}

func (x *user) command(args ...string) *exec.Cmd {
	cmd := exec.Command("lmosd", args...)
	cmd.Env, cmd.Dir = x.env, x.home
	return cmd
}

// lmosd runs a command to its end.
func (x *user) lmosd(args ...string) result {
	x.t.Helper()
	if asks(args) {
		return lmosd(patient(x.t), x.env, "", args...)
	}
	p := x.start(args...)
	code := p.wait()
	return result{code, p.out.String(), p.talk.String()}
}

// typed runs a line as a shell does.
func (x *user) typed(line string) result {
	x.t.Helper()
	cmd := exec.CommandContext(patient(x.t), "sh", "-c", line)
	var out, talk bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = x.env, x.home, &out, &talk
	_ = cmd.Run() // the exit code is sufficient
	return result{cmd.ProcessState.ExitCode(), out.String(), talk.String()}
}

// ok runs a command that must succeed, and returns what it printed.
func (x *user) ok(args ...string) string {
	x.t.Helper()
	r := x.lmosd(args...)
	if r.code != 0 {
		x.t.Fatalf("lmosd %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.errors)
	}
	return r.out
}

// fails runs a command with an expected exit code, and returns its error output.
func (x *user) fails(code int, args ...string) string {
	x.t.Helper()
	r := x.lmosd(args...)
	if r.code != code {
		x.t.Errorf("lmosd %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.out, r.errors)
	}
	return r.errors
}

// A program is a process of this program that runs until it is terminated. Its output may be read at any time.
type program struct {
	t         *testing.T
	cmd       *exec.Cmd
	out, talk buffer
	ended     chan struct{}
}

// start runs a command and does not wait for it. It never outlives the test.
func (x *user) start(args ...string) *program {
	x.t.Helper()
	return x.run(x.command(args...))
}

// typing runs a line as a shell does, and does not wait for it.
func (x *user) typing(line string) *program {
	x.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Env, cmd.Dir = x.env, x.home
	return x.run(cmd)
}

func (x *user) run(cmd *exec.Cmd) *program {
	x.t.Helper()
	p := &program{t: x.t, cmd: cmd, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.talk
	if x.prepare != nil {
		x.prepare(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how it ended is in ProcessState
	}()
	x.t.Cleanup(func() {
		if p.runs() && x.t.Failed() {
			x.t.Logf("%v still runs. The end of its standard error:\n%s", p.cmd.Args, lastLines(p.talk.String(), 50))
		}
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
	})
	return p
}

// runs reports whether the program has not ended.
func (p *program) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// lastLines returns the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

// signal sends a signal to the program.
func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the exit code, or -1 if a signal ended the program.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		p.signal(syscall.SIGABRT) // its goroutines go to standard error
		<-p.ended
		p.t.Fatalf("%v does not end:\n%s", p.cmd.Args, p.talk.String())
		return 0
	}
}

// stop ends the program as a supervisor does.
func (p *program) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.wait()
}

// A buffer is a bytes.Buffer for a process that writes while the test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // owned by mu
}

// Write implements [io.Writer].
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the output so far.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A nodeProcess is a running node.
type nodeProcess struct {
	*program
	testnet.Ready
	dir string
}

// node runs a node on loopback with the data folder dir, and returns when it serves.
func (x *user) node(dir string, args ...string) *nodeProcess {
	x.t.Helper()
	return x.nodeWith(dir, "", args...)
}

// nodeWith is node for a key file that is encrypted with the passphrase in a file; without a file, it is not encrypted.
func (x *user) nodeWith(dir, passphrase string, args ...string) *nodeProcess {
	x.t.Helper()
	dir = filepath.Join(x.home, dir)
	file := dir + ".ready"
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was killed
		x.t.Fatal(err)
	}
	cmd := x.command(append([]string{"run", "--profile", "test", "--data-dir", dir, "--ready-file", file}, args...)...)
	if passphrase != "" {
		f, err := os.Open(passphrase)
		if err != nil {
			x.t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = []*os.File{f}
		cmd.Args = append(cmd.Args, "--node.passphrase", "fd:3")
	}
	n := &nodeProcess{dir: dir, program: x.run(cmd)}
	eventually(x.t, "the node serves", func() bool {
		select {
		case <-n.ended:
			x.t.Fatalf("the node ended with exit code %d\n%s%s", n.wait(), n.out.String(), n.talk.String())
		default:
		}
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &n.Ready) == nil
	})
	return n
}

// at returns a user whose commands use n.
func (x *user) at(n *nodeProcess) *user {
	with := *x
	with.env = append(append([]string{}, x.env...), "LMOSD_DATA_DIR="+n.dir)
	return &with
}

// weather serves the example's agent, and returns the file of its description.
func (x *user) weather() string {
	x.t.Helper()
	s := httptest.NewUnstartedServer(nil)
	handler, description := agent.New("http://" + s.Listener.Addr().String())
	s.Config.Handler = handler
	s.Start()
	x.t.Cleanup(s.Close)
	x.addr = s.Listener.Addr().String()
	return x.file("weather.td.json", string(description))
}

// slow serves an agent that waits until it is let go, and returns the file of its description.
func (x *user) slow() (file string, asked <-chan struct{}, release func()) {
	x.t.Helper()
	begun, free := make(chan struct{}, 1), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-free:
		case <-r.Context().Done():
		}
		answer(w, "at last")
	}))
	release = sync.OnceFunc(func() { close(free) })
	x.t.Cleanup(func() {
		release()
		s.Close()
	})
	return x.file("slow.td.json", `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Slow", "security": "n",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "actions": {"wait": {"forms": [{"href": "`+s.URL+`/wait"}]}}}`), begun, release
}

// file writes a file into the home folder and returns its path.
func (x *user) file(name, content string) string {
	x.t.Helper()
	path := filepath.Join(x.home, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		x.t.Fatal(err)
	}
	return path
}

// readFile returns a file of the project.
func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// decode reads one JSON document.
func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

// prints waits until a running program has printed all wanted texts.
func (p *program) prints(wanted ...string) {
	p.t.Helper()
	eventually(p.t, "the program prints "+strings.Join(wanted, " and "), func() bool {
		out := p.out.String()
		return !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(out, w) })
	})
}

// lives reports whether a process with word in its command line is left, if the system reports it.
func lives(word string) bool {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return false
	}
	for _, p := range processes {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(word)) {
			return true
		}
	}
	return false
}

// gone reports whether a file is not there.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// contains reports the wanted texts that are not in text.
func contains(t *testing.T, text string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in:\n%s", w, text)
		}
	}
}
