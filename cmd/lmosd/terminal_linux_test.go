package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lmosd/lmosd/cmd/lmosd/internal/cli"
)

// pseudoTerminal opens a terminal: what its user holds, and what a program has as its standard streams.
func pseudoTerminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// A node whose terminal is closed shuts down as by SIGTERM, although its output has no reader.
func TestClosedTerminal(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	user, program := pseudoTerminal(t)
	file := filepath.Join(x.home, "ready.json")
	cmd := x.command("run", "--profile", "test", "--data-dir", "n", "--ready-file", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	program.Close()
	eventually(t, "the node serves", func() bool { return !gone(file) })
	user.Close() // what the node printed fits into the terminal
	if err := cmd.Wait(); err != nil {
		t.Errorf("the node ends with %v", err)
	}
	if !gone(file) || !gone(filepath.Join(x.home, "n", "lmosd.sock")) {
		t.Error("the ready file or the socket are left behind")
	}
}

// SIGHUP to a node with a terminal means the end of the terminal.
func TestSignalsOfATerminal(t *testing.T) {
	t.Parallel()
	signals(t, hasTerminal, map[string]signalStory{
		"a terminal's end":    {syscall.SIGHUP, 0, 0, 0},
		"its shell's, too":    {syscall.SIGHUP, syscall.SIGHUP, 0, 0},
		"a supervisor's next": {syscall.SIGHUP, syscall.SIGTERM, -1, cli.ExitNoNode},
	})
}

// hasTerminal gives a program a controlling terminal.
func hasTerminal(t *testing.T, cmd *exec.Cmd) {
	_, terminal := pseudoTerminal(t)
	cmd.Stdin = terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// A session is a command on a terminal, whose user reads and types.
type session struct {
	t     *testing.T
	user  *os.File
	tty   *os.File // the same terminal, for its settings
	cmd   *exec.Cmd
	shown buffer // everything that the terminal showed
}

// onTerminal starts a command whose standard streams are a terminal.
func (x *user) onTerminal(args ...string) *session {
	x.t.Helper()
	s := &session{t: x.t, cmd: x.command(args...)}
	s.user, s.tty = pseudoTerminal(x.t)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.tty, s.tty, s.tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // it may have ended
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := s.user.Read(b)
			if err != nil {
				return // the terminal is closed at the end of the test
			}
			_, _ = s.shown.Write(b[:n]) // a buffer accepts everything
		}
	}()
	return s
}

// waits waits until the terminal has shown text n times.
func (s *session) waits(text string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("the terminal shows %q", text), func() bool { return strings.Count(s.shown.String(), text) >= n })
}

// types types a line after a prompt.
func (s *session) types(text string) {
	s.t.Helper()
	if _, err := s.user.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the end of the command with an exit code, and checks that the terminal shows input again.
func (s *session) ends(code int) {
	s.t.Helper()
	_ = s.cmd.Wait() // its exit code is checked
	const last = "everything before this line is of the command"
	if _, err := s.tty.WriteString(last); err != nil {
		s.t.Fatal(err)
	}
	s.waits(last, 1)
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d\n%s", got, code, s.shown.String())
	}
	settings, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil || settings.Lflag&unix.ECHO == 0 {
		s.t.Errorf("the terminal does not show its input, %v", err)
	}
}

// A person sets a passphrase and starts a node with it. The terminal does not show the passphrase.
func TestPassphraseOnATerminal(t *testing.T) {
	t.Parallel()
	x := newUser(t, "TERM=dumb")
	first := x.node("n")
	id := first.DID
	first.stop()

	s := x.onTerminal("keys", "passphrase", "--data-dir", "n")
	s.waits("new passphrase of ", 1)
	s.types("horse one\n")
	s.waits("repeat it: ", 1)
	s.types("horse two\n")
	s.waits("the passphrases differ", 1)
	s.waits("new passphrase of ", 2)
	s.types("horse one\n")
	s.waits("repeat it: ", 2)
	s.types("horse one\n")
	s.ends(0)
	contains(t, s.shown.String(), "set the passphrase of ")

	node := x.onTerminal("run", "--profile", "test", "--data-dir", "n")
	node.waits("passphrase of "+filepath.Join(x.home, "n", "identity.pem")+": ", 1)
	node.types("horse two\n")
	node.waits("the passphrase is wrong", 1)
	node.waits("passphrase of /", 2) // the input is hidden from here on
	node.types("horse one\n")
	node.waits("ready in ", 1)
	contains(t, node.shown.String(), string(id))
	if err := node.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ends(0)

	verified := x.onTerminal("audit", "verify", "--data-dir", "n")
	verified.waits("passphrase of /", 1)
	verified.types("horse one\n")
	verified.ends(0)
	contains(t, verified.shown.String(), "✓ audit")

	wrong := x.onTerminal("id", "--data-dir", "n")
	for i := range 3 {
		wrong.waits("passphrase of /", i+1)
		wrong.types("horse three\n")
	}
	wrong.ends(cli.ExitRefused)
	contains(t, wrong.shown.String(), "LMOS-3013")

	interrupted := x.onTerminal("id", "--data-dir", "n")
	interrupted.waits("passphrase of /", 1)
	interrupted.types("horse o\x03") // Ctrl-C
	interrupted.ends(cli.ExitInterrupted)

	ended := x.onTerminal("keys", "export", "x.age", "--data-dir", "n")
	ended.waits("passphrase of /", 1)
	ended.types("\x04") // Ctrl-D
	ended.ends(cli.ExitRefused)
	if !gone(filepath.Join(x.home, "x.age")) {
		t.Error("a file was exported")
	}
	for _, s := range []*session{s, node, verified, wrong, interrupted, ended} {
		if strings.Contains(s.shown.String(), "horse") {
			t.Errorf("the terminal shows the passphrase:\n%s", s.shown.String())
		}
	}
}

// A command that waits says so on a terminal, and erases that before its output; in a pipe it prints nothing.
func TestWaitingOnATerminal(t *testing.T) {
	t.Parallel()
	x := newUser(t, "NO_COLOR=1")
	release := make(chan struct{})
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"lmosd/v1","kind":"PeerList","items":[]}`))
	}))
	t.Cleanup(node.Close)
	s := x.onTerminal("peers", "--node", node.URL)
	s.waits("waiting for the node · 1 s", 1)
	close(release)
	s.ends(0)
	shown := s.shown.String()
	contains(t, shown, "waiting for the node · 1 s\r\x1b[Kno peers\r\n")
}

// lmosd top draws on the other screen, follows the size of the terminal, and q ends it with the terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	x := newUser(t, "NO_COLOR=1", "TERM=xterm")
	n := x.node("n")
	s := x.onTerminal("top", "--data-dir", "n", "--interval", "250ms")
	s.waits("\x1b[?1049h", 1)
	s.waits("● ready  ", 2)
	if err := unix.IoctlSetWinsize(int(s.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 20}); err != nil {
		t.Fatal(err)
	}
	s.waits("calls   0.0/s · 0.0…\x1b[K", 1)
	s.types("q")
	s.ends(0)
	contains(t, s.shown.String(), "\x1b[?25h\x1b[?1049l", string(n.DID[len("did:key:"):len("did:key:")+8]))
}
