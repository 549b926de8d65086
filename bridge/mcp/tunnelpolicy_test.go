package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// The policy of the host applies to tunnels of all revisions: refused requests fail, and all others pass.
func TestGuard(t *testing.T) {
	t.Parallel()
	for revision, versions := range revisions {
		a := join(t, piped(t, newServer(versions, fill)), bridge.Import{})
		var mu sync.Mutex
		var checked []string
		wrap := New(Options{}).Guard(described(t, a.TD), func(_ context.Context, m *interact.Message) error {
			mu.Lock()
			defer mu.Unlock()
			checked = append(checked, m.Type.Op()+" "+m.Name)
			if m.From.ID() != "did:key:zBob" {
				t.Errorf("the policy checked the principal %q", m.From.ID())
			}
			if m.Name == "greet" || m.Name == "page" {
				return interact.Errorf(interact.Forbidden, "ask", "not %s", m.Name)
			}
			return nil
		})
		conn := protocol.Lines(bridge.Dial(t.Context(), wrap(a.Thing), &interact.Message{Name: tunnelAction, From: did.NodePrincipal("did:key:zBob", "")}))
		ask := requester(t, conn, revision)
		for i, test := range []struct{ method, key, value, says string }{
			{protocol.CallTool, "name", "say", `"result"`},
			{protocol.GetPrompt, "name", "greet", "not greet"},
			{protocol.ReadResource, "uri", "test://note", `"result"`},
			{protocol.ReadResource, "uri", "test://pages/2", "not page"},
			{protocol.CallTool, "name", "unknown", `"error"`},
			{protocol.ListTools, "cursor", "", `"say"`},
		} {
			if got := ask(protocol.ID(fmt.Sprint(10+i)), test.method, map[string]any{test.key: test.value}); !strings.Contains(got, test.says) {
				t.Errorf("%s: %s %s: %s", revision, test.method, test.value, got)
			}
		}
		conn.Close()
		want := []string{"invokeaction say", "invokeaction greet", "readproperty Note_No_1", "readproperty page", "invokeaction unknown"}
		if !slices.Equal(checked, want) {
			t.Errorf("%s: the policy checked %q", revision, checked)
		}
		for input, want := range map[string]string{`{"tool":"say","arguments":{"text":"x"}}`: `"x"`, `{"tool":"greet"}`: "not greet", `{"tool":["greet"]}`: "expected a tool", `{}`: `"name":"say"`} {
			m := invoke(moreTools, input)
			m.From = did.NodePrincipal("did:key:zBob", "")
			r, err := interact.Call(t.Context(), wrap(a.Thing), m)
			if got := fmt.Sprint(r, err); err == nil && !strings.Contains(string(r.Data), want) || err != nil && !strings.Contains(got, want) {
				t.Errorf("%s: more %s gives %s", revision, input, got)
			}
		}
		if r, err := interact.Call(t.Context(), wrap(a.Thing), invoke("say", `{"text":"x"}`)); err != nil || string(r.Data) != `"x"` {
			t.Errorf("%s: as an action: %v, %v", revision, r, err)
		}
	}
}

// A thing without a tunnel has no guard.
func TestNoGuard(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{`{"title":"x"}`, `{"title":"x","actions":{"mcp":{}}}`} {
		if New(Options{}).Guard(described(t, []byte(doc)), nil) != nil {
			t.Errorf("%s has a guard", doc)
		}
	}
}

// kept is a connection without stored credentials.
type kept struct{ protocol.Conn }

func (kept) Write(context.Context, *protocol.Message) error { return nil }

// The policy checks requests of users of another node's relay under the names that the relay reports, with the standing of the caller that opened the
// tunnel. Other callers cannot name users. A relay of this process names the principals of its callers.
func TestGuardDistinguishesUsers(t *testing.T) {
	t.Parallel()
	node := &did.Principal{DID: "did:key:zBob", Node: "did:key:zBob", Via: did.Peer, Org: "did:web:acme", Roles: []string{"clerk"}, Relation: did.Partner}
	noRole := func(string) bool { return false }
	unproven := node.Narrowed("unproven", did.Untrusted, noRole)
	crm := node.Narrowed("crm", did.Own, nil)
	process := did.Consumer(did.Process, "")
	token := *did.Consumer(did.Token, "dashboard")
	token.Roles = []string{"reader"}
	for name, c := range map[string]struct {
		from   *did.Principal
		user   string
		caller any // nil: absent
		want   *did.Principal
	}{
		"a user":                         {node, "crm", nil, crm},
		"a user without proof":           {unproven, "crm", nil, unproven.Narrowed("crm", did.Untrusted, noRole)},
		"the node":                       {node, "", nil, node},
		"no name":                        {crm, "A B", nil, crm},
		"the node names a principal":     {node, "crm", did.Consumer(did.Socket, "root"), crm},
		"of this machine":                {did.Consumer(did.Loopback, ""), "crm", process, did.Consumer(did.Loopback, "")},
		"this process":                   {process, "", nil, process},
		"a token":                        {process, "dashboard", token, &token},
		"through a proxy":                {process, "x", did.Consumer(did.Unproven, ""), did.Consumer(did.Unproven, "")},
		"no principal":                   {process, "", json.RawMessage("null"), nil},
		"what is no principal":           {process, "", "x", nil},
		"a peer, which is none of these": {process, "", node, nil},
	} {
		var checked *did.Principal
		g := newTunnelPolicy(&td.Thing{}, func(_ context.Context, m *interact.Message) error { checked = m.From; return nil })
		meta := map[string]any{protocol.MetaUser: c.user}
		if c.caller != nil {
			meta[protocol.MetaCaller] = c.caller
		}
		q := protocol.Request("1", protocol.CallTool, map[string]any{"name": "say", "_meta": meta})
		if err := g.pass(t.Context(), &interact.Message{From: c.from}, q, kept{}, kept{}); err != nil || !reflect.DeepEqual(checked, c.want) {
			t.Errorf("%s: the policy checked the principal %+v, %v; want %+v", name, checked, err, c.want)
		}
	}
}
