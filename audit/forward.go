package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lmosd/lmosd/internal/backoff"
)

// A Target is a receiver of a copy of each line. The zero value is none.
type Target struct {
	// Syslog selects messages of RFC 5424; otherwise each line is sent as it is, with a line end.
	Syslog bool
	// Network is udp, tcp or unix; Address is host:port, or the path of a socket.
	Network, Address string
}

// ParseTarget parses a target: syslog+udp://HOST:PORT, syslog+tcp://HOST:PORT, syslog+unix:///PATH, json+tcp://HOST:PORT or json+unix:///PATH.
// The empty text is no target.
func ParseTarget(text string) (Target, error) {
	if text == "" {
		return Target{}, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, fmt.Errorf("expected the URL of a receiver, got %q", text)
	}
	form, network, _ := strings.Cut(u.Scheme, "+")
	t := Target{Syslog: form == "syslog", Network: network, Address: u.Host}
	valid := form == "syslog" || form == "json"
	switch network {
	case "tcp", "udp":
		_, port, err := net.SplitHostPort(u.Host)
		n, e := strconv.ParseUint(port, 10, 16)
		valid = valid && err == nil && e == nil && n > 0 && u.Hostname() != "" && strings.Trim(u.Path, "/") == "" && (network == "tcp" || t.Syslog)
	case "unix":
		t.Address = u.Path
		valid = valid && u.Host == "" && len(u.Path) > 1
	default:
		valid = false
	}
	if !valid || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Target{}, fmt.Errorf("expected syslog+udp, syslog+tcp or json+tcp with host and port, or syslog+unix or json+unix with a path, got %q", text)
	}
	return t, nil
}

// Limits of the forwarding.
const (
	forwardQueue  = 4096             // lines
	forwardWrite  = 10 * time.Second // timeout of a write
	forwardDial   = 10 * time.Second
	forwardFinish = 2 * time.Second // for the rest, at the end
	retryFirst    = time.Second
	retryMax      = time.Minute
)

// A forwarder sends lines to a target in a goroutine of its own. Lines are lost if the target is slower than the log for longer than the
// queue, or the connection breaks while a line is in it.
type forwarder struct {
	Target
	log   *slog.Logger
	queue chan []byte
	host  string
	dial  func(ctx context.Context) (net.Conn, error)

	mu   sync.Mutex
	lost uint64 // since the last report; owned by mu
}

func newForwarder(t Target, log *slog.Logger) *forwarder {
	f := &forwarder{Target: t, log: log, queue: make(chan []byte, forwardQueue), host: "-"}
	if name, err := os.Hostname(); err == nil && name != "" && len(name) <= 255 && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		f.host = name
	}
	f.dial = f.connect
	return f
}

// connect dials the target. A Unix socket is one for datagrams, as that of syslog, or for a stream.
func (f *forwarder) connect(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: forwardDial}
	if f.Network == "unix" && f.Syslog {
		c, err := d.DialContext(ctx, "unixgram", f.Address)
		if !errors.Is(err, syscall.EPROTOTYPE) {
			return c, err
		}
	}
	return d.DialContext(ctx, f.Network, f.Address)
}

// send adds a line to the queue, without its end. A nil forwarder sends nothing.
func (f *forwarder) send(l *Line, line []byte) {
	if f == nil {
		return
	}
	select {
	case f.queue <- f.encode(l, line):
	default:
		f.lose(1)
	}
}

func (f *forwarder) lose(n uint64) {
	f.mu.Lock()
	f.lost += n
	f.mu.Unlock()
}

// Facility and severities of syslog (RFC 5424 §6.2.1).
const (
	facilityAudit = 13 // log audit
	warning       = 4
	notice        = 5
	informational = 6
)

