package a2a

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v3/jwt"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/td"
)

// imports imports the agent at target into the mesh m as name.
func imports(t *testing.T, m *bridgetest.Mesh, target, name string, o Options) (*bridge.Agent, *td.Description) {
	t.Helper()
	a, err := New(o).Import(t.Context(), target, bridge.Import{Name: name, Capabilities: []string{"urn:x:more"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, m.Publish(t, a.TD, a.Thing)
}

// call invokes an action of a Thing, provides its required input, and returns its partial outputs and its end.
func call(t *testing.T, m *bridgetest.Mesh, name, action, input string, answer func(interact.Inputs) interact.Answers) (parts []string, err error) {
	t.Helper()
	d, err := m.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ask := &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: action, ID: interact.NewID(), Data: []byte(input)}
	for r, err := range m.Do(t.Context(), ask) {
		if err != nil {
			return parts, err
		}
		if r.Status == interact.StatusInputRequired {
			var in interact.Inputs
			if err := json.Unmarshal(r.Data, &in); err != nil {
				t.Fatal(err)
			}
			next := &interact.Message{Type: interact.ContinueAction, Thing: d.Ref(), Name: action, ActionID: r.ActionID, Data: protocol.Encode(answer(in))}
			go func() {
				if _, err := interact.Call(context.Background(), m, next); err != nil {
					t.Error(err)
				}
			}()
		} else if len(r.Data) > 0 {
			parts = append(parts, string(r.Data))
		}
	}
	return parts, nil
}

// TestImport imports the Things of one mesh into another as A2A agents, over HTTP.
func TestImport(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	mesh := bridgetest.NewMesh(t)
	a, d := imports(t, mesh, s.url+"/desk", "far desk", Options{})
	if len(a.Warnings) != 0 || d.Thing.Title != "far desk" || d.Thing.Description != "Does this and that." || d.Thing.Version != "1.0.0" {
		t.Errorf("the description is %s, with warnings %v", d.Thing.Raw, a.Warnings)
	}
	if d.Thing.Actions["echo"] == nil || d.Thing.Actions[sendAction] == nil || d.Thing.Actions[verbatim].Types[0] != bridge.A2AOperation || !strings.Contains(string(d.Thing.Raw), `"verified":true`) {
		t.Errorf("the description is %s", d.Thing.Raw)
	}
	if raw := string(d.Thing.Raw); strings.Contains(raw, s.url) || strings.Contains(raw, "signatures") {
		t.Error("the description contains the URL of the agent")
	}
	monday := func(in interact.Inputs) interact.Answers {
		if in["when"].Kind != interact.InputForm || in["when"].Message != "When?" || !strings.Contains(string(in["when"].Schema), `"day"`) {
			t.Errorf("the agent requests %+v", in)
		}
		return interact.Answers{"when": {Action: interact.Accept, Content: []byte(`{"day":"Monday"}`)}}
	}
	for name, test := range map[string]struct {
		action, input string
		answer        func(interact.Inputs) interact.Answers
		want          string // the parts, or the code of the error
	}{
		"text":          {"echo", `"hello"`, nil, `"hello"`},
		"data":          {"sum", `{"a":1,"b":2}`, nil, `3,"3"`},
		"a stream":      {"count", `3`, nil, `0,"0",1,"1",2,"2"`},
		"input request": {"book", `{"city":"Bonn"}`, monday, `{"when":{"action":"accept","content":{"day":"Monday"}}}`},
		"what fails":    {"fail", `true`, nil, interact.AgentFailed.String()},
		"what rejects":  {"deny", `[]`, nil, interact.AgentFailed.String()},
		"a message":     {sendAction, `{"role":"ROLE_USER","parts":[{"data":{"arguments":{"a":2,"b":2}}}],"metadata":{"skillId":"sum"}}`, nil, `4,"4"`},
		"no answer": {"book", `{"city":"Bonn"}`, func(interact.Inputs) interact.Answers {
			return interact.Answers{"when": {Action: interact.Decline}}
		}, `{"when":{"action":"decline"}}`},
		"proof elsewhere": {"login", `null`, func(in interact.Inputs) interact.Answers {
			if in["key"].Kind != interact.InputURL || in["key"].URL != "https://id.example/login" {
				t.Errorf("the agent requests %+v", in)
			}
			return interact.Answers{"key": {Action: interact.Accept}}
		}, `{"key":{"action":"accept"}}`},
	} {
		parts, err := call(t, mesh, "far-desk", test.action, test.input, test.answer)
		got := strings.Join(parts, ",")
		if err != nil {
			got = interact.AsError(err).Code.String()
		}
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s (%v), want %s", name, got, err, test.want)
		}
	}
	// A consumer that cancels cancels the task.
	ctx, cancel := context.WithCancel(t.Context())
	for r, err := range mesh.Do(ctx, &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: "count", Data: []byte(`1000`)}) {
		if err != nil || r.Status == interact.StatusRunning {
			break
		}
	}
	go func() {
		until(t, "the run began", func() bool { s.thing.mu.Lock(); defer s.thing.mu.Unlock(); return s.thing.released["left"] != nil })
		cancel()
	}()
	_, err := interact.Call(ctx, mesh, &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: "slow", Data: []byte(`{"until":"left"}`)})
	if interact.AsError(err).Code != interact.Cancelled || <-s.thing.ended != "left" {
		t.Errorf("a canceled call gives %v", err)
	}
	// The caller of ListTasks sees the tasks that were started here.
	r, err := interact.Call(t.Context(), mesh, &interact.Message{Type: interact.ReadProperty, Thing: d.Ref(), Name: tasksProperty})
	if err != nil || !strings.Contains(string(r.Data), `"tasks":[{`) {
		t.Errorf("the tasks are %v, %v", r, err)
	}
	r, err = interact.Call(t.Context(), mesh, &interact.Message{Type: interact.ReadProperty, Thing: d.Ref(), Name: tasksProperty, From: did.NodePrincipal(mesh.Signer().DID(), "")})
	if err != nil || !strings.Contains(string(r.Data), `"tasks":[]`) {
		t.Errorf("the tasks of another principal are %s, %v", r.Data, err)
	}
}

