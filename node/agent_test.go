package node

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// An httpAgent is an agent that knows nothing of the mesh: it says again what it is told, and remembers its state.
type httpAgent struct {
	url string

	mu    sync.Mutex
	state []byte // owned by mu
}

func newAgent(t testing.TB) *httpAgent {
	t.Helper()
	a := &httpAgent{state: []byte(`"new"`)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		answer(w, body, err)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { answer(w, []byte(`"1"`), nil) })
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		answer(w, a.state, nil)
	})
	mux.HandleFunc("PUT /state", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.state = body
		answer(w, nil, err)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func answer(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the caller went away
}
