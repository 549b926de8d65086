package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// The tests of this file record why this package does not use the transports and the OAuth handler of go-sdk (docs/decisions/0036). A test
// that fails after an update of go-sdk is the reason to revisit the decision.

// The SSE transport of go-sdk drops unknown members, fails at other events, and sends credentials to any endpoint that the server names.
func TestSDKTransportOf2024(t *testing.T) {
	t.Parallel()
	posted := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { posted <- r.Header.Get("Authorization") }))
	defer other.Close()
	const sent = `{"jsonrpc":"2.0","id":1,"result":{"n":1.10},"extra":true}`
	next := make(chan string)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := "event: endpoint\ndata: " + other.URL; ; {
			_, _ = io.WriteString(w, event+"\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case event = <-next:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer site.Close()
	transport := &mcp.SSEClientTransport{Endpoint: site.URL, HTTPClient: &http.Client{Transport: withToken{&http.Transport{DisableKeepAlives: true}}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := transport.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next <- "data: " + sent
	m, err := c.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := jsonrpc.EncodeMessage(m); err != nil || string(got) == sent {
		t.Errorf("the message passes unchanged: %s, %v", got, err)
	}
	next <- "event: ping\ndata: now"
	if _, err := c.Read(ctx); err == nil {
		t.Error("the event ping is ignored")
	}
	if err := c.Write(ctx, m); err != nil {
		t.Fatal(err)
	}
	if token := <-posted; token != "Bearer secret" {
		t.Errorf("the other origin gets %q", token)
	}
}

type withToken struct{ http.RoundTripper }

func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer secret")
	return t.RoundTripper.RoundTrip(r)
}

// The OAuth handler of go-sdk prompts the user again for a token that a refresh would replace, and once per concurrent request.
func TestSDKAuthorization(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	at := i.guarded(t)
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	h, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{Client: hc, RequestRefreshToken: true,
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			RedirectURIs: []string{"http://127.0.0.1:1/callback"}, GrantTypes: []string{"authorization_code", "refresh_token"}}},
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			resp, err := hc.Get(args.URL)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			to, err := url.Parse(resp.Header.Get("Location"))
			if err != nil {
				return nil, err
			}
			q := to.Query()
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	denied := func() (*http.Request, *http.Response) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if source, err := h.TokenSource(t.Context()); err == nil && source != nil {
			token, err := source.Token()
			if err != nil {
				t.Fatal(err)
			}
			token.SetAuthHeader(req)
		}
		resp, err := hc.Do(req)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%v, %v", resp, err)
		}
		return req, resp
	}
	authorize := func(req *http.Request, resp *http.Response) {
		t.Helper()
		if err := h.Authorize(t.Context(), req, resp); err != nil {
			t.Fatal(err)
		}
	}
	authorize(denied())
	i.forget(false) // the access token, not the refresh token
	req1, resp1 := denied()
	req2, resp2 := denied()
	authorize(req1, resp1)
	authorize(req2, resp2)
	if refreshed, logins := i.seen("refresh_token"), i.seen("authorize"); refreshed != 0 || logins != 3 {
		t.Errorf("%d refreshes and %d logins", refreshed, logins)
	}
}

// The types of go-sdk reject unknown content, and drop the task of the Tasks extension and unknown members.
func TestSDKTypes(t *testing.T) {
	t.Parallel()
	for result, lost := range map[string]string{
		`{"content":[{"type":"later","x":1}]}`:                                                 "later",
		`{"resultType":"task","taskId":"t","status":"working","ttlMs":null}`:                   `"taskId"`,
		`{"content":[{"type":"text","text":"x","later":1}]}`:                                   `"later"`,
		`{"content":[],"structuredContent":{"n":12345678901234567890},"later":{"a":1}}`:        `"later"`,
		`{"content":[],"structuredContent":{"n":12345678901234567890,"price":1.10}}`:           "1.10",
		`{"resultType":"input_required","inputRequests":{"k":{"method":"later","params":{}}}}`: `"later"`,
	} {
		r := &mcp.CallToolResult{}
		if err := json.Unmarshal([]byte(result), r); err != nil {
			continue
		}
		if text, err := json.Marshal(r); err == nil && strings.Contains(string(text), lost) {
			t.Errorf("%s passes as %s", result, text)
		}
	}
}
