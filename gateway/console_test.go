package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/sessions"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/web"
)

// newLink makes a link over the socket, or with the headers of another caller, and returns its code.
func (r *running) newLink(t *testing.T, rights string, header map[string]string) (code string, l api.ConsoleLink) {
	t.Helper()
	resp, body := r.do(t, exchange{method: "POST", path: "/v1/console", header: merge(header, "Content-Type", "application/json"),
		body: `{"rights":"` + rights + `"}`, socket: header == nil})
	if resp.StatusCode != http.StatusOK || json.Unmarshal([]byte(body), &l) != nil || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("no link: %d %s", resp.StatusCode, body)
	}
	_, code, _ = strings.Cut(l.URL, "#once=")
	return code, l
}

// A pageSession has what a browser keeps of a session.
type pageSession struct {
	api.Session
	cookie *http.Cookie
}

// both are the headers of a request in a session, as a page of the node sends it.
func (p pageSession) both(more ...string) map[string]string {
	return merge(map[string]string{"Cookie": p.cookie.Name + "=" + p.cookie.Value, api.SessionHeader: p.Key, "Sec-Fetch-Site": "same-origin"}, more...)
}

// tryLink sends the code of a link as a page of the node does.
func (r *running) tryLink(t *testing.T, code string, header ...string) (*http.Response, string) {
	t.Helper()
	return r.do(t, exchange{method: "POST", path: sessionPath, body: `{"once":"` + code + `"}`,
		header: merge(map[string]string{"Content-Type": "application/json", "Origin": r.url, "Sec-Fetch-Site": "same-origin"}, header...)})
}

// signIn begins a session with rights that a user of the socket has made, or the caller with these headers.
func (r *running) signIn(t *testing.T, rights string, maker map[string]string, header ...string) (p pageSession) {
	t.Helper()
	code, _ := r.newLink(t, rights, maker)
	resp, body := r.tryLink(t, code, header...)
	if resp.StatusCode != http.StatusOK || json.Unmarshal([]byte(body), &p.Session) != nil || len(resp.Cookies()) != 1 {
		t.Fatalf("no session: %d %s", resp.StatusCode, body)
	}
	p.cookie = resp.Cookies()[0]
	return p
}

// The requests of a page: what a session needs for them.
var (
	looks  = exchange{path: "/v1/status"}
	finds  = exchange{path: "/v1/find?q=weather"}
	calls  = exchange{method: "POST", path: "/things/urn:x:weather/actions/ask"}
	reads  = exchange{path: "/things/urn:x:weather/properties/unit"}
	admins = exchange{method: "POST", path: "/v1/publish"} // without a TD: 415 for those who may
)

// expect checks the status of x with the headers of a page.
func (r *running) expect(t *testing.T, name string, x exchange, header map[string]string, status int) {
	t.Helper()
	x.header, x.status = merge(x.header), status
	for k, v := range header {
		x.header[k] = v
	}
	if resp, body := r.do(t, x); resp.StatusCode != status {
		t.Errorf("%s: %s %s gives %d, want %d: %s", name, x.method, x.path, resp.StatusCode, status, body)
	}
}

// A session is a cookie and a key, with the rights of its link.
func TestSessionRights(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for rights, want := range map[string][5]int{"read": {200, 200, 403, 403, 403}, "call": {200, 200, 204, 200, 403}, "admin": {200, 200, 204, 200, 415}} {
		p := r.signIn(t, rights, nil)
		if c := p.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Secure || c.Domain != "" || c.MaxAge != 12*60*60 ||
			c.Name != "lmosd-"+r.url[strings.LastIndex(r.url, ":")+1:] {
			t.Errorf("the cookie is %s", c)
		}
		if p.Kind != "Session" || p.Rights != rights || len(p.Key) != 43 || !strings.HasPrefix(p.Maker, "local#uid:") || time.Until(p.Expires) > 12*time.Hour {
			t.Errorf("got %+v", p.Session)
		}
		for i, x := range []exchange{looks, finds, calls, reads, admins} {
			r.expect(t, rights, x, p.both(), want[i])
		}
		r.expect(t, rights+" as an agent", looks, p.both(api.AgentHeader, string(owner1)), 403)
	}
	none := map[string]string{"Sec-Fetch-Site": "same-origin"}
	for i, want := range []int{200, 200, 401, 401, 401} {
		r.expect(t, "no session", []exchange{looks, finds, calls, reads, admins}[i], none, want)
	}
	r.check(t, exchange{path: sessionPath, header: none, status: 200, contain: `"kind":"Session","rights":"none"}`})
	r.check(t, exchange{path: sessionPath, header: r.signIn(t, "call", nil).both(), status: 200, contain: `"rights":"call","expires":"`})
}

