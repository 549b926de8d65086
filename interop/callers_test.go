package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/eclipse/paho.golang/paho"
	mcpsdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/agent"
	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/poll"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
)

// asksFor is the deadline of the callers: longer than the default of a node, and shorter than its maximum.
const asksFor = 400 * time.Second

// heard formats the caller that an agent received: "local loopback", or "did:key:z6Mk… peer did:webvh:… customer-service" for a member of an
// organization, with "for" and the delegator after it in a call by a delegation, and " long" if it received the deadline of minutes.
func heard(id, via, organization, roles, lentBy any, left time.Duration) string {
	s := fmt.Sprintf("%v %v", id, via)
	if org := fmt.Sprint(organization); organization != nil && org != "" {
		s += " " + org
	}
	if all := strings.Trim(fmt.Sprint(roles), "[]"); roles != nil && all != "" {
		s += " " + all
	}
	if lender := fmt.Sprint(lentBy); lentBy != nil && lender != "" {
		s += " for " + lender
	}
	if left > asksFor-time.Minute && left <= asksFor {
		s += " long"
	}
	return s
}

// A called is a kind of agent. start starts one that reports its caller; action and input are those of the call; late means that it does
// not receive deadlines.
type called struct {
	start  func(t *testing.T, m *testmesh.Mesh, name string)
	action string
	input  string
	late   bool
}

var callees = map[string]called{
	"go":        {startCalledGo, "who", `"x"`, false},
	"exec":      {startCalledExec, "run", `"x"`, false},
	"http":      {startCalledHTTP, "who", `"x"`, false},
	"websocket": {startCalledSocket, "who", `"x"`, false},
	"mqtt":      {startCalledMQTT, "who", `"x"`, false},
	"mcp":       {startCalledMCP, "who", `{}`, true},
	"a2a":       {startCalledA2A, "sendMessage", `"x"`, true},
	"python": {func(t *testing.T, m *testmesh.Mesh, name string) {
		startCalledProgram(t, m, "python3", pythonCaller, filepath.Join("..", "sdk", "python"), name)
	}, "who", `"x"`, false},
	"javascript": {func(t *testing.T, m *testmesh.Mesh, name string) {
		startCalledProgram(t, m, "node", scriptCaller, filepath.Join("..", "sdk", "js"), name)
	}, "who", `"x"`, false},
}