// encode returns the message of a line.
func (f *forwarder) encode(l *Line, line []byte) []byte {
	if !f.Syslog {
		return append(append(make([]byte, 0, len(line)+1), line...), '\n')
	}
	severity, id := notice, l.Event
	switch {
	case l.Verdict == deny || l.Event == EventLost:
		severity = warning
	case l.Event == "" || l.Event == EventCheckpoint || l.Event == EventFile:
		severity = informational
	}
	if id == "" {
		id = "decision"
	}
	// RFC 5424 §6: header, no structured data, message.
	head := fmt.Sprintf("<%d>1 %s %s lmosd %d %s - ", facilityAudit*8+severity, l.Time.Format("2006-01-02T15:04:05.000Z07:00"), f.host, os.Getpid(), id)
	return append([]byte(head), line...)
}

// frame returns a message as a connection carries it.
func (f *forwarder) frame(c net.Conn, msg []byte) []byte {
	switch c.RemoteAddr().Network() {
	case "tcp", "tcp4", "tcp6": // RFC 6587 §3.4.1
		if f.Syslog {
			return append(strconv.AppendInt(nil, int64(len(msg)), 10), append([]byte(" "), msg...)...)
		}
	case "unix":
		if f.Syslog {
			return append(msg, '\n') // RFC 6587 §3.4.2
		}
	}
	return msg
}

// start sends the queue until the returned function is called, which gives the rest 2 s.
func (f *forwarder) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx, ended)
	}()
	return func() {
		close(ended)
		timer := time.AfterFunc(forwardFinish, cancel)
		<-done
		timer.Stop()
		cancel()
		f.report()
	}
}

// run connects and sends until ctx ends, or ended is closed and the queue is empty or the target unreachable.
func (f *forwarder) run(ctx context.Context, ended <-chan struct{}) {
	wait := backoff.Backoff{First: retryFirst, Max: retryMax, Jitter: 0.2}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	failing := false
	for ctx.Err() == nil {
		c, err := f.dial(dialing)
		if err == nil {
			if failing {
				f.log.Info("audit receiver connected again", "address", f.Address)
			}
			failing = false
			wait.Reset()
			err = f.serve(ctx, c, ended)
			if err == nil {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		if !failing {
			f.log.Warn("audit receiver failed; lines wait for it", "address", f.Address, "err", err)
		}
		failing = true
		pause := time.NewTimer(wait.Next())
		select {
		case <-pause.C:
		case <-ended:
			pause.Stop()
			f.lose(uint64(len(f.queue)))
			return
		}
	}
}

// serve sends the queue over a connection until it fails. It returns nil after ended, with an empty queue, or after ctx.
func (f *forwarder) serve(ctx context.Context, c net.Conn, ended <-chan struct{}) error {
	closed := make(chan struct{})
	go func() { // finds the end of a connection on which the receiver sends nothing
		defer close(closed)
		_, _ = io.Copy(io.Discard, c) // ends with the connection
	}()
	defer func() {
		_ = c.Close() // sent, or failed
		<-closed
	}()
	unblock := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer unblock()
	gone := closed
	if n := c.RemoteAddr().Network(); n == "udp" || n == "unixgram" {
		gone = nil // datagrams have no end; an error of a read is that of an earlier datagram
	}
	f.report()
	report := time.NewTicker(time.Minute)
	defer report.Stop()
	for {
		select {
		case msg := <-f.queue:
			if err := f.sendOne(c, msg); err != nil {
				f.lose(1)
				return err
			}
			continue
		default:
		}
		select {
		case msg := <-f.queue:
			if err := f.sendOne(c, msg); err != nil {
				f.lose(1)
				return err
			}
		case <-gone:
			return io.ErrUnexpectedEOF
		case <-report.C:
			f.report()
		case <-ended:
			if len(f.queue) == 0 {
				return nil
			}
		case <-ctx.Done():
			f.lose(uint64(len(f.queue)))
			return nil
		}
	}
}

func (f *forwarder) sendOne(c net.Conn, msg []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(forwardWrite)); err != nil {
		return err
	}
	_, err := c.Write(f.frame(c, msg))
	return err
}

// report logs the number of lost lines.
func (f *forwarder) report() {
	f.mu.Lock()
	n := f.lost
	f.lost = 0
	f.mu.Unlock()
	if n > 0 {
		f.log.Warn("audit lines not forwarded", "address", f.Address, "lines", n)
	}
}
