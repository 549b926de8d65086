package dnssd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/td"
)

// A site has the documents of an HTTP server by path.
type site map[string]string

// serve starts a server. A response is JSON, unless the document begins with "302 " and a URL, "text/html ", or a Link header "<…> ". "%s" in
// a document is the URL of the server.
func (s site) serve(t *testing.T) (base string, in Introduction) {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, ok := s[r.URL.RequestURI()]
		body = strings.ReplaceAll(body, "%s", server.URL)
		head, rest, _ := strings.Cut(body, " ")
		w.Header().Set("Content-Type", "application/td+json; charset=utf-8")
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case head == "302":
			http.Redirect(w, r, rest, http.StatusFound)
			return
		case head == "text/html":
			w.Header().Set("Content-Type", head)
			body = rest
		case strings.HasPrefix(head, "<"):
			w.Header().Add("Link", `</>; rel="canonical"; title="a, \"b\""`)
			w.Header().Add("Link", head+`; REL="last next"`)
			body = rest
		}
		fmt.Fprint(w, body)
	})
	u, _ := url.Parse(server.URL)
	lo := netip.MustParseAddr(u.Hostname())
	return server.URL, Introduction{Instance: "site", URL: server.URL + wellKnown, Host: "site.local", Addrs: []netip.Addr{lo}, From: lo}
}

// explore returns the titles of the found TDs, in order, and the error.
func explore(t *testing.T, x *Explorer, in Introduction) (titles []string, err error) {
	t.Helper()
	for f, e := range x.Explore(t.Context(), in) {
		if e != nil {
			err = e
			continue
		}
		_, title, _ := strings.Cut(string(f.Raw), `"title":"`)
		title, _, _ = strings.Cut(title, `"`)
		titles = append(titles, title)
	}
	return titles, err
}

const (
	dir   = `{"@type":["x","ThingDirectory"],"title":"dir","properties":{"things":{"forms":[{"href":"things{?offset,limit}"}]}}}`
	thing = `{"title":"thing"}`
)

