package dnssd

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/lmos"
)

const (
	exploreMax   = 30 * time.Second // one introduction
	thingsMax    = 1000             // TDs of one introduction
	pagesMax     = 32               // pages of a list
	pageMax      = 8 << 20          // bytes of a page
	pageThings   = 100              // TDs of a page that are asked for, where a directory lets itself be asked
	linksOfLink  = 4                // links of a ThingLink that are followed
	depthMax     = 2                // links one after the other
	urlsMax      = 4096             // fetched by one Explorer
	documentsMax = 16384            // seen by one Explorer
	failuresMax  = 8                // that an error lists
)

// ExplorerOptions say how far an [Explorer] goes. The zero value fetches over HTTP and HTTPS, on the networks of this machine.
type ExplorerOptions struct {
	// Network is this node's mesh. An introduction of a node of the same mesh is not followed: what that node has comes by the
	// mesh, verified. Empty follows all.
	Network string
	// Known reports whether the mesh knows the thing with this id. What it knows is not yielded, and the list of a directory that
	// it knows is not read: a node of the mesh whose announcement did not say so. Nil knows nothing.
	Known func(id string) bool
	// Allow judges each address before it is connected to; nil is [Local].
	Allow func(Introduction, netip.Addr) error
	// TLS is for https. Nil trusts what the system trusts; a certificate has to be for the introduction's Host.
	TLS *tls.Config
	// Secure reads over https only, whatever links say.
	Secure bool
	// Fetch reads TDs of other schemes (coap, coaps, coap+tcp, coaps+tcp) from a URL whose host is an address that Allow has
	// allowed; it keeps to ctx and reads td.MaxTD bytes at most. Nil leaves them out: [ErrScheme].
	Fetch func(ctx context.Context, url string) ([]byte, error)
}

// ErrScheme is wrapped by errors about URLs of schemes that nobody here can fetch.
var ErrScheme = errors.New("no way to fetch this scheme")

// A Found is a TD, as somebody on the local network has written it. It is a hint: nothing of it was checked but that it is strict
// JSON, an object, and no larger than [td.MaxTD].
type Found struct {
	Raw          []byte
	ID           string // what the TD says; empty if it is anonymous
	Kind         Kind
	From         string // the URL of the TD or of the list that has it
	Introduction Introduction
}

// Kind tells by its @type what a TD describes (WoT Discovery §5).
type Kind string

// Kinds of TDs.
const (
	KindThing     Kind = "Thing"
	KindDirectory Kind = "ThingDirectory"
	KindLink      Kind = "ThingLink"
)

// An Explorer is one process of discovery (WoT Discovery §5): it merges what many introductions lead to into one set. Each URL
// is fetched once and each document yielded once, whatever its id says, so that directories and links that lead in circles end.
// To look again at what may have changed, make a new one. It is safe for concurrent use.
type Explorer struct {
	o  ExplorerOptions
	mu sync.Mutex
	// urls and documents are owned by mu.
	urls      map[string]bool
	documents map[[sha256.Size]byte]bool
}

// NewExplorer returns an explorer that has seen nothing.
func NewExplorer(o ExplorerOptions) *Explorer {
	if o.Known == nil {
		o.Known = func(string) bool { return false }
	}
	if o.Allow == nil {
		o.Allow = Local
	}
	return &Explorer{o: o, urls: map[string]bool{}, documents: map[[sha256.Size]byte]bool{}}
}

// Explore fetches the TD that in leads to and yields it; of a directory also what it lists, of a link what it describes. It
// takes 30 s at most, or until ctx ends, and yields at most 1000 TDs. What failed does not keep it from the rest: the sequence
// ends with one error that joins what could not be fetched or read (the first eight), or was left out.
func (x *Explorer) Explore(ctx context.Context, in Introduction) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		if in.Network != "" && in.Network == x.o.Network {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, exploreMax)
		defer cancel()
		v := &visit{x: x, ctx: ctx, in: in, yield: yield}
		v.client = v.newClient()
		defer v.client.CloseIdleConnections()
		v.fetchTD(in.URL, 0)
		if ctx.Err() != nil {
			v.fail(ctx.Err())
		}
		if err := errors.Join(v.failed...); err != nil && !v.left {
			yield(Found{}, fmt.Errorf("explore %q on the local network: %w", in.Instance, err))
		}
	}
}

// first reports whether the key was not seen before, and remembers it. A set that is full is as if it had seen everything.
func first[K comparable](x *Explorer, set map[K]bool, key K, most int) (ok bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case set[key]:
		return false, nil
	case len(set) >= most:
		return false, fmt.Errorf("this explorer has seen %d documents; the rest is left out", most)
	}
	set[key] = true
	return true, nil
}

// A visit is the exploration of one introduction.
type visit struct {
	x      *Explorer
	ctx    context.Context
	in     Introduction
	client *http.Client
	yield  func(Found, error) bool
	left   bool // the reader has left the loop
	things int
	failed []error
}

func (v *visit) fail(err error) {
	if len(v.failed) < failuresMax {
		v.failed = append(v.failed, err)
	}
}

