package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// The MCP conformance suite uses a node as its client: it starts a server for each scenario and runs a command, which lets one of two nodes
// import the server, and a client of the other use it:
//
//	suite's server ─ HTTP ─ node A ─ the mesh ─ node B ─ HTTP ─ client of the Go SDK
//
// docs/interop.md has the results; -update writes them.
func TestMCPClientConformance(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, "..")
	if _, err := os.Stat(node22); err != nil {
		t.Skipf("there is no Node 22 for %s in npm's optional dependencies here", runtime.GOOS)
	}
	dir := t.TempDir()
	u := &user{Mesh: testmesh.Start(t, func(o *node.Options) { o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Log: o.Log})} }), dir: dir}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := scenario{name: r.PostFormValue("scenario"), server: r.PostFormValue("server"), revision: r.PostFormValue("revision")}
		_ = json.Unmarshal([]byte(r.PostFormValue("context")), &s) // most have none
		if err := u.play(r.Context(), s); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	defer door.Close()
	command := filepath.Join(dir, "command")
	script := fmt.Sprintf(`#!/bin/sh
exec curl -sS --fail-with-body --data-urlencode "scenario=$MCP_CONFORMANCE_SCENARIO" --data-urlencode "context=$MCP_CONFORMANCE_CONTEXT" \
  --data-urlencode "revision=$MCP_CONFORMANCE_PROTOCOL_VERSION" --data-urlencode "server=$1" %s
`, door.URL)
	if err := os.WriteFile(command, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	results := map[string]map[string]string{}
	for revision, want := range map[string]int{"2026-07-28": 32, "2025-11-25": 18} {
		scores := conformance(t, filepath.Join(dir, revision), notOffered, "client", "--command", command, "--requirements", revision,
			"--timeout", "60000", "--expected-failures", "baseline.yml")
		required := requirements(t, revision, "Client")
		if len(required) != want {
			t.Errorf("%s requires %d scenarios, not %d", revision, len(required), want)
		}
		for _, name := range required {
			if s, ran := scores[name]; !ran || s.failed > 0 || s.passed == 0 {
				t.Errorf("%s: %s: %v", revision, name, s)
			}
		}
		results[revision] = map[string]string{}
		for name, s := range scores {
			if (s.failed > 0) != (notOffered[name] != "") {
				t.Errorf("%s: %s, which is not required: %v", revision, name, s)
			}
			// The number of checks depends on the number of requests to a server, and thus on the load of the machine.
			results[revision][name] = "passed"
			if s.failed > 0 {
				results[revision][name] = "not offered"
			}
		}
	}
	if !t.Failed() {
		writeConformance(t, "client conformance", []string{"2026-07-28", "2025-11-25"}, results)
	}
}

// notOffered are scenarios of extensions that lmosd does not have, with the reason. The suite runs them without counting them.
var notOffered = map[string]string{
	"auth/dpop":                             "tokens are bearer tokens",
	"auth/dpop-nonce":                       "tokens are bearer tokens",
	"auth/enterprise-managed-authorization": "there is no identity provider of a company",
	"auth/wif-jwt-bearer":                   "there is no workload identity",
}

// A scenario is the expected behavior of a client.
type scenario struct {
	name, server, revision string

	Calls  []toolCall `json:"toolCalls"`
	ID     string     `json:"client_id"`
	Secret string     `json:"client_secret"`
	Key    string     `json:"private_key_pem"`
	Issuer string     `json:"issuer"`
}

type toolCall struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

// A user plays scenarios through a mesh.
type user struct {
	*testmesh.Mesh
	dir  string
	many atomic.Int64
}

// play imports the server of a scenario at one node, and uses it at the other.
func (u *user) play(ctx context.Context, s scenario) error {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Second)
	defer cancel()
	name := fmt.Sprint("server-", u.many.Add(1))
	secrets, err := u.secrets(name, s)
	if err != nil {
		return err
	}
	b := mcp.New(mcp.Options{Credentials: secrets, Show: browse, ClientID: clientDocument, Log: testmesh.Logger()})
	x, err := expose.Open(ctx, expose.Spec{Target: "mcp:" + s.server, Name: name, PublishPrivate: true}, []bridge.Bridge{b}, testmesh.Logger())
	if err != nil {
		return err
	}
	defer x.Close()
	draft, err := td.Draft(x.TD)
	if err == nil {
		_, err = u.Host.Offer(ctx, draft, x.Thing)
	}
	if err != nil {
		return err
	}
	for {
		if _, err := u.Consumer.Mesh().Get(ctx, name); err == nil {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("node B does not know the server: %w", ctx.Err())
		}
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	accept := func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
	}
	c := sdk.NewClient(&sdk.Implementation{Name: "user", Version: "1"}, &sdk.ClientOptions{ElicitationHandler: accept})
	session, err := c.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: u.API + "/mcp/things/" + name, HTTPClient: &http.Client{Transport: transport}},
		&sdk.ClientSessionOptions{ProtocolVersion: s.revision})
	if err != nil {
		return err
	}
	defer session.Close()
	return use(ctx, session, s)
}

