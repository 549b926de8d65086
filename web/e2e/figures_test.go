package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/agent"
)

// TestFigures measures what docs/benchmarks.md has, with LMOSD_LONG: it asserts no time.
func TestFigures(t *testing.T) {
	if os.Getenv("LMOSD_LONG") == "" {
		t.Skip("LMOSD_LONG=1 runs it")
	}
	m := mesh.Members[0]
	var usable []float64
	for range 9 {
		p := tab(t, m.API, wide)
		p.visit(m.API + "/console/#/")
		ms, _ := p.eval(`new Promise((resolve) => {
			const look = () => document.querySelector('[data-testid="tile-state"]')?.innerText ? resolve(performance.now()) : requestAnimationFrame(look)
			look()
		})`).(float64)
		usable = append(usable, ms)
		p.visit("about:blank")
	}
	slices.Sort(usable)
	t.Logf("usable after %.0f ms (median of %d; %.0f to %.0f)", usable[len(usable)/2], len(usable), usable[0], usable[len(usable)-1])
	t.Logf("a change of another node is shown after %.0f ms (median of 9)", changes(t, 9))
	quiet := processor(t, m.PID, 20*time.Second)
	p := open(t, m, wide, "#/")
	p.loaded()
	p.eval("new Promise((resolve) => setTimeout(() => resolve(true), 2000))")
	t.Logf("processor of a node without a page %.2f %% of a core, with one that shows the overview %.2f %%", quiet, processor(t, m.PID, 20*time.Second))
}

// changes returns the median of the times from an event of the node to its agent in the page, in milliseconds.
func changes(t *testing.T, n int) float64 {
	t.Helper()
	p := open(t, mesh.Members[0], wide, "#/agents")
	p.loaded()
	var took []float64
	for i := range n {
		title := fmt.Sprintf("Visitor %d", i)
		p.do(evalVoid(fmt.Sprintf(`window.shown = new Promise((resolve) => new MutationObserver((_, o) => {
			if (document.querySelector('main').innerText.includes(%s)) { o.disconnect(); resolve(Date.now()) }
		}).observe(document.querySelector('main'), {childList: true, subtree: true, characterData: true}))`, quote(title))))
		own := startAgents()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := own.serve(ctx, mesh.Members[2], agent.Agent{Name: title}, agent.NewState("here", true, nil)); err != nil {
			t.Fatal(err)
		}
		ms, _ := p.eval(fmt.Sprintf(`window.shown.then(async (shown) => {
			const list = await (await fetch('../v1/events?types=agent.added&limit=20')).json()
			return shown - Date.parse(list.items.findLast((e) => e.name === %s).at)
		})`, quote(fmt.Sprintf("visitor-%d", i)))).(float64)
		took = append(took, ms)
		own.close()
		cancel()
		p.wait("the visitor is gone", "!document.querySelector('main').innerText.includes("+quote(title)+")")
		p.eval("new Promise((resolve) => setTimeout(() => resolve(true), 500))") // of many changes, the page shows four a second
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// processor returns the share of a core that a process used in a time, in percent.
func processor(t *testing.T, pid int, during time.Duration) float64 {
	t.Helper()
	ticks := func() float64 {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Skip(err)
		}
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		user, err := strconv.ParseFloat(fields[11], 64)
		if err != nil {
			t.Fatal(err)
		}
		system, err := strconv.ParseFloat(fields[12], 64)
		if err != nil {
			t.Fatal(err)
		}
		return user + system // hundredths of a second
	}
	before := ticks()
	time.Sleep(during)
	return (ticks() - before) / during.Seconds()
}
