package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestChoose(t *testing.T) {
	t.Parallel()
	for has, want := range map[string]string{
		"GRPC 1.0,HTTP+JSON 1.0,JSONRPC 1.0": "HTTP+JSON 1.0", "JSONRPC 0.3,JSONRPC 1.0": "JSONRPC 1.0", "JSONRPC 0.3": "JSONRPC 0.3",
		"HTTP+JSON 0.3,JSONRPC 0.3.0": "JSONRPC 0.3.0", "HTTP+JSON 0.3": "HTTP+JSON 0.3", "GRPC 0.3": "", "GRPC 1.0": "", "https://x/custom 1.0": "", "JSONRPC 2.0": "",
	} {
		c := &card.Card{Name: "x"}
		for _, i := range strings.Split(has, ",") {
			binding, version, _ := strings.Cut(i, " ")
			c.Interfaces = append(c.Interfaces, card.Interface{URL: "https://x", Binding: binding, Version: version})
		}
		got, err := Choose(c)
		if text := strings.TrimSpace(got.Binding + " " + got.Version); text != want || (err != nil) != (want == "") {
			t.Errorf("of %s: %s, %v; want %s", has, text, err, want)
		}
	}
}

// TestFetch fetches cards at their paths, and rejects redirects to other hosts.
func TestFetch(t *testing.T) {
	t.Parallel()
	otherHost := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret") }))
	defer otherHost.Close()
	mux := http.NewServeMux()
	for path, text := range map[string]string{"/a/.well-known/agent-card.json": "new", "/b/.well-known/agent.json": "old", "/c/card.json": "itself"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, text+r.Header.Get("A2A-Version")) })
	}
	for path, to := range map[string]string{"/d/card.json": "/c/card.json", "/e/card.json": "/e/card.json", "/f/card.json": otherHost.URL} {
		mux.Handle(path, http.RedirectHandler(to, http.StatusFound))
	}
	s := httptest.NewServer(mux)
	defer s.Close()
	for path, want := range map[string]string{"/a": "new1.0", "/a/": "new1.0", "/b": "old1.0", "/c/card.json": "itself1.0", "/d/card.json": "itself1.0",
		"/e/card.json": "", "/f/card.json": "", "/g": ""} {
		target, _ := url.Parse(s.URL + path)
		client := Client(target)
		found, err := Fetch(t.Context(), client, target, func(*http.Request) error { return nil }, Found{})
		client.CloseIdleConnections()
		raw := found.Raw
		if string(raw) != want || (err == nil) == (want == "") || err != nil && interact.AsError(err).Code != interact.AgentFailed {
			t.Errorf("%s has %q, %v; want %q", path, raw, err, want)
		}
	}
	// A card must not redirect to a private address.
	target, _ := url.Parse("https://agent.example")
	if _, err := Client(target).Get(s.URL + "/c/card.json"); err == nil || !strings.Contains(err.Error(), "refused to connect") {
		t.Errorf("loopback gives %v", err)
	}
}

// Redirects of a card are limited, stay at its host, and keep TLS.
func TestRedirects(t *testing.T) {
	t.Parallel()
	follow := Client(&url.URL{Scheme: "https", Host: "a.example"}).CheckRedirect
	request := func(verb, at string) *http.Request {
		q, err := http.NewRequestWithContext(t.Context(), verb, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	for _, test := range []struct {
		from, verb, to string
		before         int
		want           bool
	}{
		{"https://a.example/x", "GET", "https://a.example/y", 1, true}, {"http://a.example/x", "GET", "https://a.example/y", 1, true}, {"https://a.example/x", "GET", "https://a.example/y", 3, true},
		{"https://a.example/x", "GET", "https://a.example/y", 4, false}, {"https://a.example/x", "GET", "http://a.example/y", 1, false}, {"https://a.example/x", "GET", "https://b.example/y", 1, false},
		{"https://a.example/x", "GET", "https://a.example:8443/y", 1, false}, {"https://a.example/x", "POST", "https://a.example/y", 1, false},
	} {
		var via []*http.Request
		for range test.before {
			via = append(via, request(test.verb, test.from))
		}
		if got := follow(request(test.verb, test.to), via) == nil; got != test.want {
			t.Errorf("%s %s to %s after %d: %t", test.verb, test.from, test.to, test.before, got)
		}
	}
}

// TestRESTStreams decodes the events of REST servers, and their errors in all forms.
func TestRESTStreams(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"data: {\"message\":{}}\n\n":                                          `{"message":{}}`,
		"id: 1\nevent: error\ndata: {\"code\":-32004,\"message\":\"no\"}\n\n": "-32004",
		"event: error\ndata: {\"error\":{\"code\":404,\"message\":\"none\",\"details\":[{\"reason\":\"TASK_NOT_FOUND\"}]}}\n\n": "-32001",
		"data: {\"error\":{\"code\":500,\"message\":\"x\"}}\n\n":                                                                "-32603",
		"data: hello\n\n": "-32006",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.EscapedPath() != "/x/tasks/a%2Fb:subscribe" || r.Method != http.MethodPost || r.Header.Get("A2A-Version") != "1.0" || r.Header.Get("A2A-Extensions") != "u" {
				t.Errorf("the request is %s %s with %v", r.Method, r.URL, r.Header)
			}
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprint(w, body)
		}))
		target, _ := url.Parse(s.URL)
		client := Client(target)
		agent := New(card.Interface{URL: s.URL + "/x/", Binding: card.REST, Version: "1.0"}, client, nil)
		got := ""
		for raw, err := range agent.Do(t.Context(), &protocol.Operation{Method: protocol.SubscribeToTask, Params: json.RawMessage(`{"id":"a/b"}`),
			Service: map[string]string{"A2A-Extensions": "u", "Cookie": "no"}}) {
			got += string(raw)
			if err != nil {
				got += fmt.Sprint(protocol.AsError(err).Code)
			}
		}
		if got != want {
			t.Errorf("%q gives %s, want %s", body, got, want)
		}
		client.CloseIdleConnections()
		s.Close()
	}
}
