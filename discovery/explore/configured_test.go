package explore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A site is a web server for example.com with documents by path. PORT in them is its port.
type site struct {
	port string
	Options
}

func newSite(t *testing.T, docs map[string]string) *site {
	t.Helper()
	s := &site{}
	o, port := didtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		doc, ok := docs[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/td+json")
		_, _ = w.Write([]byte(strings.ReplaceAll(doc, "PORT", s.port)))
	}))
	s.port, s.Resolver = port, web.New(o)
	s.TLS = &tls.Config{RootCAs: o.TLS.RootCAs}
	s.Lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if !strings.HasSuffix(host, "example.com") {
			return nil, fmt.Errorf("unknown host %s", host)
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return s
}

const context11 = `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "D", "@type": "ThingDirectory",
	"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n"}`

// The services of a DID document (WoT Discovery §6.5) have the TDs of Things (WotThing) and of directories (WotDirectory) as endpoints. The
// document here lacks the required context, like those of LMOS.
func TestByDID(t *testing.T) {
	t.Parallel()
	service := func(fragment, typ, endpoint string) string {
		return `{"id": "#` + fragment + `", "type": "` + typ + `", "serviceEndpoint": "` + endpoint + `"}`
	}
	document := func(services ...string) map[string]string {
		return map[string]string{
			"/.well-known/did.json": `{"id": "did:web:example.com%3APORT", "service": [` + strings.Join(services, ",") + `]}`,
			"/lamp":                 lamp("urn:dev:lamp"), "/dir": context11, "/things": "[" + lamp("urn:dev:listed") + "]",
		}
	}
	const base = "https://example.com:PORT"
	for _, c := range []struct {
		name  string
		docs  map[string]string
		where string
		want  []string
	}{
		{"a thing", document(service("td", "WotThing", base+"/lamp")), "did:web:example.com%3APORT", []string{"urn:dev:lamp"}},
		{"a thing and a directory", document(service("td", "WotThing", base+"/lamp"), service("tdd", "WotDirectory", base+"/dir")),
			"did:web:example.com%3APORT", []string{"urn:dev:lamp", "urn:dev:listed", "urn:uuid:"}},
		{"another service", document(service("x", "LinkedDomains", base+"/lamp")), "did:web:example.com%3APORT", nil},
		{"no TLS", document(service("td", "WotThing", "http://example.com:PORT/lamp")), "did:web:example.com%3APORT", nil},
		{"on a host that is not public", document(service("td", "WotThing", "https://inside.example.com:PORT/lamp"),
			service("td2", "WotThing", base+"/lamp")), "did:web:example.com%3APORT", []string{"urn:dev:lamp"}},
		{"by its URL", document(), base + "/lamp", []string{"urn:dev:lamp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, c.docs)
			d := newDiscoveries(t, s.Options)
			where := strings.ReplaceAll(c.where, "PORT", s.port)
			found, _ := d.introductions(t.Context(), where)
			home, err := hostOf(where)
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range found {
				d.explore(t.Context(), &introduction{Introduction: in, configuredHost: home})
			}
			all, _ := d.All(everything)
			got := slices.EqualFunc(all, c.want, func(one *Discovered, want string) bool { return strings.HasPrefix(one.ID, want) })
			if !got {
				t.Errorf("found %d things by %d introductions, want %q", len(all), len(found), c.want)
			}
		})
	}
}

// The Things of a configured introduction change with its document.
func TestConfiguredThingsChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"/lamp": lamp("urn:dev:lamp"),
		"/.well-known/did.json": `{"id": "did:web:example.com%3APORT",
			"service": {"id": "#td", "type": "WotThing", "serviceEndpoint": "https://example.com:PORT/lamp"}}`})
	o := s.Options
	o.Configured = []string{"did:web:example.com%3A" + s.port, "did:web:nowhere.example"}
	d := newDiscoveries(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	one := d.has(t, 1)[0]
	_, err := interact.Call(t.Context(), one.Agent, &interact.Message{Type: interact.ReadProperty, Thing: one.Ref(), Name: "on"})
	if interact.AsError(err).Code != interact.Unreachable {
		t.Errorf("without Connect: %v", err)
	}
	cancel()
	<-done
	d.has(t, 0)

	found, err := d.introductions(t.Context(), o.Configured[0])
	if err != nil || len(found) != 1 {
		t.Fatalf("got %v, %v", found, err)
	}
	known := map[string]dnssd.Introduction{}
	for _, c := range []struct {
		found  []dnssd.Introduction
		failed error
		want   string
	}{
		{found, nil, "false"},
		{found, nil, ""},
		{nil, context.DeadlineExceeded, ""}, // Things of unreadable documents stay
		{nil, nil, "true"},
		{nil, nil, ""},
	} {
		var got []string
		for _, change := range differences(known, c.found, c.failed) {
			got = append(got, fmt.Sprint(change.Gone))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("removed %q, want %q", got, c.want)
		}
	}
	if len(known) != 0 {
		t.Errorf("known: %v", known)
	}
}