// WoT Discovery §5: directories and links are recognized by their type and followed, each URL once, also without ids.
// discoverer-must-support-intros discoverer-must-support-fetching discoverer-td-identify discoverer-fetch-tdd discoverer-fetch-links
// discoverer-fetch-iteration discoverer-any-order discoverer-track exploration-link-description-link
func TestExplore(t *testing.T) {
	t.Parallel()
	link := func(title, href string) string {
		return `{"@type":"https://www.w3.org/2022/wot/discovery#ThingLink","title":"` + title + `","links":[{"rel":"icon","href":"/i"},` +
			`{"rel":"describedby","href":"` + href + `"}]}`
	}
	plainDir := strings.ReplaceAll(dir, "{?offset,limit}", "")
	for _, c := range []struct {
		name string
		site site
		want string // titles
		err  string // in the error; empty: no error
	}{
		{"a thing", site{wellKnown: thing}, "thing", ""},
		{"a directory", site{wellKnown: plainDir, "/.well-known/things": `[{"title":"a"},{"title":"b"}]`}, "dir a b", ""},
		{"a base",
			site{wellKnown: strings.Replace(plainDir, "{", `{"base":"%s/api/",`, 1), "/api/things": `[` + thing + `]`},
			"dir thing", ""},
		{"pages by Link",
			site{wellKnown: dir, "/.well-known/things?limit=100": `<?offset=1> [{"title":"a"}]`,
				"/.well-known/things?offset=1": `[{"title":"b"}]`}, "dir a b", ""},
		{"pages of a collection",
			site{wellKnown: plainDir, "/.well-known/things": `{"members":[{"title":"a"}],"next":"/p2"}`,
				"/p2": `{"members":[{"title":"b"}]}`}, "dir a b", ""},
		{"a cycle of pages",
			site{wellKnown: plainDir, "/.well-known/things": `</.well-known/things> [{"title":"a"}]`}, "dir a", ""},
		{"a page elsewhere",
			site{wellKnown: plainDir, "/.well-known/things": `<http://127.0.0.1:1/x> [{"title":"a"}]`},
			"dir a", "next page has another origin"},
		{"duplicates",
			site{wellKnown: plainDir,
				"/.well-known/things": `[{"id":"urn:1","title":"a"},{"id":"urn:1","title":"a"},{"id":"urn:1","title":"b"}]`},
			"dir a b", ""},
		{"a directory in a list",
			site{wellKnown: plainDir, "/.well-known/things": `[{"@type":"ThingDirectory","title":"other"}]`,
				"/things": `[` + thing + `]`}, "dir other", ""},
		{"a link", site{wellKnown: link("l", "/td"), "/td": thing}, "l thing", ""},
		{"a link to a directory",
			site{wellKnown: link("l", "/d"), "/d": plainDir, "/things": `[` + thing + `]`}, "l dir thing", ""},
		{"a link in a list",
			site{wellKnown: plainDir, "/.well-known/things": `[` + link("l", "/td") + `]`, "/td": thing}, "dir l", ""},
		{"a link to itself", site{wellKnown: link("l", "#x")}, "l", ""},
		{"an endless chain of links",
			site{wellKnown: link("1", "/2"), "/2": link("2", "/3"), "/3": link("3", "/4"), "/4": thing}, "1 2 3", ""},
		{"a link to another host",
			site{wellKnown: link("l", "http://192.0.2.1/")}, "l", `does not name the host "192.0.2.1"`},
		{"a link to a name",
			site{wellKnown: link("l", "http://localhost/")}, "l", `does not name the host "localhost"`},
		{"a link to a file", site{wellKnown: link("l", "file:///etc/passwd")}, "l", "invalid absolute URL"},
		{"a link to another scheme", site{wellKnown: link("l", "gopher://127.0.0.1/")}, "l", ErrScheme.Error()},
		{"a redirect on the server", site{wellKnown: "302 /td", "/td": thing}, "thing", ""},
		{"a redirect elsewhere", site{wellKnown: "302 http://127.0.0.1:1/"}, "", "redirected to http://127.0.0.1:1/"},
		{"a redirect to itself", site{wellKnown: "302 " + wellKnown}, "", "redirected"},
		{"not found", site{}, "", "404"},
		{"not JSON", site{wellKnown: "[1"}, "", "invalid TD"},
		{"not an object", site{wellKnown: "[]"}, "", "invalid TD"},
		{"a duplicate member", site{wellKnown: `{"title":"a","title":"b"}`}, "", "invalid TD"},
		{"HTML", site{wellKnown: "text/html " + thing}, "", `content type "text/html"`},
		{"too large", site{wellKnown: `{"title":"` + strings.Repeat("x", td.MaxTD) + `"}`}, "", "exceeds 131072 bytes"},
		{"an oversized entry of a list",
			site{wellKnown: plainDir, "/.well-known/things": `[{"title":"` + strings.Repeat("x", td.MaxTD) + `"},` + thing + `]`},
			"dir thing", "exceeds 131072 bytes"},
		{"the form of readproperty", site{wellKnown: `{"@type":"ThingDirectory","title":"dir",
			"properties":{"things":{"uriVariables":{"limit":{}},"forms":[
			{"href":"/no","op":"observeproperty"},{"href":"/no","op":["writeproperty"]},{"href":"/all{?limit}","op":["readproperty"]}]}}}`,
			"/all?limit=100": `[` + thing + `]`}, "dir thing", ""},
		{"not a list", site{wellKnown: plainDir, "/.well-known/things": `7`}, "dir", "invalid list of TDs"},
		{"an id that is too long", site{wellKnown: `{"id":"` + strings.Repeat("x", td.MaxID+1) + `"}`}, "", "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, in := c.site.serve(t)
			titles, err := explore(t, NewExplorer(ExplorerOptions{}), in)
			if got := strings.Join(titles, " "); got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want an error with %q", err, c.err)
			}
		})
	}
}

