package tdd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/internal/pipenet"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/publication"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) {
	tdtest.WarmUp()
	testmain.Run(m)
}

func sign(k *keystore.Key, raw []byte, seq uint64) (*td.Signed, error) {
	t, err := td.Complete(raw, k.DID())
	if err != nil {
		return nil, err
	}
	return td.Sign(t, k, td.Lease{Seq: seq, Now: time.Now(), Lifetime: time.Hour, Hosts: []td.Host{{Node: k.DID()}}})
}

// lamp returns a TD with further members.
func lamp(id, title string, members ...string) string {
	first := ""
	if id != "" {
		first = `"id":"` + id + `",`
	}
	return `{"@context":"https://www.w3.org/2022/wot/td/v1.1",` + first + `"title":"` + title + `",` +
		`"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],` +
		`"properties":{"on":{"type":"boolean","forms":[{"href":"http://127.0.0.1:9/on"}]}}` + strings.Join(append([]string{""},
		members...), ",") + `}`
}

// A testPublisher signs TDs and stores registrations, as a node does.
type testPublisher struct {
	dir  *directory.Directory
	key  *keystore.Key
	mu   sync.Mutex
	seq  uint64
	regs map[string]publication.Registration // by thing; owned by mu
}

func (s *testPublisher) Registered(r *td.Record) (publication.Registration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reg, ok := s.regs[r.Thing]
	return reg, ok && r.Owner == s.key.DID()
}

func (s *testPublisher) Enter(ctx context.Context, raw []byte, reg publication.Registration) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	signed, err := sign(s.key, raw, s.seq)
	if err != nil {
		return "", false, err
	}
	d, err := signed.Verify(ctx, td.NewVerifier(did.Keys()), time.Now())
	if err != nil {
		return "", false, err
	}
	was, known := s.regs[d.ID]
	s.regs[d.ID] = reg.At(time.Now(), was)
	_, err = s.dir.Add(d)
	return d.ID, !known, err
}

func (s *testPublisher) Register(_ context.Context, id string, reg publication.Registration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.regs[id] = reg.Renewed(time.Now(), s.regs[id])
	return nil
}

func (s *testPublisher) Withdraw(ctx context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	delete(s.regs, id)
	signed, err := td.SignTombstone(s.key, id, td.Lease{Seq: s.seq, Now: time.Now(), Lifetime: 25 * time.Hour}, false)
	if err != nil {
		return err
	}
	d, err := signed.Verify(ctx, td.NewVerifier(did.Keys()), time.Now())
	if err == nil {
		_, err = s.dir.Add(d)
	}
	return err
}

// A fixture is a directory with a server.
type fixture struct {
	*Server
	t         testing.TB
	publisher *testPublisher
	next      uint64 // of other owners
}

// newFixture returns a directory with some lamps; prepare changes the options.
func newFixture(t testing.TB, prepare ...func(*Options)) *fixture {
	t.Helper()
	k := didtest.Key(7)
	dir, err := directory.New(directory.Options{Self: k.DID(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, publisher: &testPublisher{dir: dir, key: k, regs: map[string]publication.Registration{}}}
	o := Options{Things: Index{dir, k.DID()}, Publisher: w.publisher, Describe: func() []byte { return []byte(`{"title":"self"}`) }}
	for _, p := range prepare {
		p(&o)
	}
	w.Server = New(o)
	t.Cleanup(func() {
		w.Drain()
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// add publishes a lamp of this node.
func (w *fixture) add(id, title string, members ...string) {
	w.t.Helper()
	if _, _, err := w.publisher.Enter(w.t.Context(), []byte(lamp(id, title, members...)), publication.Registration{}); err != nil {
		w.t.Fatal(err)
	}
}

// addForeign adds a lamp of another owner.
func (w *fixture) addForeign(id, title string, members ...string) {
	w.t.Helper()
	k := didtest.Key(9)
	w.next++
	signed, err := sign(k, []byte(lamp(id, title, members...)), w.next)
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := signed.Verify(w.t.Context(), td.NewVerifier(did.Keys()), time.Now())
	if err == nil {
		_, err = w.publisher.dir.Add(d)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// An exchange is a request with its expected response.
type exchange struct {
	rule    string // the tested assertions
	method  string // GET if empty
	path    string
	header  map[string]string
	body    string
	status  int               // 0: 200
	want    map[string]string // headers of the response; "" means absent
	contain []string          // in the body
	lack    []string          // not in the body
}

var (
	asTD    = map[string]string{"Content-Type": typeTD}
	asPatch = map[string]string{"Content-Type": typePatch}
)

// do sends x, and checks the rules of all responses: errors are problem documents, HEAD has no body.
func (w *fixture) do(t *testing.T, x exchange) *httptest.ResponseRecorder {
	t.Helper()
	if x.method == "" {
		x.method = http.MethodGet
	}
	if x.status == 0 {
		x.status = http.StatusOK
	}
	r := httptest.NewRequestWithContext(t.Context(), x.method, x.path, strings.NewReader(x.body))
	for name, value := range x.header {
		r.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	body := rec.Body.String()
	name := strings.TrimSpace(x.rule + " " + x.method + " " + x.path)
	if x.status > 0 && rec.Code != x.status {
		t.Errorf("%s: status %d, want %d: %.400s", name, rec.Code, x.status, body)
	}
	for header, want := range x.want {
		if got := rec.Header().Get(header); got != want {
			t.Errorf("%s: %s: %q, want %q", name, header, got, want)
		}
	}
	for _, part := range x.contain {
		if !strings.Contains(body, part) {
			t.Errorf("%s: %.600s\nwant %s in it", name, body, part)
		}
	}
	for _, part := range x.lack {
		if strings.Contains(body, part) {
			t.Errorf("%s: %.600s\nhas %s", name, body, part)
		}
	}
	if rec.Code >= 400 && x.method != http.MethodHead {
		checkProblem(t, name, rec)
	}
	return rec
}

// checkProblem: tdd-http-error-response, tdd-http-error-response-utf-8, tdd-validation-response-utf-8.
func checkProblem(t *testing.T, name string, rec *httptest.ResponseRecorder) {
	t.Helper()
	var p struct {
		Type, Title string
		Status      int
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Status != rec.Code || p.Type == "" || p.Title == "" ||
		!utf8.Valid(rec.Body.Bytes()) {
		t.Errorf("%s: no problem document: %v %s", name, err, rec.Body)
	}
	if got := rec.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("%s: content type %q of a problem", name, got)
	}
}

// run runs exchanges in order.
func (w *fixture) run(t *testing.T, all []exchange) {
	t.Helper()
	for _, x := range all {
		w.do(t, x)
	}
}

func merged(a map[string]string, more ...string) map[string]string {
	out := maps.Clone(a)
	for i := 0; i+1 < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// things decodes an array of TDs.
func things(t *testing.T, body []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatalf("%v in %.300s", err, body)
	}
	return all
}

func idsOf(all []map[string]any) string {
	var ids []string
	for _, one := range all {
		ids = append(ids, fmt.Sprint(one["id"]))
	}
	return strings.Join(ids, " ")
}

// client serves w over in-memory connections; end closes both.
func (w *fixture) client() (c *http.Client, end func()) {
	p := pipenet.Listen()
	server := &http.Server{Handler: w}
	var g sync.WaitGroup
	g.Go(func() { _ = server.Serve(p) })
	transport := &http.Transport{DialContext: p.Dial}
	return &http.Client{Transport: transport}, func() {
		w.Drain()
		transport.CloseIdleConnections()
		if err := server.Close(); err != nil {
			w.t.Error(err)
		}
		g.Wait()
	}
}

func body(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
