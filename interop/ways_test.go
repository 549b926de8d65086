package interop

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// Four agents of different protocols are one Thing with four forms, which is called by the mesh, by each scheme and by each URL: the
// response shows the path. lmosd call --via and the header Lmos-Via do the same.
func TestEachPathCanBeSelected(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t, func(o *node.Options) { o.Direct = servient.DirectAny })
	var all []json.RawMessage
	hrefs := map[string]string{}
	for scheme, start := range map[string]func(*testing.T, *testmesh.Mesh, string) func(){"http": startHTTP, "ws": startKotlin,
		"mqtt": startMQTT, "coap": startCoAP} {
		name := "lamp-" + scheme
		start(t, m, name)
		d := m.Known(t, name)
		// Each lamp has its own name.
		if err := walk(step{openGo(t, m, name), interact.WriteProperty, "units", string(asJSON(scheme)), ""}); err != nil {
			t.Fatal(err)
		}
		var of struct {
			Properties map[string]struct{ Forms []json.RawMessage }
		}
		if err := json.Unmarshal(d.Raw, &of); err != nil {
			t.Fatal(err)
		}
		all, hrefs[scheme] = append(all, of.Properties["units"].Forms...), d.Properties["units"].Forms[0].Href
	}
	m.Offer(t, asJSON(map[string]any{"@context": td.Context11, "title": "all", "security": "n",
		"securityDefinitions": map[string]any{"n": map[string]any{"scheme": "nosec"}},
		"properties":          map[string]any{"units": map[string]any{"type": "string", "forms": all}}}), nil)
	m.Known(t, "all")
	k, h := openGo(t, m, "all"), newHTTPTalk(m, "all")
	defer h.client.CloseIdleConnections()
	ask := func(via, who string) {
		t.Helper()
		q := &interact.Message{Type: interact.ReadProperty, Name: "units", Via: via, Timing: &interact.Timing{}}
		r, err := send(k, q)
		if err != nil || who != "mesh" && (string(r.Data) != `"`+who+`"` || r.Timing.Path != who) || !strings.HasPrefix(r.Timing.Path, who) {
			t.Errorf("by %s: got %+v, %v", via, r, err)
		}
		if r, err := send(h.consumer(t, h.ask), q); err != nil || who != "mesh" && string(r.Data) != `"`+who+`"` {
			t.Errorf("by %s, over HTTP: got %+v, %v", via, r, err)
		}
	}
	for scheme, href := range hrefs {
		ask(scheme, scheme)
		ask(href, scheme)
	}
	ask("mesh", "mesh")
	for _, via := range []string{"https", "coap://127.0.0.1:1/units"} {
		_, err := send(k, &interact.Message{Type: interact.ReadProperty, Name: "units", Via: via})
		if e := interact.AsError(err); e.Code != interact.Unreachable || !strings.Contains(e.Hint, "mesh") || !strings.Contains(e.Hint, "coap") {
			t.Errorf("by %s, which is not there: %v", via, err)
		}
	}
}
