package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A lan is a local network whose introductions a test makes, and the host of them: a server of TDs, and of the agent that they
// describe.
type lan struct {
	changes chan dnssd.Change
	offered chan uint16
	*httptest.Server

	mu   sync.Mutex
	docs map[string]string // by path; owned by mu
	auth []string          // the Authorization headers that came; owned by mu
}

func newLAN(t *testing.T) *lan {
	l := &lan{changes: make(chan dnssd.Change), offered: make(chan uint16, 1), docs: map[string]string{}}
	l.Server = httptest.NewServer(l)
	t.Cleanup(l.Server.Close)
	return l
}

func (l *lan) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	doc, ok := l.docs[r.URL.Path]
	l.auth = append(l.auth, r.Header.Get("Authorization"))
	l.mu.Unlock()
	switch {
	case r.URL.Path == "/echo":
		w.Header().Set("Content-Type", interact.JSON)
		_, _ = w.Write([]byte(`"again"`))
	case ok:
		w.Header().Set("Content-Type", "application/td+json")
		_, _ = w.Write([]byte(doc))
	default:
		http.NotFound(w, r)
	}
}

func (l *lan) Host() string                  { return "lmosd-1.local" }
func (l *lan) Announce(port uint16, _ bool)  { l.offered <- port }
func (l *lan) Close() error                  { return nil }
func (l *lan) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (l *lan) introduction(name string) dnssd.Introduction {
	here := netip.MustParseAddr("127.0.0.1")
	return dnssd.Introduction{Name: name + "._wot._tcp.local", Instance: name, URL: l.URL + "/" + name, Host: "lamp.local",
		Addrs: []netip.Addr{here}, From: here}
}