// Every kind of agent receives its caller: for a consumer of its own node, the method of authentication; for one behind another node, that
// node and its name of the consumer, the organization of the node, and the roles that the consumer may use. Claims of the consumer or of the
// description are dropped.
func TestEveryAgentReceivesTheCaller(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "callers") // the paths of tests are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := testmesh.Start(t, func(o *node.Options) {
		o.HTTP.Socket = filepath.Join(dir, o.Name)
		o.Policy.File = filepath.Join(o.Dir, "policy.yaml")
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Log: o.Log}), a2a.New(a2a.Options{Log: o.Log})}
	})
	raw, err := os.ReadFile(filepath.Join(m.Consumer.Status().DataDir, "api.token"))
	if err != nil {
		t.Fatal(err)
	}
	token, far := strings.TrimSpace(string(raw)), string(m.Consumer.DID())
	org := partners(t, m, "customer-service")
	uid := fmt.Sprintf("uid:%d", os.Getuid())
	ways := map[string]struct {
		api, token, socket, want string
	}{
		"here, over loopback":        {m.Host.API(), "", "", "local loopback"},
		"here, with the token":       {m.Host.API(), m.Token, "", "local#operator token"},
		"here, over the socket":      {"http://localhost", "", filepath.Join(dir, "host"), "local#" + uid + " socket"},
		"far away, over loopback":    {m.API, "", "", far + " peer " + org},
		"far away, with the token":   {m.API, token, "", far + "#operator peer " + org + " customer-service"},
		"far away, over the socket":  {"http://localhost", "", filepath.Join(dir, "consumer"), far + "#u-"},
		"far away, through a proxy?": {m.API, "", "", far + "#unproven peer " + org},
	}
	for kind, a := range callees {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := "asked-" + kind
			a.start(t, m, name)
			m.Known(t, name)
			for way, w := range ways {
				transport := &http.Transport{}
				if w.socket != "" {
					transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, "unix", w.socket)
					}
				}
				header := map[string]string{"Prefer": fmt.Sprintf("wait=%d", int(asksFor.Seconds())), "Lmos-Caller": "forged", "Lmos-Caller-Via": "socket",
					"Lmos-Caller-Org": "did:web:forged", "Lmos-Caller-Roles": "forged", "Lmos-Caller-Lent-By": "forged", "Lmos-Caller-Secret": "forged"}
				if w.token != "" {
					header["Authorization"] = "Bearer " + w.token
				}
				if strings.HasSuffix(way, "?") {
					header["X-Forwarded-For"] = "192.0.2.1"
				}
				got := post(t, &http.Client{Transport: transport}, w.api+"/things/"+name+"/actions/"+a.action, a.input, header)
				transport.CloseIdleConnections()
				want := w.want
				if strings.HasSuffix(want, "#u-") { // a pseudonym, without the name of the user
					name, rest, _ := strings.Cut(strings.TrimPrefix(got, want), " ")
					if len(name) != 20 || !strings.HasPrefix(rest, "peer") || strings.Contains(got, "uid") {
						t.Errorf("%s: the agent receives %q", way, got)
						continue
					}
					want += name + " peer " + org + " customer-service"
				}
				if !a.late {
					want += " long"
				}
				if got != want {
					t.Errorf("%s: the agent receives %q, want %q", way, got, want)
				}
			}
		})
	}
	t.Run("clients of MCP", func(t *testing.T) { t.Parallel(); toldToServers(t, m, token, org) })
	t.Run("clients of A2A", func(t *testing.T) { t.Parallel(); toldToA2A(t, m, token, org) })
}

// Every kind of agent receives the delegator of a call by a delegation: a consumer of its own node.
func TestEveryAgentReceivesTheDelegator(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t, func(o *node.Options) {
		o.Policy = policy.Rules{} // other nodes may not call
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Log: o.Log}), a2a.New(a2a.Options{Log: o.Log})}
	})
	for kind, a := range callees {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := "asked-" + kind
			a.start(t, m, name)
			m.Known(t, name)
			raw := post(t, http.DefaultClient, m.Host.API()+"/v1/delegations", fmt.Sprintf(`{"agent":%q,"name":%q,"to":%q,"life":"10m"}`, name, a.action, m.Consumer.DID()),
				map[string]string{"Authorization": "Bearer " + m.Token})
			var d api.Delegation
			if err := json.Unmarshal([]byte(raw), &d); err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			got := post(t, http.DefaultClient, m.API+"/things/"+name+"/actions/"+a.action, a.input, map[string]string{"Lmos-Capability": d.Token,
				"Lmos-Caller-Lent-By": "forged"})
			want := string(m.Consumer.DID()) + " peer for local#operator"
			if got != want {
				t.Errorf("the agent receives %q, want %q", got, want)
			}
			if got := socketCall(t, m, name, a, d.Token); !strings.Contains(got, want) {
				t.Errorf("of a call over WebSocket the agent receives %s, want %q", got, want)
			}
			if got := socketCall(t, m, name, a, ""); !strings.Contains(got, interact.Forbidden.String()) {
				t.Errorf("a call over WebSocket without the delegation: %s", got)
			}
		})
	}
}

