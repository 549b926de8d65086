package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/testnet"
)

// ownMesh starts a testnet for a test that stops nodes.
func ownMesh(t *testing.T, n int, flags ...string) *testnet.Net {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	net, err := testnet.Processes(ctx, n, testnet.Options{Network: fmt.Sprintf("e2e-%d", time.Now().UnixNano()), Seed: time.Now().UnixNano(), Dir: t.TempDir(),
		Binary: binary, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Log(err)
		}
	})
	if n > 1 {
		if err := net.Settle(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return net
}

// TestLiveChanges: an agent of another node appears in the list and goes, without a reload and without a session.
func TestLiveChanges(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.loaded()
	own := startAgents()
	defer own.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := own.serve(ctx, mesh.Members[2], agent.Agent{Name: "Passing visitor"}, agent.NewState("here", true, nil)); err != nil {
		t.Fatal(err)
	}
	p.waitText("main", "Passing visitor")
	own.close()
	p.wait("the agent is gone", "!document.querySelector('main').innerText.includes('Passing visitor')")
}

// TestLostNode: within 5 s the page states that its node is lost, and it continues when the node is back.
func TestLostNode(t *testing.T) {
	t.Parallel()
	net := ownMesh(t, 1)
	m := net.Members[0]
	p := open(t, m, wide, "#/")
	p.permit("Failed to load resource", "net::ERR")
	p.loaded()
	if err := m.Kill(); err != nil {
		t.Fatal(err)
	}
	p.within(5*time.Second, "the banner of a lost node", `document.querySelector('[data-testid="lost"]')`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	api, err := url.Parse(m.API)
	if err != nil {
		t.Fatal(err)
	}
	if err := net.Restart(ctx, m, "--http.listen", api.Host); err != nil {
		t.Fatal(err)
	}
	p.wait("the banner is gone", `!document.querySelector('[data-testid="lost"]') && document.querySelector('[data-testid="connection"]').dataset.status === 'live'`)
}

// TestEightTabs: all tabs of one browser load and stay live; one of them has the stream.
func TestEightTabs(t *testing.T) {
	t.Parallel()
	first := open(t, mesh.Members[0], wide, "#/")
	tabs := []*page{first}
	for range 7 {
		p := first.another(wide)
		p.visit(mesh.Members[0].API + "/console/#/")
		tabs = append(tabs, p)
	}
	for i, p := range tabs {
		p.wait(fmt.Sprintf("tab %d shows the status", i+1), `document.querySelector('[data-testid="tile-state"]')?.innerText.length > 0`)
	}
	streams := 0
	for _, p := range tabs {
		p.mu.Lock()
		for _, u := range p.asked {
			if strings.Contains(u, "/v1/events") && !strings.Contains(u, "limit=") {
				streams++
				break
			}
		}
		p.mu.Unlock()
	}
	if streams != 1 {
		t.Errorf("%d of 8 tabs have a stream, want 1", streams)
	}
}

// TestHiddenPageAsksNothing: a hidden page sends no request.
func TestHiddenPageAsksNothing(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/")
	p.loaded()
	p.eval(`Object.defineProperty(document, 'hidden', {get: () => true}); Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'});
		document.dispatchEvent(new Event('visibilitychange')); true`)
	p.wait("the page is paused", `document.querySelector('[data-testid="connection"]').dataset.status === 'paused'`)
	p.mu.Lock()
	before := len(p.asked)
	p.mu.Unlock()
	p.eval("new Promise((resolve) => setTimeout(() => resolve(true), 4000))") // longer than the page asks whether the node is there
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.asked) - before; n != 0 {
		t.Errorf("a hidden page sent %d requests: %v", n, p.asked[before:])
	}
}

// TestInsecureContext: the page stays live over plain HTTP below a name.
func TestInsecureContext(t *testing.T) {
	t.Parallel()
	m := ownMesh(t, 1, "--http.hosts", insecureName).Members[0]
	at, err := url.Parse(m.API)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + insecureName + ":" + at.Port()
	p := tab(t, base, wide)
	p.permit("Cross-Origin-Opener-Policy header has been ignored") // a secure context has it
	p.visit(base + "/console/#/agents")
	p.loaded()
	if p.eval("isSecureContext || navigator.locks !== undefined") != false {
		t.Fatal("the browser takes the context as secure")
	}
	own := startAgents()
	defer own.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := own.serve(ctx, m, agent.Agent{Name: "Passing visitor"}, agent.NewState("here", true, nil)); err != nil {
		t.Fatal(err)
	}
	p.waitText("main", "Passing visitor")
}

// TestProxyPrefix: the page works behind a proxy with a path prefix.
func TestProxyPrefix(t *testing.T) {
	t.Parallel()
	target, err := url.Parse(mesh.Members[0].API)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target) // the Host of the node
		r.SetXForwarded()
		r.Out.Header.Set("X-Forwarded-Prefix", "/mesh")
	}, FlushInterval: -1}
	mux := http.NewServeMux()
	mux.Handle("/mesh/", http.StripPrefix("/mesh", proxy))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p := tab(t, s.URL, wide)
	p.visit(s.URL + "/mesh/console/#/")
	p.wait("the frame is there", "document.querySelector('h1')")
	p.goTo("#/agents")
	// A caller that a proxy forwards has no rights of this machine: the view states what it needs.
	p.loaded()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.asked {
		if !strings.HasPrefix(u, s.URL+"/mesh/") {
			t.Errorf("the page asked for %s", u)
		}
	}
}

