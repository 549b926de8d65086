package rest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/interacttest"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/tdtest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// A recorder is an agent that records its requests and responds with answer.
type recorder struct {
	*httptest.Server
	answer http.HandlerFunc

	mu   sync.Mutex
	seen []seen
}

// A seen is one request as an agent saw it.
type seen struct {
	method, path, query string
	header              http.Header
	body                string
}

func newRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	r := &recorder{answer: answer}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	r.seen = append(r.seen, seen{req.Method, req.URL.EscapedPath(), req.URL.RawQuery, req.Header.Clone(), string(body)})
	r.mu.Unlock()
	req.Body = io.NopCloser(strings.NewReader(string(body)))
	r.answer(w, req)
}

// requests returns the requests so far.
func (r *recorder) requests() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]seen(nil), r.seen...)
}

// last returns the newest request.
func (r *recorder) last(t *testing.T) seen {
	t.Helper()
	all := r.requests()
	if len(all) == 0 {
		t.Fatal("the agent received no request")
	}
	return all[len(all)-1]
}

// responds returns a handler that responds with a JSON text.
func responds(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

var describe = tdtest.Thing

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, o Options) *Client {
	t.Helper()
	c := NewClient(o)
	t.Cleanup(c.Close)
	return c
}

// ask sends one message and returns the last reply, within a time that is long for each test. It checks the message before, as a node
// does.
func ask(t testing.TB, c *Client, thing *td.Thing, m *interact.Message) (*interact.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return interact.Call(ctx, interact.Chain(c.Thing(thing), interact.Checked(thing)), m)
}

var (
	read       = interacttest.Read
	write      = interacttest.Write
	invoke     = interacttest.Invoke
	wantError  = interacttest.WantError
	everything = interacttest.Text
)
