package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
)

// occupy listens on a free port and returns its address.
func occupy(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestBusyDefaultPort(t *testing.T) {
	t.Parallel()
	busy := occupy(t)
	var log strings.Builder
	g, err := New(serving(newFake(), Options{Listen: busy, Log: slog.New(slog.NewTextHandler(&log, nil))}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Addr().String() == busy || !strings.HasPrefix(g.URL(), "http://127.0.0.1:") {
		t.Errorf("listens on %s", g.URL())
	}
	if !strings.Contains(log.String(), "busy="+busy) || !strings.Contains(log.String(), "listen="+g.Addr().String()) {
		t.Errorf("log %s", log.String())
	}
}

func TestBusyExplicitPort(t *testing.T) {
	t.Parallel()
	busy := occupy(t)
	_, err := New(serving(newFake(), Options{Listen: busy, Explicit: true}))
	e := interact.AsError(err)
	_, port, _ := net.SplitHostPort(busy)
	if e == nil || e.Code != interact.PortBusy || !strings.Contains(e.Error(), port) || e.Hint == "" && e.Next == nil {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		return // the system does not report the process
	}
	if want := fmt.Sprintf("process %d (", os.Getpid()); !strings.Contains(e.Error(), want) {
		t.Errorf("got %q, want %q in it", e.Error(), want)
	}
}

func TestDefaultListen(t *testing.T) {
	t.Parallel()
	// The default port may be busy on this machine.
	g, err := New(serving(newFake(), Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if !strings.HasPrefix(g.URL(), "http://127.0.0.1:") {
		t.Errorf("URL %s", g.URL())
	}
}

func TestRefusedAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    Options
		code interact.Code
	}{
		{"no port", Options{Listen: "127.0.0.1"}, interact.ConfigInvalid},
		{"port that is not a number", Options{Listen: "127.0.0.1:http-nothing"}, interact.ConfigInvalid},
		{"address of another host", Options{Listen: "192.0.2.1:0"}, interact.ConfigInvalid},
		{"wildcard without a token", Options{Listen: "0.0.0.0:0"}, interact.WildcardBind},
		{"no host without a token", Options{Listen: ":0"}, interact.WildcardBind},
		{"wildcard with no auth", Options{Listen: "0.0.0.0:0", Tokens: tokens.New(token), NoAuth: true}, interact.WildcardBind},
		{"plain HTTP", Options{Listen: "0.0.0.0:0", Tokens: tokens.New(token)}, interact.ConfigInvalid},
		{"plain HTTP behind a plain proxy", Options{Listen: "0.0.0.0:0", Tokens: tokens.New(token), Operation: Operation{PublicURL: "http://node.example"}}, interact.ConfigInvalid},
		{"long path of a socket", Options{Listen: None, Socket: "/" + strings.Repeat("x", 100)}, interact.ConfigInvalid},
		{"folder of the socket missing", Options{Listen: None, Socket: filepath.Join(t.TempDir(), "no", "s")},
			interact.ConfigInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(serving(newFake(), c.o))
			e := interact.AsError(err)
			if e == nil || e.Code != c.code || e.Hint == "" && e.Next == nil {
				t.Errorf("got %v of code %v", err, e)
			}
		})
	}
}

func TestWildcardURL(t *testing.T) {
	t.Parallel()
	g, err := New(serving(newFake(), Options{Listen: "0.0.0.0:0", Tokens: tokens.New(token), Proxy: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if !strings.HasPrefix(g.URL(), "http://127.0.0.1:") {
		t.Errorf("URL %s", g.URL())
	}
}

func TestSocket(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	r := start(t, Options{Listen: "127.0.0.1:0", Socket: path})
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", info.Mode().Perm())
	}
	if _, err := New(serving(newFake(), Options{Listen: None,
		Socket: path})); interact.AsError(err).Code != interact.PortBusy {
		t.Errorf("a second gateway: %v", err)
	}
	// The first gateway still responds.
	r.check(t, exchange{path: "/healthz", socket: true, status: 200})
	r.end()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

func TestSocketOnly(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	g, err := New(serving(newFake(), Options{Listen: None, Socket: path}))
	if err != nil {
		t.Fatal(err)
	}
	if g.Addr() != nil || g.URL() != "" {
		t.Errorf("address %v, URL %q", g.Addr(), g.URL())
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStaleSocket(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as a killed process does
	l.Close()
	r := start(t, Options{Socket: path})
	r.check(t, exchange{path: "/healthz", socket: true, status: 200})
}

func TestSocketPathOfAFile(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(serving(newFake(), Options{Listen: None, Socket: path}))
	if interact.AsError(err).Code != interact.ConfigInvalid {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file was touched")
	}
}

// If New fails, it closes what it opened.
func TestFailedNewClosesEverything(t *testing.T) {
	t.Parallel()
	addr := occupy(t)
	path := socketFile(t)
	if _, err := New(serving(newFake(), Options{Listen: addr, Explicit: true, Socket: path})); err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is there")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = free.Addr().String()
	free.Close()
	if _, err := New(serving(newFake(), Options{Listen: addr, Explicit: true, Socket: "/" + strings.Repeat("x",
		200)})); err == nil {
		t.Fatal("no error")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	l.Close()
}

func TestPortHolder(t *testing.T) {
	t.Parallel()
	if pid, name := portHolder(t.TempDir(), 80); pid != 0 || name != "" {
		t.Errorf("without tables: %d %q", pid, name)
	}
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("net/tcp", procTable)
	write("net/tcp6", "")
	write("41/comm", "other\n")
	write("42/comm", "holder\n")
	write("self/comm", "x")
	write("43/comm", "no fds\n")
	for pid, inode := range map[string]string{"41": "999", "42": "2002"} {
		if err := os.Mkdir(filepath.Join(root, pid, "fd"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("socket:["+inode+"]", filepath.Join(root, pid, "fd", "3")); err != nil {
			t.Fatal(err)
		}
	}
	for port, want := range map[uint16]int{4668: 42, 80: 0, 4669: 0} {
		if pid, _ := portHolder(root, port); pid != want {
			t.Errorf("port %d: process %d, want %d", port, pid, want)
		}
	}
}

// procTable lists port 4668 (123C) as listening with inode 2002, and an established connection of port 4669 (123D).
const procTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:123C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 2002 1 0000000000000000 100 0 0 10 0
   1: 0100007F:123D 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000  1000        0 2003 1 0000000000000000 20 4 30 10 -1
`

func FuzzListening(f *testing.F) {
	f.Add([]byte(procTable), uint16(4668))
	f.Add([]byte("0: :zz 1 0A 4 5 6 7 8 9"), uint16(0))
	f.Add([]byte("0: x:12 1 0A 4 5 6 7 8 9"), uint16(18))
	f.Fuzz(func(t *testing.T, table []byte, port uint16) {
		for _, inode := range listeningInodes(table, port) {
			if inode == "" || strings.ContainsAny(inode, " \n") {
				t.Errorf("inode %q", inode)
			}
		}
	})
}

// Connections above the limit wait until others end.
func TestConnectionBound(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bound := limitListener(l, 1, 1, time.Second)
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := bound.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Fatal("two connections at once")
	case <-time.After(20 * time.Millisecond):
	}
	first.Close()
	first.Close() // the second Close frees nothing
	second := <-accepted
	bound.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	second.Close()
}

func TestLargeHeaders(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The server does not read beyond the limit, so sending more would break the connection before the response.
	if _, err := fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Large: %s", strings.Repeat("x",
		69<<10)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("got %q, %v", line, err)
	}
}

// A failingListener fails to close.
type failingListener struct{ net.Listener }

func (failingListener) Close() error { return errors.New("it does not close") }

// Close closes all listeners, even if one fails.
func TestCloseClosesAllListeners(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	g, err := New(serving(newFake(), Options{Listen: "127.0.0.1:0", Socket: path}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.tcp.Close()
	g.tcp = failingListener{g.tcp}
	if err := g.Close(); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// A deadlineConn records the deadlines of its writes.
type deadlineConn struct {
	net.Conn
	deadlines []time.Time
}

func (c *deadlineConn) Write(b []byte) (int, error) { return len(b), nil }

func (c *deadlineConn) SetWriteDeadline(t time.Time) error {
	c.deadlines = append(c.deadlines, t)
	return nil
}

// TestWriteDeadlines: writes that follow each other share a deadline, which is never closer than 31/32 of the timeout. A deadline of the
// caller replaces it.
func TestWriteDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 32 * time.Second
		inner := &deadlineConn{}
		c := &limitedConn{Conn: inner, writeTimeout: timeout}
		write := func(want int) {
			t.Helper()
			if _, err := c.Write([]byte("x")); err != nil || len(inner.deadlines) != want {
				t.Fatalf("%d deadlines, %v; want %d", len(inner.deadlines), err, want)
			}
			if left := time.Until(inner.deadlines[want-1]); left <= timeout*31/32 || left > timeout {
				t.Fatalf("%v are left", left)
			}
		}
		write(1)
		time.Sleep(time.Second - time.Millisecond)
		write(1)
		time.Sleep(time.Millisecond)
		write(2)
		own := time.Now().Add(time.Hour)
		if err := c.SetWriteDeadline(own); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil || len(inner.deadlines) != 3 || !inner.deadlines[2].Equal(own) {
			t.Fatalf("the deadline of the caller was replaced: %v, %v", inner.deadlines, err)
		}
		if err := c.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		write(5)
	})
}
