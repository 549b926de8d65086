package a2a

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a/card"
	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// operator is the token of the gateway of these tests.
var operator = map[string]string{"Authorization": "Bearer operator"}

// guarded serves a mesh like a gateway with an operator, and returns the URL of the root.
func guarded(t *testing.T, m bridge.Mesh, o Options) string {
	t.Helper()
	h := New(o).Export(m)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == operator["Authorization"] {
			r = r.WithContext(bridge.WithCaller(r.Context(), bridge.Caller{Operator: true}))
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		h.Close()
	})
	return server.URL + "/a2a"
}

const meterTD = `{"title":"Meter","actions":{"reset":{"synchronous":true,"input":{"type":"string","enum":[""],"default":""},"output":{}},"get_odd":{"synchronous":true}},
	"properties":{"unit":{"type":"string","description":"What it counts in."},"count":{"type":"integer","readOnly":true},"pin":{"type":"string","writeOnly":true},"odd":{"type":"boolean"}}}`

// meter has properties, and an action with the name of a property's skill.
func meter() interact.Thing {
	unit := []byte(`"kWh"`)
	return interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		done := func(data []byte) iter.Seq2[*interact.Message, error] {
			r := m.Reply(interact.ActionStatus, interact.JSON, data)
			r.Status = interact.StatusCompleted
			return interact.One(r)
		}
		switch {
		case m.Type == interact.ReadProperty && m.Name == "unit":
			return interact.One(m.Reply(interact.PropertyReading, interact.JSON, unit))
		case m.Type == interact.WriteProperty && m.Name == "unit":
			unit = m.Data
			return interact.One(m.Reply(interact.Acknowledgement, "", nil))
		case m.Type == interact.InvokeAction && m.Name == "get_odd":
			return done([]byte(`"an action"`))
		}
		return interact.Fail(interact.Errorf(interact.Unreachable, "ask later", "the meter is asleep"))
	})
}

func extensionOf(c *card.Card, uri string) map[string]json.RawMessage {
	i := slices.IndexFunc(c.Capabilities.Extensions, func(x card.Extension) bool { return x.URI == uri })
	if i < 0 {
		return nil
	}
	var params map[string]json.RawMessage
	_ = json.Unmarshal(c.Capabilities.Extensions[i].Params, &params)
	return params
}

// TestExtendedCardOfThing checks the additional content for the operator: schemas, and properties as skills that can be called.
func TestExtendedCardOfThing(t *testing.T) {
	t.Parallel()
	m := bridgetest.NewMesh(t)
	d := m.Publish(t, []byte(meterTD), meter())
	at := guarded(t, m, Options{}) + "/meter"
	public, err := card.Parse([]byte(get(t, at+"/.well-known/agent-card.json", nil).raw))
	if err != nil || len(public.Skills) != 2 || !card.Supported(public.Capabilities.ExtendedCard) ||
		len(public.Capabilities.Extensions) == 0 {
		t.Fatalf("the public card is %+v, %v", public, err)
	}
	// The owner signs the description, regardless of the signer of the card.
	sum := sha256.Sum256(d.Thing.Raw)
	from := extensionOf(public, descriptionExtension)
	for member, want := range map[string]string{"thing": d.ID, "owner": string(d.Record.Owner), "sha256": hex.EncodeToString(sum[:])} {
		if got := string(from[member]); got != string(protocol.Encode(want)) {
			t.Errorf("%s is %s, want %s", member, got, want)
		}
	}
	all := maps.Clone(bindings)
	maps.Copy(all, oldBindings)
	for over, ask := range all {
		a := ask(t, at, protocol.ExtendedCard, row{}, operator)
		c, err := card.Parse(a.result)
		if old := strings.HasSuffix(over, "0.3"); err != nil || old != strings.Contains(string(a.result), `"preferredTransport"`) {
			t.Fatalf("%s: %s, %v", over, a.raw, err)
		}
		if v, err := card.Verify(t.Context(), a.result, did.Keys()); err != nil || v.Form != "proto" {
			t.Errorf("%s: %+v, %v", over, v, err)
		}
		var ids []string
		for _, s := range c.Skills {
			ids = append(ids, s.ID)
		}
		slices.Sort(ids)
		if got := strings.Join(ids, " "); got != "get_count get_odd get_unit reset set_odd set_pin set_unit" {
			t.Errorf("%s: the skills are %s", over, got)
		}
		var schemas map[string]struct{ InputSchema, OutputSchema string }
		params := extensionOf(c, schemasExtension)
		_ = json.Unmarshal(params["skills"], &schemas)
		if schemas["reset"].InputSchema != `{"default":"","enum":[""],"type":"string"}` || !strings.Contains(schemas["set_unit"].InputSchema, `"string"`) ||
			!strings.Contains(schemas["get_count"].OutputSchema, `"integer"`) || schemas["get_odd"].OutputSchema != "" {
			t.Errorf("%s: the schemas are %s", over, params)
		}
		for _, test := range []struct {
			part row
			want string // the state, and the output
		}{
			{skill("get_unit", nil), `TASK_STATE_COMPLETED "kWh"`}, {skill("set_unit", "MWh"), "TASK_STATE_COMPLETED "}, {skill("get_unit", nil), `TASK_STATE_COMPLETED "MWh"`},
			{skill("set_unit", "kWh"), "TASK_STATE_COMPLETED "}, {skill("get_odd", nil), `TASK_STATE_COMPLETED "an action"`}, {skill("get_count", nil), "TASK_STATE_FAILED "},
			{skill("set_count", 1), "-32602"}, {skill("get_pin", nil), "-32602"}, {skill("get_nothing", nil), "-32602"},
		} {
			a := ask(t, at, protocol.SendMessage, messageParams(test.part), nil)
			got := ""
			if a.err != nil {
				got = fmt.Sprint(a.err.Code)
			} else {
				task := a.task(t)
				got = string(task.Status.State) + " "
				for _, artifact := range task.Artifacts {
					data, _ := content(artifact.Parts[0])
					got += string(data)
				}
			}
			if got != test.want {
				t.Errorf("%s: %v gives %s, want %s", over, test.part, got, test.want)
			}
		}
	}
}

