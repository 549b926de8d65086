package aggregator

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
)

// An otherNode is another node with the same mesh.
type otherNode struct {
	*bridgetest.Mesh
	key did.Signer
}

func (n otherNode) Signer() did.Signer { return n.key }

// nodes serve a mesh at two nodes, the first of which is this one.
func nodes(t *testing.T, m *bridgetest.Mesh, pins ...string) (here, there string) {
	t.Helper()
	key := didtest.NewKey()
	return serveMesh(t, m, pins...), serveMesh(t, otherNode{m, key}, pins...)
}

// A retry that arrives at another node is forwarded to the node of its suspended call.
func TestRetryAtAnotherNode(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	here, there := nodes(t, m)
	here, there = here+"/mcp/things/desk", there+"/mcp/things/desk"
	caps, args := `{"elicitation":{}}`, `{"name":"confirm","arguments":{"value":"x"}`
	state := member(t, post(t, here, "", protocol.CallTool, args+"}", caps), "requestState")
	retry := args + `,"inputResponses":{"sure":{"action":"accept","content":{"yes":true}}},"requestState":"` + state + `"}`
	r := post(t, there, "", protocol.CallTool, retry, caps)
	if e := r.Error(); e == nil || e.Code != protocol.InvalidParams || string(e.Data) != `{"node":"`+string(m.Signer().DID())+`"}` {
		t.Errorf("at another node: got %s", r.Bytes())
	}
	if r := post(t, here, "", protocol.CallTool, retry, caps); !strings.Contains(string(r.Bytes()), "accept") {
		t.Errorf("at the node of the call: got %s", r.Bytes())
	}
}

// A retry that arrives at another node goes to the server itself, with the state of the server, if the Thing is an MCP server.
func TestRetryToServerAtAnotherNode(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	shop, _ := newShop(t)
	add(t, m, "urn:shop", shopTD, shop)
	here, there := nodes(t, m)
	here, there = here+"/mcp/things/shop", there+"/mcp/things/shop"
	caps, args := `{"elicitation":{}}`, `{"name":"buy.it","arguments":{"what":"a car"}`
	state := member(t, post(t, here, "Bearer ada", protocol.CallTool, args+"}", caps), "requestState")
	if state != "car" {
		t.Errorf("the server's own state became %q", state)
	}
	retry := args + `,"inputResponses":{"price":{"action":"accept","content":{"yes":true}}},"requestState":"` + state + `"}`
	for name, c := range map[string]struct{ url, auth, want string }{
		"at another node":               {there, "Bearer ada", "car accept"},
		"of another caller of the node": {here, "Bearer eve", "-32602"},
		"at the node":                   {here, "Bearer ada", "car accept"},
	} {
		if r := post(t, c.url, c.auth, protocol.CallTool, retry, caps); !strings.Contains(string(r.Bytes()), c.want) {
			t.Errorf("%s: got %s", name, r.Bytes())
		}
	}
}