// WoT Discovery §5.1, §5.2: the types of discovery, as terms, with their prefix and as IRIs of either namespace, alone and among
// others. Other types are Things. discoverer-td-identify exploration-directory-description-type
// exploration-link-description-type
func TestKinds(t *testing.T) {
	t.Parallel()
	for types, want := range map[string]Kind{
		`"ThingDirectory"`: KindDirectory, `["Thing","ThingDirectory"]`: KindDirectory, `"discovery:ThingDirectory"`: KindDirectory,
		`"https://www.w3.org/2021/wot/discovery#ThingDirectory"`:   KindDirectory,
		`["https://www.w3.org/2022/wot/discovery#ThingDirectory"]`: KindDirectory,
		`"ThingLink"`: KindLink, `["x","discovery:ThingLink"]`: KindLink, `"https://www.w3.org/2021/wot/discovery#ThingLink"`: KindLink,
		`"thingdirectory"`: KindThing, `"https://example.com/ThingDirectory"`: KindThing, `{"@id":"ThingLink"}`: KindThing,
		`[7]`: KindThing, `null`: KindThing,
	} {
		if c, err := readSummary([]byte(`{"@type":` + types + `,"title":"x"}`)); err != nil || c.kind != want {
			t.Errorf("%s: got %q, %v; want %q", types, c.kind, err, want)
		}
	}
}

// WoT Discovery §5: one explorer yields a TD of two introductions once. A new explorer yields it again.
// discoverer-merge-intros discoverer-may-multiple-intro discoverer-track
func TestExplorerMergesIntroductions(t *testing.T) {
	t.Parallel()
	base, in := site{wellKnown: strings.ReplaceAll(dir, "{?offset,limit}", ""), "/.well-known/things": `[{"title":"a"}]`,
		"/other": `{"title":"a"}`}.serve(t)
	other := in
	other.URL = base + "/other"
	x := NewExplorer(ExplorerOptions{})
	first, _ := explore(t, x, in)
	again, _ := explore(t, x, in)
	more, _ := explore(t, x, other)
	want(t, slices.Concat(first, again, more), "dir", "a")
	fresh, _ := explore(t, NewExplorer(ExplorerOptions{}), other)
	want(t, fresh, "a")
}

func TestThingsOfTheMeshAreSkipped(t *testing.T) {
	t.Parallel()
	_, in := site{wellKnown: `{"@type":"ThingDirectory","id":"did:node","title":"dir"}`,
		"/things": `[{"id":"urn:a","title":"a"},{"id":"urn:b","title":"b"}]`}.serve(t)
	known := func(ids ...string) ExplorerOptions {
		return ExplorerOptions{Network: "home", Known: func(id string) bool { return slices.Contains(ids, id) }}
	}
	got, err := explore(t, NewExplorer(known("urn:a")), in)
	want(t, got, "dir", "b")
	node, err2 := explore(t, NewExplorer(known("did:node")), in)
	want(t, node)
	in.Network = "home"
	own, err3 := explore(t, NewExplorer(known()), in)
	want(t, own)
	in.Network = "other"
	others, err4 := explore(t, NewExplorer(known()), in)
	want(t, others, "dir", "a", "b")
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Error(err)
	}
}

// discoverer-termination
func TestBounds(t *testing.T) {
	t.Parallel()
	t.Run("things", func(t *testing.T) {
		t.Parallel()
		var list []string
		for i := range thingsMax + 10 {
			list = append(list, fmt.Sprintf(`{"title":"%d"}`, i))
		}
		_, in := site{wellKnown: `{"@type":"ThingDirectory","title":"dir"}`, "/things": "[" + strings.Join(list, ",") + "]"}.serve(t)
		if got, err := explore(t, NewExplorer(ExplorerOptions{}), in); len(got) != thingsMax || err == nil {
			t.Errorf("%d things, %v; want %d and an error for the rest", len(got), err, thingsMax)
		}
	})
	t.Run("pages", func(t *testing.T) {
		t.Parallel()
		pages := site{wellKnown: `{"@type":"ThingDirectory","title":"dir"}`, "/things": `</p0> []`}
		for i := range 100 {
			pages[fmt.Sprintf("/p%d", i)] = fmt.Sprintf(`</p%d> [{"title":"%d"}]`, i+1, i)
		}
		_, in := pages.serve(t)
		if got, err := explore(t, NewExplorer(ExplorerOptions{}), in); len(got) != pagesMax || err == nil {
			t.Errorf("%d things, %v; want %d and an error for the rest", len(got), err, pagesMax)
		}
	})
	t.Run("the caller ends the loop", func(t *testing.T) {
		t.Parallel()
		_, in := site{wellKnown: `{"@type":"ThingDirectory","title":"dir"}`, "/things": `[{"title":"a"}]`}.serve(t)
		for range NewExplorer(ExplorerOptions{}).Explore(t.Context(), in) {
			break
		}
	})
	t.Run("a server that does not respond", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		defer server.Close()
		u, _ := url.Parse(server.URL)
		lo := netip.MustParseAddr(u.Hostname())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range NewExplorer(ExplorerOptions{}).Explore(ctx, Introduction{URL: server.URL, Addrs: []netip.Addr{lo}, From: lo}) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// The certificate must have the host name of the introduction and a trusted issuer.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, thing)
	}))
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	u, _ := url.Parse(server.URL)
	lo := netip.MustParseAddr(u.Hostname())
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	for host, trusted := range map[string]*tls.Config{"example.com": {RootCAs: pool}, "site.local": {RootCAs: pool}, "a.example.com": nil} {
		in := Introduction{URL: server.URL, Host: host, Addrs: []netip.Addr{lo}, From: lo}
		got, err := explore(t, NewExplorer(ExplorerOptions{TLS: trusted}), in)
		if valid := host == "example.com"; valid != (err == nil) || valid != (len(got) == 1) {
			t.Errorf("%s: got %q, %v", host, got, err)
		}
	}
}