// The extended card of a remote agent is for authorized callers: it refers to this node, and is signed here. The node does not request it
// for other callers.
func TestExtendedCardOfRemoteAgent(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "")
	f.card = strings.Replace(f.card, `"streaming":true`, `"streaming":true,"extendedAgentCard":true,"extensions":[{"uri":"https://x.example/e"}]`, 1)
	f.answer = func(w http.ResponseWriter, id, _ string) {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, strings.Replace(f.card, `"description":"d"`, `"description":"more"`, 1))
	}
	m := bridgetest.NewMesh(t)
	_, d := imports(t, m, f.URL, "F", Options{})
	root := guarded(t, m, Options{})
	for over, ask := range bindings {
		before := len(f.headers)
		a := ask(t, root+"/f", protocol.ExtendedCard, row{}, map[string]string{"Authorization": "Bearer x"})
		if a.err == nil || a.err.Code != protocol.Unauthenticated || a.status != http.StatusUnauthorized || len(f.headers) != before {
			t.Errorf("%s: a caller that is not the operator gets %d %s", over, a.status, a.raw)
		}
		a = ask(t, root+"/f", protocol.ExtendedCard, row{}, operator)
		c, err := card.Parse(a.result)
		if err != nil || c.Description != "more" || c.Interfaces[0].URL != root+"/f" || strings.Contains(string(a.result), f.URL) {
			t.Fatalf("%s: %s, %v", over, a.result, err)
		}
		if string(extensionOf(c, descriptionExtension)["thing"]) != string(protocol.Encode(d.ID)) || len(c.Capabilities.Extensions) != 2 {
			t.Errorf("%s: the extensions are %+v", over, c.Capabilities.Extensions)
		}
		if _, err := card.Verify(t.Context(), a.result, did.Keys()); err != nil {
			t.Errorf("%s: %v", over, err)
		}
	}
}

// Requests that the card excludes are rejected without a call of the agent.
func TestRequestsThatCardsExclude(t *testing.T) {
	t.Parallel()
	f := newForeign(t, "")
	f.card = strings.Replace(f.card, `"streaming":true`, `"streaming":false,"extensions":[{"uri":"https://x.example/must","required":true}]`, 1)
	m := bridgetest.NewMesh(t)
	imports(t, m, f.URL, "F", Options{})
	at := guarded(t, m, Options{}) + "/f"
	for over, ask := range bindings {
		for _, test := range []struct {
			method string
			params row
			header map[string]string
			code   int
		}{
			{protocol.SendStreamingMessage, messageParams(text("x")), nil, protocol.UnsupportedOperation},
			{protocol.SubscribeToTask, row{"id": "x"}, nil, protocol.UnsupportedOperation},
			{protocol.SendMessage, messageParams(text("x")), nil, protocol.ExtensionRequired},
			{protocol.SendMessage, messageParams(text("x")), map[string]string{"A2A-Extensions": "https://x.example/musty"}, protocol.ExtensionRequired},
			{protocol.SendMessage, messageParams(text("x")), map[string]string{"A2A-Extensions": "https://x.example/a, https://x.example/must"}, 0},
			{protocol.ExtendedCard, row{}, operator, protocol.UnsupportedOperation},
		} {
			a := ask(t, at, test.method, test.params, test.header)
			if got := a.err; (got == nil) != (test.code == 0) || got != nil && got.Code != test.code {
				t.Errorf("%s: %s with %v gives %s, %v; want %d", over, test.method, test.header, a.result, got, test.code)
			}
		}
	}
	if len(f.headers) != 2 {
		t.Errorf("the agent was called %d times", len(f.headers))
	}
}