// Ids of tasks and cursors are valid only for their caller, their purpose, and the node that issued them.
func TestTokensOfOtherCallers(t *testing.T) {
	t.Parallel()
	m, d := newScriptedMesh(t)
	add(t, m, "urn:big", bigTD(t, pageSize+1), d)
	add(t, m, "urn:desk2", strings.Replace(scriptedTD, `"Desk"`, `"Second"`, 1), d)
	url, other := nodes(t, m, "big", "desk")
	caps := `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	dig := func(path, params string) string {
		return member(t, post(t, url+path, "Bearer ada", protocol.CallTool, params, caps), "taskId")
	}
	own := dig("/mcp/things/desk", `{"name":"dig"}`)
	mesh := dig("/mcp", `{"name":"mesh_call","arguments":{"thing":"desk","tool":"dig"}}`)
	cursor := member(t, post(t, url+"/mcp/things/big", "Bearer ada", "tools/list", `{}`, caps), "nextCursor")
	ask := func(word string) string {
		return fmt.Sprintf(`{"taskId":%q,"inputResponses":{},"cursor":%q}`, word, word)
	}
	for name, c := range map[string]struct {
		url, auth, method, word string
		good                    bool
	}{
		"a task":                           {url + "/mcp/things/desk", "Bearer ada", "tasks/get", own, true},
		"another's":                        {url + "/mcp/things/desk", "Bearer eve", "tasks/get", own, false},
		"another's, to be cancelled":       {url + "/mcp/things/desk", "Bearer eve", "tasks/cancel", own, false},
		"another's, to be answered":        {url + "/mcp/things/desk", "", "tasks/update", own, false},
		"of another thing":                 {url + "/mcp/things/second", "Bearer ada", "tasks/get", own, false},
		"of a thing, at the mesh":          {url + "/mcp", "Bearer ada", "tasks/get", own, false},
		"of the mesh":                      {url + "/mcp", "Bearer ada", "tasks/get", mesh, true},
		"of the mesh, another's":           {url + "/mcp", "Bearer eve", "tasks/get", mesh, false},
		"of the mesh, at a thing":          {url + "/mcp/things/desk", "Bearer ada", "tasks/get", mesh, false},
		"at another node":                  {other + "/mcp/things/desk", "Bearer ada", "tasks/get", own, false},
		"a cursor as a task":               {url + "/mcp/things/big", "Bearer ada", "tasks/get", cursor, false},
		"a cursor":                         {url + "/mcp/things/big", "Bearer ada", "tools/list", cursor, true},
		"another's cursor":                 {url + "/mcp/things/big", "Bearer eve", "tools/list", cursor, false},
		"a cursor of another list":         {url + "/mcp/things/big", "Bearer ada", "resources/list", cursor, false},
		"a cursor of another node":         {other + "/mcp/things/big", "Bearer ada", "tools/list", cursor, false},
		"a task as a cursor":               {url + "/mcp/things/desk", "Bearer ada", "tools/list", own, false},
		"a cursor that was made up":        {url + "/mcp", "Bearer ada", "prompts/list", "after:eA", false},
		"a request state that was made up": {url + "/mcp", "Bearer ada", "tasks/get", "", false},
	} {
		r := post(t, c.url, c.auth, c.method, ask(c.word), caps)
		if e := r.Error(); c.good != (e == nil) || e != nil && e.Code != protocol.InvalidParams {
			t.Errorf("%s: got %.300s", name, r.Bytes())
		}
	}
}

// One caller cannot use all slots of suspended calls.
func TestSuspendedCallsAreBounded(t *testing.T) {
	t.Parallel()
	m, _ := newScriptedMesh(t)
	url := serveMesh(t, m) + "/mcp/things/desk"
	ask := func(auth string) *protocol.Message {
		return post(t, url, auth, protocol.CallTool, `{"name":"confirm","arguments":{"value":"x"}}`, `{"elicitation":{}}`)
	}
	for range maxSuspendedEach {
		member(t, ask("Bearer eve"), "requestState")
	}
	if r := ask("Bearer eve"); !strings.Contains(string(r.Bytes()), "are waiting for input") {
		t.Errorf("one more: got %s", r.Bytes())
	}
	member(t, ask("Bearer ada"), "requestState")
}

// A subject of an identity provider is the same caller with each of its tokens; credentials that prove nothing to the node distinguish callers.
func TestCallersOfRequests(t *testing.T) {
	t.Parallel()
	name := func(p *did.Principal, authorization string) string {
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil).WithContext(did.WithPrincipal(t.Context(), p))
		r.Header.Set("Authorization", authorization)
		return callerOf(r)
	}
	alice, bob, local := did.Consumer(did.OIDC, "oidc:acme:alice"), did.Consumer(did.OIDC, "oidc:acme:bob"), did.Consumer(did.Loopback, "")
	switch {
	case name(alice, "Bearer a") != name(alice, "Bearer b"):
		t.Error("a subject with two tokens is two callers")
	case name(alice, "Bearer a") == name(bob, "Bearer a"):
		t.Error("two subjects are one caller")
	case name(local, "Bearer a") == name(local, "Bearer b"):
		t.Error("two credentials on loopback are one caller")
	}
}
