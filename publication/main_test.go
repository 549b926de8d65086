package publication

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dssync "github.com/ipfs/go-datastore/sync"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

// tool returns the TD of an agent at an address without a server; its only action has a string as input and output. An empty id omits it.
func tool(title, id string) []byte {
	if id != "" {
		id = fmt.Sprintf(`"id":%q,`, id)
	}
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1",
{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],"@type":"lmos:Tool",%s"title":%q,
"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"lmos:capabilities":[{"id":"urn:example:tool:echo","name":"echo","version":"1.0.0","description":"Returns its input."}],
"actions":{"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"http://127.0.0.1:1/echo","op":["invokeaction"],"contentType":"application/json"}]}}}`, id, title)
}

// A faultyStore fails with an error, if that is set, and holds each Put until goOn is closed, if that is set.
type faultyStore struct {
	ds.Batching
	mu          sync.Mutex
	err         error         // owned by mu
	began, goOn chan struct{} // owned by mu
}

// fail sets the error of all that follows.
func (f *faultyStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// hold holds the next two Puts. Each sends to began; goOn is for the test to close.
func (f *faultyStore) hold() (began, goOn chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.began, f.goOn = make(chan struct{}, 2), make(chan struct{})
	return f.began, f.goOn
}

func (f *faultyStore) state() (began, goOn chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.began, f.goOn, f.err
}

func (f *faultyStore) Put(ctx context.Context, k ds.Key, b []byte) error {
	began, goOn, err := f.state()
	if goOn != nil {
		select {
		case <-goOn:
		default:
			began <- struct{}{}
			<-goOn
		}
	}
	if err != nil {
		return err
	}
	return f.Batching.Put(ctx, k, b)
}

func (f *faultyStore) Delete(ctx context.Context, k ds.Key) error {
	if _, _, err := f.state(); err != nil {
		return err
	}
	return f.Batching.Delete(ctx, k)
}

func (f *faultyStore) Query(ctx context.Context, q query.Query) (query.Results, error) {
	if _, _, err := f.state(); err != nil {
		return nil, err
	}
	return f.Batching.Query(ctx, q)
}

// A fixture is a publisher between a store and fakes of the directory, gossip and the DHT.
type fixture struct {
	*Publisher
	*Index
	t    testing.TB
	disk *faultyStore
	dir  *fakeDirectory
	sent *fakeGossip
	log  *bytes.Buffer // synchronized by the logger; read when nothing runs
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return fixtureOver(t, didtest.NewKey(), dssync.MutexWrap(ds.NewMapDatastore()))
}

// fixtureOver is a fixture of a node that starts with what the store has; the test loads it.
func fixtureOver(t testing.TB, key *keystore.Key, store ds.Batching) *fixture {
	t.Helper()
	f := &fixture{t: t, disk: &faultyStore{Batching: store}, Index: NewIndex(key.DID(), nil), sent: &fakeGossip{}, log: new(bytes.Buffer)}
	f.dir = &fakeDirectory{fixture: f, seq: func(string) uint64 { return 0 }}
	life, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() { end(); work.Wait() })
	f.Publisher = New(Options{Signer: key, Verifier: td.NewVerifier(nil), Index: f.Index, Store: f.disk, Disk: fakeDisk{}, Lifetime: time.Hour,
		Hosts: func() []td.Host { return []td.Host{{Node: key.DID(), Addrs: []string{"/ip4/192.0.2.1/tcp/4667"}}} },
		Bind: func(_ *td.Description, handler interact.Thing, _ interact.Middleware) interact.Thing {
			return boundAgent{handler}
		},
		Directory: f.dir, Gossip: f.sent, DHT: fakeDHT{},
		Go:  func(run func(context.Context)) bool { work.Go(func() { run(life) }); return true },
		Log: slog.New(slog.NewTextHandler(f.log, nil))})
	return f
}

// publish publishes a tool and does not announce it.
func (f *fixture) publish(title, id string) *Publication {
	f.t.Helper()
	res, err := f.Publisher.publish(f.t.Context(), tool(title, id), nil, Registration{})
	if err != nil {
		f.t.Fatal(err)
	}
	return res.Publication
}

// withdraw withdraws a Thing and does not announce that.
func (f *fixture) withdraw(thing string) *Publication {
	f.t.Helper()
	p, err := f.end(f.t.Context(), thing, 0, "")
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// restart returns the fixture of the next process at the time now.
func (f *fixture) restart(now time.Time) *fixture {
	f.t.Helper()
	next := fixtureOver(f.t, f.o.Signer.(*keystore.Key), f.disk.Batching)
	if err := next.load(f.t.Context(), now); err != nil {
		f.t.Fatal(err)
	}
	return next
}

// boundAgent is the agent that a description is bound to.
type boundAgent struct{ interact.Thing }

// echo is an agent that answers every action with its input.
var echo = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
	r := m.Reply(interact.ActionStatus, interact.JSON, m.Data)
	r.Status = interact.StatusCompleted
	return r, nil
})

