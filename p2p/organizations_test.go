package p2p

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/webvh"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// meshService returns the JSON of the services of an organization whose nodes are at addresses.
func meshService(addrs ...string) string {
	list, _ := json.Marshal(addrs)
	return `[{"id":"#td","type":"WotThing","serviceEndpoint":"https://example.com/td"},{"id":"#mesh","type":"LmosMesh","serviceEndpoint":` + string(list) + `}]`
}

// An orgSite is a web server of organizations, by path.
type orgSite struct {
	weblocation.Options
	port  string
	files map[string][]byte
	down  atomic.Bool
}

func newOrgSite(t testing.TB) *orgSite {
	t.Helper()
	s := &orgSite{files: map[string][]byte{}}
	s.Options, s.port = didtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file := s.files[r.URL.Path]
		if file == nil || s.down.Load() {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(file)
	}))
	return s
}

// web serves the document of a did:web with the path name. webvh does so for a did:webvh, and returns its log.
func (s *orgSite) web(name, services string) string {
	id := "did:web:example.com%3A" + s.port + ":" + name
	s.files["/"+name+"/did.json"] = []byte(`{"id":"` + id + `","service":` + services + `}`)
	return id
}

func (s *orgSite) webvh(t testing.TB, name, services string) *webvh.Log {
	t.Helper()
	var list []any
	if err := json.Unmarshal([]byte(services), &list); err != nil {
		t.Fatal(err)
	}
	l, err := webvh.Create("example.com%3A"+s.port+":"+name, didtest.NewKey(), webvh.Update{
		Document: func(id did.DID) map[string]any { return map[string]any{"id": string(id), "service": list} }})
	if err != nil {
		t.Fatal(err)
	}
	s.files["/"+name+"/did.jsonl"] = l.Bytes()
	return l
}

