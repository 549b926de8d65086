package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// watchedNode returns a node with a weather Thing that changed.
func watchedNode() *fakeNode {
	weather := describe("urn:x:weather", "Weather", owner1)
	n := newFake(weather)
	n.changes = []directory.Change{
		{Seq: 6, Kind: directory.Added, Reason: directory.Published, Thing: weather},
		{Seq: 8, Kind: directory.Changed, Reason: directory.Unreachable, Thing: weather},
		{Seq: 9, Kind: directory.Removed, Reason: directory.Expired, Thing: weather},
		{Seq: 12, Kind: directory.Overflow},
	}
	return n
}

func TestWatchFind(t *testing.T) {
	t.Parallel()
	r := start(t, serving(watchedNode(), Options{}))
	for _, path := range []string{r.url, r.o.Socket} {
		c := dial(t, path, "")
		var events []string
		for change, err := range c.WatchFind(t.Context(), td.Query{Text: "weather", Limit: 3}) {
			if err != nil {
				t.Fatal(err)
			}
			text := change.Change + " " + change.Reason
			if change.Agent != nil {
				text += " " + change.Agent.ID
			}
			if change.Coverage != nil && change.Coverage.Complete() {
				text += " complete"
			}
			if events = append(events, text); change.Change == "overflow" {
				break
			}
		}
		want := "known  urn:x:weather|ready  complete|changed unreachable urn:x:weather|removed expired urn:x:weather|overflow "
		if got := strings.Join(events, "|"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Last-Event-ID resumes after that event.
func TestWatchFindResumes(t *testing.T) {
	t.Parallel()
	r := start(t, serving(watchedNode(), Options{}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/find", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", "7")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var names []string
	for e, err := range problem.Events(resp.Body, 1<<20) {
		var c api.AgentChange
		if err != nil || json.Unmarshal(e.Data, &c) != nil || c.Change != e.Name {
			t.Fatalf("%s: %s, %v", e.Name, e.Data, err)
		}
		if names = append(names, e.ID+" "+e.Name); e.Name == "overflow" {
			break
		}
	}
	if got := strings.Join(names, ", "); got != "8 changed, 9 removed, 12 overflow" {
		t.Errorf("got %s", got)
	}
}

// A client without the number of an event, or with one of another node, gets all known results again.
func TestWatchFindStartsAgain(t *testing.T) {
	t.Parallel()
	r := start(t, serving(watchedNode(), Options{}))
	for _, last := range []string{"", "0", "999", "x"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/find", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Last-Event-ID", last)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		var events []string
		for e, err := range problem.Events(resp.Body, 1<<20) {
			if err != nil {
				t.Fatal(err)
			}
			if events = append(events, e.Name+e.ID); e.Name == "ready" {
				break
			}
		}
		resp.Body.Close()
		if got := strings.Join(events, " "); got != "known ready7" {
			t.Errorf("after %q: got %s", last, got)
		}
	}
}

// The number of streams is limited. When the node ends, streams end with an error event.
func TestWatchFindEnds(t *testing.T) {
	t.Parallel()
	var g *Gateway
	r := start(t, serving(newFake(), Options{}), func(made *Gateway) { g = made })
	c := dial(t, r.url, "")
	g.searchStreams.Store(maxSearchStreams)
	for _, err := range c.WatchFind(t.Context(), td.Query{}) {
		if e := interact.AsError(err); e == nil || e.Code != interact.Overloaded {
			t.Errorf("too many: got %v", err)
		}
	}
	g.searchStreams.Store(0)
	ended := make(chan error, 1)
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for change, err := range c.WatchFind(ctx, td.Query{}) {
			switch {
			case err != nil:
				ended <- err
			case change.Change == "ready":
				close(ready)
			}
		}
	}()
	<-ready
	g.cancelStreams()
	cancel()
	err := <-ended
	if code := interact.AsError(err).Code; !errors.Is(err, context.Canceled) && code != interact.ShuttingDown && code != interact.Cancelled {
		t.Errorf("got %v", err)
	}
}

// A stream whose client loses its rights ends with the reason: those of agents found, and those of the directory.
func TestRevokedWatcher(t *testing.T) {
	t.Parallel()
	store, err := tokens.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	r := start(t, serving(watchedNode(), Options{Tokens: store}))
	header := grant(t, store, "ci", "find")
	own := dial(t, r.url, strings.TrimPrefix(header["Authorization"], "Bearer "))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", header["Authorization"])
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	ends := func(what string, last error) {
		t.Helper()
		if e := interact.AsError(last); e == nil || e.Code != interact.TokenRejected || !strings.Contains(e.Error(), "was revoked") {
			t.Errorf("%s: the stream ends with %v", what, last)
		}
	}
	var last error
	for change, err := range own.WatchFind(t.Context(), td.Query{Text: "weather"}) {
		if last = err; err == nil && change.Change == "overflow" { // the last change of the node
			if err := dial(t, r.o.Socket, "").RevokeToken(t.Context(), "ci"); err != nil {
				t.Fatal(err)
			}
		}
	}
	ends("found agents", last)
	last = nil
	for _, err := range problem.Events(events.Body, 1<<16) {
		last = err
	}
	ends("the directory", last)
}