// Programs send neither Origin nor Sec-Fetch-Site, and stay as docs/api.md describes.
func TestProgramsNeedNoSession(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	for i, want := range []int{200, 200, 204, 200, 401} {
		r.expect(t, "a program", []exchange{looks, finds, calls, reads, admins}[i], nil, want)
	}
	r.expect(t, "a program with a token in a page", admins, merge(asAdmin, "Sec-Fetch-Site", "same-origin", "Origin", r.url), 415)
	old := map[string]string{api.SessionHeader: "ended", "Cookie": "lmosd-1=x"}
	r.expect(t, "a program with the secrets of no session", calls, old, 204)
}

// One of the two secrets is no session, and neither are those of other nodes, hosts and origins.
func TestACookieAloneIsNoSession(t *testing.T) {
	t.Parallel()
	r, neighbor := start(t, Options{}), start(t, Options{})
	p, other, theirs := r.signIn(t, "admin", nil), r.signIn(t, "admin", nil), neighbor.signIn(t, "admin", nil)
	cookie := p.cookie.Name + "=" + p.cookie.Value
	for name, c := range map[string]struct {
		header map[string]string
		calls  int // status of a call; looking is permitted, or 403 with another host
		looks  int
	}{
		"both":                                   {p.both("Origin", r.url), 204, 200},
		"the cookie alone":                       {map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}, 401, 200},
		"the key alone":                          {map[string]string{api.SessionHeader: p.Key, "Sec-Fetch-Site": "same-origin"}, 401, 200},
		"the key of another session":             {p.both(api.SessionHeader, other.Key), 401, 200},
		"a session of another port":              {theirs.both(), 401, 200},
		"that cookie with our name":              {p.both("Cookie", p.cookie.Name+"="+theirs.cookie.Value), 401, 200},
		"its key with our cookie":                {p.both(api.SessionHeader, theirs.Key), 401, 200},
		"cookies of other pages too":             {p.both("Cookie", p.cookie.Name+"=x; "+theirs.cookie.Name+"=y; "+cookie), 204, 200},
		"a page of another port with the cookie": {map[string]string{"Cookie": cookie, "Origin": neighbor.url, "Sec-Fetch-Site": "same-site"}, 403, 200},
		"such a page with both":                  {p.both("Origin", neighbor.url, "Sec-Fetch-Site", "same-site"), 403, 200},
		"another host":                           {p.both("Host", "evil.example", "Origin", "http://evil.example"), 403, 403},
		"another origin":                         {p.both("Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"), 403, 200},
		"a sandboxed frame":                      {p.both("Origin", "null"), 403, 200},
	} {
		r.expect(t, name, calls, c.header, c.calls)
		r.expect(t, name, looks, c.header, c.looks)
	}
	r.check(t, exchange{method: "POST", path: calls.path, header: map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}, status: 401,
		code: "LMOS-1401", contain: "without a session"})
	r.check(t, exchange{method: "POST", path: calls.path, header: p.both(api.SessionHeader, "x"), status: 401, code: "LMOS-1401", contain: `"kind":"console"`})
}

