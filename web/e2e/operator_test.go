package e2e

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/testnet"
)

// socket sends a request to the API of a node over its socket, without a body.
func socket(t *testing.T, m *testnet.Member, method, path string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.Socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

// TestEvents: an agent that comes is an event at once; a paused list counts what it holds back; a filter and a link lead on.
func TestEvents(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/events")
	p.loaded()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	come := func(name string) {
		t.Helper()
		s := startAgents()
		t.Cleanup(s.close)
		if err := s.serve(ctx, mesh.Members[1], agent.Agent{Name: name}, agent.NewState("here", true, nil)); err != nil {
			t.Fatal(err)
		}
	}
	come("first-of-events")
	p.waitText(`[data-testid="event"][data-kind="agent.added"]`, "first-of-events")
	p.click(`[data-testid="events-pause"]`)
	come("second-of-events")
	p.waitText(`[data-testid="events-pause"]`, "new")
	if strings.Contains(p.text(`[data-testid="events"]`), "second-of-events") {
		t.Error("the paused list has a new event")
	}
	p.click(`[data-testid="events-pause"]`)
	p.waitText(`[data-testid="events"]`, "second-of-events")
	p.goTo("#/events?kind=agent&q=second-of-events")
	p.wait("only the filtered events", `[...document.querySelectorAll('[data-testid="event"]')].every((e) => e.dataset.kind.startsWith('agent.') && e.innerText.includes('second-of-events'))`)
	p.click(`[data-testid="event"] a.event-name`)
	p.waitText("h1", "second-of-events")
}

// TestCalls: a call appears in the list, its page has the stages, and the filter of its trace leaves it.
func TestCalls(t *testing.T) {
	t.Parallel()
	p := signedIn(t, mesh.Members[2], wide, "admin")
	p.openAgent()
	p.click(p.action("fail") + ` [data-testid="call"]`)
	p.goTo("#/calls")
	link := `[...document.querySelectorAll('[data-testid="call-link"]')].find((a) => a.innerText.includes('fail'))`
	p.wait("the call is listed", link)
	p.do(evalVoid(link + ".click()"))
	p.waitText(`[data-testid="call"]`, "LMOS-")
	p.wait("the stages or the reason why there are none", `document.querySelector('[data-testid="call"] [data-testid="waterfall"], [data-testid="call"] p')`)
	p.do(evalVoid(`[...document.querySelectorAll('[data-testid="call"] a')].find((a) => a.hash.includes('trace=')).click()`))
	p.wait("the call of the trace", `document.querySelectorAll('[data-testid="call-link"]').length === 1`)
}

// TestSessionEnds: a page whose session the node has ended says so, and looks only.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	own := ownMesh(t, 1)
	p := signedIn(t, own.Members[0], wide, "admin")
	p.goTo("#/calls")
	p.loaded()
	socket(t, own.Members[0], http.MethodDelete, "/v1/console")
	p.wait("the notice of an ended session", `document.querySelector('[data-notice="ended"]')`)
	p.rights("none")
	p.wait("the view states what it needs", `document.querySelector('main [data-status="denied"] [data-testid="sign-in"]')`)
}

// TestNode: the log shows what the node writes, its levels change at run time, and the checks run.
func TestNode(t *testing.T) {
	t.Parallel()
	own := ownMesh(t, 1)
	p := signedIn(t, own.Members[0], wide, "admin")
	p.goTo("#/node?tab=logs")
	p.waitText(`[data-testid="log"]`, "session began")
	p.click(`[data-testid="log-levels-open"]`)
	p.wait("the levels", `document.querySelector('[data-testid="log-level-change"]')`)
	p.do(evalVoid(`const s = document.querySelector('[data-testid="log-level-change"]'); s.value = 'debug'; s.dispatchEvent(new Event('change', {bubbles: true}))`))
	p.waitText(`[data-testid="log-levels"]`, "debug")
	p.goTo("#/node?tab=doctor")
	p.click(`[data-testid="doctor-run"]`)
	p.wait("the results", `document.querySelectorAll('[data-check]').length > 3`)
	p.goTo("#/node?tab=config")
	p.waitText(`[data-testid="config-table"]`, "mesh.network")
	p.goTo("#/node?tab=api")
	p.waitText(`[data-testid="api"]`, "/v1/status")
}
