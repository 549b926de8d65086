package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// A tokenServer is a process of an authorization server (oidc-server.mjs).
type tokenServer struct {
	t      *testing.T
	issuer string
	stop   func()
}

// startTokenServer starts a server on a port, 0 for a free one, with a new key.
func startTokenServer(t *testing.T, port, kid, algorithm string) *tokenServer {
	t.Helper()
	cmd := exec.Command(testprogram.Path(t, "node"), "oidc-server.mjs", port, kid, algorithm)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &tokenServer{t: t}
	s.stop = func() {
		if in.Close() == nil { // else it has ended
			_ = cmd.Wait()
		}
	}
	t.Cleanup(s.stop)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.issuer)
	}
	if err != nil {
		s.stop()
		t.Fatalf("the server printed %q: %v\n%s", line, err, &said)
	}
	return s
}

// token returns an access token of a client for a resource.
func (s *tokenServer) token(client, scope, resource string) string {
	s.t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {client}, "client_secret": {"secret of " + client}, "scope": {scope}, "resource": {resource}}
	resp, err := http.PostForm(s.issuer+"/token", form)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(raw, &answer) != nil || strings.Count(answer.Token, ".") != 2 {
		s.t.Fatalf("the server answered %s (%v)", raw, err)
	}
	return answer.Token
}

// whoThing answers each message with its caller.
var whoThing = interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		raw, _ := json.Marshal(m.From)
		yield(m.Reply(interact.ActionStatus, interact.JSON, raw), nil)
	}
})

// withToken sends a request with a token, and returns the status, the body and the challenge.
func withToken(t *testing.T, method, at, token string) (status int, body, challenge string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header.Get("Www-Authenticate")
}