// A link begins one session; its URL keeps the code out of what browsers send and log.
func TestConsoleLinks(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	code, l := r.newLink(t, "call", nil)
	if l.Kind != "ConsoleLink" || l.URL != r.url+"/console/#once="+code || len(code) != 22 || l.Rights != "call" || time.Until(l.Expires) > time.Minute {
		t.Errorf("got %+v", l)
	}
	if resp, body := r.tryLink(t, code); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	for name, code := range map[string]string{"twice": code, "never made": "AAAAAAAAAAAAAAAAAAAAAA", "empty": ""} {
		if resp, body := r.tryLink(t, code); resp.StatusCode != 401 || len(resp.Cookies()) != 0 {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	code, _ = r.newLink(t, "call", nil)
	for origin, want := range map[string]int{"http://evil.example": 403, "http://127.0.0.1:1": 403, "null": 403} {
		if resp, _ := r.tryLink(t, code, "Origin", origin, "Sec-Fetch-Site", "cross-site"); resp.StatusCode != want || len(resp.Cookies()) != 0 {
			t.Errorf("%s: %d", origin, resp.StatusCode)
		}
	}
	p := r.signIn(t, "call", nil)
	code, _ = r.newLink(t, "read", nil)
	if resp, _ := r.tryLink(t, code, "Cookie", p.cookie.Name+"="+p.cookie.Value); resp.StatusCode != 200 {
		t.Errorf("signing in again: %d", resp.StatusCode)
	}
	r.expect(t, "the session before it", calls, p.both(), 401)
	for name, x := range map[string]exchange{
		"not JSON": {body: `once=x`, status: 400}, "no type": {header: map[string]string{"Content-Type": "text/plain"}, body: `{}`, status: 415},
		"more members": {body: `{"once":"x","rights":"admin"}`, status: 400}, "two": {body: `{} {}`, status: 400},
		"long": {body: `{"once":"` + strings.Repeat("x", maxConsoleRequest) + `"}`, status: 413},
	} {
		x.name, x.method, x.path, x.header = name, "POST", sessionPath, merge(map[string]string{"Content-Type": "application/json"}, "Content-Type", x.header["Content-Type"])
		if x.header["Content-Type"] == "" {
			x.header["Content-Type"] = "application/json"
		}
		r.check(t, x)
	}
}

// A link has at most the rights of its maker, and a session too, whatever its link was.
func TestSessionsOfTokens(t *testing.T) {
	t.Parallel()
	store := memory(t)
	r := start(t, Options{Tokens: store})
	find, call := grant(t, store, "finder", "find"), grant(t, store, "caller", "call")
	manage := grant(t, store, "manager", "manage", "find", "call")
	weather := grant(t, store, "one", "invoke:weather")
	try := func(header map[string]string, rights string, status int, want string) {
		t.Helper()
		resp, body := r.do(t, exchange{method: "POST", path: "/v1/console", header: merge(header, "Content-Type", "application/json"),
			body: `{"rights":"` + rights + `"}`})
		if resp.StatusCode != status || !strings.Contains(body, `"rights":"`+want+`"`) && status == 200 {
			t.Errorf("%v, %q: %d %s", header, rights, resp.StatusCode, body)
		}
	}
	try(nil, "read", 401, "")
	try(nil, "", 401, "")
	try(find, "read", 200, "read")
	try(find, "call", 403, "")
	try(find, "admin", 403, "")
	try(find, "", 200, "read")
	try(call, "admin", 403, "")
	try(call, "", 200, "call")
	try(manage, "", 200, "admin")
	try(weather, "", 403, "")
	try(asAdmin, "", 200, "admin")
	try(asAdmin, "root", 400, "")
	try(merge(map[string]string{"Authorization": "Bearer wrong"}), "read", 401, "")
	try(map[string]string{"X-Forwarded-For": "192.0.2.1"}, "read", 401, "")
	p := r.signIn(t, "admin", manage)
	if p.Maker != "local#manager" {
		t.Errorf("the maker is %s", p.Maker)
	}
	r.expect(t, "a manager", admins, p.both(), 415)
	r.expect(t, "a manager makes a token", exchange{method: "POST", path: "/v1/tokens", header: map[string]string{"Content-Type": "application/json"},
		body: `{"name":"more","scopes":["*"]}`}, p.both(), 403)
	r.expect(t, "a session makes a link", exchange{method: "POST", path: "/v1/console", header: map[string]string{"Content-Type": "application/json"},
		body: `{}`}, p.both(), 403)
	r.expect(t, "the operator makes a token", exchange{method: "POST", path: "/v1/tokens", header: map[string]string{"Content-Type": "application/json"},
		body: `{"name":"more","scopes":["*"]}`}, r.signIn(t, "admin", asAdmin).both(), 201)
	r.expect(t, "a session that may call makes a token", exchange{method: "POST", path: "/v1/tokens", header: map[string]string{"Content-Type": "application/json"},
		body: `{"name":"again","scopes":["*"]}`}, r.signIn(t, "call", nil).both(), 403)
	caller := r.signIn(t, "call", call)
	r.expect(t, "a caller", calls, caller.both(), 204)
	if err := store.Revoke("caller"); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the end of the session", func() bool { return r.sessions.Len() <= 3 })
	r.expect(t, "of a revoked token", calls, caller.both(), 401)
	r.expect(t, "of a revoked token", looks, caller.both(), 200)
}

// A call in a session has the principal of the maker, in a session.
func TestPrincipalOfASession(t *testing.T) {
	t.Parallel()
	got := make(chan *did.Principal, 1)
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		got <- m.From
		return echo(ctx, m)
	}).Do
	store := memory(t)
	r := start(t, serving(node, Options{Tokens: store}))
	call := grant(t, store, "caller", "call")
	r.expect(t, "a user", calls, r.signIn(t, "call", nil).both(), 204)
	if p := <-got; p.Via != did.Session || p.Maker != did.Socket || p.Scoped() || p.Relation != did.Local || p.Expires.IsZero() {
		t.Errorf("got %+v", p)
	}
	r.expect(t, "a token", calls, r.signIn(t, "call", call).both("X-Forwarded-For", "192.0.2.1"), 204)
	if p := <-got; p.Via != did.Session || p.Maker != did.Token || !p.Scoped() || p.Name != "caller" {
		t.Errorf("got %+v", p)
	}
}

