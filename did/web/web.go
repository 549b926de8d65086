// Package web resolves did:web identifiers over HTTPS and creates the did:web document of a node.
//
// The web server controls the document: such a DID is as trustworthy as its web server.
//
// Source: did:web method specification, W3C CCG.
package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
)

// fetchIn limits the time of one request.
const fetchIn = 10 * time.Second

// URL returns the URL of the document of a did:web. It refuses everything that could lead to another host: IP addresses, user
// names, escaped characters except the colon before the port, and dot segments. The error wraps [did.ErrInvalid], or
// [did.ErrMethod] for other methods.
func URL(id did.DID) (string, error) {
	rest, ok := strings.CutPrefix(string(id), "did:web:")
	if !ok {
		return "", fmt.Errorf("%w: %q is not a did:web", did.ErrMethod, id.Short())
	}
	parts := strings.Split(rest, ":")
	host, err := hostOf(parts[0])
	for _, segment := range parts[1:] {
		if segment == "" || strings.Trim(segment, ".") == "" {
			err = errors.New("a path segment is empty, \".\" or \"..\"")
		}
		if strings.ContainsFunc(segment, func(r rune) bool { return !plain(r) && r != '_' }) {
			err = fmt.Errorf("the path segment %q is not supported", segment)
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", did.ErrInvalid, id.Short(), err)
	}
	if len(parts) == 1 {
		return "https://" + host + "/.well-known/did.json", nil
	}
	return "https://" + host + "/" + strings.Join(parts[1:], "/") + "/did.json", nil
}

// plain matches the supported host names and path segments.
func plain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.'
}

// hostOf returns the host of a DID, with its port if it has one.
func hostOf(s string) (string, error) {
	name, port, hasPort := strings.Cut(strings.Replace(s, "%3a", "%3A", 1), "%3A")
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
			return "", fmt.Errorf("expected a port, got %q", port)
		}
		port = ":" + port
	}
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	for _, label := range labels {
		if label == "" || strings.ContainsFunc(label, func(r rune) bool { return !plain(r) }) {
			return "", fmt.Errorf("expected a host name, got %q", name)
		}
	}
	// URL parsers read a host that ends in a number as an IPv4 address (WHATWG URL §3.5).
	if _, err := netip.ParseAddr(name); err == nil || last[0] >= '0' && last[0] <= '9' {
		return "", fmt.Errorf("expected a host name, got the address %q", name)
	}
	return name + port, nil
}

// Options of a [Resolver].
type Options struct {
	// Dial opens connections; nil means [net.Dialer].
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS configures the trusted roots; nil means those of the system.
	TLS *tls.Config
}

// A Resolver fetches the documents of did:web over HTTPS. It follows no redirects, takes at most 10 s and [did.MaxDocument], and caches
// nothing. It implements [did.Resolver] and is safe for concurrent use.
type Resolver struct{ client *http.Client }

// New returns a resolver.
func New(o Options) *Resolver {
	return &Resolver{&http.Client{
		Transport: &http.Transport{DialContext: o.Dial, TLSClientConfig: o.TLS, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			return fmt.Errorf("redirected to %s", r.URL.Redacted())
		},
	}}
}

// Resolve fetches the document of a DID. Its id must be the DID, byte for byte. The error wraps [did.ErrNotFound] if there is none.
func (r *Resolver) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	raw, err := r.fetch(ctx, id)
	if err != nil {
		return nil, err
	}
	return did.ParseDocument(raw, id)
}

// Services is like Resolve, but parses only the services of the document (see [did.ParseServices]).
func (r *Resolver) Services(ctx context.Context, id did.DID) (*did.Document, error) {
	raw, err := r.fetch(ctx, id)
	if err != nil {
		return nil, err
	}
	return did.ParseServices(raw, id)
}

func (r *Resolver) fetch(ctx context.Context, id did.DID) ([]byte, error) {
	address, err := URL(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchIn)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "application/did+json, application/did+ld+json;q=0.9, application/json;q=0.8")
	resp, err := r.client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", id.Short(), err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("%w: %s answered %s", did.ErrNotFound, address, resp.Status)
	default:
		return nil, fmt.Errorf("resolve %s: %s answered %s", id.Short(), address, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, did.MaxDocument+1)) // ParseDocument rejects one byte more
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", id.Short(), err)
	}
	return raw, nil
}

// Of returns the did:web of an https URL without a path, or false for other URLs.
func Of(address string) (did.DID, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return "", false
	}
	id := did.DID("did:web:" + strings.Replace(u.Host, ":", "%3A", 1))
	_, err = URL(id)
	return id, err == nil
}

// Types of services of the Web of Things (WoT Discovery §6.5).
const (
	WotThing     = "WotThing"     // its endpoint is the TD of the thing
	WotDirectory = "WotDirectory" // its endpoint is the TD of the directory
)

// contexts are those of [Document]: the last one is required for services of the Web of Things (WoT Discovery §6.5).
var contexts = []string{"https://www.w3.org/ns/did/v1", "https://w3id.org/security/multikey/v1", "https://www.w3.org/2022/wot/discovery-did"}

// Document returns the document of a node: id is its did:web, key its did:key, and td the URL of its TD, which describes a Thing
// Directory.
func Document(id, key did.DID, td string) json.RawMessage {
	type service struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Endpoint string `json:"serviceEndpoint"`
	}
	method := string(id) + "#" + key.Multibase()
	raw, err := json.Marshal(struct {
		Context  []string            `json:"@context"`
		ID       did.DID             `json:"id"`
		Known    []did.DID           `json:"alsoKnownAs"`
		Methods  []map[string]string `json:"verificationMethod"`
		Proves   []string            `json:"authentication"`
		Asserts  []string            `json:"assertionMethod"`
		Services []service           `json:"service"`
	}{contexts, id, []did.DID{key},
		[]map[string]string{{"id": method, "type": "Multikey", "controller": string(id), "publicKeyMultibase": key.Multibase()}},
		[]string{method}, []string{method},
		[]service{{string(id) + "#td", WotThing, td}, {string(id) + "#tdd", WotDirectory, td}}})
	if err != nil {
		panic(err) // strings always have a JSON form
	}
	return raw
}

// Endpoints returns the absolute URLs of the services of a type in a document. It does not check the @context of Web of Things
// services, which LMOS documents omit.
func Endpoints(doc *did.Document, typ string) (all []string) {
	for _, s := range doc.Service {
		var one string
		var many []string
		for _, t := range s.Type {
			if t != typ {
				continue
			}
			if json.Unmarshal(s.Endpoint, &one) == nil {
				many = []string{one}
			} else {
				_ = json.Unmarshal(s.Endpoint, &many) // an object is not a URL
			}
			for _, address := range many {
				if u, err := url.Parse(address); err == nil && u.IsAbs() && u.Host != "" {
					all = append(all, address)
				}
			}
			break
		}
	}
	return all
}