// socketCall calls an action over WebSocket at the consumer's node, and returns the frames of the response.
func socketCall(t *testing.T, m *testmesh.Mesh, name string, a called, delegation string) string {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(m.API, "http")+"/ws", &websocket.DialOptions{Subprotocols: protocols[doc]})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	q := fields{"messageType": "invokeAction", "thingID": name, "messageID": "1", "action": a.action, "input": json.RawMessage(a.input)}
	if delegation != "" {
		q["delegation"] = delegation
	}
	text, err := json.Marshal(q)
	if err == nil {
		err = c.Write(t.Context(), websocket.MessageText, text)
	}
	all := ""
	for err == nil {
		var raw []byte
		var f fields
		if _, raw, err = c.Read(t.Context()); err == nil {
			err = json.Unmarshal(raw, &f)
		}
		if all += string(raw); f["status"] != "pending" {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// partners makes an organization of each node, lets them become partners, and waits until the host knows the consumer's node as a member with the
// role. It returns the organization of the consumer's node.
func partners(t *testing.T, m *testmesh.Mesh, role string) string {
	t.Helper()
	for domain, n := range map[string]*node.Node{"host.example": m.Host, "consumer.example": m.Consumer} {
		if _, err := n.Client().InitOrganization(t.Context(), api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(t.TempDir(), "recovery.pem")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Consumer.Client().SetRoles(t.Context(), m.Consumer.DID(), []string{role}); err != nil {
		t.Fatal(err)
	}
	org, err := m.Consumer.Client().RenewCredential(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i, err := m.Host.Client().Invite(t.Context(), api.InvitationRequest{Kind: api.InvitePartner, Roles: []string{role}})
	if err == nil {
		_, err = m.Consumer.Client().AcceptInvitation(t.Context(), api.Acceptance{Invitation: i.Text})
	}
	if err == nil {
		_, err = m.Host.Client().AddRule(t.Context(), api.RuleRequest{Allow: []string{"anyone"}, To: []string{"find", "call"}, On: []string{"*"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	last := &api.Standing{}
	defer func() {
		if t.Failed() {
			t.Logf("%+v", last)
		}
	}()
	poll.Until(t, "the host knows the roles of the consumer's node", func() bool {
		if s, err := m.Host.Client().Standing(t.Context(), m.Consumer.DID()); err == nil {
			last = s
		}
		return slices.Equal(last.Roles, []string{role})
	})
	return string(org.DID)
}

// A tunnel and a session of MCP end when their caller loses a role, and the next call does not have it. A2A messages have the principal of each
// request.
func TestAgentsForgetTheRolesOfTheirCaller(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t, func(o *node.Options) {
		o.Policy.File = filepath.Join(o.Dir, "policy.yaml")
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Log: o.Log}), a2a.New(a2a.Options{Log: o.Log})}
	})
	token := strings.TrimSpace(string(must(os.ReadFile(filepath.Join(m.Consumer.Status().DataDir, "api.token")))(t)))
	org := partners(t, m, "customer-service")
	startCalledMCP(t, m, "served")
	startCalledA2A(t, m, "messaged")
	m.Known(t, "served")
	m.Known(t, "messaged")
	session := connectMCP(t, m.API+"/mcp/things/served", "2025-11-25", "Bearer "+token)
	inSession := func() (string, error) {
		r, err := session.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: "who", Arguments: map[string]any{}})
		if err != nil {
			return "", err
		}
		return r.Content[0].(*mcpsdk.TextContent).Text, nil
	}
	bearer := map[string]string{"Authorization": "Bearer " + token}
	calls := map[string]func() string{
		"MCP": func() string { return askServer(t, m.API, bearer) },
		"A2A": func() string { return askAgent(t, m.API, bearer) },
	}
	roles := func(text string) string { _, roles, _ := strings.Cut(text, " peer "); return roles }
	for name, call := range calls {
		if got := roles(call()); got != org+" customer-service" {
			t.Errorf("%s: the agent receives %q", name, got)
		}
	}
	if got, err := inSession(); err != nil || roles(got) != org+" customer-service" {
		t.Errorf("in a session the agent receives %q, %v", got, err)
	}
	client := m.Consumer.Client()
	if err := client.SetRoles(t.Context(), m.Consumer.DID(), []string{}); err != nil {
		t.Fatal(err)
	}
	must(client.RenewCredential(t.Context()))(t)
	poll.Until(t, "the host knows the lost role", func() bool {
		s, err := m.Host.Client().Standing(t.Context(), m.Consumer.DID())
		return err == nil && s.Relation == "partner" && len(s.Roles) == 0
	})
	poll.Until(t, "the session ends", func() bool { _, err := inSession(); return err != nil })
	// The tunnel of the requests without a session ends, too, a moment later.
	poll.Until(t, "the tunnel of before has ended", func() bool {
		raw := requestServer(t, m.API, bearer)
		return !strings.Contains(raw, "has changed") && !strings.Contains(raw, "customer-service")
	})
	for name, call := range calls {
		if got := roles(call()); got != org {
			t.Errorf("%s: the agent receives %q after the loss of the role", name, got)
		}
	}
}

// must fails the test if err is not nil.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// post sends a request and returns the text of the response.
func post(t *testing.T, c *http.Client, url, body string, header map[string]string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Errorf("%s: %s %s %v", url, resp.Status, raw, err)
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw)
	}
	return strings.TrimSpace(text)
}

func startCalledGo(t *testing.T, m *testmesh.Mesh, name string) {
	td, thing, err := agent.New(agent.Agent{Name: name}, agent.Action("who", func(ctx context.Context, _ any) (string, error) {
		p, until := agent.CallerOf(ctx), time.Time{}
		if p == nil {
			p = &did.Principal{}
		}
		until, _ = ctx.Deadline()
		return heard(p.ID(), p.Via, p.Org, p.Roles, p.Lent.Lender(), time.Until(until)), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	attach(t, m, func(ctx context.Context, ready func(string)) error {
		return agent.Attach(ctx, m.Socket, m.Token, td, thing, ready, testmesh.Logger())
	})
}

// attach runs an attached agent until the test ends.
func attach(t *testing.T, _ *testmesh.Mesh, serve func(ctx context.Context, ready func(string)) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{}, 1)
	go func() { done <- serve(ctx, func(string) { ready <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
}

// startCalledExec runs the agent of `lmosd expose exec:…`.
func startCalledExec(t *testing.T, m *testmesh.Mesh, name string) {
	script := filepath.Join(t.TempDir(), "who.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\ncat >/dev/null\n"+
		`left=$(( $(date -u -d "$LMOSD_DEADLINE" +%s) - $(date -u +%s) ))`+"\n"+
		`long=; [ $left -gt 340 ] && [ $left -le 400 ] && long=" long"`+"\n"+
		`printf '%s %s%s%s%s%s' "$LMOSD_CALLER" "$LMOSD_CALLER_VIA" "${LMOSD_CALLER_ORG:+ $LMOSD_CALLER_ORG}" "${LMOSD_CALLER_ROLES:+ $LMOSD_CALLER_ROLES}" `+
		`"${LMOSD_CALLER_LENT_BY:+ for $LMOSD_CALLER_LENT_BY}" "$long"`+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	x, err := expose.Open(t.Context(), expose.Spec{Target: "exec:" + script, Name: name}, nil, testmesh.Logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	attach(t, m, func(ctx context.Context, ready func(string)) error {
		return agent.Attach(ctx, m.Socket, m.Token, x.TD, x.Thing, ready, testmesh.Logger())
	})
}

// oneForm returns a TD with one action and one form, which claims to know the caller.
func oneForm(name, form string) []byte {
	return []byte(`{"@context":["https://www.w3.org/2022/wot/td/v1.1"],"title":"` + name + `","securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},` +
		`"security":["nosec_sc"],"actions":{"who":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},"forms":[` + form + `]}}}`)
}

func startCalledHTTP(t *testing.T, m *testmesh.Mesh, name string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var seconds int
		_, _ = fmt.Sscanf(r.Header.Get("Prefer"), "wait=%d", &seconds)
		w.Header().Set("Content-Type", "application/json")
		all := func(name string) string { return strings.Join(r.Header.Values(name), ",") }
		fmt.Fprintf(w, "%q", heard(all("Lmos-Caller"), all("Lmos-Caller-Via"), all("Lmos-Caller-Org"), all("Lmos-Caller-Roles"),
			all("Lmos-Caller-Lent-By"), time.Duration(seconds)*time.Second))
		if secret := all("Lmos-Caller-Secret"); secret != "" {
			t.Errorf("a description or a client sent the secret %s", secret)
		}
	}))
	t.Cleanup(server.Close)
	m.Offer(t, oneForm(name, `{"href":"`+server.URL+`/who","contentType":"application/json","op":["invokeaction"],`+
		`"htv:headers":[{"htv:fieldName":"lmos-caller","htv:fieldValue":"forged"},{"htv:fieldName":"Lmos-Caller-Org","htv:fieldValue":"forged"},`+
		`{"htv:fieldName":"lmos-caller-roles","htv:fieldValue":"forged"},{"htv:fieldName":"lmos-caller-lent-by","htv:fieldValue":"forged"},{"htv:fieldName":"LMOS-CALLER-SECRET","htv:fieldValue":"forged"}]}`), nil)
}

func startCalledSocket(t *testing.T, m *testmesh.Mesh, name string) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work.Add(1)
		defer work.Done()
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"lmosprotocol"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			_, raw, err := c.Read(ctx)
			if err != nil {
				return
			}
			var q struct {
				ThingID, MessageID string
				TimeLeft           int64
				Caller             map[string]any
			}
			_ = json.Unmarshal(raw, &q) // invalid input gets a wrong answer
			answer, _ := json.Marshal(map[string]any{"messageType": "actionStatus", "thingId": q.ThingID, "messageId": "a", "correlationId": q.MessageID,
				"action": "who", "status": "completed", "output": heard(q.Caller["id"], q.Caller["via"], q.Caller["organization"], q.Caller["roles"], q.Caller["lentBy"], time.Duration(q.TimeLeft)*time.Millisecond)})
			_ = c.Write(ctx, websocket.MessageText, answer)
		}
	}))
	t.Cleanup(func() { cancel(); server.Close(); work.Wait() })
	m.Offer(t, oneForm(name, `{"href":"ws`+strings.TrimPrefix(server.URL, "http")+`/ws","subprotocol":"lmosprotocol","op":["invokeaction"]}`), nil)
}

