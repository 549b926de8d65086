package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// answer makes the page receive made-up documents for requests whose URL has a part, in place of those of the node.
func (p *page) answer(part string, document func(url string) any) {
	p.t.Helper()
	chromedp.ListenTarget(p.ctx, func(ev any) {
		paused, ok := ev.(*fetch.EventRequestPaused)
		if !ok {
			return
		}
		go func() { // the listener must not wait for the browser
			ctx := cdp.WithExecutor(p.ctx, chromedp.FromContext(p.ctx).Target)
			if !strings.Contains(paused.Request.URL, part) {
				_ = fetch.ContinueRequest(paused.RequestID).Do(ctx)
				return
			}
			body, err := json.Marshal(document(paused.Request.URL))
			if err != nil {
				panic(err)
			}
			_ = fetch.FulfillRequest(paused.RequestID, 200).WithResponseHeaders([]*fetch.HeaderEntry{{Name: "Content-Type", Value: "application/json"}}).
				WithBody(base64.StdEncoding.EncodeToString(body)).Do(ctx)
		}()
	})
	p.do(fetch.Enable().WithPatterns([]*fetch.RequestPattern{{URLPattern: "*" + part + "*"}}), network.SetCacheDisabled(true))
}

// TestManyAgents: of 10,000 agents at most 40 rows are in the page, from the first to the last one.
func TestManyAgents(t *testing.T) {
	t.Parallel()
	const all, size = 10_000, 1000
	p := tab(t, mesh.Members[0].API, wide)
	p.answer("/v1/agents?", func(url string) any {
		from := 0
		if _, cursor, ok := strings.Cut(url, "cursor=c"); ok {
			from, _ = strconv.Atoi(strings.SplitN(cursor, "&", 2)[0])
		}
		items := make([]map[string]any, 0, size)
		for i := from; i < min(from+size, all); i++ {
			items = append(items, map[string]any{"ref": fmt.Sprintf("urn:x:%05d", i), "id": fmt.Sprintf("urn:x:%05d", i), "title": fmt.Sprintf("Agent %05d", i), "name": fmt.Sprintf("agent-%05d", i),
				"owner": mesh.Members[0].DID, "hosts": []any{mesh.Members[0].DID}, "capabilities": []string{fmt.Sprintf("urn:example:c%d", i%7)}, "actions": []string{"act"}, "local": true, "reachable": "yes"})
		}
		list := map[string]any{"apiVersion": "lmosd/v1", "kind": "AgentList", "items": items, "total": all, "latest": 0}
		if from+size < all {
			list["next"] = fmt.Sprintf("c%d", from+size)
		}
		return list
	})
	p.visit(mesh.Members[0].API + "/console/#/agents")
	p.wait("all agents are listed", `document.querySelector('[data-testid="agents-list"]')?.dataset.count === "10000"`)
	rows := `document.querySelectorAll('[data-testid="agents-list"] [role="option"]').length`
	if n, _ := p.eval(rows).(float64); n < 5 || n > 40 {
		t.Errorf("%v rows are in the page", n)
	}
	p.do(evalVoid(`document.querySelector('[data-testid="agents-list"]').focus()`))
	p.do(chromedp.KeyEvent(kb.End))
	p.waitText(`[data-testid="agents-list"]`, "Agent 09999")
	if n, _ := p.eval(rows).(float64); n < 5 || n > 40 {
		t.Errorf("at the end %v rows are in the page", n)
	}
	frames, _ := p.eval(`new Promise((resolve) => {
		const list = document.querySelector('[data-testid="agents-list"]'), times = []
		let before = performance.now(), n = 0
		const step = (now) => {
			times.push(now - before)
			before = now
			list.scrollTop = (n * 997) % list.scrollHeight
			if (++n < 120) requestAnimationFrame(step)
			else resolve(times.slice(1).sort((a, b) => a - b))
		}
		requestAnimationFrame(step)
	})`).([]any)
	t.Logf("scrolling 10,000 agents, frames: p50 %.1f ms, p95 %.1f ms", frames[len(frames)/2], frames[len(frames)*95/100])
}

