package explore

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/tcp"
	"github.com/plgd-dev/go-coap/v3/udp"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testmain"
	"github.com/lmosd/lmosd/td"
)

func TestMain(m *testing.M) {
	// The codec of TDs creates channels at its first use, which must be outside of the bubble of a test.
	d, err := New(Options{Self: "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", Verifier: td.NewVerifier(did.Keys())})
	if err == nil {
		found := dnssd.Found{Raw: []byte(lamp("urn:dev:warm")), ID: "urn:dev:warm", From: "http://x/"}
		_, err = d.add(context.Background(), &introduction{}, found, time.Now())
	}
	if err != nil {
		panic(err)
	}
	testmain.Run(m)
}

// lamp returns a TD of a host on the local network.
func lamp(id string, more ...string) string {
	return `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "id": "` + id + `", "title": "Lamp",
		"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"properties": {"on": {"type": "boolean", "forms": [{"href": "http://127.0.0.1:1/on"}]}}` + strings.Join(more, "") + `}`
}

func newDiscoveries(t testing.TB, o Options) *Discoveries {
	t.Helper()
	k := didtest.Key(7)
	o.Self, o.Verifier = k.DID(), td.NewVerifier(did.Keys())
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A lan is a local network with the introductions of a test, and a server of TDs.
type lan struct {
	changes chan dnssd.Change
	*httptest.Server

	mu    sync.Mutex
	docs  map[string]string // by path; owned by mu
	calls []string          // calls of OnChange; owned by mu
}

// newLAN returns a network, and Discoveries that run on it until the test ends.
func newLAN(t testing.TB, o Options) (*lan, *Discoveries) {
	l := &lan{changes: make(chan dnssd.Change), docs: map[string]string{}}
	l.Server = httptest.NewServer(l)
	t.Cleanup(l.Server.Close)
	o.Source, o.OnChange, o.Pause = l, l.onChange, time.Nanosecond
	d := newDiscoveries(t, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return l, d
}

func (l *lan) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.Header().Set("Content-Type", "application/td+json")
	_, _ = w.Write([]byte(l.docs[r.URL.Path]))
}

func (l *lan) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

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

func (l *lan) onChange(kind directory.ChangeKind, _ directory.Reason, thing, was *td.Description) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := map[directory.ChangeKind]string{directory.Added: "+", directory.Changed: "~", directory.Removed: "-"}[kind] + thing.Title
	if was != nil {
		text += " was " + was.Title
	}
	l.calls = append(l.calls, text)
}

func (l *lan) serve(path, doc string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.docs[path] = doc
}

// introduce announces a TD at a path or a URL.
func (l *lan) introduce(path string) { l.changes <- dnssd.Change{Introduction: l.introduction(path)} }
func (l *lan) withdraw(path string) {
	l.changes <- dnssd.Change{Introduction: l.introduction(path), Gone: true}
}
func (l *lan) introduction(path string) dnssd.Introduction {
	here, url := netip.MustParseAddr("127.0.0.1"), path
	if strings.HasPrefix(path, "/") {
		url = l.URL + path
	}
	return dnssd.Introduction{Name: path, Instance: path, URL: url, Host: "lamp.local", Addrs: []netip.Addr{here}, From: here}
}

// has waits for a number of discovered Things.
func (d *Discoveries) has(t testing.TB, n int) []*Discovered {
	t.Helper()
	var all []*Discovered
	poll.Until(t, fmt.Sprintf("%d Things are discovered", n), func() bool { all, _ = d.All(everything); return len(all) == n })
	return all
}

// OnChange is called in the order of the changes, and the state of All changes.
func TestOnChange(t *testing.T) {
	t.Parallel()
	l, d := newLAN(t, Options{})
	l.serve("/lamp", lamp("urn:dev:lamp"))
	_, before := d.All(everything)
	l.introduce("/lamp")
	one := d.has(t, 1)[0]
	if one.ID != "urn:dev:lamp" || one.Record.Owner != d.Owner() ||
		!strings.Contains(string(one.Raw), `"`+discoveredMember+`":"`+l.URL+`/lamp"`) {
		t.Errorf("found %s of %s: %s", one.ID, one.Record.Owner, one.Raw)
	}
	_, err := interact.Call(t.Context(), one.Agent, &interact.Message{Type: interact.ReadProperty, Thing: one.Ref(), Name: "on"})
	if interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("without Connect: %v", err)
	}
	l.withdraw("/lamp")
	d.has(t, 0)
	if _, after := d.All(everything); after == before {
		t.Error("the state has not changed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.calls, []string{"+Lamp", "-Lamp"}) {
		t.Errorf("changes %q", l.calls)
	}
}