// A session ends by signing out, by the operator, and with the node; the requests in it end, too.
func TestEndsOfSessions(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}, 1), make(chan error, 1)
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	node.mesh = interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		started <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	}).Do
	r := start(t, serving(node, Options{}))
	ends := map[string]func(p pageSession){
		"signing out": func(p pageSession) {
			r.expect(t, "sign out", exchange{method: "DELETE", path: sessionPath}, p.both(), 204)
		},
		"the operator": func(pageSession) {
			r.check(t, exchange{method: "DELETE", path: "/v1/console", socket: true, status: 204})
		},
	}
	for name, end := range ends {
		p := r.signIn(t, "call", nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.expect(t, name, calls, p.both(), 401)
		}()
		<-started
		end(p)
		var e *interact.Error
		if cause := <-ended; !errors.As(cause, &e) || e.Code != interact.Unauthenticated {
			t.Errorf("%s: the call ended with %v", name, cause)
		}
		<-done
		r.expect(t, name, reads, p.both(), 401)
	}
	r.expect(t, "no session signs out", exchange{method: "DELETE", path: sessionPath}, map[string]string{"Sec-Fetch-Site": "same-origin"}, 204)
	r.expect(t, "a session without the right ends all", exchange{method: "DELETE", path: "/v1/console"}, r.signIn(t, "call", nil).both(), 403)
	// Another gateway with the same tokens and the same address is the node after a restart.
	p := r.signIn(t, "admin", nil)
	again := start(t, Options{Tokens: r.o.Tokens})
	again.expect(t, "after a restart", calls, p.both("Host", strings.TrimPrefix(r.url, "http://")), 401)
}

// Of too many sessions, the one that has been idle for longest ends.
func TestSeventeenSessions(t *testing.T) {
	t.Parallel()
	r := start(t, Options{})
	first := r.signIn(t, "call", nil)
	second := r.signIn(t, "call", nil)
	for range sessions.Max - 2 {
		r.signIn(t, "call", nil)
	}
	r.expect(t, "sixteen", calls, first.both(), 204)
	r.signIn(t, "call", nil)
	r.expect(t, "seventeen", calls, first.both(), 204)
	r.expect(t, "seventeen", calls, second.both(), 401)
}