// madeTopology returns n nodes of some organizations, and links.
func madeTopology(n, links, organizations int) map[string]any {
	did := func(i int) string { return fmt.Sprintf("did:key:z6Mk%040d", i) }
	nodes, lines := make([]map[string]any, n), make([]map[string]any, links)
	for i := range nodes {
		nodes[i] = map[string]any{"did": did(i), "name": fmt.Sprintf("node-%d", i), "organization": fmt.Sprintf("org-%d.example", i%organizations), "roles": []string{},
			"version": "1", "agents": i % 5, "reachable": true, "self": i == 0, "source": "record"}
	}
	for i := range lines {
		from := i % n
		lines[i] = map[string]any{"from": did(from), "to": did((from*7 + i/n*13 + 1) % n), "transport": "quic-v1", "rtt_ms": 1.5, "seen_by": did(from)}
	}
	return map[string]any{"apiVersion": "lmosd/v1", "kind": "Topology", "at": "2026-01-01T00:00:00Z", "nodes": nodes, "links": lines,
		"coverage": map[string]any{"asked": n, "answered": n, "unreachable": 0, "truncated": false}}
}

// TestLargeMesh draws 500 nodes whole and 5,000 as organizations.
func TestLargeMesh(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ nodes, links int }{{500, 2000}, {5000, 8000}} {
		t.Run(strconv.Itoa(size.nodes), func(t *testing.T) {
			p := tab(t, mesh.Members[0].API, wide)
			made := madeTopology(size.nodes, size.links, 12)
			p.answer("/v1/topology", func(string) any { return made })
			p.visit(mesh.Members[0].API + "/console/#/mesh")
			p.wait("the picture", `document.querySelector('[data-testid="mesh-canvas"]')`)
			p.loaded()
			got := p.eval(`import('./graph.js').then(async (g) => {
				for (let i = 0; i < 200; i++) await new Promise(requestAnimationFrame)
				const times = g.work.frames.toSorted((a, b) => a - b), at = (q) => times[Math.floor(q * times.length)] ?? 0;
				return {draws: g.work.draws, p50: at(0.5), p95: at(0.95), frames: times.length, longest: g.work.longest}
			})`).(map[string]any)
			if draws, _ := got["draws"].(float64); draws == 0 {
				t.Error("nothing was drawn")
			}
			t.Logf("%d nodes, %d links: work of a frame p50 %.1f ms, p95 %.1f ms, longest %.1f ms, of %v frames", size.nodes, size.links, got["p50"], got["p95"], got["longest"], got["frames"])
			rows, _ := p.eval(`document.querySelectorAll('[data-testid="mesh-nodes"] tbody tr').length`).(float64)
			if rows == 0 || rows > 1000 {
				t.Errorf("the table has %v rows", rows)
			}
			p.shot(fmt.Sprintf("mesh-of-%d", size.nodes))
		})
	}
}

// TestUsable reports when the overview of a node is usable, from the navigation on; the figure is for docs/benchmarks.md.
func TestUsable(t *testing.T) {
	p := tab(t, mesh.Members[0].API, wide)
	p.visit("about:blank")
	if err := chromedp.Run(p.ctx, chromedp.Navigate(mesh.Members[0].API+"/console/#/")); err != nil {
		t.Fatal(err)
	}
	took := p.eval(`new Promise((resolve) => {
		const look = () => document.querySelector('[data-testid="tile-state"]')?.innerText ? resolve(performance.now()) : requestAnimationFrame(look)
		look()
	})`)
	sizes := p.eval(`performance.getEntriesByType('resource').filter((e) => e.name.includes('/console/')).reduce((n, e) => n + e.encodedBodySize, 0)`)
	t.Logf("usable after %.0f ms, %.1f kB of the page", took, sizes.(float64)/1000)
}