func startCalledMQTT(t *testing.T, m *testmesh.Mesh, name string) {
	address := startBroker(t)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	var client *paho.Client
	answer := func(p *paho.Publish) {
		user := p.Properties.User
		var left time.Duration
		if p.Properties.MessageExpiry != nil {
			left = time.Duration(*p.Properties.MessageExpiry) * time.Second
		}
		text, _ := json.Marshal(heard(user.Get("lmos-caller"), user.Get("lmos-caller-via"), user.Get("lmos-caller-org"), user.Get("lmos-caller-roles"),
			user.Get("lmos-caller-lent-by"), left)) // strings always encode
		props := &paho.PublishProperties{ContentType: "application/json", CorrelationData: p.Properties.CorrelationData}
		props.User.Add("lmos-status", "completed")
		_, _ = client.Publish(ctx, &paho.Publish{Topic: p.Properties.ResponseTopic, QoS: 1, Payload: text, Properties: props}) // the waiting client detects a failure
	}
	client = paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			work.Go(func() { answer(p.Packet) })
			return true, nil
		}}})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: "agent", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	topic := name + "/actions/who"
	if _, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); work.Wait(); client.Disconnect(&paho.Disconnect{}); <-client.Done() })
	m.Offer(t, oneForm(name, `{"href":"mqtt://`+address+`/`+topic+`","contentType":"application/json","op":["invokeaction"]}`), nil)
}

