package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// views are the routes of the console.
var views = map[string]string{"overview": "#/", "ask": "#/ask", "mesh": "#/mesh", "agents": "#/agents", "calls": "#/calls", "events": "#/events",
	"tasks": "#/tasks", "trust": "#/trust", "network": "#/network", "node": "#/node"}

// TestViews loads each view, wide and narrow, light and dark, with a session of all rights, and checks accessibility, overflow, and the faults that
// each page collects: violations of the policy, errors, requests elsewhere.
func TestViews(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatalf("%v: run npm ci", err)
	}
	for _, l := range []look{{1280, false}, {1280, true}, {360, false}, {360, true}} {
		t.Run(l.String(), func(t *testing.T) {
			p := signedIn(t, mesh.Members[0], l, "admin")
			p.findsAgent()
			for name, route := range views {
				p.goTo(route)
				p.loaded()
				p.sound(string(axe), name)
				p.shot(fmt.Sprintf("%s-%s", name, l))
			}
			p.goTo(p.agentRoute("Weather station"))
			p.loaded()
			p.sound(string(axe), "agent")
			p.shot(fmt.Sprintf("agent-%s", l))
		})
	}
}

// sound checks that the view that the page shows is accessible and not wider than the page.
func (p *page) sound(axe, name string) {
	p.t.Helper()
	p.eval(axe + "; true")
	result, ok := p.eval(`axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}).then((r) => JSON.stringify(
		r.violations.map((v) => v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ' ' + n.failureSummary).join('; '))))`).(string)
	var found []string
	if !ok || json.Unmarshal([]byte(result), &found) != nil {
		p.t.Fatalf("axe returned %q", result)
	}
	for _, f := range found {
		p.t.Errorf("%s: %s", name, f)
	}
	if over := p.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over != 0.0 {
		p.t.Errorf("%s is %v px wider than the page", name, over)
	}
	if n := p.eval("document.querySelectorAll('h1').length"); n != 1.0 {
		p.t.Errorf("%s has %v h1", name, n)
	}
}

// TestTheCheckFindsAFault is the control of TestViews.
func TestTheCheckFindsAFault(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, mesh.Members[0], wide, "#/")
	p.loaded()
	p.eval(`document.querySelector('main').append(document.createElement('button')); ` + string(axe) + "; true")
	if n := p.eval("axe.run(document).then((r) => r.violations.filter((v) => v.id === 'button-name').length)"); n != 1.0 {
		t.Errorf("axe found %v buttons without a name, want 1", n)
	}
}
