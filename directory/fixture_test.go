package directory

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

// freshKeys is the number of keys of TestFreshKeysAreBounded.
var freshKeys = flag.Int("freshkeys", 5_000, "")

// evictionSeed repeats a run of TestEvictionKeepsValuableThings; 0 is a random seed.
var evictionSeed = flag.Uint64("seed", 0, "")

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

// plain returns an unsigned description of owner n with a title and capabilities.
func plain(t testing.TB, n byte, id, title string, capabilities ...string) *td.Description {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	thing := &td.Thing{ID: id, Title: title, Raw: []byte(`{"id":"` + id + `"}`)}
	for _, c := range capabilities {
		thing.Capabilities = append(thing.Capabilities, td.Capability{ID: c})
	}
	return &td.Description{
		Thing: thing,
		Record: &td.Record{Owner: didtest.Key(int(n)).DID(), Thing: id, Seq: 1, Issued: now, Expires: now.Add(time.Hour),
			Hash: sha256.Sum256(append([]byte(id+title), n)), Title: title, Raw: []byte(id)},
		Signed: &td.Signed{Record: []byte(id), TD: thing.Raw},
	}
}

// openDirectory returns a directory that is closed with the test.
func openDirectory(t testing.TB, o Options) *Directory {
	t.Helper()
	if o.Log == nil {
		o.Log = testLog(t)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// run runs d until the returned function is called, or the test ends.
func run(t testing.TB, d *Directory) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error("Run:", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// filled returns a directory with descriptions received from others.
func filled(t testing.TB, o Options, descs ...*td.Description) *Directory {
	t.Helper()
	d := openDirectory(t, o)
	for _, desc := range descs {
		if _, err := d.put(desc, received); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// ids returns the thing ids of descriptions, in order.
func ids(seq iter.Seq[*td.Description]) string {
	var all []string
	for desc := range seq {
		all = append(all, desc.Record.Thing)
	}
	return strings.Join(all, " ")
}

// wantCode checks the code of an error, and that it has a hint or a next step.
func wantCode(t *testing.T, err error, code interact.Code, parts ...string) {
	t.Helper()
	e := interact.AsError(err)
	if e == nil || e.Code != code {
		t.Fatalf("got error %v, want %v", err, code)
	}
	if e.Hint == "" && e.Next == nil {
		t.Errorf("error %q has no hint", err)
	}
	for _, p := range parts {
		if text := fmt.Sprintln(e, e.Hint, e.Next); !strings.Contains(text, p) {
			t.Errorf("error %q: want %q in it", text, p)
		}
	}
}

// An agent is a signed thing as an owner publishes it.
type agent struct {
	key   *keystore.Key
	id    string
	title string
	caps  []string
	hosts []td.Host
}

// json returns the TD of a.
func (a agent) json() []byte {
	type capability struct {
		ID string `json:"id"`
	}
	caps := []capability{}
	for _, c := range a.caps {
		caps = append(caps, capability{c})
	}
	raw, err := json.Marshal(map[string]any{
		"@context":            []any{td.Context11, map[string]string{"lmos": td.ContextLMOS}},
		"@type":               []string{"lmos:Agent"},
		"id":                  a.id,
		"title":               a.title,
		"security":            []string{"nosec"},
		"securityDefinitions": map[string]any{"nosec": map[string]string{"scheme": "nosec"}},
		"lmos:capabilities":   caps,
		"actions": map[string]any{"ask": map[string]any{
			"forms": []any{map[string]string{"href": "http://127.0.0.1:1/ask"}},
		}},
	})
	if err != nil {
		panic(err)
	}
	return raw
}

// signed signs a with a seq, for an hour.
func (a agent) signed(t testing.TB, seq uint64) *td.Signed {
	t.Helper()
	s, err := a.sign(seq)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (a agent) sign(seq uint64) (*td.Signed, error) {
	thing, err := td.Complete(a.json(), a.key.DID())
	if err != nil {
		return nil, err
	}
	return td.Sign(thing, a.key, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour, Hosts: a.hosts})
}

// bare returns s without its TD, like a refresh.
func bare(t testing.TB, s *td.Signed) *td.Signed {
	t.Helper()
	b, err := s.WithoutTD()
	if err != nil {
		t.Fatal(err)
	}
	return &td.Signed{Record: b.Record}
}

// described verifies s.
func described(t testing.TB, s *td.Signed) *td.Description {
	t.Helper()
	desc, err := s.Verify(t.Context(), td.NewVerifier(did.Keys()), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

// tombstone returns the tombstone of a.
func (a agent) tombstone(t testing.TB, seq uint64) *td.Signed {
	t.Helper()
	s, err := td.SignTombstone(a.key, a.id, td.Lease{Seq: seq, Now: time.Now(), Lifetime: 48 * time.Hour}, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// weather returns an agent of owner n.
func weather(t testing.TB, n byte) agent {
	t.Helper()
	return agent{key: didtest.Key(int(n)), id: "urn:example:weather", title: "Weather Agent",
		caps: []string{"urn:example:weather:forecast"}}
}

// numbered returns the ith agent of owner n.
func numbered(t testing.TB, n byte, i int) agent {
	t.Helper()
	return agent{key: didtest.Key(int(n)), id: fmt.Sprintf("urn:example:agent-%03d", i), title: fmt.Sprintf("Agent %03d", i),
		caps: []string{"urn:example:many:things"}}
}

// sleep reports whether ctx has not ended in the meantime.
func sleep(ctx context.Context, long time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(long):
		return true
	}
}

// noProbe is an Options.Probe that reaches all nodes.
func noProbe(context.Context, did.DID) error { return nil }