// clientDocument is the Client ID Metadata Document that the suite knows.
const clientDocument = "https://conformance-test.local/client-metadata.json"

// browse simulates a person who approves all requests.
func browse(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// secrets are the credentials of node A for the server of a scenario, in a folder of its own: a later server with the same port would
// get the tokens of this one.
func (u *user) secrets(name string, s scenario) (credentials.Store, error) {
	dir := filepath.Join(u.dir, name)
	file := filepath.Join(dir, "credentials.json")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return credentials.Store{}, err
	}
	if s.ID != "" && s.Secret+s.Key != "" && s.Issuer == "" {
		s.Issuer = issuer(s.server)
	}
	if s.Issuer != "" {
		client := map[string]string{"origin": s.Issuer, "username": s.ID, "password": s.Secret}
		if s.Key != "" {
			client["private_key_file"] = "key.pem"
			if err := os.WriteFile(filepath.Join(dir, "key.pem"), []byte(s.Key), 0o600); err != nil {
				return credentials.Store{}, err
			}
		}
		raw, err := json.Marshal(map[string]any{s.server: map[string]any{"oauth": client}})
		if err == nil {
			err = os.WriteFile(file, raw, 0o600)
		}
		if err != nil {
			return credentials.Store{}, err
		}
	}
	return credentials.Load(file)
}

// issuer returns the issuer of the required credentials.
func issuer(server string) string {
	var meta struct {
		Issuers []string `json:"authorization_servers"`
	}
	resp, err := http.Get(strings.Replace(server, "/mcp", "/.well-known/oauth-protected-resource/mcp", 1))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if json.NewDecoder(resp.Body).Decode(&meta) != nil || len(meta.Issuers) == 0 {
		return ""
	}
	return meta.Issuers[0]
}

// use lists all features of a server, calls its tools, and reads and gets the others.
func use(ctx context.Context, c *sdk.ClientSession, s scenario) error {
	tools, err := c.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	if s.name == "json-schema-2020-12-preservation" {
		s.Calls = echo(tools.Tools)
	}
	for _, call := range s.Calls {
		if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: call.Name, Arguments: call.Arguments}); err != nil {
			return fmt.Errorf("%s: %w", call.Name, err)
		}
	}
	for _, tool := range tools.Tools {
		if s.Calls != nil {
			break
		}
		if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool.Name, Arguments: arguments(tool)}); err != nil {
			return fmt.Errorf("%s: %w", tool.Name, err)
		}
	}
	has := c.InitializeResult().Capabilities
	if has.Resources != nil {
		all, err := c.ListResources(ctx, nil)
		if err != nil {
			return err
		}
		for _, one := range all.Resources {
			if _, err := c.ReadResource(ctx, &sdk.ReadResourceParams{URI: one.URI}); err != nil {
				return fmt.Errorf("%s: %w", one.URI, err)
			}
		}
	}
	if has.Prompts == nil {
		return nil
	}
	all, err := c.ListPrompts(ctx, nil)
	if err != nil {
		return err
	}
	for _, one := range all.Prompts {
		if _, err := c.GetPrompt(ctx, &sdk.GetPromptParams{Name: one.Name}); err != nil {
			return fmt.Errorf("%s: %w", one.Name, err)
		}
	}
	return nil
}

// echo sends the schema of a tool back unchanged.
func echo(tools []*sdk.Tool) (all []toolCall) {
	for _, tool := range tools {
		if tool.Name == "json_schema_2020_12_tool" {
			all = append(all, toolCall{"json_schema_echo", map[string]any{"schema": tool.InputSchema}})
		}
	}
	return all
}

// arguments returns valid arguments of a tool.
func arguments(tool *sdk.Tool) map[string]any {
	schema, _ := tool.InputSchema.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	all := map[string]any{}
	for name, one := range properties {
		p, _ := one.(map[string]any)
		switch p["type"] {
		case "string":
			all[name] = "x"
		case "number", "integer":
			all[name] = 1
		}
	}
	return all
}
