// Package web resolves did:web identifiers over HTTPS and creates the did:web document of a node.
//
// The web server controls the document: such a DID is as trustworthy as its web server.
//
// Source: did:web method specification, W3C CCG.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/internal/weblocation"
)

// URL returns the URL of the document of a did:web. It rejects parts that could lead to another host: IP addresses, user names, escaped
// characters except the colon before the port, and dot segments. The error wraps [did.ErrInvalid], or [did.ErrMethod] for other methods.
func URL(id did.DID) (string, error) {
	location, ok := strings.CutPrefix(string(id), "did:web:")
	if !ok {
		return "", fmt.Errorf("%w: %q is not a did:web", did.ErrMethod, id.Short())
	}
	address, err := weblocation.URL(location, "did.json")
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", did.ErrInvalid, id.Short(), err)
	}
	return address, nil
}

// A Resolver fetches the documents of did:web over HTTPS. It follows no redirects, takes at most 10 s, reads at most [did.MaxDocument], and
// has no cache. It implements [did.Resolver] and is safe for concurrent use.
type Resolver struct{ client *weblocation.Client }

// New returns a resolver.
func New(o weblocation.Options) *Resolver { return &Resolver{weblocation.NewClient(o)} }

// Resolve fetches the document of a DID. Its id must be the DID, byte for byte. The error wraps [did.ErrNotFound] if there is none.
func (r *Resolver) Resolve(ctx context.Context, id did.DID) (*did.Document, error) {
	raw, err := r.fetch(ctx, id)
	if err != nil {
		return nil, err
	}
	return did.ParseDocument(raw, id)
}

// Services is [Resolver.Resolve] for the id and the services only; see [did.ParseServices].
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
	raw, err := r.client.Fetch(ctx, address, "application/did+json, application/did+ld+json;q=0.9, application/json;q=0.8", did.MaxDocument)
	switch {
	case err == nil:
		return raw, nil
	case errors.Is(err, weblocation.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", did.ErrNotFound, err)
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, fmt.Errorf("%w: %w", did.ErrInvalid, err)
	}
	return nil, fmt.Errorf("resolve %s: %w", id.Short(), err)
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

// contexts are the contexts of [Document]. The last one is required for services of the Web of Things (WoT Discovery §6.5).
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
		Aliases  []did.DID           `json:"alsoKnownAs"`
		Methods  []map[string]string `json:"verificationMethod"`
		Authn    []string            `json:"authentication"`
		Assert   []string            `json:"assertionMethod"`
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
func Endpoints(doc *did.Document, typ string) []string {
	return slices.DeleteFunc(doc.Endpoints(typ), func(address string) bool {
		u, err := url.Parse(address)
		return err != nil || !u.IsAbs() || u.Host == ""
	})
}