func TestOtherSchemes(t *testing.T) {
	t.Parallel()
	lo := netip.MustParseAddr("127.0.0.1")
	in := Introduction{URL: "coap://127.0.0.1:5683/td", Addrs: []netip.Addr{lo}, From: lo}
	if _, err := explore(t, NewExplorer(ExplorerOptions{}), in); !errors.Is(err, ErrScheme) {
		t.Errorf("got %v, want %v", err, ErrScheme)
	}
	o := ExplorerOptions{Fetch: func(_ context.Context, u string) ([]byte, error) { return []byte(`{"title":"` + u + `"}`), nil }}
	got, err := explore(t, NewExplorer(o), in)
	want(t, got, in.URL)
	// Names are replaced by addresses, because Fetch would resolve them again.
	in.Host, in.URL = "lamp.local", "coap://Lamp.local/td"
	got, err2 := explore(t, NewExplorer(o), in)
	want(t, got, "coap://127.0.0.1/td")
	if err2 != nil {
		t.Error(err2)
	}
	in.URL = "coap://localhost/td"
	if _, refused := explore(t, NewExplorer(o), in); refused == nil || !strings.Contains(refused.Error(), "does not name the host") {
		t.Errorf("another name: %v", refused)
	}
	in.Addrs, in.From = []netip.Addr{netip.MustParseAddr("192.0.2.77")}, netip.MustParseAddr("192.0.2.77")
	in.URL = "coap://192.0.2.77:5683/td"
	o.Allow = func(_ Introduction, addr netip.Addr) error { return fmt.Errorf("not %s", addr) }
	if _, refused := explore(t, NewExplorer(o), in); err != nil || refused == nil || !strings.Contains(refused.Error(), "not 192.0.2.77") {
		t.Errorf("got %v and %v", err, refused)
	}
}

