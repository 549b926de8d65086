package interop

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

	"go.uber.org/goleak"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A mesh is two nodes that are connected over loopback, with all listeners: agents are at the first, consumers at the second.
type mesh struct {
	host, consumer *node.Node
	api            string // of the consumer's node
	client         *api.Client
	mqtt, coap     string // listeners of the consumer's node
	wsHost         string // the socket for attached agents of the first node
	token          string // of the first node
	dir            string // of the first node
	stop           func() // ends both
	stopHost       func() // ends the first
}

func logger() *slog.Logger {
	if os.Getenv("LMOSD_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// newMesh starts the two nodes, with changed options. They end with the test.
func newMesh(t *testing.T, change ...func(o *node.Options)) *mesh {
	t.Helper()
	network := fmt.Sprintf("io-%d", time.Now().UnixNano()%1e9)
	var stops []func()
	start := func(name string, bootstrap []string) *node.Node {
		o := node.Options{Name: name, Network: network, Profile: "test", Loopback: true, Dir: t.TempDir(), Engine: node.EngineMemory,
			Listen: []string{"/ip4/127.0.0.1/tcp/0"}, ListenExplicit: true, Bootstrap: bootstrap, Direct: servient.DirectOff,
			HTTP: &node.HTTP{Listen: "127.0.0.1:0", Explicit: true}, MQTT: "127.0.0.1:0", CoAP: "127.0.0.1:0", Log: logger()}
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
	m := &mesh{stop: func() { // the host stops after the consumer
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}}
	m.host = start("host", nil)
	m.stopHost = stops[0]
	m.consumer = start("consumer", m.host.Addrs())
	m.client, m.api, m.wsHost = m.consumer.Client(), m.consumer.API(), m.host.API()
	m.mqtt, m.coap = m.consumer.MQTT(), m.consumer.CoAP()
	m.dir = m.host.Status().DataDir
	raw, err := os.ReadFile(m.dir + "/api.token")
	if err != nil {
		t.Fatal(err)
	}
	m.token = strings.TrimSpace(string(raw))
	return m
}

// known waits until the consumer's node knows a Thing, and returns its description.
func (m *mesh) known(t *testing.T, name string) *td.Description {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; {
		d, err := m.consumer.Mesh().Get(t.Context(), name)
		if err == nil {
			return d
		}
		if time.Now().After(end) {
			t.Fatalf("the consumer's node does not know %s: %v", name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// offer publishes a TD at the host. A nil Thing is called over its forms.
func (m *mesh) offer(t *testing.T, raw []byte, thing interact.Thing) {
	t.Helper()
	var err error
	if thing == nil {
		_, err = m.host.Publish(t.Context(), raw)
	} else {
		raw, err = td.Draft(raw)
		if err == nil {
			_, err = m.host.Offer(t.Context(), raw, thing)
		}
	}
	if err != nil {
		t.Fatalf("offer: %v\n%s", err, raw)
	}
}
