package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
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
