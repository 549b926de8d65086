package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A node reports to systemd that it serves, that it is ready, with its agents, and that it stops.
func TestRunReportsToSystemd(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	socket := filepath.Join(x.home, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	read := func() string {
		t.Helper()
		b := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	x.env = append(x.env, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=300000")
	n := x.node("n")
	if got := read(); got != "READY=1\nSTATUS=0 peers, 0 agents" {
		t.Errorf("at the start: %q", got)
	}
	x.at(n).ok("publish", x.weather())
	for got := ""; got != "WATCHDOG=1\nSTATUS=0 peers, 1 agent"; {
		if got = read(); !strings.HasPrefix(got, "WATCHDOG=1\nSTATUS=0 peers, ") {
			t.Fatalf("while it serves: %q", got)
		}
	}
	if code := n.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	got := read()
	for strings.HasPrefix(got, "WATCHDOG=1\n") { // sent before the signal
		got = read()
	}
	if got != "STOPPING=1\nSTATUS=calls that run may finish" {
		t.Errorf("at the end: %q", got)
	}
}
