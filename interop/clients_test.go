package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// run runs a script of this folder and decodes its output.
func run(t *testing.T, into any, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", script, err, out, stderr.String())
	}
}

func same(t *testing.T, what string, got any, want string) {
	t.Helper()
	if err := alike(what, string(asJSON(got)), want); err != nil {
		t.Error(err)
	}
}

func TestNodeWotConsumes(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := testmesh.Start(t)
	_, raw, thing := newLamp(t, "lamp")
	m.Offer(t, raw, thing)
	d := m.Known(t, "lamp")
	var saw map[string]any
	run(t, &saw, "wot-consume.mjs", m.API+"/things/"+url.PathEscape(d.ID)+"/td")
	same(t, "title", saw["title"], `"lamp"`)
	same(t, "read", saw["read"], `"celsius"`)
	same(t, "written", saw["written"], `"kelvin"`)
	same(t, "all", saw["all"], `{"units":"kelvin","level":0}`)
	same(t, "level", saw["level"], `3`)
	same(t, "output", saw["output"], `42`)
	same(t, "events", saw["events"], `["fire","fire"]`)
	same(t, "begun", saw["begun"], `"pending"`)
	same(t, "cancelled", saw["cancelled"], `"cancelled"`)
	same(t, "after the end of subscriptions", saw["late"], `0`)
	if refused, _ := saw["refused"].(string); !strings.Contains(refused, "400") && !strings.Contains(refused, "Bad Request") {
		t.Errorf("wrong input: node-wot saw %q", refused)
	}
	if seen, _ := saw["observed"].([]any); len(seen) != 2 || seen[0].(float64) < 101 || seen[1].(float64) <= seen[0].(float64) {
		t.Errorf("observed %v", saw["observed"])
	}
}

func TestNodeWotExposes(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := testmesh.Start(t)
	cmd := exec.Command("node", "wot-expose.mjs")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	m.Offer(t, line, nil)
	m.Known(t, "counter")
	k := openGo(t, m, "counter")
	if err := walk(step{k, interact.WriteProperty, "label", `"x"`, ""}, step{k, interact.ReadProperty, "label", "", `"x"`},
		step{k, interact.InvokeAction, "increment", "5", "5"},
		step{k, interact.ReadAllProperties, "", "", `{"count":5,"label":"x"}`}); err != nil {
		t.Error(err)
	}
	if _, err := ask(k, interact.InvokeAction, "fail", ""); interact.AsError(err).Code != interact.AgentFailed {
		t.Errorf("fail gave %v", err)
	}
	increment := func() error { return walk(step{k, interact.InvokeAction, "increment", "1", ""}) }
	for _, of := range []*interact.Message{{Type: interact.ObserveProperty, Name: "count"},
		{Type: interact.SubscribeEvent, Name: "changed"}} {
		if _, err := hear(k, of, increment, ""); err != nil {
			t.Errorf("%s: %v", of.Type.Op(), err)
		}
	}
}

func TestWebSocketDialects(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := testmesh.Start(t)
	for _, dialect := range []string{"doc", "kotlin", "wtp"} {
		name := "lamp-" + dialect
		_, raw, thing := newLamp(t, name)
		m.Offer(t, raw, thing)
		d := m.Known(t, name)
		var saw map[string]any
		run(t, &saw, "dialects.mjs", "ws"+strings.TrimPrefix(m.API, "http")+"/ws", dialect, d.ID)
		const both = `{"units":"celsius","level":5}`
		for what, want := range map[string]string{"read": `"celsius"`, "several": both, "all": both,
			"output": `42`, "refused": `"400"`, "missing": `"404"`, "observed": `77`, "event": `"fire"`, "after": `"celsius"`} {
			same(t, dialect+": "+what, saw[what], want)
		}
		if ends := map[string]string{doc: `"cancelled"`, wtp: `"failed"`}[dialect]; ends != "" { // the Kotlin SDK has no such message
			same(t, dialect+": cancelled", saw["cancelled"], ends) // the Web Thing Protocol has four states
			same(t, dialect+": cancelled twice", saw["again"], `"404"`)
		}
		want := map[string]string{"doc": "lmosprotocol", "kotlin": "", "wtp": "webthingprotocol"}[dialect]
		if saw["protocol"] != want {
			t.Errorf("%s: the subprotocol is %v", dialect, saw["protocol"])
		}
	}
}