// A node joins through the nodes in the documents of organizations. The node at an address must have the id that the document states.
func TestBootstrapByOrganization(t *testing.T) {
	t.Parallel()
	first, second, other := started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	site := newOrgSite(t)
	impostor := peer.ID(didtest.NewKey().Peer())
	fake := other.Addrs()[0].String() + "/p2p/" + impostor.String()
	h := started(t, Options{})
	b := bootstrapOf(t, h, inMemory(), site.web("acme", meshService("https://example.com", FullAddrs(first)[0], "/ip4/192.0.2.1/tcp/1", fake)),
		string(site.webvh(t, "globex", meshService(FullAddrs(second)[0])).DID()))
	b.documents = documentsOf(site.Options)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	poll.Until(t, "both nodes are connected", func() bool {
		return h.Network().Connectedness(first.ID()) == network.Connected && h.Network().Connectedness(second.ID()) == network.Connected
	})
	if err := h.Connect(t.Context(), peer.AddrInfo{ID: impostor}); err == nil || h.Network().Connectedness(impostor) == network.Connected {
		t.Errorf("a node with another key counts as %s: %v", impostor, err)
	}
	if got := b.Peers(); len(got) != 3 {
		t.Errorf("got the peers %v, want those of the two documents", got)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A document that cannot be fetched, or lists no node, is named in a warning, and its last peers stay.
func TestOrganizationsThatFail(t *testing.T) {
	t.Parallel()
	site := newOrgSite(t)
	good := site.web("acme", meshService("/ip4/192.0.2.1/tcp/1/p2p/"+didtest.NewKey().DID().PeerText()))
	b := bootstrapOf(t, started(t, Options{}), inMemory(), good)
	var log strings.Builder
	b.log, b.documents = slog.New(slog.NewTextHandler(&log, nil)), documentsOf(site.Options)
	if !b.resolveNames(t.Context(), time.Minute) || len(b.Peers()) != 1 {
		t.Fatalf("got %v", b.Peers())
	}
	if site.down.Store(true); b.resolveNames(t.Context(), time.Minute) || len(b.Peers()) != 1 || !strings.Contains(log.String(), "addr="+good) {
		t.Errorf("after a failure: %v, log %s", b.Peers(), log.String())
	}
	site.down.Store(false)
	forged := site.webvh(t, "forged", meshService()).DID()
	site.files["/forged/did.jsonl"] = append(site.files["/forged/did.jsonl"], site.files["/forged/did.jsonl"]...)
	for what, id := range map[string]string{
		"no service":    site.web("bare", "[]"),
		"no node":       site.web("empty", meshService("/ip4/192.0.2.1/tcp/1", "/dnsaddr/example.org", "")),
		"another shape": site.web("shape", `[{"id":"#mesh","type":"LmosMesh","serviceEndpoint":{"uri":"x"}}]`),
		"another id":    strings.Replace(good, ":acme", ":bare", 1) + "x",
		"a forged log":  string(forged),
	} {
		if peers, err := inDocument(t.Context(), b.documents, did.DID(id)); err == nil {
			t.Errorf("%s: got %v", what, peers)
		}
	}
}

func TestMeshPeersAreLimited(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 10 * maxNameAddrs {
		many = append(many, fmt.Sprintf("/ip4/192.0.2.%d/tcp/1/p2p/%s", i%250, didtest.NewKey().DID().PeerText()))
	}
	doc, err := did.ParseDocument([]byte(`{"id":"did:web:example.com","service":`+meshService(many...)+`}`), "did:web:example.com")
	if err != nil {
		t.Fatal(err)
	}
	if got := len(meshPeers(doc)); got != maxNameAddrs {
		t.Errorf("got %d peers, want %d", got, maxNameAddrs)
	}
}

func FuzzMeshPeers(f *testing.F) {
	const id = "did:web:example.com"
	f.Add(meshService("/ip4/192.0.2.1/tcp/1/p2p/" + didtest.Key(1).DID().PeerText()))
	f.Add(`[{"id":"#mesh","type":["LmosMesh","x"],"serviceEndpoint":"/dns/a.example/tcp/443/tls/ws/p2p/` + didtest.Key(2).DID().PeerText() + `"}]`)
	f.Add(`[{"id":"#mesh","type":"LmosMesh","serviceEndpoint":["/p2p/x",{"uri":1},null,["/"]]}]`)
	f.Fuzz(func(t *testing.T, services string) {
		doc, err := did.ParseDocument([]byte(`{"id":"`+id+`","service":`+services+`}`), id)
		if err != nil {
			return
		}
		addrs := 0
		for _, p := range meshPeers(doc) {
			if addrs += max(len(p.Addrs), 1); p.ID.Validate() != nil {
				t.Errorf("a peer without id: %v", p)
			}
		}
		if addrs > maxNameAddrs {
			t.Errorf("%d addresses", addrs)
		}
	})
}

func TestCheckBootstrap(t *testing.T) {
	t.Parallel()
	scid := "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
	for text, want := range map[string]bool{
		"did:web:example.org":                  true,
		"did:web:example.org%3A8443:mesh":      true,
		"did:webvh:" + scid + ":example.org":   true,
		"/dnsaddr/example.org":                 true,
		"did:web:127.0.0.1":                    false,
		"did:web:":                             false,
		"did:webvh:example.org":                false,
		"did:webvh:" + scid + ":10.0.0.1":      false,
		string(didtest.Key(1).DID()):           false,
		"did:":                                 false,
		"example.org":                          false,
		"/ip4/192.0.2.1/tcp/1":                 false,
		"/dnsaddr/example.org/p2p/12D3KooWbad": false,
	} {
		err := CheckBootstrap(text)
		if e, ok := errors.AsType[*interact.Error](err); (err == nil) != want || err != nil && (!ok || e.Code != interact.ConfigInvalid) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if !LeadOutside([]string{"did:web:example.org"}) {
		t.Error("the domain of an organization counts as local")
	}
}

// A node whose bootstrap peers are gone takes the nodes that its organization and its partners list: those that it has stored, and those that the
// domain serves now.
func TestOrganizationsOfANodeAlone(t *testing.T) {
	t.Parallel()
	first, second := started(t, Options{Listen: []string{anyTCP}}), started(t, Options{Listen: []string{anyTCP}})
	site := newOrgSite(t)
	h := started(t, Options{})
	own := site.webvh(t, "acme", meshService(FullAddrs(first)[0], "/ip4/192.0.2.1/tcp/1/p2p/"+h.ID().String()))
	doc, err := own.Document()
	if err != nil {
		t.Fatal(err)
	}
	stored := *doc
	stored.Service = []did.Service{{Type: []string{did.MeshService}, Endpoint: json.RawMessage(`"` + FullAddrs(second)[0] + `"`)}}
	private := &did.Document{ID: "did:web:home-abc.internal"}
	b := bootstrapOf(t, h, inMemory(), "/ip4/127.0.0.1/tcp/9/p2p/"+didtest.NewKey().DID().PeerText())
	b.organizations = func() []*did.Document { return []*did.Document{private, &stored} }
	b.guarded = did.Resolvers(map[string]did.Resolver{"webvh": documentsOf(site.Options), "web": refusing{t}})
	b.askOrganizations(t.Context())
	var ids []peer.ID
	for _, p := range b.Peers()[1:] {
		ids = append(ids, p.ID)
	}
	if len(ids) != 2 || !slices.Contains(ids, first.ID()) || !slices.Contains(ids, second.ID()) {
		t.Errorf("got %v, want %s and %s", ids, first.ID(), second.ID())
	}
	// The true resolver connects to no server on this machine, whatever a partner names.
	if peers, err := inDocument(t.Context(), bootstrapOf(t, h, inMemory()).guarded, did.DID("did:web:localhost%3A"+site.port)); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v, %v", peers, err)
	}
}

// refusing fails the test when a document is fetched.
type refusing struct{ t *testing.T }

func (r refusing) Resolve(_ context.Context, id did.DID) (*did.Document, error) {
	r.t.Errorf("%s was fetched", id)
	return nil, did.ErrNotFound
}

// Documents of organizations are asked for only while bootstrap peers are known and none is connected.
func TestWhenOrganizationsAreAsked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		configured []string
		connected  bool
		asked      bool
	}{
		"all are gone":          {[]string{"/ip4/192.0.2.1/tcp/1/p2p/" + didtest.Key(1).DID().PeerText()}, false, true},
		"a name without answer": {[]string{"did:web:example.org"}, false, true},
		"none was ever known":   {nil, false, false},
		"one peer is connected": {[]string{"did:web:example.org"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := testhost.NewNetwork(t, 0)
				h, other := mesh.Add(), mesh.Add()
				if c.connected {
					mesh.Connect(h, other)
				}
				asked := 0
				b, err := NewBootstrap(BootstrapOptions{Host: h, Configured: c.configured, Store: inMemory(), Log: slog.New(slog.DiscardHandler),
					Organizations: func() []*did.Document { asked++; return nil }})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*aloneFirst+1)
				defer cancel()
				b.runOrganizations(ctx)
				if want := map[bool]int{true: 2}[c.asked]; asked != want { // after one pause, and two more
					t.Errorf("asked %d times, want %d", asked, want)
				}
			})
		})
	}
}