// An A2A client uses an A2A agent through the mesh, verbatim: cards are rewritten, and tasks belong to their principals.
func TestRelay(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	mesh := bridgetest.NewMesh(t)
	imports(t, mesh, s.url+"/desk", "far desk", Options{})
	root := exports(t, mesh, Options{})
	at := root + "/far-desk"
	raw := get(t, at+"/.well-known/agent-card.json", map[string]string{"A2A-Version": "1.0"})
	c, err := card.Parse([]byte(raw.raw))
	if err != nil || c.Name != "far desk" || len(c.Skills) != 8 || !card.Supported(c.Capabilities.Push) || strings.Contains(raw.raw, s.url) {
		t.Errorf("the card is %s, %v", raw.raw, err)
	}
	own, other := map[string]string{"Authorization": "Bearer mine"}, map[string]string{"Authorization": "Bearer theirs"}
	for over, ask := range bindings {
		task := ask(t, at, protocol.SendMessage, messageParams(skill("sum", row{"a": 1, "b": 1})), own).task(t)
		if task.Status.State != protocol.Completed {
			t.Errorf("%s: %+v", over, task)
		}
		if got := ask(t, at, protocol.GetTask, row{"id": task.ID}, own).task(t); got.ID != task.ID {
			t.Errorf("%s: %+v", over, got)
		}
		for method, p := range map[string]row{protocol.GetTask: {"id": task.ID}, protocol.CancelTask: {"id": task.ID}, protocol.SubscribeToTask: {"id": task.ID},
			protocol.SendMessage: with(messageParams(text("x")), "taskId", task.ID), protocol.ListPush: {"taskId": task.ID}} {
			if a := ask(t, at, method, p, other); a.err == nil || a.err.Code != protocol.TaskNotFound {
				t.Errorf("%s: %s of a task of another principal gives %s, %v", over, method, a.result, a.err)
			}
		}
		for _, hidden := range []row{{"id": task.ID, "ID": "x"}, {"id": task.ID, "taskId": 5, "i_d": "x"}, {"id": task.ID, "taskId": 5}} {
			if a := ask(t, at, protocol.GetTask, hidden, other); a.err == nil {
				t.Errorf("%s: a task of another principal, as %v, is %s", over, hidden, a.result)
			}
		}
		if a := ask(t, at, protocol.ListTasks, row{}, other); !strings.Contains(string(a.result), `"tasks":[]`) || !strings.Contains(string(a.result), `"totalSize":0`) {
			t.Errorf("%s: the list of another principal is %s", over, a.result)
		}
		if a := ask(t, at, protocol.ListTasks, row{}, own); !strings.Contains(string(a.result), task.ID) {
			t.Errorf("%s: the list is %s", over, a.result)
		}
		if a := ask(t, root, protocol.SendMessage, row{"tenant": "far-desk", "message": messageParams(skill("sum", row{"a": 1, "b": 1}))["message"]}, nil); a.task(t).Status.State != protocol.Completed {
			t.Errorf("%s: by tenant: %s", over, a.result)
		}
	}
}