// Beyond this machine a session needs TLS, and its cookie is Secure then.
func TestSessionsNeedTLS(t *testing.T) {
	t.Parallel()
	public := start(t, Options{Operation: Operation{PublicURL: "https://node.example"}})
	public.guard.names.Store(newWebNames([]string{"node.example"}, nil))
	behind := []string{"Host", "node.example", "Origin", "https://node.example", "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Proto", "https"}
	p := public.signIn(t, "admin", nil, behind...)
	if !p.cookie.Secure || p.Rights != "admin" {
		t.Errorf("behind a proxy: %s %+v", p.cookie, p.Session)
	}
	public.expect(t, "behind a proxy", calls, p.both(behind...), 204)
	public.expect(t, "without the key", calls, p.both(append([]string{api.SessionHeader, ""}, behind...)...), 401)
	if _, l := public.newLink(t, "", asAdmin); !strings.HasPrefix(l.URL, "https://node.example/console/#once=") {
		t.Errorf("the link for another machine is %s", l.URL)
	}
	if _, l := public.newLink(t, "", nil); !strings.HasPrefix(l.URL, public.url+"/console/#once=") {
		t.Errorf("the link for this machine is %s", l.URL)
	}
	named := start(t, Options{Operation: Operation{Hosts: []string{"node.lan"}}})
	code, _ := named.newLink(t, "read", nil)
	if resp, body := named.tryLink(t, code, "Host", "node.lan:4668", "Origin", "http://node.lan:4668"); resp.StatusCode != 403 || !strings.Contains(body, "TLS") {
		t.Errorf("plain HTTP by a name: %d %s", resp.StatusCode, body)
	}
	if resp, _ := named.tryLink(t, code, "Host", "localhost:4668", "Origin", "http://localhost:4668"); resp.StatusCode != 200 || resp.Cookies()[0].Secure {
		t.Errorf("localhost, through a tunnel: %d", resp.StatusCode) // the link was not used up
	}
	g, err := New(serving(newFake(), Options{Listen: "0.0.0.0:0", Socket: socketFile(t), Tokens: memory(t), Operation: Operation{OpenDirectory: true}}))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := g.InProcess().OpenConsole(t.Context(), "read"); interact.AsError(err).Code != interact.Forbidden {
		t.Errorf("plain HTTP beyond loopback: %v", err)
	}
	none, err := New(serving(newFake(), Options{Listen: None, Tokens: memory(t)}))
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if _, err := none.InProcess().OpenConsole(t.Context(), "read"); interact.AsError(err).Code != interact.NoAffordance {
		t.Errorf("no listener: %v", err)
	}
}

// Below a path of a proxy the page shares its origin with other applications: its sessions only read.
func TestSessionsBelowAPathRead(t *testing.T) {
	t.Parallel()
	r := start(t, Options{Operation: Operation{Hosts: []string{"node.example"}}})
	if p := r.signIn(t, "admin", nil, "X-Forwarded-Prefix", "/lmosd"); p.Rights != "read" {
		t.Errorf("below a prefix: %+v", p.Session)
	}
	p := r.signIn(t, "admin", nil, "X-Forwarded-Prefix", "/")
	r.expect(t, "without a prefix", calls, p.both(), 204)
	r.expect(t, "with a prefix later", calls, p.both("X-Forwarded-Prefix", "/lmosd"), 403)
	r.check(t, exchange{path: sessionPath, header: p.both("X-Forwarded-Prefix", "/lmosd"), status: 200, contain: `"rights":"read"`})
	path := start(t, Options{Operation: Operation{PublicURL: "https://node.example/lmosd/", Hosts: []string{"node.example"}}})
	if p := path.signIn(t, "admin", nil, "Host", "node.example", "Origin", "https://node.example"); p.Rights != "read" {
		t.Errorf("below the path of the public URL: %+v", p.Session)
	}
	if p := path.signIn(t, "admin", nil); p.Rights != "admin" {
		t.Errorf("beside it, on this machine: %+v", p.Session)
	}
}

