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

// Limits of requests to a web server.
const (
	fetchTimeout = 10 * time.Second // of each request
	maxRedirects = 4                // to a document that another document refers to
)

// wellKnownPaths are the well-known paths of descriptions (WoT Discovery §6.4; did:web; common OpenAPI paths).
var wellKnownPaths = []string{"/.well-known/wot", "/.well-known/did.json", "/openapi.json", "/openapi.yaml"}

// probe returns the agent of a web server. It searches a TD, a DID document that links to one, or an OpenAPI document, at the URL and then
// at well-known paths.
func probe(ctx context.Context, s Spec) (*Agent, error) {
	root, err := url.Parse(s.Target)
	if err != nil || root.Host == "" {
		return nil, interact.Errorf(interact.Usage, "for example http://127.0.0.1:8080", "expected the URL of a web server, got %s", s.Target)
	}
	urls := []string{s.Target}
	for _, path := range wellKnownPaths {
		urls = append(urls, root.ResolveReference(&url.URL{Path: path}).String())
	}
	for i, at := range urls {
		raw, err := fetch(ctx, at, nil)
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
			return openTD(s, lmos.WithCapabilities(ctx, raw, here, fetchReference))
		}
		for _, endpoint := range lmos.Endpoints(raw, here, web.WotThing) {
			if a, err := openEndpoint(ctx, s, endpoint); err == nil {
				return a, nil
			}
		}
		if a, err := openDocument(s, raw, at); err == nil || interact.AsError(err).Code == interact.Usage {
			return a, err
		}
	}
	return nil, interact.Errorf(interact.BadTD, "write a description and publish it, or expose a document",
		"%s has no Thing Description and no OpenAPI 3 document (searched there, and at %s)", s.Target, strings.Join(wellKnownPaths, ", ")).
		Then(interact.StepPublish).Then(interact.StepExpose, "openapi:FILE")
}

// openEndpoint returns the agent of a TD that a DID document links to.
func openEndpoint(ctx context.Context, s Spec, at *url.URL) (*Agent, error) {
	raw, err := fetchReference(ctx, at)
	if err != nil {
		return nil, err
	}
	return openTD(s, lmos.WithCapabilities(ctx, raw, at, fetchReference))
}

// fetchReference requests a document that another document of the same host refers to. It follows only redirects within this host.
func fetchReference(ctx context.Context, at *url.URL) ([]byte, error) {
	return fetch(ctx, at.String(), func(next *http.Request, via []*http.Request) error {
		if next.URL.Scheme != at.Scheme || next.URL.Host != at.Host || len(via) > maxRedirects {
			return fmt.Errorf("redirected to %s", next.URL.Redacted())
		}
		return nil
	})
}

// load reads a file or a URL.
func load(ctx context.Context, name string) ([]byte, error) {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return fetch(ctx, name, nil)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: "the file " + name + " cannot be read", Err: err,
			Hint: "ls -l " + interact.Quote(name)}
	}
	defer f.Close()
	return readDocument(f, name, &interact.Error{Code: interact.Usage, Title: name + " cannot be read to its end",
		Hint: "check its type: file " + interact.Quote(name)})
}

// readDocument reads a document of limited size. The error for another cause is incomplete.
func readDocument(r io.Reader, name string, incomplete *interact.Error) ([]byte, error) {
	raw, err := httpbody.ReadAll(r, -1, openapi.MaxDocument)
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return nil, interact.Errorf(interact.TooLarge, "shorten it", "%s has more than %d bytes", name, openapi.MaxDocument)
	case err != nil:
		incomplete.Err = err
		return nil, incomplete
	}
	return raw, nil
}

// fetch requests a description. The administrator chose the URL, so it may be on any network. A nil redirect follows redirects to any host.
func fetch(ctx context.Context, address string, redirect func(*http.Request, []*http.Request) error) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &interact.Error{Code: interact.Usage, Title: address + " is not a URL", Err: err, Hint: "for example http://127.0.0.1:8080"}
	}
	req.Header.Set("Accept", "application/td+json, application/json;q=0.9, */*;q=0.1")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, CheckRedirect: redirect}).Do(req)
	switch {
	case err != nil && context.Cause(ctx) == context.Canceled:
		return nil, fmt.Errorf("probe %s: %w", address, ctx.Err())
	case err != nil:
		return nil, &interact.Error{Code: interact.Unreachable, Title: "no server responds at " + address, Err: err, Hint: "start the agent first"}
	}
	defer resp.Body.Close()
	check := "check it: curl -i " + interact.Quote(address)
	if resp.StatusCode != http.StatusOK {
		return nil, interact.Errorf(interact.AgentFailed, check, "%s responded with %s", address, resp.Status)
	}
	return readDocument(resp.Body, address, &interact.Error{Code: interact.AgentFailed, Title: "the response of " + address + " is incomplete",
		Hint: check})
}
