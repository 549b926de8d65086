package expose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did/web"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/httpbody"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/lmos"
	"github.com/lmosd/lmosd/td/openapi"
)

// probeFor limits each request to a web server.
const probeFor = 10 * time.Second

// places are the well-known paths of descriptions (WoT Discovery §6.4; did:web; common OpenAPI paths).
var places = []string{"/.well-known/wot", "/.well-known/did.json", "/openapi.json", "/openapi.yaml"}

// probe determines what a web server is: it looks for a TD, a DID document that links to one, or an OpenAPI document, at the URL and then
// at well-known paths.
func probe(ctx context.Context, s Spec) (*Agent, error) {
	root, err := url.Parse(s.Target)
	if err != nil || root.Host == "" {
		return nil, interact.Errorf(interact.Usage, "for example http://127.0.0.1:8080", "expected the URL of a web server, got %s", s.Target)
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
		"%s has no Thing Description and no OpenAPI 3 document (searched there, and at %s)", s.Target, strings.Join(places, ", ")).
		Then(interact.StepPublish).Then(interact.StepExpose, "openapi:FILE")
}

// identified returns the agent whose TD a DID document links to.
func identified(ctx context.Context, s Spec, at *url.URL) (*Agent, error) {
	raw, err := fetchURL(ctx, at)
	if err != nil {
		return nil, err
	}
	return described(s, lmos.WithCapabilities(ctx, raw, at, fetchURL))
}

func fetchURL(ctx context.Context, at *url.URL) ([]byte, error) { return fetch(ctx, at.String()) }

// load reads a file or a URL.
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

// bounded reads a document up to the limit.
func bounded(r io.Reader, name string) ([]byte, error) {
	raw, err := httpbody.ReadAll(r, -1, openapi.MaxDocument)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, interact.Errorf(interact.TooLarge, "shorten it", "%s has more than %d bytes", name, openapi.MaxDocument)
	case err != nil:
		return nil, &interact.Error{Code: interact.Usage, Title: name + " cannot be read to its end", Err: err, Hint: "check its type: file " + interact.Quote(name)}
	}
	return raw, nil
}

// fetch requests a description. The administrator chose the URL, so it may be on any network.
func fetch(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: address + " is not a URL", Err: err, Hint: "for example http://127.0.0.1:8080"}
	}
	req.Header.Set("Accept", "application/td+json, application/json;q=0.9, */*;q=0.1")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case err != nil && context.Cause(ctx) == context.Canceled:
		return nil, fmt.Errorf("probe %s: %w", address, ctx.Err())
	case err != nil:
		return nil, &interact.Error{Code: interact.Unreachable, Title: "no server responds at " + address, Err: err, Hint: "start the agent first"}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, interact.Errorf(interact.AgentFailed, "check it: curl -i "+interact.Quote(address), "%s answers %s", address, resp.Status)
	}
	return bounded(resp.Body, address)
}
