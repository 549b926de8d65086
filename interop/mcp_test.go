package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

const clerkTD = `{"title":"clerk","@type":["lmos:Agent"],"actions":{
 "greet":{"safe":true,"input":{"type":"string"},"output":{"type":"string"}},"fail":{},"count":{},"wait":{},"poke":{},
 "run":{"input":{},"output":{}},"confirm":{"input":{"type":"string"}}},
 "properties":{"level":{"type":"integer","readOnly":true,"observable":true}}}`

// A clerk is an agent with all features that MCP clients can use. Its run is a command.
type clerk struct {
	park interact.InputWaiter
	poke chan struct{}
	left chan struct{}
	exec interact.Thing
}

func (c *clerk) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	if m.Type == interact.InvokeAction && m.Name == "run" {
		return c.exec.Do(ctx, m)
	}
	return func(yield func(*interact.Message, error) bool) {
		done := func(text string) {
			r := m.Reply(interact.ActionStatus, interact.JSON, asJSON(text))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		}
		switch m.Type.Op() + " " + m.Name {
		case "invokeaction greet":
			done("hello " + strings.Trim(string(m.Data), `"`))
		case "invokeaction fail":
			yield(nil, &interact.Error{Code: interact.AgentFailed, Title: "no paper", Hint: "fill the tray"})
		case "invokeaction count":
			for i := range 3 {
				r := m.Reply(interact.ActionStatus, "text/plain", fmt.Append(nil, i+1))
				r.Status = interact.StatusRunning
				if !yield(r, nil) {
					return
				}
			}
			r := m.Reply(interact.ActionStatus, "", nil)
			r.Status = interact.StatusCompleted
			yield(r, nil)
		case "invokeaction confirm":
			answers, left, err := c.park.Ask(ctx, m, interact.Inputs{"sure": {Kind: interact.InputForm, Message: "Are you sure?",
				Schema: json.RawMessage(`{"type":"object","properties":{"yes":{"type":"boolean"}}}`)}}, yield)
			if !left && err == nil {
				done(answers["sure"].Action + string(answers["sure"].Content))
			}
		case "invokeaction wait":
			r := m.Reply(interact.ActionStatus, "text/plain", []byte("begun"))
			r.Status = interact.StatusRunning
			yield(r, nil)
			<-ctx.Done()
			c.left <- struct{}{}
			yield(nil, ctx.Err())
		case "invokeaction poke":
			c.poke <- struct{}{}
			done("")
		case "readproperty level":
			yield(m.Reply(interact.PropertyReading, "", []byte("4")), nil)
		case "observeproperty level":
			for {
				select {
				case <-c.poke:
					if !yield(m.Reply(interact.PropertyReading, "", []byte("4")), nil) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		default:
			if m.Type == interact.ContinueAction {
				yield(c.park.Continue(m))
				return
			}
			yield(nil, interact.Errorf(interact.NoAffordance, "lmosd show clerk", "the clerk has no %s", m.Name))
		}
	}
}

// mcpMesh is a mesh with MCP endpoints, and a clerk in it.
func mcpMesh(t *testing.T) (*testmesh.Mesh, *clerk) {
	t.Helper()
	m := testmesh.Start(t, func(o *node.Options) {
		o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{Pins: []string{"clerk"}, Log: o.Log})}
	})
	script := filepath.Join(t.TempDir(), "run.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nread x; echo \"ran $x\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	x, err := expose.Open(t.Context(), expose.Spec{Target: "exec:" + script}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	c := &clerk{poke: make(chan struct{}, 4), left: make(chan struct{}, 4), exec: x.Thing}
	m.Offer(t, []byte(clerkTD), c)
	m.Known(t, "clerk")
	return m, c
}

// Unmodified clients of legacy and current revisions use an agent at another node, alone and in the whole mesh.
func TestMCPClientsUseAgents(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m, c := mcpMesh(t)
	uri := ""
	for _, place := range []struct{ path, prefix string }{{"/mcp/things/clerk", ""}, {"/mcp", "clerk__"}} {
		for _, flavour := range []string{"v1", "v2", "v2-modern"} {
			t.Run(flavour+place.path, func(t *testing.T) {
				if uri == "" {
					uri = levelURI(t, m)
				}
				var saw struct {
					Tools                                                     []string
					Greeting, Run, Counted, Confirmed, Cancelled, Read, Asked string
					Structured                                                map[string]string
					Failed                                                    []any
					Progress                                                  []string
					Updated                                                   int
				}
				run(t, &saw, "mcp-client.mjs", flavour, m.API+place.path, place.prefix, uri)
				if saw.Greeting != "hello Ann" || saw.Structured["value"] != "hello Ann" || saw.Run != "ran x" || saw.Counted != "123" ||
					saw.Confirmed != `accept{"yes":true}` || saw.Asked != "Are you sure?" || saw.Cancelled != "cancelled" || saw.Read != "4" ||
					saw.Updated == 0 || !slices.Contains([]string{"1", "1 2", "1 3", "1 2 3"}, strings.Join(saw.Progress, " ")) { // progress above the rate is dropped
					t.Errorf("saw %+v", saw)
				}
				if len(saw.Failed) != 2 || saw.Failed[0] != true || saw.Failed[1] != "no paper\nfill the tray" {
					t.Errorf("the failure is %v", saw.Failed)
				}
				if !slices.Contains(saw.Tools, place.prefix+"confirm") || place.prefix != "" && !slices.Contains(saw.Tools, "mesh_search") {
					t.Errorf("the tools are %q", saw.Tools)
				}
				select {
				case <-c.left:
				case <-time.After(2 * time.Minute):
					t.Error("the agent was not told that its caller left")
				}
			})
		}
	}
}

// levelURI is the URI of the clerk's level.
func levelURI(t *testing.T, m *testmesh.Mesh) string {
	t.Helper()
	s := connectMCP(t, m.API+"/mcp/things/clerk", "2026-07-28")
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 1 {
		t.Fatal(list, err)
	}
	return list.Resources[0].URI
}

// connectMCP returns a client of the go-sdk.
func connectMCP(t *testing.T, url, version string, authorization ...string) *sdk.ClientSession {
	t.Helper()
	transport := &authorized{strings.Join(authorization, ""), &http.Transport{}}
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return s
}

// An authorized transport adds the header Authorization, unless it is empty.
type authorized struct {
	value string
	*http.Transport
}

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.value != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", a.value)
	}
	return a.Transport.RoundTrip(r)
}
