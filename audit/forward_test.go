package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Target{
		"":                              {},
		"syslog+udp://127.0.0.1:514":    {true, "udp", "127.0.0.1:514"},
		"syslog+tcp://logs.example:601": {true, "tcp", "logs.example:601"},
		"syslog+tcp://[::1]:601/":       {true, "tcp", "[::1]:601"},
		"syslog+unix:///dev/log":        {true, "unix", "/dev/log"},
		"json+tcp://127.0.0.1:9000":     {false, "tcp", "127.0.0.1:9000"},
		"json+unix:///run/audit.sock":   {false, "unix", "/run/audit.sock"},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"x", "syslog", "udp://127.0.0.1:514", "syslog+udp://127.0.0.1", "syslog+udp://:514", "syslog+udp://h:0", "syslog+udp://h:70000",
		"json+udp://127.0.0.1:9000", "json+unix://host/path", "json+unix:", "json+tcp://h:1/path", "json+tcp://u:p@h:1", "json+tcp://h:1?x=y", "json+tcp://h:1#x", "syslog+ip://h:1", "%"} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%q is a target: %+v", text, got)
		}
	}
}

var message = regexp.MustCompile(`^<(\d+)>1 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \S+ lmosd \d+ (\w+) - (\{.*\})$`)

// Each receiver gets the lines of the files, on loopback.
func TestReceivers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		form, network string
		read          func(r *bufio.Reader) (string, error)
	}{
		{"syslog", "tcp", readCounted},
		{"syslog", "udp", readDatagram},
		{"syslog", "unixgram", readDatagram},
		{"syslog", "unix", readLine},
		{"json", "tcp", readLine},
		{"json", "unix", readLine},
	} {
		t.Run(c.form+" "+c.network, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			address, next := receiver(t, c.network, filepath.Join(dir, "s"))
			target, err := ParseTarget(c.form + "+" + address)
			if err != nil {
				t.Fatal(err)
			}
			l := open(t, Options{Dir: filepath.Join(dir, "audit"), Forward: target})
			stop := run(t, l)
			l.Change(ChangeTrust, "partner added")
			r := bufio.NewReaderSize(next(), 64<<10)
			for _, want := range []string{`file "chain":"audit"`, `file "chain":"denied"`, `trust "detail":"partner added"`} {
				kind, part, _ := strings.Cut(want, " ")
				got, err := c.read(r)
				if err != nil {
					t.Fatal(err)
				}
				if c.form == "syslog" {
					m := message.FindStringSubmatch(got)
					priority := map[string]string{"file": "110", "trust": "109"}[kind]
					if m == nil || m[2] != kind || m[1] != priority {
						t.Errorf("got %q, want a message of kind %s and priority %s", got, kind, priority)
						continue
					}
					got = m[3]
				}
				if _, err := ParseLine([]byte(got)); err != nil || !strings.Contains(got, part) {
					t.Errorf("got %q, want %s", got, part)
				}
			}
			stop()
		})
	}
}

func readLine(r *bufio.Reader) (string, error) {
	s, err := r.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err
}

// readCounted reads a message with its length (RFC 6587 §3.4.1).
func readCounted(r *bufio.Reader) (string, error) {
	var n int
	if _, err := fmt.Fscanf(r, "%d ", &n); err != nil {
		return "", err
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return string(b), err
}

func readDatagram(r *bufio.Reader) (string, error) {
	if _, err := r.Peek(1); err != nil { // one datagram fills the buffer
		return "", err
	}
	b := make([]byte, r.Buffered())
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// receiver listens, and returns the address as in a target, and a function that returns its next connection.
func receiver(t *testing.T, network, path string) (address string, next func() io.Reader) {
	t.Helper()
	at := "127.0.0.1:0"
	if strings.HasPrefix(network, "unix") {
		at = path
	}
	if network == "udp" || network == "unixgram" {
		p, err := net.ListenPacket(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		address = "udp://" + p.LocalAddr().String()
		if network == "unixgram" {
			address = "unix://" + path
		}
		return address, func() io.Reader { return p.(net.Conn) }
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	address = network + "://" + l.Addr().String()
	return address, func() io.Reader {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// Without the receiver the lines wait in a bounded queue; beyond it they are counted. The pauses between dials grow.
func TestReceiverIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		f := newForwarder(Target{Network: "tcp", Address: "h:1"}, slog.New(slog.NewTextHandler(&logged, nil)))
		var mu sync.Mutex // of the variables that dial uses
		up, dials := false, 0
		var received *bytes.Buffer // of the last connection
		var far net.Conn
		read := make(chan struct{})
		f.dial = func(context.Context) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials++
			if !up {
				return nil, errors.New("refused")
			}
			var near net.Conn
			near, far = net.Pipe()
			from, to := far, new(bytes.Buffer)
			received = to
			go func() {
				_, _ = io.Copy(to, from)
				read <- struct{}{}
			}()
			return near, nil
		}
		stop := f.start()
		for i := range forwardQueue + 7 {
			f.send(&Line{}, fmt.Append(nil, i))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		if dials < 55 || dials > 85 {
			t.Errorf("%d dials in an hour", dials)
		}
		up = true
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if n := strings.Count(received.String(), "\n"); n != forwardQueue {
			t.Errorf("received %d lines", n)
		}
		// The receiver closes: the forwarder connects again without a line, and sends the next one.
		_ = far.Close()
		mu.Unlock()
		<-read
		time.Sleep(2 * time.Second)
		f.send(&Line{}, []byte("after"))
		synctest.Wait()
		mu.Lock()
		if received.String() != "after\n" {
			t.Error("the line after a new connection is missing")
		}
		mu.Unlock()
		stop()
		<-read
		for _, want := range []string{"lines=7", "err=refused", "connected again"} {
			if !strings.Contains(logged.String(), want) {
				t.Errorf("no %s in the log:\n%s", want, logged.String())
			}
		}
		if n := strings.Count(logged.String(), "audit receiver failed"); n != 2 {
			t.Errorf("%d messages about failures", n)
		}
	})
}

// A receiver that does not read delays the end by two seconds.
func TestReceiverIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newForwarder(Target{Network: "tcp", Address: "h:1"}, slog.New(slog.DiscardHandler))
		near, far := net.Pipe()
		defer far.Close()
		f.dial = func(context.Context) (net.Conn, error) { return near, nil }
		stop := f.start()
		for range 3 {
			f.send(&Line{}, []byte("x"))
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took != forwardFinish {
			t.Errorf("the end took %v", took)
		}
	})
}