func get(t *testing.T, at string, header map[string]string) *answer {
	t.Helper()
	return (&answer{}).fetch(t, http.MethodGet, at, nil, header, func(b []byte) json.RawMessage { return b })
}

// TestCardsOverHTTP checks the cards of a node and their headers.
func TestCardsOverHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	site := strings.TrimSuffix(s.url, "/a2a")
	for at, name := range map[string]string{s.url + "/desk/.well-known/agent-card.json": "Desk", s.url + "/desk/.well-known/agent.json": "Desk",
		site + "/.well-known/agent-card.json": "Mesh directory", s.url + "/desk/v1/.well-known/agent-card.json": "Desk"} {
		for version, old := range map[string]bool{"1.0": false, "0.3": true, "": strings.Contains(at, "/v1/") || strings.HasSuffix(at, "/agent.json")} {
			a := get(t, at, map[string]string{"A2A-Version": version})
			c, err := card.Parse([]byte(a.raw))
			strict := json.NewDecoder(strings.NewReader(a.raw)) // as a reader of the schema of 1.0, which has no other members
			strict.DisallowUnknownFields()
			if err := strict.Decode(new(sdk.AgentCard)); (err != nil) != old {
				t.Errorf("%s as %q: the schema of 1.0 has another card: %v", at, version, err)
			}
			if err != nil || c.Name != name || strings.Contains(a.raw, `"preferredTransport"`) != old {
				t.Fatalf("%s: %s, %v", at, a.raw, err)
			}
			binding := slices.IndexFunc(c.Interfaces, func(i card.Interface) bool { return i.Binding == libp2pBinding })
			if of := name == "Desk"; of != (binding >= 0) {
				t.Errorf("%s: the bindings are %+v", at, c.Interfaces)
			} else if of && (!strings.HasPrefix(c.Interfaces[binding].URL, "libp2p://12D3Koo") || c.Interfaces[binding].Tenant != "desk") {
				t.Errorf("%s: the interface between nodes is %+v", at, c.Interfaces[binding])
			}
			key := s.Signer().DID()
			if v, err := card.Verify(t.Context(), []byte(a.raw), did.Keys()); err != nil || v.Form != "proto" || v.Key != string(key)+"#"+key.Multibase() {
				t.Errorf("%s: %v, %v", at, v, err)
			}
			if strings.Contains(a.raw, `"securitySchemes"`) {
				t.Errorf("%s has security schemes, for which verifiers compute different payloads", at)
			}
		}
	}
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/desk/.well-known/agent-card.json", nil)
	r, err := httpClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if h := r.Header; h.Get("Vary") != "A2A-Version" || h.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(h.Get("Cache-Control"), "max-age") {
		t.Errorf("the headers are %v", h)
	}
	q.Header.Set("If-None-Match", r.Header.Get("ETag"))
	if r, err = httpClient.Do(q); err != nil || r.StatusCode != http.StatusNotModified {
		t.Errorf("a conditional request for the same card: %v, %v", r, err)
	}
	r.Body.Close()
	if a := get(t, s.url+"/nobody/.well-known/agent-card.json", nil); a.status != http.StatusNotFound {
		t.Errorf("no card: %d", a.status)
	}
	found := overRPC(t, s.url, protocol.SendMessage, messageParams(text("desk")), nil).task(t)
	if found.Status.State != protocol.Completed || !strings.Contains(string(found.Artifacts[0].Parts[0].Data), "/.well-known/agent-card.json") {
		t.Errorf("the directory finds %+v", found)
	}
}

// A scripted remote agent.
type foreign struct {
	*httptest.Server
	mu      sync.Mutex
	card    string
	headers []http.Header
	answer  func(w http.ResponseWriter, id, method string)
}

func newForeign(t *testing.T, members string) *foreign {
	f := &foreign{}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	f.card = strings.ReplaceAll(`{"name":"F","description":"d","version":"1","capabilities":{"streaming":true},"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],
		"supportedInterfaces":[{"url":"HERE/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"skills":[{"id":"s/1","name":"S","description":"x","tags":["t"]}]`+members+`}`, "HERE", f.URL)
	return f
}