func (v *visit) firstURL(u *url.URL) bool {
	ok, err := first(v.x, v.x.urls, u.String(), urlsMax)
	if err != nil {
		v.fail(err)
	}
	return ok
}

func (v *visit) firstDocument(raw []byte) bool {
	ok, err := first(v.x, v.x.documents, sha256.Sum256(raw), documentsMax)
	if err != nil {
		v.fail(err)
	}
	return ok
}

// over reports whether there is no more to do.
func (v *visit) over() bool { return v.left || v.things > thingsMax || v.ctx.Err() != nil }

// fetchTD goes to a TD, depth links away from the introduction.
func (v *visit) fetchTD(address string, depth int) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		v.fail(fmt.Errorf("%q is no absolute URL", address))
		return
	}
	u.Fragment, u.User = "", nil
	if v.over() || !v.firstURL(u) {
		return
	}
	raw, err := v.read(u)
	if err != nil {
		v.fail(err)
		return
	}
	v.offer(raw, u, depth, false)
}

func (v *visit) read(u *url.URL) ([]byte, error) {
	if !strings.HasPrefix(u.Scheme, "coap") || v.x.o.Fetch == nil || v.x.o.Secure {
		raw, _, err := v.get(u, td.MaxTD)
		return raw, err
	}
	addrs, err := v.allowed(u.Hostname())
	if err != nil {
		return nil, err
	}
	there := *u // a name would be looked up, and could lead elsewhere
	if there.Host = addrs[0].String(); addrs[0].Is6() {
		there.Host = "[" + strings.ReplaceAll(there.Host, "%", "%25") + "]" // RFC 6874
	}
	if port := u.Port(); port != "" {
		there.Host += ":" + port
	}
	raw, err := v.x.o.Fetch(v.ctx, there.String())
	if len(raw) > td.MaxTD {
		return nil, fmt.Errorf("%s has more than %d bytes", u, td.MaxTD)
	}
	return raw, err
}

// offer yields a TD and follows where it leads: links for two steps; the list of a directory that was introduced or linked to,
// but not of one that stands in a list.
//
// A DID document is no TD, and leads to those of its services; an agent of LMOS has capabilities elsewhere (package lmos). Of a list,
// neither is looked for: its members say what its directory knows.
func (v *visit) offer(raw []byte, from *url.URL, depth int, listed bool) {
	if !listed && depth < depthMax {
		endpoints := lmos.Endpoints(raw, from, web.WotThing, web.WotDirectory)
		for _, at := range endpoints {
			v.fetchTD(at.String(), depth+1)
		}
		if len(endpoints) > 0 {
			return
		}
	}
	c, err := readCard(raw)
	if err != nil {
		v.fail(fmt.Errorf("%s: %w", from, err))
		return
	}
	if c.id != "" && v.x.o.Known(c.id) || v.over() || !v.firstDocument(raw) {
		return
	}
	if v.things++; v.things > thingsMax {
		v.fail(fmt.Errorf("%s: more than %d TDs; the rest is left out", from, thingsMax))
		return
	}
	if !listed {
		raw = lmos.WithCapabilities(v.ctx, raw, from, func(_ context.Context, at *url.URL) ([]byte, error) { return v.read(at) })
	}
	if !v.yield(Found{Raw: raw, ID: c.id, Kind: c.kind, From: from.String(), Introduction: v.in}, nil) {
		v.left = true
		return
	}
	base := resolve(from, c.base)
	switch {
	case c.kind == KindDirectory && !listed:
		v.list(resolve(base, c.things))
	case c.kind == KindLink && depth < depthMax:
		for _, href := range c.describedBy {
			v.fetchTD(resolve(base, href).String(), depth+1)
		}
	}
}

// list reads the pages of a directory's list. They are all of one origin.
func (v *visit) list(page *url.URL) {
	for n := 0; page != nil && !v.over(); n++ {
		if n == pagesMax {
			v.fail(fmt.Errorf("%s: more than %d pages; the rest is left out", page, pagesMax))
			return
		}
		if !v.firstURL(page) {
			return
		}
		body, links, err := v.get(page, pageMax)
		if err != nil {
			v.fail(err)
			return
		}
		members, next, err := readList(body)
		if err != nil {
			v.fail(fmt.Errorf("%s: %w", page, err))
			return
		}
		for _, raw := range members {
			if v.over() {
				break
			}
			v.offer(raw, page, depthMax, true)
		}
		if next == "" {
			next = nextLink(links)
		}
		page, err = following(page, next)
		if err != nil {
			v.fail(err)
		}
	}
}

// following is the page after page, nil if there is none.
func following(page *url.URL, next string) (*url.URL, error) {
	if next == "" {
		return nil, nil
	}
	u := resolve(page, next)
	if u.Scheme != page.Scheme || u.Host != page.Host {
		return nil, fmt.Errorf("%s: its next page is elsewhere: %q", page, next)
	}
	return u, nil
}

// resolve is href as seen from base; what is no URL leads nowhere else.
func resolve(base *url.URL, href string) *url.URL {
	u, err := base.Parse(href)
	if err != nil {
		return base
	}
	return u
}