type fakeDisk struct{}

func (fakeDisk) Room() error { return nil }

func (fakeDisk) Failed(err error) error {
	code := interact.StoreCorrupt
	if storage.Full(err) {
		code = interact.DiskFull
	}
	return &interact.Error{Code: code, Title: "the store /data/store failed", Hint: "repair /data/store", Err: err}
}

// A fakeDirectory accepts every description, unless deny returns an error.
type fakeDirectory struct {
	fixture *fixture
	seq     func(thing string) uint64
	mu      sync.Mutex
	deny    func() error       // nil denies nothing; owned by mu
	added   []*td.Description  // owned by mu
	onAdd   func(thing string) // or nil; set before the first Add
	now     time.Time          // as onAdd; zero: records do not expire
}

// Add checks that a record is stored before it is announced.
func (f *fakeDirectory) Add(d *td.Description) (bool, error) {
	b, err := f.fixture.disk.Get(context.Background(), storeKey(d.Record.Signer(), d.Record.Thing))
	if p := f.fixture.Get(d.Record.Thing); p == nil || p.handler == nil {
		var stored struct{ Seq uint64 }
		if err = errors.Join(err, json.Unmarshal(b, &stored)); err != nil || stored.Seq != d.Record.Seq {
			f.fixture.t.Errorf("seq %d of %s was announced when the store had seq %d (%v)", d.Record.Seq, d.Record.Thing, stored.Seq, err)
		}
	}
	if f.onAdd != nil {
		f.onAdd(d.Record.Thing)
	}
	f.mu.Lock()
	f.added = append(f.added, d)
	deny := f.deny
	f.mu.Unlock()
	if deny != nil {
		return false, deny()
	}
	if !f.now.IsZero() && !f.now.Before(d.Record.Expires) {
		return false, interact.Errorf(interact.Expired, "", "%s has expired", d.Record.Thing)
	}
	return true, nil
}

// denyBy has deny answer for all that follows.
func (f *fakeDirectory) denyBy(deny func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deny = deny
}

// has reports whether a Thing was added.
func (f *fakeDirectory) has(thing string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.added, func(d *td.Description) bool { return d.Record.Thing == thing })
}

func (f *fakeDirectory) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.added)
}

// Get resolves the references of the Things of the fixture.
func (f *fakeDirectory) Get(_ context.Context, ref string) (*td.Description, error) {
	if p := f.fixture.Find(ref); p != nil {
		return p.Description, nil
	}
	return nil, f.fixture.missing(ref)
}

func (f *fakeDirectory) Seq(_ did.DID, thing string) uint64     { return f.seq(thing) }
func (f *fakeDirectory) Len() (local, known int)                { return 0, 0 }
func (f *fakeDirectory) SetAway(*td.Description, did.DID, bool) {}
func (f *fakeDirectory) Answered(*td.Description)               {}

// A fakeGossip has one peer.
type fakeGossip struct {
	mu   sync.Mutex
	sent []*td.Signed // owned by mu
	err  error        // of Announce
}

func (f *fakeGossip) Announce(_ context.Context, s *td.Signed) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, s)
	return 1, f.err
}

func (f *fakeGossip) Peers() int { return 1 }

// A fakeDHT has no other servers.
type fakeDHT struct{}

func (fakeDHT) Publish(context.Context, *td.Signed) (dht.Receipt, error) {
	return dht.Receipt{}, dht.ErrNoPeers
}

func (fakeDHT) Provide(context.Context, *td.Record) (dht.Receipt, error) {
	return dht.Receipt{}, dht.ErrNoPeers
}

func (fakeDHT) Unprovide(did.DID, string) {}

func (fakeDHT) Size() int { return 0 }

// codeOf returns the code of an error, 0 of none.
func codeOf(err error) interact.Code {
	if err == nil {
		return 0
	}
	return interact.AsError(err).Code
}

var wantCode = interacttest.WantError

// SeqAt and Grant know nothing: the tests of Things of other owners have a real directory.
func (*fakeDirectory) SeqAt(did.DID, string, did.DID) uint64        { return 0 }
func (*fakeDirectory) Grant(did.DID, string) (*td.Grant, []did.DID) { return nil, nil }
