package bindingtest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

func TestMain(m *testing.M) {
	scheme.All = append(scheme.All, scheme.Scheme{Name: "toy+tcp", Protocol: "toy", Port: "7777", Network: "tcp"})
	testmain.Run(m)
}

// A toy is the client of a small binding: toy+tcp://host:port/operation/name. A request is a line of JSON on a connection of its own;
// each reply is a line, and the end of the connection is the end of the interaction. It has at most one fault.
type toy struct {
	fault    string
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	limit    int
	consumer form.Consumer
	done     <-chan struct{} // closed at the end of the test
}

// A line is a request or a reply.
type line struct {
	Op     string          `json:"op,omitempty"`
	Name   string          `json:"name,omitempty"`
	Hops   uint8           `json:"hops,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
	Type   interact.Type   `json:"type,omitempty"`
	Status interact.Status `json:"status,omitempty"`
	Error  string          `json:"error,omitempty"`
}

func newToy(fault string, done <-chan struct{}, o Options) *toy {
	c := &toy{fault: fault, done: done, dial: o.Dial, limit: cmp.Or(o.Limit, 1<<20)}
	c.consumer = form.Consumer{Transport: c, GatherUpTo: c.limit, Security: form.Security{Protocol: "toy", Schemes: []string{"basic"},
		Credentials: o.Credentials, Log: slog.New(slog.DiscardHandler), Add: (*form.Secrets).AddLogin}}
	return c
}

func (c *toy) Thing(t *td.Thing) interact.Thing { return c.consumer.Thing(t) }

func (c *toy) Close() {}

func isToy(f *td.Form) bool { return scheme.Lookup(f.Scheme()).Protocol == "toy" }

// Fits implements [form.Transport].
func (c *toy) Fits(f *td.Form, _ string) bool { return isToy(f) || c.fault == "uses any form" }

// Prepare implements [form.Transport].
func (c *toy) Prepare(r *form.Request) (form.Exchange, error) {
	u, err := form.Expand(r.Form.Href, r.Vars)
	if err != nil {
		return nil, err
	}
	if c.fault == "dials too early" {
		if conn, err := c.dial(context.Background(), "tcp", u.Host); err == nil {
			conn.Close()
		}
	}
	return func(ctx context.Context, yield func(*interact.Message) bool) error {
		return c.send(ctx, r, u.Host, yield)
	}, r.Convert()
}

func (c *toy) send(ctx context.Context, r *form.Request, host string, yield func(*interact.Message) bool) error {
	if c.fault == "ignores the end" {
		ctx = context.WithoutCancel(ctx)
	}
	conn, err := c.dial(ctx, "tcp", host)
	if err != nil {
		return form.Unreachable(r.What(), r.Form.Href, form.Reason(err, false))
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if c.fault == "leaks" {
		go func() { <-c.done }()
	}
	m := r.Message
	if err := json.NewEncoder(conn).Encode(line{Op: m.Type.Op(), Name: m.Name, Hops: m.Hops + 1, Data: r.Body}); err != nil {
		return c.lost(ctx, r, err)
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, c.limit)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return form.Broken(r.What(), "it is not JSON")
		}
		if l.Error != "" {
			return &interact.Error{Code: interact.AgentFailed, Remote: c.fault != "hides the origin", Title: r.What() + ": " + l.Error, Hint: "see the agent's log"}
		}
		reply := m.Reply(l.Type, r.Form.ResponseType, l.Data)
		if reply.Status = l.Status; !yield(reply) {
			return form.ErrLeft
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) && c.fault != "cuts" {
		return interact.Errorf(interact.TooLarge, "ask for less", "the reply of %s is larger than %d bytes", r.What(), c.limit)
	}
	return c.lost(ctx, r, in.Err())
}

// lost is the error of a connection that broke; nil if it ended.
func (c *toy) lost(ctx context.Context, r *form.Request, err error) error {
	e := form.Ended(ctx, r.What(), r.Form.Href)
	switch {
	case e == nil && err == nil:
		return nil
	case e == nil:
		e = form.Unreachable(r.What(), r.Form.Href, form.Reason(err, false))
	}
	e.Started = true
	return e
}

// serveToy serves an agent over the protocol of the toy.
func serveToy(t testing.TB, a *Agent, fault string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { serveConn(ctx, conn, a, fault) })
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); work.Wait() })
	return l.Addr().String()
}

func serveConn(ctx context.Context, conn net.Conn, a *Agent, fault string) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer cancel()
	var l line
	if json.NewDecoder(conn).Decode(&l) != nil {
		return
	}
	if fault != "holds no gate" {
		defer a.Gate.Hold()()
	}
	go func() { // the consumer sends nothing more: the end of the connection is that of the interaction
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	}()
	m := &interact.Message{Type: interact.TypeOf(l.Op), Name: l.Name, Hops: l.Hops, Data: l.Data}
	out := json.NewEncoder(conn)
	for r, err := range a.Do(ctx, m) {
		l := line{}
		if err != nil {
			l.Error = err.Error()
		} else {
			l.Type, l.Status, l.Data = r.Type, r.Status, r.Data
		}
		if out.Encode(l) != nil {
			return
		}
	}
}

func toyKit(t *testing.T, fault string) *Kit {
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	return &Kit{Supports: func(f *td.Form) bool { return isToy(f) || fault == "uses any form" },
		Client: func(o Options) Client { return newToy(fault, done, o) },
		Serve:  func(t testing.TB, a *Agent) string { return serveToy(t, a, fault) },
		Form: func(address, op, name string) string {
			return fmt.Sprintf(`"href": "toy+tcp://%s/%s/%s"`, address, op, url.PathEscape(name))
		},
		Security: `{"scheme": "basic"}`, Secret: `"username": "me", "password": "s3cret-word"`}
}

// TestToy runs the suite on a binding without a fault.
func TestToy(t *testing.T) { Run(t, *toyKit(t, "")) }

// A recorder records failures of a test without failing it.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprintln(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// failuresOf runs a rule and returns its failures.
func failuresOf(t *testing.T, r rule, k *Kit, within time.Duration) []string {
	rec := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // which Fatalf ends
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(rec.cleanups) {
				f()
			}
		}()
		r.run(rec, k, within)
	}()
	<-done
	return rec.failures
}

// TestFaults checks that each fault of a binding breaks its rule.
func TestFaults(t *testing.T) {
	for fault, breaks := range map[string]struct{ rule, says string }{
		"uses any form":    {"unknown form", "supports the scheme nope+tcp"},
		"dials too early":  {"credentials", "dialed"},
		"ignores the end":  {"cancel: the interaction", "does not end"},
		"hides the origin": {"errors", "remote"},
		"cuts":             {"large reply", "want LMOS-1413"},
		"leaks":            {"readproperty", "goroutines are left"},
		"holds no gate":    {"gate", "idle before the response"},
	} {
		i := slices.IndexFunc(rules, func(r rule) bool { return strings.HasPrefix(r.name, breaks.rule) })
		if i < 0 {
			t.Fatalf("no rule %q", breaks.rule)
		}
		if says := strings.Join(failuresOf(t, rules[i], toyKit(t, fault), time.Second), "\n"); !strings.Contains(says, breaks.says) {
			t.Errorf("%q: a binding that %s has the failures %q, want %q in them", rules[i].name, fault, says, breaks.says)
		}
	}
}
