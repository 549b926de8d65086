package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// manager listens as a service manager does, and returns a function that reads one message.
func manager(t *testing.T) func() string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sd") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "")
	t.Setenv("WATCHDOG_PID", "")
	return func() string {
		t.Helper()
		b := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func TestMessages(t *testing.T) {
	read := manager(t)
	if !IsEnabled() {
		t.Error("there is a service manager")
	}
	for _, c := range []struct {
		send func() error
		want string
	}{
		{func() error { return Ready("3 peers, 2 agents") }, "^READY=1\nSTATUS=3 peers, 2 agents$"},
		{func() error { return Status("one\nMAINPID=1") }, "^STATUS=one MAINPID=1$"},
		{Reloading, "^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$"},
		{func() error { return Stopping("calls finish") }, "^STOPPING=1\nSTATUS=calls finish$"},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		if got := read(); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("got %q, expected %s", got, c.want)
		}
	}
}

func TestWithoutAServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if IsEnabled() {
		t.Error("there is no service manager")
	}
	for _, err := range []error{Ready(""), Reloading(), Stopping(""), Status("a"),
		Watch(t.Context(), func(context.Context) (string, error) { panic("checked") })} {
		if err != nil {
			t.Error(err)
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := Ready(""); err == nil {
		t.Error("a message to a missing socket was sent")
	}
}

// The watchdog is fed only while the process is healthy.
func TestWatch(t *testing.T) {
	read := manager(t)
	t.Setenv("WATCHDOG_USEC", "30000") // 30 ms
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan error)
	done := make(chan error)
	go func() {
		done <- Watch(ctx, func(within context.Context) (string, error) {
			if _, ok := within.Deadline(); !ok {
				return "", errors.New("a check without a deadline")
			}
			select {
			case err := <-answers:
				return "2 peers", err
			case <-ctx.Done():
				return "", ctx.Err()
			}
		})
	}()
	for _, c := range []struct {
		answer error
		want   string
	}{
		{nil, "WATCHDOG=1\nSTATUS=2 peers"},
		{errors.New("the store is gone"), "STATUS=not ready: the store is gone"},
		{nil, "WATCHDOG=1\nSTATUS=2 peers"},
	} {
		answers <- c.answer
		if got := read(); got != c.want {
			t.Errorf("got %q, expected %q", got, c.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A check that does not end in time feeds no watchdog.
func TestACheckThatHangs(t *testing.T) {
	read := manager(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Watch(ctx, func(within context.Context) (string, error) {
			<-within.Done()
			return "", within.Err()
		})
	}()
	if got := read(); got != "STATUS=not ready: context deadline exceeded" {
		t.Errorf("got %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if Watch(t.Context(), nil) == nil {
		t.Error("an interval that is not a number is accepted")
	}
}

// Another process of the service, such as an agent, has no watchdog.
func TestWatchdogOfAnotherProcess(t *testing.T) {
	manager(t)
	t.Setenv("WATCHDOG_USEC", "30000")
	t.Setenv("WATCHDOG_PID", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Watch(ctx, func(context.Context) (string, error) { panic("checked") }); err != nil {
		t.Error(err)
	}
}
