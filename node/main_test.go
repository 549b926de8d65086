package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

// tool returns the TD of an agent without a server; its only action takes and returns a string. An empty id is omitted.
func tool(title, id string) []byte { return toolAt(title, id, "http://127.0.0.1:1") }

// toolAt is the same for an agent at base. Its property "state" can be read and written, "version" only read.
func toolAt(title, id, base string) []byte {
	if id != "" {
		id = fmt.Sprintf(`"id":%q,`, id)
	}
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1",
{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],"@type":"lmos:Tool",%s"title":%q,
"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"lmos:capabilities":[{"id":"urn:example:tool:echo","name":"echo","version":"1.0.0","description":"Says it again."}],
"properties":{"state":{"type":"string","forms":[{"href":"%s/state","op":["readproperty","writeproperty"]}]},
"version":{"type":"string","readOnly":true,"forms":[{"href":"%s/version","op":["readproperty"]}]}},
"actions":{"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"%s/echo","op":["invokeaction"],"contentType":"application/json"}]}}}`, id, title, base, base, base)
}

// signed signs a TD as another node does. Zero values of l mean now, an hour, and a seq of the time.
func signed(t testing.TB, key *keystore.Key, raw []byte, l td.Lease) *td.Signed {
	t.Helper()
	l.Now, l.Lifetime = cmp.Or(l.Now, time.Now()), cmp.Or(l.Lifetime, time.Hour)
	l.Seq = cmp.Or(l.Seq, uint64(l.Now.UnixMilli()))
	thing, err := td.Complete(raw, key.DID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := td.Sign(thing, key, l)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// storeTombstone puts a tombstone into a store of publications.
func storeTombstone(t testing.TB, store ds.Batching, key *keystore.Key, thing string, at time.Time, damage bool) {
	t.Helper()
	s, err := td.SignTombstone(key, thing, td.Lease{Seq: uint64(at.UnixMilli()) + 1, Now: at, Lifetime: 25 * time.Hour}, false)
	if err != nil {
		t.Fatal(err)
	}
	if damage {
		s.Record[len(s.Record)-1] ^= 1
	}
	b, err := json.Marshal(publication.Publication{Thing: thing, Seq: uint64(at.UnixMilli()) + 1, Signed: s, Withdrawn: at})
	if err == nil {
		err = store.Put(t.Context(), ds.NewKey(fmt.Sprintf("%x", td.Key(key.DID(), thing))), b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// quiet are the options of a node in memory that listens on a port of its own.
func quiet() Options {
	return Options{probePause: 1, Network: "test", Profile: "test", Loopback: true, ListenExplicit: true, Listen: []string{"/ip4/127.0.0.1/tcp/0"},
		Policy: anyoneCalls(policy.Rules{})}
}

// anyoneCalls returns rules with which untrusted nodes may call.
func anyoneCalls(r policy.Rules) policy.Rules {
	r.Untrusted = access.UntrustedOpen
	return r
}

// A running node. Its methods are the node's; stop may be called again.
type running struct {
	*Node
	cancel context.CancelFunc
	wait   func() error // until Run has returned
	stop   func() error // cancel, wait, close
}

// start opens and runs a node that ends with the test.
func start(t testing.TB, o Options) *running {
	t.Helper()
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, n)
}

func run(t testing.TB, n *Node) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	r := &running{Node: n, cancel: cancel, wait: sync.OnceValue(func() error { return <-done })}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(r.wait(), n.Close())
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

// opened returns a node that does not run; it is closed with the test.
func opened(t testing.TB, o Options) *Node {
	t.Helper()
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

// connected runs n nodes, each connected with the one before.
func connected(t testing.TB, n int) []*running {
	t.Helper()
	nodes := make([]*running, n)
	for i := range nodes {
		nodes[i] = start(t, quiet())
		if i > 0 {
			connect(t, nodes[i], nodes[i-1])
		}
	}
	return nodes
}

// meshed waits until a node has another one in the DHT and for gossip: what it announces then has a receiver.
func meshed(t testing.TB, n *running) {
	t.Helper()
	until(t, "the node is meshed", func() bool { return n.mesh.gossip.Peers() > 0 && n.mesh.dht.Size() > 0 })
}

func connect(t testing.TB, from, to *running) {
	t.Helper()
	if err := from.Client().Connect(t.Context(), to.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
}

var until = poll.Until

// knows waits until a node's directory has the Thing.
func knows(t testing.TB, n *running, ref string) {
	t.Helper()
	until(t, "the node knows "+ref, func() bool { return has(n, ref) })
}

// has reports whether a node's directory has the thing; it sends no request.
func has(n *running, ref string) bool {
	for d := range n.view.Known(did.AsProcess(context.Background())) {
		if d.Ref() == ref || d.ID == ref {
			return true
		}
	}
	return false
}

// publish publishes a TD.
func publish(t testing.TB, n *running, raw []byte) string {
	t.Helper()
	p, err := n.Client().Publish(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	return p.Ref
}

// ask calls the action of a tool.
func ask(t testing.TB, n *running, ref string) error {
	t.Helper()
	_, _, err := n.Client().Call(t.Context(), ref, "echo", interact.JSON, []byte(`"x"`))
	return err
}

// codeOf returns the code of an error, 0 of none.
func codeOf(err error) interact.Code {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*interact.Error](err); ok {
		return e.Code
	}
	return interact.Internal
}

// wantCode checks the code of an error, and that it has a hint.
func wantCode(t testing.TB, err error, want interact.Code) *interact.Error {
	t.Helper()
	e, ok := errors.AsType[*interact.Error](err)
	if !ok || e.Code != want {
		t.Fatalf("got %v (%v), want %v", codeOf(err), err, want)
	}
	if e.Hint == "" && e.Next == nil {
		t.Errorf("%v has no hint", err)
	}
	return e
}

// A journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer // owned by mu
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) has(s string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return bytes.Contains(j.text.Bytes(), []byte(s))
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