func TestLimitPerHost(t *testing.T) {
	t.Parallel()
	l, d := newLAN(t, Options{})
	var list []string
	for i := range 40 {
		list = append(list, lamp(fmt.Sprintf("urn:dev:many:%d", i)))
	}
	l.serve("/dir", `{"@type": "ThingDirectory", "title": "D"}`)
	l.serve("/things", "["+strings.Join(list, ",")+"]")
	l.serve("/one", lamp("urn:dev:one"))
	for _, path := range []string{"/dir", "/one"} {
		l.introduce(path)
		d.has(t, maxPerSource)
	}
	// Things that the host no longer lists are removed.
	l.withdraw("/dir")
	l.serve("/things", "["+list[0]+"]")
	l.introduce("/dir")
	poll.Until(t, "the other Things are removed", func() bool { all, _ := d.All(everything); return len(all) <= 2 })

	s := &store{publishes: func(string) bool { return false }, all: map[string]*Discovered{}}
	for i := range maxThings {
		in := &introduction{Introduction: dnssd.Introduction{From: netip.AddrFrom4([4]byte{10, 0, byte(i / 16), 1})}}
		s.all[fmt.Sprint(i)] = &Discovered{in: in}
	}
	if err := s.checkLimits(&introduction{}, "x"); err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("got %v", err)
	}
}

// Explorations start in the order in which they are due, one per host and 4 in all.
func TestOrderOfExplorations(t *testing.T) {
	t.Parallel()
	d := newDiscoveries(t, Options{})
	now := time.Now()
	for i := range 8 { // two of each of 4 hosts, and one that is not due
		name := fmt.Sprint(i)
		from := netip.AddrFrom4([4]byte{127, 0, 0, byte(i / 2)})
		d.all[name] = &introduction{due: now, Introduction: dnssd.Introduction{Name: name, From: from}}
	}
	later := now.Add(time.Minute)
	d.all["later"] = &introduction{due: later}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // fetches fail
	var work sync.WaitGroup
	d.startDue(ctx, &work, nil, now)
	work.Wait()
	if len(d.busy) != maxConcurrentVisits || !d.all["0"].due.Equal(now.Add(visitInterval)) || !d.all["1"].due.Equal(now) {
		t.Errorf("%d explorations; the first is due at %v, the second at %v", len(d.busy), d.all["0"].due, d.all["1"].due)
	}
	clear(d.busy)
	next := d.startDue(ctx, &work, nil, now)
	work.Wait()
	if !next.Equal(later) {
		t.Errorf("the next is due at %v, want %v", next, later)
	}
}

// A Thing that is not found again is removed after 30 min, although its introduction is valid.
func TestThingsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lan{}
		d := newDiscoveries(t, Options{OnChange: l.onChange})
		f := dnssd.Found{Raw: []byte(lamp("urn:dev:lamp")), ID: "urn:dev:lamp", From: "http://192.0.2.1/"}
		in := &introduction{}
		for range 4 { // each addition extends the validity
			if _, err := d.add(t.Context(), in, f, time.Now()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(visitInterval)
			d.things.removeExpired(time.Now())
		}
		f.Raw = []byte(strings.Replace(lamp("urn:dev:lamp"), "Lamp", "Lantern", 1))
		if _, err := d.add(t.Context(), in, f, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(l.calls, []string{"+Lamp", "~Lantern was Lamp"}) {
			t.Errorf("changes %q", l.calls)
		}
		time.Sleep(validity)
		if all, _ := d.All(everything); len(all) != 0 {
			t.Errorf("%d Things are discovered", len(all))
		}
		d.things.removeExpired(time.Now())
		if l.calls[len(l.calls)-1] != "-Lantern" {
			t.Errorf("changes %q", l.calls)
		}
	})
}