// whoServer is an MCP server that returns the caller of its tool.
func whoServer(t *testing.T) string {
	s := mcpsdk.NewServer(&mcpsdk.Implementation{Name: "who", Version: "1"}, nil)
	s.AddTool(&mcpsdk.Tool{Name: "who", Description: "Returns the caller.", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, r *mcpsdk.CallToolRequest) (*mcpsdk.CallToolResult, error) {
			caller, _ := r.Params.Meta["io.lmosd/caller"].(map[string]any)
			return &mcpsdk.CallToolResult{Content: []mcpsdk.Content{&mcpsdk.TextContent{Text: heard(caller["id"], caller["via"], caller["organization"], caller["roles"], caller["lentBy"], 0)}}}, nil
		})
	server := httptest.NewServer(mcpsdk.NewStreamableHTTPHandler(func(*http.Request) *mcpsdk.Server { return s },
		&mcpsdk.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func startCalledMCP(t *testing.T, m *testmesh.Mesh, name string) {
	x, err := expose.Open(t.Context(), expose.Spec{Target: "mcp:" + whoServer(t), Name: name}, []bridge.Bridge{mcp.New(mcp.Options{Log: testmesh.Logger()})}, testmesh.Logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	m.Offer(t, x.TD, x.Thing)
}

// toldToServers calls an MCP server with an MCP client: sessions have a tunnel of their own, and callers without a session share tunnels. Each has
// the rights of its client, and no more.
func toldToServers(t *testing.T, m *testmesh.Mesh, token, org string) {
	startCalledMCP(t, m, "served")
	m.Known(t, "served")
	far := string(m.Consumer.DID())
	for api, want := range map[string]string{m.Host.API(): "local loopback", m.API: far + " peer " + org} {
		for _, version := range []string{"2025-06-18", "2025-11-25"} {
			s := connectMCP(t, api+"/mcp/things/served", version)
			r, err := s.CallTool(t.Context(), &mcpsdk.CallToolParams{Name: "who", Arguments: map[string]any{},
				Meta: mcpsdk.Meta{"io.lmosd/caller": map[string]any{"id": "forged", "via": "process"}, "dev.lmosd/user": "forged"}})
			if err != nil {
				t.Fatal(err)
			}
			if text := r.Content[0].(*mcpsdk.TextContent).Text; text != want {
				t.Errorf("%s, %s: the server receives %q, want %q", api, version, text, want)
			}
		}
	}
	for name, c := range map[string]struct {
		api    string
		header map[string]string
		want   string // with # for the node's name of the caller
	}{
		"here":                  {m.Host.API(), nil, "local loopback"},
		"here, with the token":  {m.Host.API(), map[string]string{"Authorization": "Bearer " + m.Token}, "local#operator token"},
		"here, through a proxy": {m.Host.API(), map[string]string{"X-Forwarded-For": "192.0.2.1"}, "unproven unproven"},
		"far":                   {m.API, nil, far + " peer " + org},
		"far, with the token":   {m.API, map[string]string{"Authorization": "Bearer " + token}, far + "# peer " + org + " customer-service"},
		"far, through a proxy":  {m.API, map[string]string{"X-Forwarded-For": "192.0.2.1"}, far + "# peer " + org},
	} {
		got := askServer(t, c.api, c.header)
		if strings.Contains(c.want, "# ") {
			got = pseudonym.ReplaceAllString(got, "# ")
		}
		if got != c.want {
			t.Errorf("%s: the server receives %q, want %q", name, got, c.want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// askServer calls the MCP server "served" without a session, and claims to be another caller.
func askServer(t *testing.T, api string, more map[string]string) string {
	t.Helper()
	raw := requestServer(t, api, more)
	var r struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(raw), &r); err != nil || len(r.Result.Content) != 1 {
		t.Errorf("%s: %v", raw, err)
		return ""
	}
	return r.Result.Content[0].Text
}

// requestServer returns the response to a request of the tool.
func requestServer(t *testing.T, api string, more map[string]string) string {
	t.Helper()
	header := map[string]string{"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "who"}
	maps.Copy(header, more)
	return post(t, http.DefaultClient, api+"/mcp/things/served", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"who","arguments":{},`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},`+
		`"dev.lmosd/user":"forged","io.lmosd/caller":{"id":"forged","via":"process"}}}}`, header)
}

// pseudonym matches the name that a node gives to a client of MCP or A2A.
var pseudonym = regexp.MustCompile("#[0-9a-f]{32} ")

// whoAgent is an A2A agent that returns its caller.
func whoAgent(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".json") {
			fmt.Fprintf(w, `{"name":"who","description":"x","version":"1","capabilities":{},"supportedInterfaces":[{"url":"http://%s/",`+
				`"protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[]}`, r.Host)
			return
		}
		var q struct {
			ID     json.RawMessage
			Params struct {
				Metadata map[string]struct {
					ID, Via, Organization, LentBy string
					Roles                         []string
				}
				Message struct{ Metadata map[string]any }
			}
		}
		raw, _ := io.ReadAll(r.Body)
		if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&q); err != nil {
			t.Errorf("%v: %s", err, raw)
		}
		if q.Params.Message.Metadata["io.lmosd/caller"] != nil {
			t.Errorf("a client told the agent: %s", raw)
		}
		who := q.Params.Metadata["io.lmosd/caller"]
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":%q}]}}}`, q.ID, heard(who.ID, who.Via, who.Organization, who.Roles, who.LentBy, 0))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func startCalledA2A(t *testing.T, m *testmesh.Mesh, name string) { importA2A(t, m, whoAgent(t), name) }

// askAgent sends a message to the A2A agent "messaged", and claims to be another caller.
func askAgent(t *testing.T, api string, more map[string]string) string {
	t.Helper()
	const forged = `{"io.lmosd/caller":{"id":"forged","via":"process"}}`
	header := map[string]string{"A2A-Version": "1.0"}
	maps.Copy(header, more)
	raw := post(t, http.DefaultClient, api+"/a2a/messaged/", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"metadata":`+forged+
		`,"message":{"messageId":"q","role":"ROLE_USER","parts":[{"text":"who?"}],"metadata":`+forged+`}}}`, header)
	var r struct {
		Result struct {
			Message struct{ Parts []struct{ Text string } }
		}
	}
	if err := json.Unmarshal([]byte(raw), &r); err != nil || len(r.Result.Message.Parts) != 1 {
		t.Errorf("%s: %v", raw, err)
		return ""
	}
	return r.Result.Message.Parts[0].Text
}

// toldToA2A calls an A2A agent with A2A, and claims to be another caller.
func toldToA2A(t *testing.T, m *testmesh.Mesh, token, org string) {
	importA2A(t, m, whoAgent(t), "messaged")
	m.Known(t, "messaged")
	far := string(m.Consumer.DID())
	for name, c := range map[string]struct {
		api    string
		header map[string]string
		want   string
	}{
		"here":                 {m.Host.API(), nil, "local loopback"},
		"far":                  {m.API, nil, far + " peer " + org},
		"far, with the token":  {m.API, map[string]string{"Authorization": "Bearer " + token}, far + "#operator peer " + org + " customer-service"},
		"far, with a password": {m.API, map[string]string{"Authorization": "Basic YTpi"}, far + "# peer " + org},
		"far, through a proxy": {m.API, map[string]string{"X-Forwarded-For": "192.0.2.1"}, far + "#unproven peer " + org},
	} {
		got := pseudonym.ReplaceAllString(askAgent(t, c.api, c.header), "# ")
		if got != c.want {
			t.Errorf("%s: the agent receives %q, want %q", name, got, c.want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

const pythonCaller = `
import sys, time
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import lmosd
agent = lmosd.Agent(sys.argv[2])

@agent.action
def who(input: str, call: lmosd.Context) -> str:
    left = (call.deadline or 0) - time.time()
    c = call.caller
    return " ".join(filter(None, [c.id, c.via, c.organization, *c.roles, c.lent_by and "for " + c.lent_by])) + (" long" if 340 < left <= 400 else "")

agent.run()
`

const scriptCaller = `
const { agent } = await import(process.argv[2] + '/lmosd.mjs')
await agent(process.argv[3]).action('who', 'string', (_, signal, ask, { caller, deadline }) => {
  const left = (deadline - Date.now()) / 1000
  return [caller.id, caller.via, ...(caller.organization ? [caller.organization] : []), ...caller.roles, ...(caller.lentBy ? ['for', caller.lentBy] : [])].join(' ') + (left > 340 && left <= 400 ? ' long' : '')
}).run()
`

// startCalledProgram runs an agent in another language until the test ends.
func startCalledProgram(t *testing.T, m *testmesh.Mesh, program, script, library, name string) {
	program = testprogram.Path(t, program)
	library, err := filepath.Abs(library)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.mjs")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, file, library, name)
	cmd.Env = append(os.Environ(), "LMOSD_NODE="+m.Socket, "LMOSD_TOKEN="+m.Token)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended; SIGINT is ignored below a background shell
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
}