func TestExplorerLimits(t *testing.T) {
	t.Parallel()
	_, in := site{wellKnown: thing}.serve(t)
	for _, fill := range []func(x *Explorer){
		func(x *Explorer) {
			for i := range urlsMax {
				x.urls[fmt.Sprint(i)] = true
			}
		},
		func(x *Explorer) {
			for i := range documentsMax {
				x.documents[[32]byte{byte(i), byte(i >> 8)}] = true
			}
		},
	} {
		x := NewExplorer(ExplorerOptions{})
		fill(x)
		if got, err := explore(t, x, in); len(got) != 0 || err == nil || !strings.Contains(err.Error(), "omitted") {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	nets := func(all ...string) (p []netip.Prefix) {
		for _, s := range all {
			p = append(p, netip.MustParsePrefix(s))
		}
		return p
	}
	links := []link{
		{index: 1, name: "lo", nets: nets("127.0.0.1/8", "::1/128")},
		{index: 2, name: "lan0", nets: nets("192.168.1.5/24", "fd00::5/64", "fe80::5/64", "169.254.7.7/16")},
		{index: 3, name: "lan1", nets: nets("198.51.100.5/24", "203.0.113.1/0")},
	}
	for _, c := range []struct{ from, addr, want string }{
		{"192.168.1.9", "192.168.1.9", ""}, {"192.168.1.9", "192.168.1.77", ""}, {"192.168.1.9", "fd00::9", ""},
		{"192.168.1.9", "fe80::9%lan0", ""}, {"198.51.100.7", "198.51.100.9", ""}, {"192.168.1.5", "198.51.100.9", ""},
		{"192.168.1.9", "198.51.100.9", "not on the network of 192.168.1.9"}, {"fe80::9%lan1", "192.168.1.9", "not on the network"},
		{"fe80::9%lan0", "192.168.1.9", ""}, {"10.0.0.1", "192.168.1.9", "not on the network"}, {"192.168.1.9", "169.254.3.3", ""},
		{"192.168.1.9", "192.168.2.9", "not on a network"}, {"192.168.1.9", "10.0.0.1", "not on a network"},
		{"192.168.1.9", "8.8.8.8", "not on a network"},
		{"192.168.1.9", "fd00:0:0:1::9", "not on a network"}, {"192.168.1.9", "fe80::9%eth9", "not on a network"},
		{"192.168.1.9", "127.0.0.1", "this machine"}, {"192.168.1.9", "127.9.9.9", "this machine"}, {"192.168.1.9", "::1", "this machine"},
		{"192.168.1.9", "192.168.1.5", "this machine"}, {"192.168.1.9", "fe80::5%lan0", "this machine"},
		{"192.168.1.5", "127.0.0.1", ""}, {"fe80::5%lan0", "192.168.1.5", ""}, {"127.0.0.1", "::1", ""},
		{"192.168.1.9", "169.254.169.254", "a cloud"}, {"192.168.1.9", "224.0.0.251", "not a host address"},
		{"192.168.1.9", "0.0.0.0", "not a host address"},
		{"192.168.1.9", "::ffff:192.168.1.9", "not a host address"}, {"192.168.1.9", "ff02::fb%lan0", "not a host address"},
	} {
		got := checkLocal(links, netip.MustParseAddr(c.from), netip.MustParseAddr(c.addr))
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s, by %s: got %q, want %q", c.addr, c.from, got, c.want)
		}
	}
	if err := Local(Introduction{From: netip.MustParseAddr("127.0.0.1")}, netip.MustParseAddr("127.0.0.1")); err != nil {
		t.Error(err)
	}
}

func TestNextLink(t *testing.T) {
	t.Parallel()
	for header, target := range map[string]string{
		`</a>; rel="next"`: "/a", `</a>;rel=next`: "/a", `</a>; title="x"; REL = "prev NEXT"`: "/a",
		`</c>; rel="canonical"; etag="e", </a>; rel=next; x`: "/a", `</a>; rel="prev"; rel="next"`: "", `</a>; rel=nextish`: "",
		`</a>; anchor="rel=next"`: "", `/a; rel=next`: "", ``: "", `<`: "", `</a>`: "",
	} {
		if got := nextLink([]string{header}); got != target {
			t.Errorf("%s: got %q, want %q", header, got, target)
		}
	}
}

// Any document is processed without a panic, and the pages of a list stay on its server.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(dir), `</a>; rel="next"`)
	f.Add([]byte(`{"@type":"ThingLink","links":[{"rel":"describedby","href":"//x"}]}`), `<http://x/>; rel=next, <`)
	f.Add([]byte(`{"members":[{}],"next":"?x"}`), "")
	page, _ := url.Parse("http://10.0.0.9:80/things")
	f.Fuzz(func(t *testing.T, b []byte, header string) {
		c, err := readSummary(b)
		if err == nil {
			resolve(resolve(page, c.base), c.things)
		}
		_, next, _ := readList(b)
		for _, target := range []string{next, nextLink([]string{header})} {
			if u, err := nextPage(page, target); err == nil && u != nil && (u.Host != page.Host || u.Scheme != "http") {
				t.Errorf("%q leads to %s", target, u)
			}
		}
	})
}
