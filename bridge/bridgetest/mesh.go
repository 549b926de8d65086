package bridgetest

import (
	"context"
	"iter"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/hub"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/td"
)

// lifetime is the validity of descriptions: longer than a test.
const lifetime = time.Hour

// A Mesh is a [bridge.Mesh] in memory: a directory of signed and verified descriptions, and for each Thing the middleware of its host
// (package node): validation of input and output, tasks, and shared subscriptions. It is safe for concurrent use.
type Mesh struct {
	*directory.Directory // search, ranking and watching
	interact.Thing       // calls, behind the policy

	key      *keystore.Key
	verifier *td.Verifier
	check    bridge.PolicyCheck // the policy alone
	tasks    *task.Runner
	hub      *hub.Hub

	publishing sync.Mutex // serializes publications: the later change wins

	mu     sync.Mutex
	things map[string]interact.Thing // by reference; nil: unreachable
	guards []bridge.TunnelGuard
}

var _ bridge.Mesh = (*Mesh)(nil)

// NewMesh returns an empty mesh, which ends with the test. The policy applies to all messages.
func NewMesh(t testing.TB, policy ...interact.Middleware) *Mesh {
	t.Helper()
	key, err := keystore.New()
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{key: key, verifier: td.NewVerifier(did.Keys()), tasks: task.New(task.Options{}), hub: hub.New(hub.Options{IdleTimeout: -1}),
		things: map[string]interact.Thing{}}
	if m.Directory, err = directory.New(directory.Options{Verifier: m.verifier, Bind: m.bind, Self: key.DID()}); err != nil {
		t.Fatal(err)
	}
	m.Thing = interact.Chain(interact.Router(m.Directory), policy...)
	m.check = policyCheck(policy)
	t.Cleanup(func() {
		m.hub.Close()
		m.tasks.Close()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// policyCheck returns the check of a policy alone.
func policyCheck(policy []interact.Middleware) bridge.PolicyCheck {
	allow := interact.Func(func(context.Context, *interact.Message) iter.Seq2[*interact.Message, error] {
		return func(func(*interact.Message, error) bool) {}
	})
	checked := interact.Chain(allow, policy...)
	return func(ctx context.Context, m *interact.Message) (err error) {
		for _, err = range checked.Do(ctx, m) {
			break
		}
		return err
	}
}

// Guard applies g to the tunnels of Things that are published from now on, as a node does with its bridges.
func (m *Mesh) Guard(g bridge.TunnelGuard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guards = append(m.guards, g)
}

// Publish signs a draft, verifies it, and publishes the Thing, again if the id exists. A nil Thing is known and unreachable.
func (m *Mesh) Publish(t testing.TB, draft []byte, thing interact.Thing) *td.Description {
	t.Helper()
	d, err := m.publish(t.Context(), draft, thing)
	if err != nil {
		t.Fatalf("%v in %s", err, interact.Clip(string(draft), 1<<10))
	}
	return d
}

func (m *Mesh) publish(ctx context.Context, draft []byte, thing interact.Thing) (*td.Description, error) {
	whole, err := td.Draft(draft)
	if err != nil {
		return nil, err
	}
	parsed, err := td.Complete(whole, m.key.DID())
	if err != nil {
		return nil, err
	}
	m.publishing.Lock()
	defer m.publishing.Unlock()
	signed, err := td.Sign(parsed, m.key, m.lease(parsed.ID))
	if err != nil {
		return nil, err
	}
	d, err := signed.Verify(ctx, m.verifier, time.Now())
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.things[d.Ref()] = thing
	m.mu.Unlock()
	_, err = m.Add(d)
	return d, err
}

func (m *Mesh) lease(thing string) td.Lease {
	return td.Lease{Seq: m.Seq(m.key.DID(), thing) + 1, Now: time.Now(), Lifetime: lifetime}
}

// Withdraw removes a Thing with a signed tombstone.
func (m *Mesh) Withdraw(t testing.TB, d *td.Description) {
	t.Helper()
	m.publishing.Lock()
	defer m.publishing.Unlock()
	signed, err := td.SignTombstone(m.key, d.Record.Thing, m.lease(d.Record.Thing), false)
	if err != nil {
		t.Fatal(err)
	}
	tombstone, err := signed.Verify(t.Context(), m.verifier, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Add(tombstone); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.things, d.Ref())
}

// bind applies the middleware of a host to a Thing (node.agent).
func (m *Mesh) bind(d *td.Description) interact.Thing {
	m.mu.Lock()
	defer m.mu.Unlock()
	thing := m.things[d.Ref()]
	if thing == nil {
		return nil
	}
	layers := []interact.Middleware{interact.Checked(d.Thing), m.tasks.Middleware(d.Thing), m.hub.Middleware(), interact.Composed(d.Thing),
		interact.CheckedReplies(d.Thing)}
	for _, g := range m.guards {
		if w := g.Guard(d.Thing, m.check); w != nil {
			layers = append(layers, w)
		}
	}
	return interact.Chain(thing, layers...)
}

// Running returns the number of running actions.
func (m *Mesh) Running() int {
	running, _ := m.tasks.Count()
	return running
}

// Look does nothing: all Things are local, so Presence is accurate.
func (m *Mesh) Look(context.Context, ...*td.Description) {}

// Signer implements [bridge.Mesh].
func (m *Mesh) Signer() did.Signer { return m.key }

// PublicURL implements [bridge.Mesh]: it is empty, so clients use the URL of the request.
func (m *Mesh) PublicURL() string { return "" }

// Serve serves a handler over HTTP until the test ends, and returns the URL of the server.
func Serve(t testing.TB, h bridge.Handler) string {
	mux := http.NewServeMux()
	for _, path := range h.Paths() {
		mux.Handle(path, h)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		h.Close() // ends open requests, for which the server would wait
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}