func (l *lan) Watch(ctx context.Context) iter.Seq[dnssd.Change] {
	return func(yield func(dnssd.Change) bool) {
		for {
			select {
			case c := <-l.changes:
				if !yield(c) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// serve puts a document at /name; introduce announces it, and gone withdraws the announcement.
func (l *lan) serve(name, doc string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.docs["/"+name] = doc
}

func (l *lan) introduce(name string) { l.changes <- dnssd.Change{Introduction: l.introduction(name)} }
func (l *lan) gone(name string) {
	l.changes <- dnssd.Change{Introduction: l.introduction(name), Gone: true}
}

// on starts a node that is on the network.
func (l *lan) on(t *testing.T, o Options) (*running, *journal) {
	log := new(journal)
	o.Log = log.logger()
	o.introducer = func(dnssd.Options) (introducer, error) { return l, nil }
	o.introducerPause = time.Nanosecond
	return start(t, o), log
}

// member returns a TD with a member set to a value of JSON.
func member(raw []byte, name, value string) string {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(raw, &doc); err != nil {
		panic(err)
	}
	doc[name] = json.RawMessage(value)
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func searched(t testing.TB, n *running, q td.Query) []*td.Description {
	t.Helper()
	var all []*td.Description
	for d, err := range n.view.Find(t.Context(), q) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// explored waits until the node has explored an introduction.
func explored(t testing.TB, log *journal, name string) {
	t.Helper()
	until(t, name+" is explored", func() bool { return log.has(`introduction explored" introduction=` + name + " ") })
}

func TestDiscoveredThing(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	n, log := l.on(t, quiet())
	peer := start(t, quiet())
	connect(t, peer, n)
	l.serve("lamp", string(toolAt("Lamp", "urn:dev:lamp", l.URL)))
	l.introduce("lamp")
	explored(t, log, "lamp")

	all := searched(t, n, td.Query{Text: "lamp"})
	if len(all) != 1 || all[0].ID != "urn:dev:lamp" || all[0].Record.Owner != n.view.Discoveries.Owner() {
		t.Fatalf("found %v", all)
	}
	d := all[0]
	for _, want := range []string{`"lmosd:discovered":"` + l.URL + `/lamp"`, `"rel":"describedby"`, `"href":"` + l.URL + `/lamp"`} {
		if !strings.Contains(string(d.Raw), want) {
			t.Errorf("the TD has no %s: %s", want, d.Raw)
		}
	}
	for _, ref := range []string{"lamp", "urn:dev:lamp", d.Ref()} {
		if got, err := n.Client().Agent(t.Context(), ref); err != nil || got.Agent.ID != d.ID || got.Agent.Local || got.Agent.State != api.StateUnknown {
			t.Errorf("show %s: %+v, %v", ref, got, err)
		}
		if err := ask(t, n, ref); err != nil {
			t.Errorf("call %s: %v", ref, err)
		}
	}

	// It is not announced to other nodes, and they cannot call it through this node.
	ours := publish(t, n, tool("Ours", ""))
	knows(t, peer, ours)
	if local, known := n.mesh.directory.Len(); local != 1 || known != 1 || n.mesh.directory.Signed(d.Record.Key()) != nil ||
		len(n.mesh.index.Hosted(t.Context(), td.Query{})) != 1 || n.mesh.index.Has(d) {
		t.Errorf("it is one of %d things in the directory, %d of them own, or counted as offered", known, local)
	}
	for _, id := range []string{"", d.ID} {
		for _, one := range searched(t, peer, td.Query{ID: id}) {
			if one.Ref() != ours {
				t.Errorf("the peer knows %s", one.Ref())
			}
		}
	}
	_, err := n.mesh.index.Locate(t.Context(), d.Ref())
	wantCode(t, err, interact.NotFound)

	l.gone("lamp")
	until(t, "it is gone", func() bool { return len(searched(t, n, td.Query{Text: "lamp"})) == 0 })
	wantCode(t, ask(t, n, d.Ref()), interact.NotFound)
}

// TestDiscoveredThingsAreWatchedAndListed: in /v1/find, and in a list of their own; nowhere else in the directory.
func TestDiscoveredThingsAreWatchedAndListed(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	o := quiet()
	o.Dir, o.HTTP = t.TempDir(), &HTTP{Listen: "127.0.0.1:0"}
	n, _ := l.on(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, changes := make(chan bool), make(chan api.AgentChange)
	go func() {
		defer close(changes)
		for c, err := range n.Client().WatchFind(ctx, td.Query{Text: "lamp"}) {
			switch {
			case err != nil:
				return
			case c.Change == "ready":
				close(ready)
			default:
				changes <- c
			}
		}
	}()
	<-ready
	l.serve("lamp", string(toolAt("Lamp", "urn:dev:lamp", l.URL)))
	l.introduce("lamp")
	if c := <-changes; c.Change != "added" || c.Reason != "discovered" || c.Agent.ID != "urn:dev:lamp" {
		t.Errorf("got %+v", c)
	}
	titles := func(query string) string {
		resp, err := http.Get(n.API() + "/things?fields=title" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b)) + resp.Header.Get("Link")
	}
	for query, want := range map[string]string{"": "[]", "&scope=local": "[]", "&scope=mesh": "[]", "&scope=discovered": `[{"title":"Lamp"}]`} {
		if got := titles(query); got != want {
			t.Errorf("the list%s is %s, want %s", query, got, want)
		}
	}
	tag := titles("&scope=discovered&limit=1&offset=1")
	l.gone("lamp")
	if c := <-changes; c.Change != "removed" || c.Reason != "vanished" || c.Agent.State != api.StateUnreachable {
		t.Errorf("got %+v", c)
	}
	if again := titles("&scope=discovered&limit=1&offset=1"); !strings.HasPrefix(tag, "[]<") || again == tag {
		t.Errorf("the etag of a page does not follow the list: %s, then %s", tag, again)
	}
	own := publish(t, n, tool("Own", "urn:x:lamp-own"))
	for c, err := range n.view.Watch(t.Context(), td.Query{}, 1) { // all that is remembered has a place in one order
		if err != nil {
			t.Fatal(err)
		}
		if c.Thing != nil && c.Thing.Ref() == own {
			break
		}
	}
	cancel()
	for range changes {
	}
}

// TestIntroductionsAreNotTrusted has hostile TDs of strangers.
func TestIntroductionsAreNotTrusted(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	dir := t.TempDir()
	secrets := filepath.Join(dir, "credentials.json")
	if err := os.WriteFile(secrets, fmt.Appendf(nil, `{"urn:dev:locked": {"key_sc": {"origin": %q, "token": "geheim"}}}`, l.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	o := quiet()
	o.Credentials = secrets
	n, log := l.on(t, o)
	own := publish(t, n, tool("Own", "urn:dev:own"))
	bearer := `{"key_sc": {"scheme": "bearer", "in": "header"}}`
	plain := func(id string) string { return string(toolAt("Stranger", id, l.URL)) }
	foreign := peerDID(t)
	for _, c := range []struct {
		name, doc string
		id        string // "" takes none, "urn:uuid:" one that the node made
		call      interact.Code
	}{
		{"plain", plain("urn:dev:plain"), "urn:dev:plain", 0},
		{"anonymous", plain(""), "urn:uuid:", 0},
		{"anothers", plain("urn:lmos:" + foreign + ":x"), "urn:uuid:", 0},
		{"ours", plain("urn:lmos:" + string(n.DID()) + ":weather"), "", 0},
		{"node", plain(string(n.DID())), "", 0},
		{"reference", plain("urn:dev:x@" + n.DID().Multibase()), "", 0},
		{"offered", plain("urn:dev:own"), "", 0},
		{"marked", member([]byte(plain("urn:dev:marked")), "lmosd:discovered", `"http://elsewhere"`), "urn:dev:marked", 0},
		{"signed", member([]byte(plain("urn:dev:signed")), "proof", `{"type": "DataIntegrityProof"}`), "urn:dev:signed", 0},
		{"registered", member([]byte(plain("urn:dev:listed")), "registration", `{"ttl": 1}`), "urn:dev:listed", 0},
		{"linked", member([]byte(plain("urn:dev:linked")), "links", `[{"href": "http://x.example"}]`), "urn:dev:linked", 0},
		{"relative", strings.ReplaceAll(plain("urn:dev:relative"), l.URL+"/", ""), "urn:dev:relative", 0},
		{"locked", member([]byte(member([]byte(plain("urn:dev:locked")), "securityDefinitions", bearer)), "security", `["key_sc"]`), "urn:dev:locked",
			interact.Unauthenticated},
		{"meshed", strings.ReplaceAll(plain("urn:dev:meshed"), l.URL, "lmos:"+own), "urn:dev:meshed", interact.Unreachable},
		{"router", strings.ReplaceAll(plain("urn:dev:router"), l.URL, "http://192.0.2.1"), "urn:dev:router", interact.Unreachable},
		{"byname", strings.ReplaceAll(plain("urn:dev:byname"), "127.0.0.1", "lamp.local"), "urn:dev:byname", 0},
		{"othername", strings.ReplaceAll(plain("urn:dev:othername"), "127.0.0.1", "localhost"), "urn:dev:othername", interact.Unreachable},
		{"nothing", `{"title": "No context"}`, "", 0},
		{"link", `{"@type": "ThingLink", "title": "L", "links": [{"rel": "describedby", "href": "/plain"}]}`, "", 0},
	} {
		before := len(searched(t, n, td.Query{Limit: 100}))
		l.serve(c.name, c.doc)
		l.introduce(c.name)
		explored(t, log, c.name)
		var of []*td.Description
		for _, d := range searched(t, n, td.Query{Limit: 100}) {
			if strings.Contains(string(d.Raw), `"lmosd:discovered":"`+l.URL+"/"+c.name+`"`) {
				of = append(of, d)
			}
		}
		switch {
		case c.id == "" && c.name != "link" && len(searched(t, n, td.Query{Limit: 100})) != before:
			t.Errorf("%s: something was taken", c.name)
		case c.id != "" && (len(of) != 1 || !strings.HasPrefix(of[0].ID, c.id)):
			t.Errorf("%s: got %v, want %s", c.name, of, c.id)
		case c.id != "":
			if err := ask(t, n, of[0].Ref()); codeOf(err) != c.call {
				t.Errorf("%s: the call gave %v, want %v", c.name, err, c.call)
			}
		}
		l.gone(c.name) // one host has 16 at most
		until(t, c.name+" is gone", func() bool { return len(searched(t, n, td.Query{Limit: 100})) == 1 })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.Join(l.auth, ""); got != "" {
		t.Errorf("a secret went out: %s", got)
	}
}

func peerDID(t testing.TB) string { return string(opened(t, quiet()).DID()) }

// TestAmbiguousNames: a Thing of the mesh and a discovered Thing of one name are ambiguous; a Thing of this node is not. For an id, the mesh has
// precedence.
func TestAmbiguousNames(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	n, log := l.on(t, quiet())
	peer := start(t, quiet())
	connect(t, peer, n)
	lamp, far := publish(t, peer, tool("Lamp", "")), publish(t, peer, tool("Far", "urn:dev:both"))
	knows(t, n, lamp)
	knows(t, n, far)
	for i, name := range []string{"lamp", "both"} {
		l.serve(name, string(toolAt("Lamp", []string{"urn:dev:lamp", "urn:dev:both"}[i], l.URL)))
		l.introduce(name)
		explored(t, log, name)
	}
	_, err := n.view.Get(t.Context(), "lamp")
	e := wantCode(t, err, interact.Ambiguous)
	for _, ref := range []string{lamp, "urn:dev:lamp@" + n.view.Discoveries.Owner().Multibase(), "urn:dev:both@" + n.view.Discoveries.Owner().Multibase()} {
		if !strings.Contains(fmt.Sprint(e.Next), ref) {
			t.Errorf("the steps have no %s: %v", ref, e.Next)
		}
		if d, err := n.view.Get(t.Context(), ref); err != nil || d.Ref() != ref {
			t.Errorf("%s: %v", ref, err)
		}
	}
	wantCode(t, ask(t, n, "lamp"), interact.Ambiguous)
	if d, err := n.view.Get(t.Context(), "urn:dev:both"); err != nil || d.Record.Owner != peer.DID() {
		t.Errorf("the id leads to %v, %v", d, err)
	}
	if both := searched(t, n, td.Query{ID: "urn:dev:both"}); len(both) != 2 || both[0].Record.Owner != peer.DID() {
		t.Errorf("found %v", both)
	}
	if one := searched(t, n, td.Query{ID: "urn:dev:both", Limit: 1}); len(one) != 1 || one[0].Record.Owner != peer.DID() {
		t.Errorf("the one place went to %v", one)
	}
	own := publish(t, n, tool("Lamp", "urn:own:lamp"))
	if d, err := n.view.Get(t.Context(), "lamp"); err != nil || d.Ref() != own {
		t.Errorf("the name of an own thing leads to %v, %v", d, err)
	}
	// A publication of this node replaces it.
	publish(t, n, tool("Other", "urn:dev:lamp"))
	if d, err := n.view.Get(t.Context(), "urn:dev:lamp"); err != nil || d.Title != "Other" {
		t.Errorf("got %v, %v", d, err)
	}
}

// TestDirectoryIsAnnounced where others may read it, and nowhere else.
func TestDirectoryIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, listen  string
		open, offered bool
	}{
		{"loopback", "127.0.0.1:0", true, false},
		{"with the token", "0.0.0.0:0", false, false},
		{"open", "0.0.0.0:0", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, o := newLAN(t), quiet()
			o.Dir = t.TempDir()
			o.HTTP = &HTTP{Listen: c.listen, Proxy: !c.open, Operation: gateway.Operation{OpenDirectory: c.open}}
			n, _ := l.on(t, o)
			_, text, _ := net.SplitHostPort(strings.TrimPrefix(n.API(), "http://"))
			if port := <-l.offered; (port != 0) != c.offered || c.offered && fmt.Sprint(port) != text {
				t.Fatalf("offered is %d, the port is %s", port, text)
			}
			if strings.Contains(string(n.gateway.Self()), "http://lmosd-1.local:"+text+"/things") != c.offered {
				t.Errorf("the node says of itself %s", n.gateway.Self())
			}
			if !c.offered {
				return
			}
			for path, want := range map[string]int{"/.well-known/wot": 200, "/things": 200, "/v1/status": 401, "/v1/find": 401, "/metrics": 401} {
				for host, want := range map[string]int{"lmosd-1.local": want, "lmosd-2.local": 403} {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.API()+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					r.Host = host + ":" + text
					resp, err := http.DefaultClient.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					if resp.StatusCode != want {
						t.Errorf("%s at %s: %d, want %d", path, host, resp.StatusCode, want)
					}
				}
			}
		})
	}
}
