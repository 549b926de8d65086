package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	chromium "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdp "github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/lmosd/lmosd/testnet"
)

// A page is a tab of the browser with the console of a node. It collects what the console must not do.
type page struct {
	t    *testing.T
	ctx  context.Context
	base string // of the API, without a slash at the end

	profile chromium.BrowserContextID // with its cookies and storage

	mu     sync.Mutex
	faults []string
	asked  []string // URLs
	allow  []string // parts of faults that the test expects
}

// A look is how a page is shown.
type look struct {
	width int64
	dark  bool
}

func (l look) String() string {
	if l.dark {
		return fmt.Sprintf("%d-dark", l.width)
	}
	return fmt.Sprintf("%d-light", l.width)
}

var wide, phone = look{width: 1280}, look{width: 360}

// watchScript collects violations of the policy of the page from its first moment.
const watchScript = `window.__violations = []; addEventListener('securitypolicyviolation',
	(e) => window.__violations.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + (e.sourceFile || '')))`

// open returns a tab with storage and cookies of its own that shows the console of a node without a session, at a route ("#/agents").
func open(t *testing.T, m *testnet.Member, l look, route string) *page {
	t.Helper()
	p := tab(t, m.API, l)
	p.visit(m.API + "/console/" + route)
	return p
}

// tab returns an empty tab. At its end, the test fails if the page broke a rule.
func tab(t *testing.T, base string, l look) *page {
	t.Helper()
	ctx, profile := newTab(t, "")
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(stop)
	p := &page{t: t, ctx: ctx, base: base, profile: profile}
	p.prepare(l)
	t.Cleanup(func() {
		if t.Failed() {
			p.shot(strings.NewReplacer("/", "-", " ", "-", "#", "").Replace(t.Name()) + "-failed")
		}
		p.check()
	})
	return p
}

// newTab opens a tab of a profile; "" is a new one, which ends with the test. A tab of a new profile needs a window.
func newTab(t *testing.T, profile chromium.BrowserContextID) (context.Context, chromium.BrowserContextID) {
	t.Helper()
	c := chromium.WithExecutor(browser, chromedp.FromContext(browser).Browser)
	if profile == "" {
		id, err := target.CreateBrowserContext().Do(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = target.DisposeBrowserContext(id).Do(c) })
		profile = id
	}
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	return ctx, profile
}

// another returns a second tab of the same browser profile.
func (p *page) another(l look) *page {
	p.t.Helper()
	ctx, _ := newTab(p.t, p.profile)
	o := &page{t: p.t, ctx: ctx, base: p.base, profile: p.profile}
	o.prepare(l)
	p.t.Cleanup(o.check)
	return o
}

func (p *page) prepare(l look) {
	p.t.Helper()
	chromedp.ListenTarget(p.ctx, p.listen)
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	p.do(network.Enable(), log.Enable(), cdpruntime.Enable(),
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := cdp.AddScriptToEvaluateOnNewDocument(watchScript).Do(ctx)
			return err
		}),
		emulation.SetDeviceMetricsOverride(l.width, 800, 1, l.width < 600),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
}

func (p *page) listen(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := ev.(type) {
	case *cdpruntime.EventExceptionThrown:
		p.faults = append(p.faults, "exception: "+e.ExceptionDetails.Error())
	case *cdpruntime.EventConsoleAPICalled:
		if e.Type == cdpruntime.APITypeError || e.Type == cdpruntime.APITypeWarning {
			var text []string
			for _, a := range e.Args {
				text = append(text, string(a.Value)+a.Description)
			}
			p.faults = append(p.faults, "console: "+strings.Join(text, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError && e.Entry.Source != log.SourceNetwork { // refused requests are answers
			p.faults = append(p.faults, "log: "+e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.asked = append(p.asked, e.Request.URL)
		if !strings.HasPrefix(e.Request.URL, p.base+"/") && !strings.HasPrefix(e.Request.URL, "about:") {
			p.faults = append(p.faults, "a request elsewhere: "+e.Request.URL)
		}
	}
}

// permit lets faults with one of the parts pass.
func (p *page) permit(parts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allow = append(p.allow, parts...)
}

// check reports faults of the page.
func (p *page) check() {
	p.t.Helper()
	var violations []string
	if p.ctx.Err() == nil {
		_ = chromedp.Run(p.ctx, chromedp.Evaluate("window.__violations || []", &violations))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range violations {
		p.t.Errorf("policy violated: %s", v)
	}
	for _, f := range p.faults {
		permitted := false
		for _, part := range p.allow {
			permitted = permitted || strings.Contains(f, part)
		}
		if !permitted {
			p.t.Error(f)
		}
	}
}

func (p *page) do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatalf("%v; the page shows %.2000s", err, p.text("body"))
	}
}

func (p *page) visit(url string) {
	p.t.Helper()
	p.do(chromedp.Navigate(url))
}

// goTo changes the route of the page.
func (p *page) goTo(route string) {
	p.t.Helper()
	p.do(chromedp.Evaluate("location.hash = "+quote(route), nil))
}

// text returns the text of the first element, or "".
func (p *page) text(selector string) (text string) {
	_ = chromedp.Run(p.ctx, chromedp.Evaluate("document.querySelector("+quote(selector)+")?.innerText || ''", &text))
	return text
}

// eval evaluates an expression, which may be a promise, into an any of JSON.
func (p *page) eval(expression string) (v any) {
	p.t.Helper()
	p.do(chromedp.Evaluate(expression, &v, func(e *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return e.WithAwaitPromise(true) }))
	return v
}

// wait waits until an expression is true.
func (p *page) wait(what, expression string) {
	p.t.Helper()
	p.within(20*time.Second, what, expression)
}

func (p *page) within(limit time.Duration, what, expression string) {
	p.t.Helper()
	var ok bool
	err := chromedp.Run(p.ctx, chromedp.Poll("Boolean("+expression+")", &ok, chromedp.WithPollingTimeout(limit), chromedp.WithPollingInterval(20*time.Millisecond)))
	if err != nil || !ok {
		p.t.Fatalf("waited %v for: %s (%v); the page shows %.3000s", limit, what, err, p.text("body"))
	}
}

// waitText waits until an element has a text.
func (p *page) waitText(selector, part string) {
	p.t.Helper()
	p.wait(selector+" has "+part, "[...document.querySelectorAll("+quote(selector)+")].some(e => e.innerText.includes("+quote(part)+"))")
}

func (p *page) click(selector string) {
	p.t.Helper()
	p.wait(selector+" is there", "document.querySelector("+quote(selector)+")")
	p.do(chromedp.Evaluate("document.querySelector("+quote(selector)+").click()", nil))
}

// loaded waits until the view has its data: no state in it is loading.
func (p *page) loaded() {
	p.t.Helper()
	p.wait("the view is loaded", `document.querySelector('main h1') && !document.querySelector('main [data-status="loading"]')`)
}

// shot keeps a picture of the page in the folder of LMOSD_SHOTS, for a person.
func (p *page) shot(name string) {
	dir := os.Getenv("LMOSD_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	if err := chromedp.Run(p.ctx, chromedp.FullScreenshot(&png, 100)); err != nil {
		p.t.Log("no picture:", err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		p.t.Log("no picture:", err)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// evalVoid evaluates statements.
func evalVoid(script string) chromedp.Action {
	return chromedp.Evaluate("{"+script+"}; undefined", nil)
}

// keys types on the element that has the focus; \r is Enter.
func (p *page) keys(text string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(text))
}
