package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// hostile are descriptions that try to harm a page that shows them.
func hostile() map[string]map[string]any {
	described := func(members map[string]any) map[string]any {
		base := map[string]any{"@context": "https://www.w3.org/2022/wot/td/v1.1", "security": "nosec",
			"securityDefinitions": map[string]any{"nosec": map[string]any{"scheme": "nosec"}},
			"actions":             map[string]any{"act": map[string]any{"forms": []any{map[string]any{"href": "http://127.0.0.1:1/act"}}}}}
		for k, v := range members {
			base[k] = v
		}
		return base
	}
	input := func(schema map[string]any) map[string]any {
		return map[string]any{"act": map[string]any{"input": schema, "forms": []any{map[string]any{"href": "http://127.0.0.1:1/act"}}}}
	}
	many := map[string]any{}
	for i := range 500 {
		many[fmt.Sprintf("member%03d", i)] = map[string]any{"type": "string"}
	}
	deep := map[string]any{"type": "string"}
	for range 20 {
		deep = map[string]any{"type": "object", "properties": map[string]any{"next": deep}}
	}
	return map[string]map[string]any{
		"markup":      described(map[string]any{"title": `<img src=x onerror="window.evil=1"><b>markup</b>`, "description": `<script>window.evil = 1</script>`}),
		"bidi":        described(map[string]any{"title": "bidi \u202egnp.exe\u202c", "description": "\u2066hidden\u2069"}),
		"combining":   described(map[string]any{"title": "combining " + strings.Repeat("\u0301", 400)}),
		"long":        described(map[string]any{"title": "long " + strings.Repeat("title ", 80), "description": strings.Repeat("d", 100_000)}),
		"links":       described(map[string]any{"title": "links", "links": []any{map[string]any{"href": "javascript:window.evil=1", "rel": "about"}, map[string]any{"href": "data:text/html,x"}, map[string]any{"href": "https://safe.example/"}}}),
		"members":     described(map[string]any{"title": "members", "actions": input(map[string]any{"type": "object", "properties": many})}),
		"deep":        described(map[string]any{"title": "deep", "actions": input(deep)}),
		"alternative": described(map[string]any{"title": "alternative", "actions": input(map[string]any{"oneOf": []any{map[string]any{"type": "string"}, map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "integer"}}}}})}),
		"enum":        described(map[string]any{"title": "enum", "actions": input(map[string]any{"type": "object", "properties": map[string]any{"e": map[string]any{"enum": []any{"a", nil, 3}}}})}),
		"pattern":     described(map[string]any{"title": "pattern", "actions": input(map[string]any{"type": "object", "properties": map[string]any{"p": map[string]any{"type": "string", "pattern": "^(a+)+$"}}})}),
	}
}

// TestHostileDescriptions shows each agent: no markup of it is rendered, no link leads to a script, and the page stays usable.
func TestHostileDescriptions(t *testing.T) {
	t.Parallel()
	net := ownMesh(t, 1)
	m := net.Members[0]
	refs := map[string]string{}
	for name, td := range hostile() {
		refs[name] = publish(t, m.API, m.DataDir, td)
	}
	p := signedIn(t, m, phone, "call")
	p.goTo("#/agents")
	p.loaded()
	p.waitText("main", "combining")
	p.harmless("the list")
	for name, ref := range refs {
		start := time.Now()
		p.goTo("#/agents/" + escape(ref))
		p.waitText("main h1", name)
		p.loaded()
		p.harmless(name)
		if name == "pattern" {
			p.do(evalVoid(`{ const e = document.querySelector('[data-testid="action"] form input'); e.focus(); e.value = 'a'.repeat(40) + '!'; e.dispatchEvent(new InputEvent('input', {bubbles: true})) }`))
			p.wait("the page answers", "true")
		}
		t.Logf("%s: shown after %v", name, time.Since(start).Round(time.Millisecond))
	}
}

// harmless checks what is shown.
func (p *page) harmless(what string) {
	p.t.Helper()
	if p.eval(`window.evil === undefined && !document.querySelector('main img, main b, main script, a[href^="javascript:"], a[href^="data:"]')`) != true {
		p.t.Errorf("%s: the page renders markup of an agent", what)
	}
	if p.eval(`/[\u202a-\u202e\u2066-\u2069]/.test(document.querySelector('main').innerText)`) != false {
		p.t.Errorf("%s: the page shows controls of direction", what)
	}
	if over := p.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth"); over != 0.0 {
		p.t.Errorf("%s is %v px wider than the page", what, over)
	}
	if p.eval(`[...document.querySelectorAll('main a[target="_blank"]')].every((a) => a.protocol === 'https:' && a.rel.includes('noreferrer'))`) != true {
		p.t.Errorf("%s: a link leads elsewhere without noreferrer", what)
	}
}

// publish publishes a description with the token of the node, and returns its reference.
func publish(t *testing.T, api, dir string, td map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(td)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, api+"/v1/publish", bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token(t, dir))
	r.Header.Set("Content-Type", "application/td+json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var made struct{ Ref, Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.Ref == "" {
		t.Fatalf("%d %+v %v", resp.StatusCode, made, err)
	}
	return made.Ref
}
