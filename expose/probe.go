package expose

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/lmos"
	"github.com/lmosd/lmosd/td/openapi"
)

// probeFor bounds how long a web server may take to say what it is, for each question.
const probeFor = 10 * time.Second

// places are where web servers describe themselves, below their root (WoT Discovery §6.4; did:web; what OpenAPI servers usually do).
var places = []string{"/.well-known/wot", "/.well-known/did.json", "/openapi.json", "/openapi.yaml"}

// probe finds out what a web server is: a TD, a DID document that leads to one, or an OpenAPI document, at the address itself, else at a
// well-known place.
func probe(ctx context.Context, s Spec) (*Agent, error) {
	root, err := url.Parse(s.Target)
	if err != nil || root.Host == "" {
		return nil, interact.Errorf(interact.Usage, "for example http://127.0.0.1:8080", "%s is no address of a web server", s.Target)
	}
	asked := []string{s.Target}
	for _, place := range places {
		asked = append(asked, root.ResolveReference(&url.URL{Path: place}).String())
	}
	for i, at := range asked {
		raw, err := fetch(ctx, at)
		switch {
		case err != nil && (ctx.Err() != nil || i == 0 && interact.AsError(err).Code == interact.Unreachable):
			return nil, err
		case err != nil:
			continue
		}
		here, err := url.Parse(at)
		if err != nil {
			continue
		}
		if _, err := td.Parse(raw); err == nil {
			return described(s, lmos.WithCapabilities(ctx, raw, here, fetchURL))
		}
		for _, endpoint := range lmos.Endpoints(raw, here, web.WotThing) {
			if a, err := identified(ctx, s, endpoint); err == nil {
				return a, nil
			}
		}
		if a, err := openDocument(s, raw, at); err == nil {
			return a, nil
		}
	}
	return nil, interact.Errorf(interact.BadTD, "write a description and publish it, or expose a document",
		"%s describes itself neither as a Thing nor with OpenAPI 3 (looked there, and at %s)", s.Target, strings.Join(places, ", ")).
		Then(interact.StepPublish).Then(interact.StepExpose, "openapi:FILE")
}

// identified is the agent whose TD a DID document has at an address.
func identified(ctx context.Context, s Spec, at *url.URL) (*Agent, error) {
	raw, err := fetchURL(ctx, at)
	if err != nil {
		return nil, err
	}
	return described(s, lmos.WithCapabilities(ctx, raw, at, fetchURL))
}

func fetchURL(ctx context.Context, at *url.URL) ([]byte, error) { return fetch(ctx, at.String()) }

// load reads a file, or asks a URL.
func load(ctx context.Context, name string) ([]byte, error) {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return fetch(ctx, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: "the file " + name + " cannot be read", Err: err, Hint: "ls -l " + interact.Quote(name)}
	}
	defer f.Close()
	return bounded(f, name)
}

// bounded reads a document.
func bounded(r io.Reader, name string) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, openapi.MaxDocument+1))
	switch {
	case err != nil:
		return nil, &interact.Error{Code: interact.Usage, Title: name + " cannot be read to its end", Err: err, Hint: "see what it is: file " + interact.Quote(name)}
	case len(raw) > openapi.MaxDocument:
		return nil, interact.Errorf(interact.TooLarge, "shorten it", "%s has more than %d bytes", name, openapi.MaxDocument)
	}
	return raw, nil
}

// fetch asks for a description. The address is the administrator's own, so that it may be anywhere.
func fetch(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: address + " is no address", Err: err, Hint: "for example http://127.0.0.1:8080"}
	}
	req.Header.Set("Accept", "application/td+json, application/json;q=0.9, */*;q=0.1")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case err != nil && context.Cause(ctx) == context.Canceled:
		return nil, fmt.Errorf("ask %s what it is: %w", address, ctx.Err())
	case err != nil:
		return nil, &interact.Error{Code: interact.Unreachable, Title: "nothing answers at " + address, Err: err, Hint: "start the agent first"}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, interact.Errorf(interact.AgentFailed, "look at it: curl -i "+interact.Quote(address), "%s answers %s", address, resp.Status)
	}
	return bounded(resp.Body, address)
}