func (f *foreign) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method == http.MethodGet {
		io.WriteString(w, f.card)
		return
	}
	if r.URL.Path == "/token" {
		id, secret, _ := r.BasicAuth()
		if signed, err := jwt.ParseSigned(r.PostFormValue("client_assertion")); err == nil {
			var claims jwt.Claims
			_ = signed.UnsafeClaimsWithoutVerification(&claims)
			id, secret = claims.Subject, strings.TrimPrefix(claims.Audience[0], f.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"granted-%s-%s","expires_in":3600}`, id, secret)
		return
	}
	f.headers = append(f.headers, r.Header)
	var q struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.NewDecoder(r.Body).Decode(&q)
	if f.answer != nil {
		f.answer(w, string(q.ID), q.Method)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"ok"}]}}}`, q.ID)
}

// Credentials that a card requires come only from the host's store.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ scheme, secret, header, want string }{
		"bearer":       {`{"httpAuthSecurityScheme":{"scheme":"Bearer"}}`, `"token":"t0"`, "Authorization", "Bearer t0"},
		"basic":        {`{"httpAuthSecurityScheme":{"scheme":"basic"}}`, `"username":"u","password":"p"`, "Authorization", "Basic dTpw"},
		"key":          {`{"apiKeySecurityScheme":{"location":"header","name":"X-Key"}}`, `"key":"k0"`, "X-Key", "k0"},
		"cookie":       {`{"apiKeySecurityScheme":{"location":"cookie","name":"c"}}`, `"key":"k0"`, "Cookie", "c=k0"},
		"oauth":        {`{"oauth2SecurityScheme":{"flows":{"authorizationCode":{"tokenUrl":"https://x","scopes":{}}}}}`, `"token":"t1"`, "Authorization", "Bearer t1"},
		"client":       {`{"oauth2SecurityScheme":{"flows":{"clientCredentials":{"tokenUrl":"HERE/token","scopes":{}}}}}`, `"username":"u","password":"p"`, "Authorization", "Bearer granted-u-p"},
		"key of it":    {`{"oauth2SecurityScheme":{"flows":{"clientCredentials":{"tokenUrl":"HERE/token","scopes":{}}}}}`, `"username":"u","private_key_file":"client.pem"`, "Authorization", "Bearer granted-u-/token"},
		"no such key":  {`{"oauth2SecurityScheme":{"flows":{"clientCredentials":{"tokenUrl":"HERE/token","scopes":{}}}}}`, `"username":"u","private_key_file":"none.pem"`, "Authorization", ""},
		"open id":      {`{"openIdConnectSecurityScheme":{"openIdConnectUrl":"https://x"}}`, `"token":"t2"`, "Authorization", "Bearer t2"},
		"none":         {`{"httpAuthSecurityScheme":{"scheme":"bearer"}}`, ``, "Authorization", ""},
		"another kind": {`{"httpAuthSecurityScheme":{"scheme":"bearer"}}`, `"key":"k0"`, "Authorization", ""},
		"not required": {`{"httpAuthSecurityScheme":{"scheme":"bearer"}}`, `"token":"t3"`, "Authorization", "Bearer t3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForeign(t, `,"securitySchemes":{"sc":`+test.scheme+`},"securityRequirements":[{"schemes":{"sc":{"list":["a"]}}}]`)
			if name == "not required" {
				f.card = strings.Replace(f.card, "securityRequirements", "x", 1)
			}
			file := filepath.Join(t.TempDir(), "credentials.json")
			if test.secret != "" {
				text := fmt.Sprintf(`{"a2a:%s":{"sc":{"origin":"%s",%s}}}`, f.URL, f.URL, test.secret)
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, key, err := ed25519.GenerateKey(nil)
			if err != nil {
				t.Fatal(err)
			}
			der, err := x509.MarshalPKCS8PrivateKey(key)
			if err == nil {
				err = os.WriteFile(filepath.Join(filepath.Dir(file), "client.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			store, err := credentials.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			m := bridgetest.NewMesh(t)
			a, d := imports(t, m, f.URL, "F", Options{Credentials: store})
			if raw := string(d.Thing.Raw); strings.Contains(raw, "SecurityScheme") || strings.Contains(raw, f.URL) {
				t.Errorf("the description has %s", raw)
			}
			parts, err := call(t, m, "f", "s_1", `"x"`, nil)
			if test.want == "" {
				if e := interact.AsError(err); e.Code != interact.Unauthenticated || len(f.headers) > 0 || len(a.Warnings) < 2 && test.secret == "" {
					t.Errorf("without credentials: %v %v, %v", parts, err, a.Warnings)
				}
				return
			}
			if err != nil || strings.Join(parts, "") != `"ok"` || f.headers[0].Get(test.header) != test.want {
				t.Errorf("%v %v with %v", parts, err, f.headers)
			}
		})
	}
}

// A token request without a response does not delay callers that disconnect.
func TestTokenRequestWithoutAResponse(t *testing.T) {
	t.Parallel()
	asked, left := make(chan struct{}), make(chan struct{})
	site := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnect only after it has read the body
		<-r.Context().Done()
	}))
	defer site.Close()
	u, err := url.Parse(site.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := newImported(Options{}, u, site.URL, bridge.Import{}).secrets
	get := func(ctx context.Context) error {
		_, err := s.grant(ctx, "sc", card.Flow{TokenURL: site.URL}, credentials.Credential{Username: "me", Password: "pw"}, nil)
		return err
	}
	first, leave := context.WithCancel(t.Context())
	go func() {
		defer close(left)
		if get(first) == nil {
			t.Error("the first call has a token")
		}
	}()
	<-asked
	second, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := get(second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second call: %v", err)
	}
	select {
	case <-left:
		t.Error("the second call waited for the first")
	default:
	}
	leave()
	<-left
}

