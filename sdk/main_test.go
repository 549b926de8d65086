package sdk

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/node"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// timeout limits each wait of a test.
const timeout = 30 * time.Second

// A host is a node with an API on loopback.
type host struct {
	*node.Node
	api, token, dir string
	client          *api.Client
	stop            func()
}

// newHost starts a node with its data in dir; empty means a new folder. It ends with the test, or before.
func newHost(t *testing.T, dir string, change ...func(o *node.Options)) *host {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("LMOSD_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	o := node.Options{Name: "host", Network: fmt.Sprintf("sdk-%d", time.Now().UnixNano()%1e9), Profile: "test",
		Loopback: true, Dir: dir, Engine: node.EngineMemory, Direct: servient.DirectOff,
		Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true,
		HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, Socket: filepath.Join(dir, "lmosd.sock")}, Log: log}
	for _, f := range change {
		f(&o)
	}
	n, err := node.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	h := &host{Node: n, api: n.API(), dir: dir, client: n.Client()}
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.stop)
	raw, err := os.ReadFile(filepath.Join(dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	h.token = strings.TrimSpace(string(raw))
	return h
}

// env is the environment of a program that uses the node at the address api.
func (h *host) env(api string) []string {
	return []string{"LMOSD_NODE=" + api, "LMOSD_TOKEN=" + h.token}
}

// until calls try until it succeeds.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// A wire is a proxy in front of a node. A test can close its connections.
type wire struct {
	listener net.Listener
	to       atomic.Pointer[string] // host:port; nil refuses connections
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // owned by mu
}

func newWire(t *testing.T, api string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, conns: map[net.Conn]bool{}}
	w.heal(api)
	w.work.Go(w.accept)
	t.Cleanup(func() { l.Close(); w.cut(); w.work.Wait() })
	return w
}

func (w *wire) api() string { return "http://" + w.listener.Addr().String() }

// heal forwards connections to the node at api.
func (w *wire) heal(api string) {
	to := strings.TrimPrefix(api, "http://")
	w.to.Store(&to)
}

// cut closes all connections, and refuses new ones until heal.
func (w *wire) cut() {
	w.to.Store(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
	}
}

func (w *wire) accept() {
	for {
		c, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.work.Go(func() { w.carry(c) })
	}
}

func (w *wire) carry(c net.Conn) {
	defer c.Close()
	to := w.to.Load()
	if to == nil {
		return
	}
	far, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	defer far.Close()
	w.mu.Lock()
	w.conns[c] = true
	w.mu.Unlock()
	if w.to.Load() == nil { // cut in between
		return
	}
	var back sync.WaitGroup
	back.Go(func() { io.Copy(c, far); c.Close() })
	io.Copy(far, c)
	far.Close()
	back.Wait()
	w.mu.Lock()
	delete(w.conns, c)
	w.mu.Unlock()
}