// A Thing of the directory takes precedence over a discovered one with its id. A name of both is ambiguous.
func TestNames(t *testing.T) {
	t.Parallel()
	d := newDiscoveries(t, Options{})
	for _, id := range []string{"urn:dev:lamp", "urn:dev:both"} {
		raw := strings.Replace(lamp(id), "Lamp", strings.ToUpper(id[8:9])+id[9:], 1)
		found := dnssd.Found{Raw: []byte(raw), ID: id, From: "http://192.0.2.1/"}
		if _, err := d.add(t.Context(), &introduction{}, found, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	ofMesh := &td.Description{Record: &td.Record{Thing: "urn:dev:both", Owner: d.o.Self}}
	get := func(_ context.Context, ref string) (*td.Description, error) {
		switch ref {
		case "both", "urn:dev:both":
			return ofMesh, nil
		case "urn:dev:gone":
			return nil, interact.Errorf(interact.Withdrawn, "-", "gone")
		}
		return nil, interact.Errorf(interact.NotFound, "-", "none")
	}
	for _, c := range []struct {
		ref, want string // "": the result of the directory
		code      interact.Code
	}{
		{"lamp", "urn:dev:lamp", 0},
		{"urn:dev:lamp", "urn:dev:lamp", 0},
		{"urn:dev:lamp@" + d.Owner().Multibase(), "urn:dev:lamp", 0},
		{"urn:dev:both@" + d.Owner().Multibase(), "urn:dev:both", 0},
		{"urn:dev:both", "", 0},
		{"both", "", interact.Ambiguous},
		{"unknown", "", 0},
		{"urn:dev:gone", "", 0},
	} {
		got, err := d.named(t.Context(), c.ref, get, func(*td.Record) bool { return false }, everything)
		switch {
		case c.code != 0:
			if e := interact.AsError(err); e == nil || e.Code != c.code || !strings.Contains(fmt.Sprint(e.Next), d.Owner().Multibase()) {
				t.Errorf("%s: got %v, want %v", c.ref, err, c.code)
			}
		case err != nil || (got == nil) != (c.want == "") || got != nil && got.ID != c.want:
			t.Errorf("%s: got %+v, %v; want %q", c.ref, got, err, c.want)
		}
	}
}

// serveCoAP serves a document over CoAP with the servers of go-coap. It returns the URL of the TD.
func serveCoAP(t testing.TB, network, doc string) string {
	t.Helper()
	handle := options.WithMux(mux.HandlerFunc(func(w mux.ResponseWriter, r *mux.Message) {
		if path, _ := r.Path(); path != "/td" {
			_ = w.SetResponse(codes.NotFound, message.TextPlain, nil)
			return
		}
		_ = w.SetResponse(codes.Content, message.MediaType(432), strings.NewReader(doc)) // application/td+json
	}))
	blocks := options.WithBlockwise(true, blockwise.SZX256, time.Minute)
	quiet := options.WithErrors(func(error) {})
	var run func() error
	var stop func()
	var base string
	if network == "udp" {
		c, err := coapnet.NewListenUDP("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := udp.NewServer(handle, blocks, quiet, ticking(t))
		run, stop, base = func() error { return s.Serve(c) }, s.Stop, "coap://"+c.LocalAddr().String()
	} else {
		c, err := coapnet.NewTCPListener("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := tcp.NewServer(handle, blocks, quiet, ticking(t))
		run, stop, base = func() error { return s.Serve(c) }, func() { s.Stop(); _ = c.Close() }, "coap+tcp://"+c.Addr().String()
	}
	done := make(chan error, 1)
	go func() { done <- run() }()
	t.Cleanup(func() { stop(); <-done })
	return base + "/td"
}

// A TD is fetched over CoAP (WoT Discovery §7.1.1), UDP and TCP, in blocks, by the address or the name of the introduction, and from no other
// host.
func TestOverCoAP(t *testing.T) {
	t.Parallel()
	long := lamp("urn:dev:coap", `, "description": "`+strings.Repeat("x", 3000)+`"`)
	elsewhere := `{"@type": "ThingLink", "title": "L", "links": [
		{"rel": "describedby", "type": "application/td+json", "href": "coap://192.0.2.1/td"},
		{"rel": "describedby", "href": "coap://localhost/td"}]}`
	for _, c := range []struct {
		name, network, doc string
		change             func(url string) string
		things             int
	}{
		{"over UDP", "udp", long, nil, 1},
		{"over TCP", "tcp", long, nil, 1},
		{"by its name", "udp", long, func(u string) string { return strings.Replace(u, "127.0.0.1", "lamp.local", 1) }, 1},
		{"by another name", "udp", long, func(u string) string { return strings.Replace(u, "127.0.0.1", "localhost", 1) }, 0},
		{"another path", "udp", long, func(u string) string { return u + "/x" }, 0},
		{"not a TD", "udp", "hello", nil, 0},
		{"too large", "udp", lamp("urn:dev:coap", `, "description": "`+strings.Repeat("x", td.MaxTD)+`"`), nil, 0},
		{"a link elsewhere", "udp", elsewhere, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDiscoveries(t, Options{})
			url := serveCoAP(t, c.network, c.doc)
			if c.change != nil {
				url = c.change(url)
			}
			here := netip.MustParseAddr("127.0.0.1")
			d.explore(t.Context(), &introduction{Introduction: dnssd.Introduction{Name: "c", Instance: "c", URL: url, Host: "lamp.local",
				Addrs: []netip.Addr{here}, From: here}})
			all, _ := d.All(everything)
			if len(all) != c.things {
				t.Fatalf("found %d, want %d", len(all), c.things)
			}
			if c.things > 0 && len(all[0].Thing.Description) != 3000 {
				t.Errorf("got %s", all[0].Raw)
			}
		})
	}
}

// ticking runs the timers of a go-coap server until the test ends.
func ticking(t testing.TB) options.PeriodicRunnerOpt {
	stop := make(chan struct{})
	var work sync.WaitGroup
	t.Cleanup(func() { close(stop); work.Wait() })
	return options.WithPeriodicRunner(func(f func(time.Time) bool) {
		work.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case now := <-tick.C:
					if !f(now) {
						return
					}
				case <-stop:
					return
				}
			}
		})
	})
}

// everything is visible.
func everything(*td.Description) bool { return true }