// curl reads server-sent events until lines with the prefixes want came in that order, and returns these lines. Until then it calls happen
// repeatedly.
func curl(t *testing.T, happen func(), want []string, args ...string) (lines []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testprogram.Path(t, "curl"), append([]string{"-sSN", "--max-time", "20", "-H",
		"Accept: text/event-stream"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	stop := make(chan struct{})
	work.Go(func() {
		for {
			happen()
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	var all []string
	for read := bufio.NewScanner(out); len(lines) < len(want) && read.Scan(); {
		if all = append(all, read.Text()); strings.HasPrefix(read.Text(), want[len(lines)]) {
			lines = append(lines, read.Text())
		}
	}
	close(stop)
	work.Wait()
	cmd.Process.Kill()
	cmd.Wait()
	if len(lines) < len(want) {
		t.Fatalf("%v: curl saw %q, want %q", args, all, want)
	}
	for _, line := range all {
		if want[0] == "data: " && strings.HasPrefix(line, "event: ") {
			t.Errorf("%v: %q has a name", args, line)
		}
	}
	return lines
}

// curl reads observations, also of all affordances and after an event, and the states of an action and of a run.
func TestCurlReadsAllStreams(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	l, raw, thing := newLamp(t, "lamp")
	m.Offer(t, raw, thing)
	m.Known(t, "lamp")
	lamp := m.API + "/things/lamp"
	n := 0
	happen := func() { n++; l.level.Set(n); l.alarm.Emit("fire") }
	nothing := func() {}
	for path, name := range map[string]string{"/properties/level": "level", "/properties": "level", "/events/alarm": "alarm",
		"/events": "alarm"} {
		curl(t, happen, []string{"event: " + name, "id: ", "data: "}, lamp+path)
		curl(t, happen, []string{"data: ", "data: "}, lamp+path+"?named=false")
	}
	seen := curl(t, happen, []string{"id: ", `data: "fire"`}, lamp+"/events/alarm")
	l.alarm.Emit("missed")
	id, _ := strings.CutPrefix(seen[0], "id: ")
	curl(t, nothing, []string{"event: alarm", "id: ", `data: "missed"`}, lamp+"/events/alarm", "-H", "Last-Event-ID: "+id)

	curl(t, l.open, []string{"event: count", `data: {"status":"running","output":"one"`, `data: {"status":"running","output":"two"`,
		`data: {"status":"completed"`}, "-X", "POST", lamp+"/actions/count")
	curl(t, l.open, []string{"event: wait", `data: {"status":"pending"`, `data: {"status":"completed"`}, lamp+"/actions/wait",
		"-H", "Content-Type: application/json", "-d", "0")
	curl(t, nothing, []string{"data: "}, "-X", "POST", lamp+"/actions/add?named=false", "-H", "Content-Type: application/json",
		"-d", `{"a":1,"b":2}`)
	h := newHTTPTalk(m, "lamp")
	defer h.client.CloseIdleConnections()
	l.gate.shut() // curl opens it again when it ends
	run, err := begin(h.consumer(t, h.ask), "0")
	if err != nil {
		t.Fatal(err)
	}
	curl(t, nothing, []string{"event: wait", `data: {"status":"running"`}, m.API+run)
	curl(t, l.open, []string{"event: wait", `data: {"status":"completed"`}, m.API+run)
	over := curl(t, nothing, []string{"event: wait", `data: {"status":"completed"`}, m.API+run) // of an ended run
	if !strings.Contains(over[1], `"output":"done"`) {
		t.Errorf("the run ended with %s", over[1])
	}
}

// EventSource and WebSocket of Chromium, in a page of the gateway, with the token of the node. Without one such a page can only look.
func TestChromium(t *testing.T) {
	t.Parallel()
	browser := testprogram.Path(t, "chromium", "chromium-browser", "google-chrome")
	m := testmesh.Start(t)
	_, raw, thing := newLamp(t, "lamp")
	m.Offer(t, raw, thing)
	m.Known(t, "lamp")
	b := startBrowser(t, browser, m.API+"/version")
	token := fmt.Sprintf("window.token = %q;", m.ConsumerToken)
	listen := `new Promise((resolve, reject) => {
		const source = new EventSource('/things/lamp/events/alarm?token=' + token)
		source.onerror = () => reject(new Error('EventSource failed'))
		const ring = {method: 'POST', headers: {'Content-Type': 'application/json', Authorization: 'Bearer ' + token}, body: '"fire"'}
		const timer = setInterval(() => fetch('/things/lamp/actions/ring', ring), 50)
		source.addEventListener('alarm', (e) => {
			clearInterval(timer)
			source.close()
			resolve(e.data + ' ' + Boolean(e.lastEventId))
		})
	})`
	if got := b.eval(token + listen); got != `"fire" true` {
		t.Errorf("EventSource saw %q", got)
	}
	call := `new Promise((resolve, reject) => {
		const socket = new WebSocket(location.origin.replace('http', 'ws') + '/ws?token=' + token, ['lmosprotocol'])
		socket.onerror = () => reject(new Error('WebSocket failed'))
		const ask = {messageType: 'invokeAction', thingID: 'lamp', messageID: 'm1', action: 'add', input: {a: 19, b: 23}}
		socket.onopen = () => socket.send(JSON.stringify(ask))
		socket.onmessage = (e) => {
			const m = JSON.parse(e.data)
			if (m.status !== 'completed') return
			socket.close()
			resolve(socket.protocol + ' ' + m.output)
		}
	})`
	if got := b.eval(token + call); got != "lmosprotocol 42" {
		t.Errorf("WebSocket saw %q", got)
	}
	got := b.eval(`(async () => {
		const seen = []
		const source = new EventSource('/things/lamp/events/alarm')
		seen.push(await new Promise((resolve) => { source.onopen = () => resolve('open'); source.onerror = () => resolve('refused') }))
		source.close()
		const socket = new WebSocket(location.origin.replace('http', 'ws') + '/ws', ['lmosprotocol'])
		seen.push(await new Promise((resolve) => { socket.onopen = () => resolve('open'); socket.onerror = () => resolve('refused') }))
		const add = {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"a":19,"b":23}'}
		for (const [path, how] of [['/things/lamp/actions/add', add], ['/things/lamp/td', {}], ['/v1/find', {}]])
			seen.push((await fetch(path, how)).status)
		return seen.join(' ')
	})()`)
	if got != "refused refused 401 200 200" {
		t.Errorf("a page without a token saw %q", got)
	}
}

// In Chromium, a page of an origin in http.origins calls an agent over HTTP and WebSocket; a page of another origin cannot.
func TestPagesOfOtherOrigins(t *testing.T) {
	t.Parallel()
	path := testprogram.Path(t, "chromium", "chromium-browser", "google-chrome")
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<title>a page</title>")
	})
	friend, other := httptest.NewServer(page), httptest.NewServer(page)
	t.Cleanup(friend.Close)
	t.Cleanup(other.Close)
	m := testmesh.Start(t, func(o *node.Options) { o.HTTP.Origins = []string{friend.URL} })
	_, raw, thing := newLamp(t, "lamp")
	m.Offer(t, raw, thing)
	m.Known(t, "lamp")
	script := fmt.Sprintf(`(async () => {
		const api = %q, json = {'Content-Type': 'application/json'}
		const add = await fetch(api + '/things/lamp/actions/add', {method: 'POST', headers: json, body: '{"a":19,"b":23}'})
		const sum = await add.text()
		const socket = new WebSocket(api.replace('http', 'ws') + '/ws', ['lmosprotocol'])
		await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = () => reject(new Error('WebSocket failed')) })
		socket.close()
		return sum
	})().catch((e) => e.name)`, m.API)
	for name, test := range map[string]struct{ page, want string }{"an allowed page": {friend.URL, "42"}, "another page": {other.URL, "TypeError"}} {
		if got := startBrowser(t, path, test.page+"/").eval(script); got != test.want {
			t.Errorf("%s saw %q, want %q", name, got, test.want)
		}
	}
}

// A browser is a page in headless Chromium, driven over its DevTools protocol.
type browser struct {
	t *testing.T
	c *websocket.Conn
	n int
}

func startBrowser(t *testing.T, path, page string) *browser {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking",
		"--disable-component-update", "--remote-debugging-port=0", "--user-data-dir="+dir, page)
	// The browser has many processes with the pipe, so Wait waits for all: none writes into dir afterwards.
	cmd.Stderr, cmd.WaitDelay = io.Discard, 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	var port string
	for end := time.Now().Add(30 * time.Second); port == ""; time.Sleep(50 * time.Millisecond) {
		raw, _ := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		port, _, _ = strings.Cut(string(raw), "\n")
		if time.Now().After(end) {
			t.Fatal("the browser does not start")
		}
	}
	var target string
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(30 * time.Second); target == ""; time.Sleep(50 * time.Millisecond) {
		resp, err := client.Get("http://127.0.0.1:" + port + "/json/list")
		if err == nil {
			raw, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			var pages []struct{ Type, URL, WebSocketDebuggerURL string }
			_ = json.Unmarshal(raw, &pages)
			for _, p := range pages {
				if p.Type == "page" && p.URL == page {
					target = p.WebSocketDebuggerURL
				}
			}
		}
		if time.Now().After(end) {
			t.Fatal("the browser does not open the page")
		}
	}
	c, _, err := websocket.Dial(t.Context(), target, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(1 << 20)
	t.Cleanup(func() { c.CloseNow() })
	b := &browser{t: t, c: c}
	for b.eval(`Promise.resolve(document.readyState === 'complete' && location.href)`) != page {
		time.Sleep(20 * time.Millisecond)
	}
	return b
}

// eval runs a script in the page and waits for its promise.
func (b *browser) eval(script string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	b.n++
	if err := b.c.Write(ctx, websocket.MessageText, asJSON(map[string]any{"id": b.n, "method": "Runtime.evaluate",
		"params": map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}})); err != nil {
		b.t.Fatal(err)
	}
	for {
		_, raw, err := b.c.Read(ctx)
		if err != nil {
			b.t.Fatal(err)
		}
		var m struct {
			ID     int
			Result struct {
				Result           struct{ Value any }
				ExceptionDetails map[string]any
			}
		}
		if json.Unmarshal(raw, &m) != nil || m.ID != b.n {
			continue
		}
		if m.Result.ExceptionDetails != nil {
			b.t.Fatalf("the page says %s", asJSON(m.Result.ExceptionDetails))
		}
		return fmt.Sprint(m.Result.Result.Value)
	}
}
