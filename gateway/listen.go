package gateway

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// maxSocketPath keeps below the shortest limit of the systems (104 bytes with the final zero).
const maxSocketPath = 100

// listenTCP listens where o says, or on a free port if that one is busy and nobody asked for it.
func listenTCP(o Options) (net.Listener, error) {
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, &interact.Error{Code: interact.ConfigInvalid, Next: interact.Next(interact.StepRun, "http.listen", DefaultListen),
			Title: fmt.Sprintf("%q is no address and port to listen on", o.Listen), Err: err}
	}
	l, err := net.Listen("tcp", o.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		by := holder(port)
		if o.Explicit {
			return nil, portBusy(o.Listen, by)
		}
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			o.Log.Warn("the default port is busy; a free one is taken", "busy", o.Listen, "by", by, "listen", l.Addr().String())
		}
	}
	if err != nil {
		return nil, &interact.Error{Code: interact.ConfigInvalid, Next: interact.Next(interact.StepRun, "http.listen", DefaultListen),
			Title: "cannot listen on " + o.Listen, Err: err}
	}
	if !isLoopback(l.Addr()) && (o.Token == "" || o.NoAuth) {
		l.Close() // nobody was served
		return nil, interact.Errorf(interact.WildcardBind, "listen on 127.0.0.1:"+port+", or set http.auth: token",
			"other hosts would reach %s, and nothing authenticates them", o.Listen)
	}
	return l, nil
}

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

// holder names the process that listens on a port, as far as the system tells: "process 4711 (lmosd)", or "".
func holder(port string) string {
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		if pid, name := portHolder("/proc", uint16(n)); pid != 0 {
			return fmt.Sprintf("process %d (%s)", pid, name)
		}
	}
	return ""
}

// portHolder returns the id and name of a process that listens on a TCP port, as far as a Linux /proc at root tells:
// processes of other users are hidden, and then pid is zero.
func portHolder(root string, port uint16) (pid int, name string) {
	var inodes []string
	for _, table := range []string{"/net/tcp", "/net/tcp6"} {
		// A system without /proc just tells nothing.
		if text, err := os.ReadFile(root + table); err == nil {
			inodes = append(inodes, listening(text, port)...)
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
			comm, _ := os.ReadFile(root + "/" + p.Name() + "/comm") // the name is a courtesy
			return pid, strings.TrimSpace(string(comm))
		}
	}
	return 0, ""
}

// listening returns the inodes of the sockets that listen on port, from a table in the form of /proc/net/tcp:
// "sl local_address rem_address st … inode …", addresses as hexadecimal IP:PORT, st 0A for listening (proc(5)).
func listening(table []byte, port uint16) (inodes []string) {
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

// listenUnix listens on a unix socket that only the user can open. What a dead process left there is removed.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, interact.Errorf(interact.ConfigInvalid,
			"choose a shorter path, or a shorter data directory",
			"the path of the socket has %d bytes, %d are possible: %s", len(path), maxSocketPath, path).
			Then(interact.StepRun, "http.socket", "/run/user/1000/lmosd.sock")
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, socketError("cannot listen on the socket "+path, err)
	}
	// Between these two calls only the folder guards the socket; the data folder has mode 0700.
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close() // nobody was served
		return nil, socketError("cannot protect the socket "+path, err)
	}
	return l, nil
}

func socketError(title string, err error) *interact.Error {
	return &interact.Error{Code: interact.ConfigInvalid, Title: title, Next: interact.Next(interact.StepRun, "http.socket", "none"), Err: err}
}

// removeStale removes the socket at path if nobody answers on it. Anything but a socket is left alone.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketError("cannot look at the socket "+path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return interact.Errorf(interact.ConfigInvalid, "move it away, or set another path in http.socket",
			"%s exists and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		conn.Close() // it was only a question
		return interact.Errorf(interact.PortBusy, "", "another process answers on the socket %s", path).
			Then(interact.StepStatus, "unix:"+path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return socketError("cannot tell whether another process uses the socket "+path, err)
	}
	if err := os.Remove(path); err != nil {
		return socketError("cannot remove the socket that a dead process left at "+path, err)
	}
	return nil
}

// limit bounds the connections of l that are open at once; more wait in the system's queue. It also bounds how long a peer may
// take for a part of what is written to it.
func limit(l net.Listener, conns int, write time.Duration) net.Listener {
	return &limited{Listener: l, write: write, places: make(chan struct{}, conns), done: make(chan struct{})}
}

type limited struct {
	net.Listener
	write  time.Duration
	places chan struct{} // holds one for each open connection
	done   chan struct{}
	once   sync.Once
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, writeTimeout: l.write, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	writeTimeout time.Duration
	own          atomic.Bool // somebody set a deadline for writing
	leave        func()
}

// writeBlock is how much a peer has to take within the patience, in bytes.
const writeBlock = 64 << 10

// Write gives the peer its time for each part. A deadline for the whole answer would cut what is large or long, and with none a
// peer that reads nothing would keep its place for ever.
func (c *limitedConn) Write(b []byte) (n int, err error) {
	for {
		if !c.own.Load() {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(c.writeTimeout)) // a broken connection is told of by Write
		}
		m, err := c.Conn.Write(b[:min(len(b), writeBlock)])
		n, b = n+m, b[m:]
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

// SetWriteDeadline takes the deadline of somebody who knows better; zero gives it back.
func (c *limitedConn) SetWriteDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline does the same for both directions.
func (c *limitedConn) SetDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	return c.Conn.SetDeadline(t)
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
