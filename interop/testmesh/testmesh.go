// Package testmesh starts two connected nodes for tests with programs of other projects, finds these programs, and holds the pages with the results.
package testmesh

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

// A Mesh is two nodes that are connected over loopback, with all listeners: agents are at the first, consumers at the second.
type Mesh struct {
	Host, Consumer *node.Node
	API            string // of the consumer's node
	Client         *api.Client
	MQTT, CoAP     string // listeners of the consumer's node
	Socket         string // the socket for attached agents of the first node
	Token          string // of the first node
	ConsumerToken  string // of the consumer's node
	Dir            string // of the first node
	Stop           func() // ends both
	StopHost       func() // ends the first
}

// Logger returns a logger that discards, unless the variable LMOSD_TEST_LOG is set.
func Logger() *slog.Logger {
	if os.Getenv("LMOSD_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// Start starts the two nodes, with changed options. They end with the test.
func Start(t *testing.T, change ...func(o *node.Options)) *Mesh {
	t.Helper()
	network := fmt.Sprintf("io-%d", time.Now().UnixNano()%1e9)
	var stops []func()
	start := func(name string, bootstrap []string) *node.Node {
		o := node.Options{Name: name, Network: network, Profile: "test", Loopback: true, Dir: t.TempDir(), Engine: node.EngineMemory,
			Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true, Bootstrap: bootstrap, Direct: servient.DirectOff, Policy: policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}},
			HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true}, MQTT: "127.0.0.1:0", CoAP: "127.0.0.1:0", Log: Logger(),
			Drain: 500 * time.Millisecond} // some tests end while a call runs
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
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(stop)
		stops = append(stops, stop)
		return n
	}
	m := &Mesh{Stop: func() { // the host stops after the consumer
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}}
	m.Host = start("host", nil)
	m.StopHost = stops[0]
	m.Consumer = start("consumer", m.Host.Addrs())
	m.Client, m.API, m.Socket = m.Consumer.Client(), m.Consumer.API(), m.Host.API()
	m.MQTT, m.CoAP = m.Consumer.MQTT(), m.Consumer.CoAP()
	m.Dir = m.Host.Status().DataDir
	token := func(n *node.Node) string {
		raw, err := os.ReadFile(n.Status().DataDir + "/api.token")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	m.Token, m.ConsumerToken = token(m.Host), token(m.Consumer)
	return m
}

// Known waits until the consumer's node knows a Thing, and returns its description.
func (m *Mesh) Known(t *testing.T, name string) *td.Description {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; {
		d, err := m.Consumer.Mesh().Get(did.AsProcess(t.Context()), name)
		if err == nil {
			return d
		}
		if time.Now().After(end) {
			t.Fatalf("the consumer's node does not know %s: %v", name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Offer publishes a TD at the host. A nil Thing is called over its forms.
func (m *Mesh) Offer(t *testing.T, raw []byte, thing interact.Thing) {
	t.Helper()
	var err error
	if thing == nil {
		_, err = m.Host.Publish(t.Context(), raw)
	} else {
		raw, err = td.Draft(raw)
		if err == nil {
			_, err = m.Host.Offer(t.Context(), raw, thing)
		}
	}
	if err != nil {
		t.Fatalf("offer: %v\n%s", err, raw)
	}
}

// InProcess returns the mesh of a node for a program in its process.
func InProcess(n *node.Node) interact.Thing {
	return interact.Chain(n.Mesh(), interact.As(did.Consumer(did.Process, "")))
}

// pages is locked while a page is written.
var pages sync.Mutex

// Section compares the section of a page that the test generates with text, or writes it if update is set.
func Section(t *testing.T, page, name string, update bool, text string) {
	t.Helper()
	pages.Lock()
	defer pages.Unlock()
	begin, end := "<!-- "+name+": written by "+t.Name()+" -->\n", "<!-- end of "+name+" -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	was, after, ok2 := strings.Cut(rest, end)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no section for the results of %s", page, t.Name())
	case was == text:
	case !update:
		t.Errorf("%s differs from the results: go test -run '^%s$' -update in the folder of the test\n%s", page, t.Name(), text)
	default:
		if err := os.WriteFile(page, []byte(before+begin+text+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
