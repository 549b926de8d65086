package gateway

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/ratelimit"
)

// maxSocketPath is below the smallest limit of the systems (104 bytes with the final zero).
const maxSocketPath = 100

// listenTCP listens on o.Listen, or on a free port if that one is busy and not explicit. It returns o.Shared if that is set. Beyond loopback,
// callers need authentication and encryption, whoever opened the port.
func listenTCP(o Options) (net.Listener, error) {
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, &interact.Error{Code: interact.ConfigInvalid, Next: interact.Next(interact.StepRun, "http.listen", defaultListen),
			Title: fmt.Sprintf("expected an address and port to listen on, got %q", o.Listen), Err: err}
	}
	l, err := o.Shared, error(nil)
	if l == nil {
		l, err = net.Listen("tcp", o.Listen)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		by := processName(port)
		if o.Explicit {
			return nil, portBusy(o.Listen, by)
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			o.Log.Warn("default port busy, free port used", "busy", o.Listen, "by", by, "listen", l.Addr().String())
		}
	}
	if err != nil {
		return nil, &interact.Error{Code: interact.ConfigInvalid, Next: interact.Next(interact.StepRun, "http.listen", defaultListen),
			Title: "cannot listen on " + o.Listen, Err: err}
	}
	switch {
	case isLoopback(l.Addr()):
		return l, nil
	case o.Tokens == nil || o.NoAuth:
		err = interact.Errorf(interact.WildcardBind, "listen on 127.0.0.1:"+port+", or set http.auth: token",
			"other hosts would reach %s, and nothing authenticates them", o.Listen)
	case !o.IsEncrypted() && !o.OpenDirectory:
		err = interact.Errorf(interact.ConfigInvalid, PlainHint, "plain HTTP at %s: hosts on the network path could read the tokens of callers", o.Listen)
	default:
		return l, nil
	}
	l.Close()
	return nil, err
}

// PlainHint lists the remedies for plain HTTP beyond loopback.
const PlainHint = "set http.tls.cert and http.tls.key; or, if a proxy has the certificate, http.public_url: https://… or http.tls.mode: proxy; or listen " +
	"on 127.0.0.1. With http.directory_auth: open, plain HTTP serves the directory without tokens"

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func portBusy(listen, by string) *interact.Error {
	if by != "" {
		by = " by " + by
	}
	return interact.Errorf(interact.PortBusy, "", "%s is in use%s", listen, by).Then(interact.StepRun, "http.listen", "127.0.0.1:0")
}

// processName returns the process that listens on a port, "process 4711 (lmosd)", or "" if it is unknown.
func processName(port string) string {
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		if pid, name := portHolder("/proc", uint16(n)); pid != 0 {
			return fmt.Sprintf("process %d (%s)", pid, name)
		}
	}
	return ""
}

// portHolder returns the id and name of a process that listens on a TCP port, from a Linux /proc at root. It returns 0 for processes of
// other users, which are hidden.
func portHolder(root string, port uint16) (pid int, name string) {
	var inodes []string
	for _, table := range []string{"/net/tcp", "/net/tcp6"} {
		// The table is missing on systems without /proc.
		if text, err := os.ReadFile(root + table); err == nil {
			inodes = append(inodes, listeningInodes(text, port)...)
		}
	}
	if len(inodes) == 0 {
		return 0, ""
	}
	procs, err := os.ReadDir(root)
	if err != nil {
		return 0, ""
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err == nil && hasSocket(root+"/"+p.Name()+"/fd", inodes) {
			comm, _ := os.ReadFile(root + "/" + p.Name() + "/comm") // the name is optional
			return pid, strings.TrimSpace(string(comm))
		}
	}
	return 0, ""
}

// listeningInodes returns the inodes of the sockets that listen on port, from a table in the form of /proc/net/tcp:
// "sl local_address rem_address st … inode …", addresses as hexadecimal IP:PORT, st 0A for listening (proc(5)).
func listeningInodes(table []byte, port uint16) (inodes []string) {
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		_, local, _ := strings.Cut(f[1], ":")
		b, err := hex.DecodeString(local)
		if err == nil && len(b) == 2 && uint16(b[0])<<8|uint16(b[1]) == port {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}

func hasSocket(dir string, inodes []string) bool {
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false // another user's process
	}
	for _, fd := range fds {
		target, err := os.Readlink(dir + "/" + fd.Name())
		if err != nil {
			continue
		}
		for _, inode := range inodes {
			if target == "socket:["+inode+"]" {
				return true
			}
		}
	}
	return false
}