// TestUnsupportedImports has targets and cards that are refused.
func TestUnsupportedImports(t *testing.T) {
	t.Parallel()
	signed := newForeign(t, "")
	c, err := card.Parse([]byte(signed.card))
	if err != nil {
		t.Fatal(err)
	}
	key := didtest.Key(3)
	if err := card.Sign(c, key); err != nil {
		t.Fatal(err)
	}
	raw, _ := c.Bytes()
	signed.card = strings.Replace(string(raw), `"name":"F"`, `"name":"E"`, 1)
	grpc := newForeign(t, "")
	grpc.card = strings.Replace(grpc.card, "JSONRPC", "GRPC", 1)
	large := newForeign(t, `,"x":"`+strings.Repeat("x", card.MaxCard)+`"`)
	page := newForeign(t, "")
	page.card = "<html>"
	for target, want := range map[string]interact.Code{
		"npx server": interact.Usage, "ftp://x": interact.Usage, "https://": interact.Usage, "http://127.0.0.1:1": interact.Unreachable,
		signed.URL: interact.BadSignature, grpc.URL: interact.NotAllowed, large.URL: interact.TooLarge, page.URL: interact.AgentFailed,
	} {
		a, err := New(Options{}).Import(t.Context(), target, bridge.Import{})
		if e := interact.AsError(err); err == nil || e.Code != want || e.Hint == "" && e.Next == nil {
			t.Errorf("%s gives %v, %v; want %v", target, a, err, want)
		}
	}
}

// TestInvalidAgentResponses has agents with invalid responses, which fail only the call.
func TestInvalidAgentResponses(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "")
	m := bridgetest.NewMesh(t)
	imports(t, m, f.URL, "F", Options{})
	root := exports(t, m, Options{})
	stream := func(text string) func(http.ResponseWriter, string, string) {
		return func(w http.ResponseWriter, id, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, strings.ReplaceAll(text, "ID", id))
		}
	}
	const working = `data: {"jsonrpc":"2.0","id":ID,"result":{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}` + "\n\n"
	for name, test := range map[string]struct {
		answer func(http.ResponseWriter, string, string)
		want   interact.Code
		a2a    int
	}{
		"a page":            {func(w http.ResponseWriter, _, _ string) { http.Error(w, "<html>", http.StatusBadGateway) }, interact.AgentFailed, protocol.InvalidAgentResponse},
		"no answer":         {func(w http.ResponseWriter, _, _ string) {}, interact.AgentFailed, protocol.InvalidAgentResponse},
		"no response":       {func(w http.ResponseWriter, _, _ string) { panic(http.ErrAbortHandler) }, interact.Unreachable, protocol.InternalError},
		"another's answer":  {func(w http.ResponseWriter, _, _ string) { io.WriteString(w, `{"jsonrpc":"2.0","id":"x","result":{}}`) }, interact.AgentFailed, protocol.InvalidAgentResponse},
		"a stream of words": {stream("data: hello\n\n"), interact.AgentFailed, protocol.InvalidAgentResponse},
		"an error":          {stream(`data: {"jsonrpc":"2.0","id":ID,"error":{"code":-32004,"message":"no","data":[{"@type":"x","a":1}]}}` + "\n\n"), interact.NotAllowed, protocol.UnsupportedOperation},
		"it breaks off":     {stream(working), interact.Unreachable, 0},
		"too much":          {stream("data: " + strings.Repeat("x", protocol.MaxMessage+10) + "\n\n"), interact.AgentFailed, protocol.InvalidAgentResponse},
	} {
		f.mu.Lock()
		f.answer = test.answer
		f.mu.Unlock()
		if parts, err := call(t, m, "f", "s_1", `"x"`, nil); err == nil || interact.AsError(err).Code != test.want {
			t.Errorf("%s: %v, %v, want %v", name, parts, err, test.want)
		}
		if a := overRPC(t, root+"/f", protocol.SendStreamingMessage, messageParams(text("x")), nil); test.a2a != 0 && (a.err == nil || a.err.Code != test.a2a) {
			t.Errorf("%s: %v, want %d", name, a.err, test.a2a)
		}
	}
}

