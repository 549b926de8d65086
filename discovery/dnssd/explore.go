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
	pageThings   = 100              // requested TDs per page, if the directory has a limit parameter
	linksOfLink  = 4                // links of a ThingLink
	depthMax     = 2                // consecutive links
	urlsMax      = 4096             // URLs fetched by one Explorer
	documentsMax = 16384            // documents seen by one Explorer
	failuresMax  = 8                // failures in an error
)

// ExplorerOptions configure an [Explorer]. With the zero value it uses HTTP and HTTPS on the networks of this machine.
type ExplorerOptions struct {
	// Network is this node's mesh. Introductions of nodes of this mesh are skipped, because the mesh has their verified Things. If it is
	// empty, no introduction is skipped.
	Network string
	// Known reports whether the mesh has the Thing with this id. The Explorer does not yield such Things, and does not read the list of
	// such a directory. Nil means that the mesh has no Things.
	Known func(id string) bool
	// Allow checks each address before a connection; nil means [Local].
	Allow func(Introduction, netip.Addr) error
	// TLS configures https. Nil uses the system's certificates; a certificate must be for the introduction's Host.
	TLS *tls.Config
	// Secure restricts all fetches to https.
	Secure bool
	// Fetch fetches a TD from a URL with a scheme of CoAP (td/scheme), whose host is an address that Allow has allowed. It must respect ctx
	// and read at most td.MaxTD bytes. If it is nil, such URLs are errors: [ErrScheme].
	Fetch func(ctx context.Context, url string) ([]byte, error)
}

// ErrScheme is wrapped by errors about URLs of unsupported schemes.
var ErrScheme = errors.New("unsupported URL scheme")

// A Found is a TD from the local network: a strict JSON object of at most [td.MaxTD] bytes, otherwise not verified.
type Found struct {
	Raw  []byte
	ID   string // of the TD; empty if it is anonymous
	Kind Kind
	From string // the URL of the TD or of the list that contains it
}

// Kind is the kind of a TD by its @type (WoT Discovery §5).
type Kind string

// Kinds of TDs.
const (
	KindThing     Kind = "Thing"
	KindDirectory Kind = "ThingDirectory"
	KindLink      Kind = "ThingLink"
)

// An Explorer is one discovery process (WoT Discovery §5): it merges the results of many introductions into one set. It fetches each URL
// once and yields each document once, independent of its id, so that cycles of directories and links end. A new Explorer is required to
// detect changes. It is safe for concurrent use.
type Explorer struct {
	o  ExplorerOptions
	mu sync.Mutex
	// urls and documents are owned by mu.
	urls      map[string]bool
	documents map[[sha256.Size]byte]bool
}

// NewExplorer returns an Explorer with an empty set.
func NewExplorer(o ExplorerOptions) *Explorer {
	if o.Known == nil {
		o.Known = func(string) bool { return false }
	}
	if o.Allow == nil {
		o.Allow = Local
	}
	return &Explorer{o: o, urls: map[string]bool{}, documents: map[[sha256.Size]byte]bool{}}
}

// Explore fetches and yields the TD of in, and also the list of a directory and the targets of a link. It takes at most 30 s and yields at
// most 1000 TDs. Failures do not stop it: the sequence ends with one error that joins the first eight failures and omissions.
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
		if err := errors.Join(v.failed...); err != nil && !v.stopped {
			yield(Found{}, fmt.Errorf("explore %q on the local network: %w", in.Instance, err))
		}
	}
}

// addNew adds a key to a set, and reports whether it was new. A full set accepts no more keys.
func addNew[K comparable](x *Explorer, set map[K]bool, key K, most int) (ok bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case set[key]:
		return false, nil
	case len(set) >= most:
		return false, fmt.Errorf("limit of %d URLs or documents of this explorer reached; the rest is omitted", most)
	}
	set[key] = true
	return true, nil
}

// A visit is the exploration of one introduction.
type visit struct {
	x       *Explorer
	ctx     context.Context
	in      Introduction
	client  *http.Client
	yield   func(Found, error) bool
	stopped bool // the caller has left the loop
	things  int
	failed  []error
}

func (v *visit) fail(err error) {
	if len(v.failed) < failuresMax {
		v.failed = append(v.failed, err)
	}
}

func (v *visit) isNewURL(u *url.URL) bool {
	ok, err := addNew(v.x, v.x.urls, u.String(), urlsMax)
	if err != nil {
		v.fail(err)
	}
	return ok
}

func (v *visit) isNewDocument(raw []byte) bool {
	ok, err := addNew(v.x, v.x.documents, sha256.Sum256(raw), documentsMax)
	if err != nil {
		v.fail(err)
	}
	return ok
}