// The local network and configured introductions have separate limits and separate address rules.
func TestSeparateLimits(t *testing.T) {
	t.Parallel()
	d := newDiscoveries(t, Options{Public: func(netip.Addr) error { return nil }})
	for i := range maxThings {
		in := &introduction{Introduction: dnssd.Introduction{From: netip.AddrFrom4([4]byte{10, 0, byte(i / 16), 1})}}
		d.things.all[fmt.Sprint(i)] = &Discovered{in: in, Description: &td.Description{Record: &td.Record{Expires: time.Now().Add(time.Hour)}}}
	}
	if err := d.things.checkLimits(&introduction{configuredHost: "example.com"}, "x"); err != nil {
		t.Errorf("a configured Thing does not fit: %v", err)
	}
	public, private := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.0.0.1")
	d.o.Public = func(a netip.Addr) error {
		if a.IsPrivate() {
			return fmt.Errorf("%s is private", a)
		}
		return nil
	}
	allow := d.allow("example.com")
	for _, c := range []struct {
		in   dnssd.Introduction
		addr netip.Addr
		ok   bool
	}{
		{dnssd.Introduction{Host: "Example.com", Addrs: []netip.Addr{private}}, private, true},
		{dnssd.Introduction{Host: "example.com", Addrs: []netip.Addr{public}}, private, false},
		{dnssd.Introduction{Host: "other.example", Addrs: []netip.Addr{private}}, private, false},
		{dnssd.Introduction{Host: "other.example", Addrs: []netip.Addr{public}}, public, true},
	} {
		if err := allow(c.in, c.addr); (err == nil) != c.ok {
			t.Errorf("%s at %s: %v", c.in.Host, c.addr, err)
		}
	}
	for where, ok := range map[string]bool{"did:web:example.com": true, "https://example.com:8443/td": true, "http://example.com/td": false,
		"did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK": false, "example.com": false, "https://user@example.com/": false, "": false} {
		if err := CheckConfigured(where); (err == nil) != ok {
			t.Errorf("%q: %v", where, err)
		}
	}
}

// lmosDocs are documents like those in the LMOS documentation: a DID document without the context of WoT Discovery and with an invalid key, a
// TD with a link to its capabilities, and capabilities.json.
var lmosDocs = map[string]string{
	"/.well-known/did.json": `{"id": "did:web:example.com%3APORT", "controller": "did:web:example.com%3APORT",
		"verificationMethod": [{"id": "did:web:example.com%3APORT#key-1", "type": "Ed25519VerificationKey2018",
			"controller": "did:web:example.com%3APORT", "publicKeyBase58": "3M5RCDjPTWPkKSN3sxUmmMqHbmRPegYP1tjcKyrDbt9J..."}],
		"authentication": ["did:web:example.com%3APORT#key-1"],
		"service": [{"id": "did:web:example.com%3APORT#td", "type": "WotThing", "serviceEndpoint": "BASE/billing"},
			{"id": "did:web:example.com%3APORT#vc", "type": "VerifiableCredentialService", "serviceEndpoint": "BASE/agent/vc"}]}`,
	"/billing": `{"@context": ["https://www.w3.org/2022/wot/td/v1.1", {"lmos": "https://eclipse.dev/lmos/protocol/v1"}], "@type": "lmos:Agent",
		"id": "urn:x:billing", "title": "Billing", "securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
		"links": [{"rel": "service-meta", "href": "lmos/capabilities", "type": "application/json"}],
		"actions": {"chat": {"forms": [{"href": "/chat"}]}}}`,
	"/lmos/capabilities": `{"id": "billing", "capabilities": [{"id": "urn:x:capability:view-bill", "name": "view-bill", "version": "1.0.0",
		"description": "Capability to view a bill", "examples": ["show my bill"]}]}`,
	"/link": `{"@type": "ThingLink", "title": "L", "links": [{"rel": "describedby", "href": "http://example.com:PORT/billing"}]}`,
}

// Documents of LMOS agents are read from configured introductions and from those of the local network (package td/lmos).
func TestLMOSDocuments(t *testing.T) {
	t.Parallel()
	const home = "https://example.com:PORT"
	for _, c := range []struct {
		name, where string // a path is introduced by the local network
		want        string
	}{
		{"a did:web", "did:web:example.com%3APORT", "urn:x:billing urn:x:capability:view-bill"},
		{"the URL of a DID document", home + "/.well-known/did.json", "urn:x:billing urn:x:capability:view-bill"},
		{"the URL of a TD", home + "/billing", "urn:x:billing urn:x:capability:view-bill"},
		{"a link without TLS", home + "/link", ""},
		{"a DID document on the local network", "/.well-known/did.json", "urn:x:billing urn:x:capability:view-bill"},
		{"a TD on the local network", "/billing", "urn:x:billing urn:x:capability:view-bill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			docs := map[string]string{}
			var d *Discoveries
			var found []*introduction
			if strings.HasPrefix(c.where, "/") {
				var l *lan
				l, d = newLAN(t, Options{})
				for path, doc := range lmosDocs {
					l.serve(path, strings.ReplaceAll(doc, "BASE", l.URL))
				}
				found = []*introduction{{Introduction: l.introduction(c.where)}}
			} else {
				for path, doc := range lmosDocs {
					docs[path] = strings.ReplaceAll(doc, "BASE", home)
				}
				s := newSite(t, docs)
				d = newDiscoveries(t, s.Options)
				all, err := d.introductions(t.Context(), strings.ReplaceAll(c.where, "PORT", s.port))
				if err != nil {
					t.Fatal(err)
				}
				for _, in := range all {
					found = append(found, &introduction{Introduction: in, configuredHost: "example.com"})
				}
			}
			for _, in := range found {
				d.explore(t.Context(), in)
			}
			all, _ := d.All(everything)
			var got []string
			for _, one := range all {
				got = append(got, one.ID)
				for _, capability := range one.Capabilities {
					got = append(got, capability.ID)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