// TestLinkOnce: a link opens one session; a second use looks only. A second tab of the same browser has the rights, and signing out ends them.
func TestLinkOnce(t *testing.T) {
	t.Parallel()
	m := mesh.Members[0]
	once := link(t, m, "admin")
	p := tab(t, m.API, wide)
	p.visit(once)
	p.rights("admin")
	if at := p.eval("location.href").(string); strings.Contains(at, "once=") {
		t.Errorf("the address still has the code: %s", at)
	}
	again := tab(t, m.API, wide)
	again.visit(once)
	again.wait("the notice of a used link", `document.querySelector('[data-notice="linkUsed"]')`)
	again.rights("none")
	second := p.another(wide)
	second.visit(m.API + "/console/#/")
	second.rights("admin")
	p.click(`[data-testid="rights"]`)
	p.wait("the dialog", `document.querySelector('[data-testid="session"]')`)
	p.do(evalVoid(`[...document.querySelectorAll('[data-testid="session"] button')].find((b) => b.innerText.includes('Sign out')).click()`))
	p.rights("none")
	second.visit(m.API + "/console/#/events")
	second.rights("none")
}

// rights waits until the page has rights.
func (p *page) rights(want string) {
	p.t.Helper()
	p.wait("the rights "+want, fmt.Sprintf("document.querySelector('[data-testid=\"rights\"]')?.dataset.rights === %q", want))
}

// TestOtherPort: a page on another port of the host receives the cookie of the session with its requests, and gets nothing by it.
func TestOtherPort(t *testing.T) {
	t.Parallel()
	m := mesh.Members[0]
	p := signedIn(t, m, wide, "admin")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<title>a page on another port</title>"))
	}))
	t.Cleanup(s.Close)
	other := p.another(wide)
	other.permit("a request elsewhere", "blocked by CORS", "Failed to load")
	other.visit(s.URL + "/")
	got := other.eval(fmt.Sprintf(`Promise.all([
		fetch(%[1]q + '/v1/tokens', {credentials: 'include'}).then((r) => 'read ' + r.status, () => 'blocked'),
		fetch(%[1]q + '/v1/console', {method: 'POST', credentials: 'include', mode: 'no-cors', body: '{"rights":"admin"}'}).then((r) => r.type + ' ' + r.status, () => 'blocked'),
	]).then((l) => l.join(', '))`, m.API))
	if got != "blocked, opaque 0" && got != "blocked, blocked" {
		t.Errorf("the other page got %v", got)
	}
	other.permit("frame-ancestors")
	other.do(evalVoid(fmt.Sprintf("const f = document.createElement('iframe'); f.src = %q; document.body.append(f)", m.API+"/console/")))
	for end := time.Now().Add(10 * time.Second); !other.has("frame-ancestors"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the browser showed the page in a frame")
		}
	}
}

// has reports whether the page has a fault with a part.
func (p *page) has(part string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.faults, func(f string) bool { return strings.Contains(f, part) })
}

// TestKeyboard: search, agent, call and answer by the keyboard alone.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[0], wide, "call")
	p.findsAgent()
	p.goTo("#/")
	p.loaded()
	p.do(chromedp.KeyEvent("/"))
	p.wait("the search has the focus", `document.activeElement?.dataset.testid === 'search-input'`)
	p.keys("weather station")
	p.waitText(`[data-testid="search-option"]`, "Weather station")
	p.keys("\r")
	p.waitText("h1", "Weather station")
	p.tabTo(`.disclose`, "forecast")
	if p.eval("document.activeElement.ariaExpanded") == "false" {
		p.keys("\r")
	}
	p.tabTo(`[data-testid="action"] form input`, "")
	p.keys("Lima\r")
	if s := p.ended(`[data-testid="action"][data-name="forecast"]`); s != "completed" {
		t.Errorf("the call is %s", s)
	}
}

// tabTo presses Tab until an element that matches a selector and has a text has the focus.
func (p *page) tabTo(selector, text string) {
	p.t.Helper()
	for range 80 {
		p.keys("\t")
		if p.eval(fmt.Sprintf("document.activeElement.matches(%s) && document.activeElement.innerText.includes(%s)", quote(selector), quote(text))) == true {
			return
		}
	}
	p.t.Fatalf("80 tabs do not reach %s %s", selector, text)
}