// hasEnded reports whether the visit has ended.
func (v *visit) hasEnded() bool { return v.stopped || v.things > thingsMax || v.ctx.Err() != nil }

// fetchTD fetches a TD, depth links away from the introduction.
func (v *visit) fetchTD(address string, depth int) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		v.fail(fmt.Errorf("invalid absolute URL %q", address))
		return
	}
	u.Fragment, u.User = "", nil
	if v.hasEnded() || !v.isNewURL(u) {
		return
	}
	raw, err := v.read(u)
	if err != nil {
		v.fail(err)
		return
	}
	v.process(raw, u, depth, false)
}

// read fetches a TD over HTTP, or over CoAP with Fetch.
func (v *visit) read(u *url.URL) ([]byte, error) {
	if !strings.HasPrefix(u.Scheme, "coap") || v.x.o.Fetch == nil || v.x.o.Secure {
		raw, _, err := v.get(u, td.MaxTD)
		return raw, err
	}
	addrs, err := v.allowed(u.Hostname())
	if err != nil {
		return nil, err
	}
	at := *u // with the address instead of the name, which Fetch would resolve again
	if at.Host = addrs[0].String(); addrs[0].Is6() {
		at.Host = "[" + strings.ReplaceAll(at.Host, "%", "%25") + "]" // RFC 6874
	}
	if port := u.Port(); port != "" {
		at.Host += ":" + port
	}
	raw, err := v.x.o.Fetch(v.ctx, at.String())
	if len(raw) > td.MaxTD {
		return nil, fmt.Errorf("%s exceeds %d bytes", u, td.MaxTD)
	}
	return raw, err
}

// process yields a TD and follows it: up to two consecutive links, and the list of a directory that was introduced or linked, but not of a
// directory in a list. Except for members of a list, it follows the services of a DID document, and adds the separate capabilities of LMOS
// agents (package lmos).
func (v *visit) process(raw []byte, from *url.URL, depth int, listed bool) {
	if !listed && depth < depthMax {
		endpoints := lmos.Endpoints(raw, from, web.WotThing, web.WotDirectory)
		for _, at := range endpoints {
			v.fetchTD(at.String(), depth+1)
		}
		if len(endpoints) > 0 {
			return
		}
	}
	s, err := readSummary(raw)
	if err != nil {
		v.fail(fmt.Errorf("%s: %w", from, err))
		return
	}
	if s.id != "" && v.x.o.Known(s.id) || v.hasEnded() || !v.isNewDocument(raw) {
		return
	}
	if v.things++; v.things > thingsMax {
		v.fail(fmt.Errorf("%s: more than %d TDs; the rest is omitted", from, thingsMax))
		return
	}
	if !listed {
		raw = lmos.WithCapabilities(v.ctx, raw, from, func(_ context.Context, at *url.URL) ([]byte, error) { return v.read(at) })
	}
	if !v.yield(Found{Raw: raw, ID: s.id, Kind: s.kind, From: from.String()}, nil) {
		v.stopped = true
		return
	}
	base := resolve(from, s.base)
	switch {
	case s.kind == KindDirectory && !listed:
		v.list(resolve(base, s.things))
	case s.kind == KindLink && depth < depthMax:
		for _, href := range s.describedBy {
			v.fetchTD(resolve(base, href).String(), depth+1)
		}
	}
}

// list reads the pages of a directory's list, which must have one origin.
func (v *visit) list(page *url.URL) {
	for n := 0; page != nil && !v.hasEnded(); n++ {
		if n == pagesMax {
			v.fail(fmt.Errorf("%s: more than %d pages; the rest is omitted", page, pagesMax))
			return
		}
		if !v.isNewURL(page) {
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
			if v.hasEnded() {
				break
			}
			v.process(raw, page, depthMax, true)
		}
		if next == "" {
			next = nextLink(links)
		}
		page, err = nextPage(page, next)
		if err != nil {
			v.fail(err)
		}
	}
}

// nextPage returns the page after page, nil if there is none.
func nextPage(page *url.URL, next string) (*url.URL, error) {
	if next == "" {
		return nil, nil
	}
	u := resolve(page, next)
	if u.Scheme != page.Scheme || u.Host != page.Host {
		return nil, fmt.Errorf("%s: the next page has another origin: %q", page, next)
	}
	return u, nil
}

// resolve resolves href relative to base. It returns base for an invalid href.
func resolve(base *url.URL, href string) *url.URL {
	u, err := base.Parse(href)
	if err != nil {
		return base
	}
	return u
}