// Progress messages of an agent reach the consumer, and are not part of the output.
func TestProgress(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "")
	f.answer = func(w http.ResponseWriter, id, _ string) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{`{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_SUBMITTED"}}}`,
			`{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING","message":{"parts":[{"text":"half"}]}}}}`,
			`{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[{"text":"whole"}]}}}`,
			`{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}`} {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", id, event)
		}
	}
	m := bridgetest.NewMesh(t)
	_, d := imports(t, m, f.URL, "F", Options{})
	ask := &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: "s_1", Data: []byte(`"x"`)}
	var received []string
	for r, err := range m.Do(t.Context(), ask) {
		if err != nil {
			t.Fatal(err)
		}
		received = append(received, r.ContentType+" "+string(r.Data))
	}
	if got, want := strings.Join(received, "; "), interact.Progress+` {"message":"half"}; application/json "whole";  `; got != want {
		t.Errorf("the consumer receives %q, want %q", got, want)
	}
	if r, err := interact.Call(t.Context(), m, ask); err != nil || string(r.Data) != `"whole"` {
		t.Errorf("the output is %v, %v", r, err)
	}
}

// A card with an invalid signature is rejected; one without a signature, or with an unknown key, gets a warning. The description contains
// the result.
func TestSignaturesOfImportedCards(t *testing.T) {
	t.Parallel()
	key := didtest.Key(9)
	c, err := card.Parse([]byte(`{"name":"F","description":"d","version":"1","capabilities":{},"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],
		"supportedInterfaces":[{"url":"http://127.0.0.1:1/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"skills":[{"id":"x","name":"x","description":"x","tags":["t"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	bytesOf := func() string {
		raw, err := c.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	unsigned := bytesOf()
	if err := card.Sign(c, key); err != nil {
		t.Fatal(err)
	}
	signed := bytesOf()
	c.Signatures[0].Protected = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"key-1"}`))
	for name, test := range map[string]struct {
		raw, warning, source string // source is in the description
		code                 interact.Code
	}{
		"signed":             {signed, "", `"verified":true`, 0},
		"the key":            {signed, "", `"key":"` + string(key.DID()) + "#" + key.DID().Multibase() + `"`, 0},
		"not signed":         {unsigned, card.ErrUnsigned.Error(), `"verified":false`, 0},
		"a key that is lost": {bytesOf(), card.ErrUnknownKey.Error(), `"verified":false`, 0},
		"changed":            {strings.Replace(signed, `"name":"F"`, `"name":"G"`, 1), "", "", interact.BadSignature},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.raw) }))
		t.Cleanup(server.Close)
		a, err := New(Options{}).Import(t.Context(), server.URL, bridge.Import{})
		if err != nil {
			if interact.AsError(err).Code != test.code {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		t.Cleanup(a.Close)
		warned := strings.Join(a.Warnings, "\n")
		if test.code != 0 || (warned == "") != (test.warning == "") || !strings.Contains(warned, test.warning) || !strings.Contains(string(a.TD), test.source) {
			t.Errorf("%s: warned %q of %s", name, warned, a.TD)
		}
	}
}