// A session creates nothing that outlives it at an address of its choice, and does not speak the protocols of bridges.
func TestSessionsCreateNoWebhooks(t *testing.T) {
	t.Parallel()
	r := start(t, serving(stationNode(t, counting(1)), Options{PrivateCallbacks: true, Bridges: []Bridge{callerBridge{}}}))
	p := r.signIn(t, "admin", nil)
	hook := exchange{method: "POST", path: "/things/urn:x:station/events/storm", header: map[string]string{"Content-Type": "application/json"},
		body: `{"callbackURL":"` + r.url + `/notify"}`}
	r.expect(t, "a webhook", hook, p.both(), 403)
	bridged := exchange{method: "POST", path: "/a2a/x"}
	r.expect(t, "a bridge", bridged, p.both(), 403)
	r.expect(t, "a page", bridged, map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": r.url}, 401)
	r.expect(t, "a page reads tasks", exchange{path: "/a2a/x/tasks"}, map[string]string{"Sec-Fetch-Site": "same-origin"}, 401)
	r.expect(t, "a client that sends its Origin", bridged, map[string]string{"Origin": r.url}, 200)
	r.expect(t, "a card", exchange{path: "/a2a/x/.well-known/agent-card.json"}, p.both(), 200)
}

// Answers of agents share the origin of the console: as pages they may do nothing.
func TestAnswersAreSandboxed(t *testing.T) {
	t.Parallel()
	node := newFake(describe("urn:x:weather", "Weather", owner1))
	for media, text := range map[string]string{"text/html": "<script>fetch('/v1/publish')</script>", "image/svg+xml": "<svg onload='alert(1)'/>"} {
		node.mesh = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			if m.Type == interact.ReadProperty {
				return m.Reply(interact.PropertyReading, media, []byte(text)), nil
			}
			s := m.Reply(interact.ActionStatus, media, []byte(text))
			s.Status = interact.StatusCompleted
			return s, nil
		}).Do
		r := start(t, serving(node, Options{}))
		header := r.signIn(t, "call", nil).both()
		for _, x := range []exchange{reads, calls} {
			x.header, x.status, x.contain = header, 200, text
			x.want = map[string]string{"Content-Security-Policy": "sandbox; default-src 'none'", "X-Content-Type-Options": "nosniff", "Content-Type": media}
			r.check(t, x)
		}
		r.end()
	}
}

// Browsers are led to the console by relative addresses, and programs get the index of the API.
func TestRoot(t *testing.T) {
	t.Parallel()
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	r, without := start(t, Options{}), start(t, Options{Operation: Operation{NoConsole: true}})
	get := func(r *running, path, accept string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := r.http.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for _, c := range []struct {
		r            *running
		path, accept string
		status       int
		is           string // the location, or the media type
	}{
		{r, "/", browser, 302, "console/"}, {r, "/console", browser, 302, "console/"},
		{r, "/", "application/json", 200, "application/json"}, {r, "/", "*/*", 200, "application/json"}, {r, "/", "", 200, "application/json"},
		{r, "/console", "*/*", 404, "application/problem+json"},
		{r, "/console/", browser, 200, "text/html; charset=utf-8"}, {r, "/console/", "*/*", 200, "text/html; charset=utf-8"},
		{r, "/console/index.html", browser, 200, "text/html; charset=utf-8"}, {r, "/console/nothing.js", browser, 404, "application/problem+json"},
		{without, "/", browser, 200, "application/json"}, {without, "/console/", browser, 404, "application/problem+json"},
		{without, "/console/session", "*/*", 404, "application/problem+json"},
	} {
		resp := get(c.r, c.path, c.accept)
		if got := resp.Header.Get("Location") + resp.Header.Get("Content-Type"); resp.StatusCode != c.status || got != c.is {
			t.Errorf("%s for %q: %d %q, want %d %q", c.path, c.accept, resp.StatusCode, got, c.status, c.is)
		}
		if policy := resp.Header.Get("Content-Security-Policy"); (policy == web.Policy) != strings.HasPrefix(c.is, "text/html") {
			t.Errorf("%s for %q: the policy is %q", c.path, c.accept, policy)
		}
	}
	without.check(t, exchange{method: "POST", path: "/v1/console", socket: true, status: 404})
	without.expect(t, "a page of a node without a console", calls, map[string]string{"Sec-Fetch-Site": "same-origin"}, 401)
	index, err := r.InProcess().Index(t.Context())
	if err != nil || index.Kind != "Index" || len(index.Items) < 50 {
		t.Errorf("got %+v, %v", index, err)
	}
}

// The routes of sessions refuse any body without a fault.
func FuzzSessionRequest(f *testing.F) {
	for _, body := range []string{`{"once":"x"}`, `{"once":1}`, `{`, ``, `{"once":"x"}{}`, `{"rights":"read"}`} {
		f.Add(body)
	}
	g, err := New(serving(newFake(), Options{Listen: "127.0.0.1:0", Tokens: tokens.New(token)}))
	if err != nil {
		f.Fatal(err)
	}
	defer g.Close()
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{sessionPath, "/v1/console"} {
			req, err := http.NewRequestWithContext(did.AsProcess(t.Context()), http.MethodPost, "http://localhost"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := inProcess{g}.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode >= 500 || path == sessionPath && resp.StatusCode < 400 {
				t.Errorf("%q gives %d", body, resp.StatusCode)
			}
		}
	})
}
