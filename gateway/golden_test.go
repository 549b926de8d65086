package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/td"
)

// The contracts of the API are in testdata; go test ./gateway -update rewrites them.
func TestGolden(t *testing.T) {
	t.Parallel()
	r := start(t, serving(goldenNode(), Options{}))
	for name, x := range map[string]exchange{
		"agent-list":            {path: "/v1/find?capability=urn:example:weather"},
		"agent-list-empty":      {path: "/v1/find?id=none"},
		"agent":                 {path: "/v1/agents/urn:x:weather"},
		"status":                {path: "/v1/status"},
		"peers":                 {path: "/v1/peers"},
		"net":                   {path: "/v1/net"},
		"identity":              {path: "/v1/id"},
		"publication":           {method: "POST", path: "/v1/publish", header: tdBody, body: thingTD("urn:x:new", "New")},
		"withdrawn":             {method: "DELETE", path: "/v1/agents/urn:x:old", header: asAdmin},
		"health":                {path: "/healthz"},
		"ready":                 {path: "/readyz?verbose"},
		"problem-not-found":     {path: "/things/weathr"},
		"problem-no-route":      {path: "/nothing"},
		"problem-method":        {method: "POST", path: "/things/urn:x:weather"},
		"problem-token-missing": {method: "POST", path: "/v1/publish"},
		"problem-token-wrong": {method: "POST", path: "/v1/publish",
			header: map[string]string{"Authorization": "Bearer x"}},
		"problem-content-type": {method: "POST", path: "/v1/publish", header: asAdmin, body: "a=b"},
		"problem-td": {method: "PUT", path: "/things/urn:x:1", header: tdBody,
			body: `{"id":"urn:x:1","title":1}`},
		"problem-not-json": {method: "PUT", path: "/things/urn:x:1", header: tdBody, body: "{\n  \"id\": }"},
		"problem-query":    {path: "/v1/find?limit=0"},
		"problem-host":     {path: "/v1/status", header: map[string]string{"Host": "evil.example"}},
		"problem-origin": {method: "POST", path: "/v1/publish",
			header: map[string]string{"Origin": "http://evil.example"}},
		"problem-precondition": {method: "DELETE", path: "/things/urn:x:weather", header: merge(asAdmin, "If-Match",
			`"x"`)},
		"problem-not-ready": {path: "/readyz"},
	} {
		t.Run(name, func(t *testing.T) {
			_, body := r.do(t, x)
			golden(t, name, []byte(body), r.url)
		})
	}
}

// goldenNode has a fixed value in every field, and is not ready.
func goldenNode() *fakeNode {
	weather := describe("urn:x:weather", "Weather", owner1)
	bare := describe("urn:x:bare", "Bare", owner2)
	bare.Actions, bare.Properties, bare.Capabilities, bare.Record.Hosts = nil, nil, nil, nil
	node := newFake(weather, bare, describe("urn:x:old", "Old", owner1))
	node.find = func(_ context.Context, q td.Query) iter.Seq2[*td.Description, error] {
		return func(yield func(*td.Description, error) bool) {
			if q.ID == "none" {
				return
			}
			q.Counter.CountAsked(3)
			q.Counter.CountAnswer()
			q.Counter.CountUnreachable()
			q.Counter.NoteIssued(weather.Record.Issued)
			_ = yield(weather, nil) && yield(bare, nil)
		}
	}
	node.peers = []api.Peer{{DID: owner2, PeerID: "12D3KooWPeer", Addr: "/ip4/192.0.2.1/udp/4667/quic-v1",
		Transport: "quic-v1", Direction: "outbound",
		Agent: "lmosd/0.1.0", RTT: 1.5, Since: 60}}
	node.status = goldenStatus
	node.notReady = errors.New("the store is not open")
	return node
}

func goldenStatus() *api.Status {
	s := &api.Status{State: "degraded", DID: owner1, PeerID: "12D3KooWSelf", Name: "host-1", Version: "0.1.0",
		Uptime: 11520, Profile: "default",
		Network: "lmos", DataDir: "/var/lib/lmosd", Addrs: []string{"/ip4/192.0.2.7/udp/4667/quic-v1/p2p/12D3KooWSelf"}}
	s.Peers.Total, s.Peers.Direct, s.Peers.Relayed = 14, 12, 2
	s.Reachability, s.Relays = api.ReachablePrivate, 2
	s.DHT.Mode, s.DHT.Table = "server", 61
	s.Gossip.Topics, s.Gossip.Peers = 16, 12
	s.Agents.Local, s.Agents.Known = 3, 212
	s.Calls.Total, s.Calls.Errors, s.Calls.P50, s.Calls.P99 = 18200, 4, 2.1, 19
	s.Warnings = []api.Warning{{Code: "LMOS-W031", Title: "clock-skew", Severity: "medium",
		Text: "the clock is 40 s ahead", Hint: "set the clock",
		Since: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}}
	return s
}

// changing lists the members that differ in each run.
var changing = regexp.MustCompile(`"(instance|took_ms|elapsed_ms)":("[^"]*"|[0-9.e-]+)`)

func golden(t *testing.T, name string, body []byte, url string) {
	t.Helper()
	body = changing.ReplaceAll(body, []byte(`"$1":"…"`))
	body = bytes.ReplaceAll(body, []byte(url), []byte("http://127.0.0.1:4668"))
	var got bytes.Buffer
	if err := json.Indent(&got, bytes.TrimSpace(body), "", "  "); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	got.WriteByte('\n')
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got %s\nwant %s", got.Bytes(), want)
	}
}

// The document of the identity is computed from the DID.
func TestIdentityDocument(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	id, err := dial(t, r.url, "").Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := did.ParseDocument(id.Document, owner1)
	if err != nil || doc.ID != owner1 {
		t.Errorf("document %+v, %v", doc, err)
	}
}