// TestTokensOfAnAuthorizationServer has clients with access tokens of an authorization server, another process: they use a node, and an agent of
// another node, with the rights and roles that the configuration gives them. The server stops, and starts with another key.
func TestTokensOfAnAuthorizationServer(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	const resource = "https://node.acme.example"
	server := startTokenServer(t, "0", "k1", "ES256")
	m := testmesh.Start(t, func(o *node.Options) {
		o.OIDC = []oidc.Provider{{Name: "acme", Issuer: server.issuer, Audience: resource, Type: "at+jwt",
			Scopes: map[string][]string{"lmos.call": {"call"}, "lmos.find": {"find"}}, Claims: map[string]map[string][]string{"groups": {"adjusters": {"adjuster"}}}}}
	})
	raw := []byte(`{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],"@type":"lmos:Agent","id":"urn:x:who",
"title":"who","description":"Answers with its caller.","securityDefinitions":{"n":{"scheme":"nosec"}},"security":["n"],
"actions":{"ask":{"synchronous":true,"safe":true,"forms":[{"href":"http://127.0.0.1:9/ask"}]}}}`)
	m.Offer(t, raw, whoThing)
	m.Known(t, "who")
	call := func(api, token string) (int, string, string) {
		t.Helper()
		return withToken(t, http.MethodPost, api+"/things/who/actions/ask", token)
	}
	crm, later := server.token("crm", "lmos.call lmos.find", resource), server.token("crm", "lmos.call", resource)

	status, body, _ := call(m.Host.API(), crm)
	var p did.Principal
	if err := json.Unmarshal([]byte(body), &p); status != 200 || err != nil {
		t.Fatalf("a call here: %d %s", status, body)
	}
	if p.ID() != "local#oidc:acme:crm" || p.Via != did.OIDC || strings.Join(p.Roles, " ") != "adjuster" || strings.Join(p.Scopes, " ") != "call find" {
		t.Errorf("the agent receives %s", body)
	}
	for name, c := range map[string]struct {
		method, path, token, says, challenge string
		status                               int
	}{
		"to find":                    {"GET", "/things", server.token("reporter", "lmos.find", resource), "", "", 200},
		"a call, to find only":       {"POST", "/things/who/actions/ask", server.token("reporter", "lmos.find", resource), "LMOS-1403", `error="insufficient_scope"`, 403},
		"a call without a scope":     {"POST", "/things/who/actions/ask", server.token("crm", "", resource), "LMOS-1403", `error="insufficient_scope"`, 403},
		"to manage":                  {"GET", "/v1/tokens", crm, "LMOS-1403", `error="insufficient_scope"`, 403},
		"for another resource":       {"GET", "/things", server.token("crm", "lmos.find", "https://other.example"), "LMOS-3003", `error="invalid_token"`, 401},
		"another signature":          {"GET", "/things", crm[:len(crm)-4] + "AAAA", "LMOS-3003", `error="invalid_token"`, 401},
		"the metadata of the API":    {"GET", "/.well-known/oauth-protected-resource", crm, `"authorization_servers":["` + server.issuer + `"]`, "", 200},
		"the scopes in the metadata": {"GET", "/.well-known/oauth-protected-resource", crm, `"scopes_supported":["lmos.call","lmos.find"]`, "", 200},
	} {
		status, body, challenge := withToken(t, c.method, m.Host.API()+c.path, c.token)
		if status != c.status || !strings.Contains(body, c.says) || !strings.Contains(challenge, c.challenge) {
			t.Errorf("%s: %d %s, challenge %q", name, status, body, challenge)
		}
		if strings.Contains(body, c.token) {
			t.Errorf("%s: the answer contains the token", name)
		}
	}
	for password, want := range map[string]byte{crm: 0, crm[:len(crm)-4] + "AAAA": 0x86} { // MQTT 5 §3.2.2.2: bad user name or password
		if got := connectMQTT(t, m.Host.MQTT(), password); got != want && (want == 0 || got == 0) {
			t.Errorf("MQTT: the reason code %#x, want %#x", got, want)
		}
	}

	server.stop() // the other node has no keys yet
	if status, body, _ := call(m.Consumer.API(), crm); status != 503 || !strings.Contains(body, "LMOS-1423") || !strings.Contains(body, "identity provider acme cannot be reached") {
		t.Errorf("without the server and without its keys: %d %s", status, body)
	}
	if status, body, _ := call(m.Host.API(), later); status != 200 {
		t.Errorf("without the server: %d %s", status, body)
	}

	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.issuer, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	server = startTokenServer(t, port, "k2", "RS256")
	next := server.token("crm", "lmos.call", resource)
	for _, n := range []*node.Node{m.Host, m.Consumer} {
		poll.Until(t, "a token of the new key is accepted", func() bool { status, _, _ := call(n.API(), next); return status == 200 })
	}
	if status, body, _ := call(m.Host.API(), later); status != 401 || !strings.Contains(body, "LMOS-3003") {
		t.Errorf("a token of the old key: %d %s", status, body)
	}
	_, body, _ = call(m.Consumer.API(), next)
	if !regexp.MustCompile(`^\{"id":"did:key:[^#"]*#u-[0-9a-f]{20}"`).MatchString(body) || strings.Contains(body, "crm") || strings.Contains(body, "adjuster") {
		t.Errorf("the agent of another node receives %s", body)
	}
	http.DefaultClient.CloseIdleConnections()
}

// connectMQTT returns the reason code of a connection to a broker with a password.
func connectMQTT(t *testing.T, address, password string) byte {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := paho.NewClient(paho.ClientConfig{Conn: conn})
	ack, err := c.Connect(t.Context(), &paho.Connect{ClientID: interact.NewID(), CleanStart: true, KeepAlive: 30, UsernameFlag: true, Username: "any", PasswordFlag: true, Password: []byte(password)})
	if ack == nil {
		t.Fatal(err)
	}
	if err == nil {
		_ = c.Disconnect(&paho.Disconnect{})
		<-c.Done()
	}
	return ack.ReasonCode
}
