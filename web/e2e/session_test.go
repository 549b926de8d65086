package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/testnet"
)

// link returns a link that opens a session, as `lmosd console` requests it over the socket of the node.
func link(t *testing.T, m *testnet.Member, rights string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.Socket)
	}}}
	resp, err := client.Post("http://localhost/v1/console", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"rights":%q}`, rights)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	var made struct{ URL string }
	if err != nil || json.Unmarshal(raw, &made) != nil || made.URL == "" {
		t.Fatalf("%d %s %v", resp.StatusCode, raw, err)
	}
	return made.URL
}

// signedIn returns a page with a session.
func signedIn(t *testing.T, m *testnet.Member, l look, rights string) *page {
	t.Helper()
	p := tab(t, m.API, l)
	p.visit(link(t, m, rights))
	p.wait("the session has begun", fmt.Sprintf("document.querySelector('[data-testid=\"rights\"]')?.dataset.rights === %q", rights))
	return p
}

// findsAgent waits until the node of the page has the agents of the tests.
func (p *page) findsAgent() {
	p.t.Helper()
	p.goTo("#/agents")
	p.waitText("main", "Weather station")
}

// agentRoute returns the route of the agent with a title.
func (p *page) agentRoute(title string) string {
	p.t.Helper()
	ref, _ := p.eval(`fetch('../v1/agents?limit=1000').then((r) => r.json()).then((l) => l.items.find((a) => a.title === ` + quote(title) + `).ref)`).(string)
	return "#/agents/" + url.PathEscape(ref)
}

// token returns the token of the operator of a node.
func token(t *testing.T, dir string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// escape returns a reference as one part of a route.
func escape(ref string) string { return url.PathEscape(ref) }