// listenUnix listens on a unix socket that only the user can open. It replaces the socket of a process that has ended.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, interact.Errorf(interact.ConfigInvalid, "choose a shorter path, or a shorter data directory",
			"the path of the socket has %d bytes, the limit is %d: %s", len(path), maxSocketPath, path).
			Then(interact.StepRun, "http.socket", "/run/user/1000/lmosd.sock")
	}
	if err := removeStaleSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, socketError("cannot listen on the socket "+path, err)
	}
	// Between these two calls only the folder protects the socket; the data folder has mode 0700.
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, socketError("cannot protect the socket "+path, err)
	}
	return l, nil
}

func socketError(title string, err error) *interact.Error {
	return &interact.Error{Code: interact.ConfigInvalid, Title: title, Next: interact.Next(interact.StepRun, "http.socket", "none"), Err: err}
}

// removeStaleSocket removes the socket at path if no process listens on it. It keeps other files.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketError("cannot inspect the socket "+path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return interact.Errorf(interact.ConfigInvalid, "move it away, or set another path in http.socket",
			"%s exists and is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close()
		return interact.Errorf(interact.PortBusy, "", "another process listens on the socket %s", path).
			Then(interact.StepStatus, "unix:"+path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return socketError("cannot determine whether another process uses the socket "+path, err)
	}
	if err := os.Remove(path); err != nil {
		return socketError("cannot remove the unused socket "+path, err)
	}
	return nil
}

// limitListener limits the open connections of l; further connections wait in the accept queue. Connections of one address beyond perAddress
// are closed, except those of loopback. It also limits the time for a peer to receive a part of a response.
func limitListener(l net.Listener, conns, perAddress int, write time.Duration) net.Listener {
	return &limitedListener{Listener: l, write: write, slots: make(chan struct{}, conns), done: make(chan struct{}),
		addresses: ratelimit.NewInflight[netip.Prefix](perAddress, conns)}
}

type limitedListener struct {
	net.Listener
	write     time.Duration
	slots     chan struct{} // one for each open connection
	addresses *ratelimit.Inflight[netip.Prefix]
	done      chan struct{}
	once      sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, err
		}
		if leave, ok := l.enter(c.RemoteAddr()); ok {
			return &limitedConn{Conn: c, writeTimeout: l.write, release: sync.OnceFunc(func() { leave(); <-l.slots })}, nil
		}
		c.Close()
	}
}

// enter counts a connection of an address until leave is called; it returns false if there are too many.
func (l *limitedListener) enter(a net.Addr) (leave func(), ok bool) {
	from := ratelimit.AddressRange(a)
	if !from.IsValid() || from.Addr().IsLoopback() {
		return func() {}, true
	}
	return func() { l.addresses.Leave(from) }, l.addresses.Enter(from) == ratelimit.Entered
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	writeTimeout time.Duration
	own          atomic.Bool  // the caller set a write deadline
	extended     atomic.Int64 // when Write set its deadline, in nanoseconds since the start of the process; 0: it has none
	release      func()
}

// writeBlock is the number of bytes that a peer must receive within the write timeout.
const writeBlock = 64 << 10

// Write gives each block of b a deadline. A deadline for the whole response would cut large ones; without a deadline, a peer that
// does not read would occupy a slot without limit.
func (c *limitedConn) Write(b []byte) (n int, err error) {
	for {
		if !c.own.Load() {
			c.extend()
		}
		m, err := c.Conn.Write(b[:min(len(b), writeBlock)])
		n, b = n+m, b[m:]
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

// processStart is the origin of limitedConn.extended.
var processStart = time.Now()

// extend sets the deadline of a write. Writes within 1/32 of the timeout share one, because setting it costs as much as a small write does
// besides its system call.
func (c *limitedConn) extend() {
	now := time.Since(processStart)
	if last := c.extended.Load(); last != 0 && now-time.Duration(last) < c.writeTimeout/32 {
		return
	}
	c.extended.Store(int64(now))
	_ = c.Conn.SetWriteDeadline(processStart.Add(now + c.writeTimeout)) // Write reports a broken connection
}

// SetWriteDeadline replaces the deadlines that Write sets; zero restores them.
func (c *limitedConn) SetWriteDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	c.extended.Store(0)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline is SetWriteDeadline for both directions.
func (c *limitedConn) SetDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	c.extended.Store(0)
	return c.Conn.SetDeadline(t)
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
