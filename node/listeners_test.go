package node

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func TestListeners(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for name, c := range map[string]struct {
		mqtt, coap string
		http       *HTTP
		code       interact.Code // zero: it opens
		hint       string
	}{
		"none":                   {},
		"both":                   {mqtt: "127.0.0.1:0", coap: "127.0.0.1:0"},
		"without authentication": {mqtt: "[::1]:0", http: &HTTP{Listen: "127.0.0.1:0", NoAuth: true}},
		"a port that is busy":    {mqtt: taken.Addr().String(), code: interact.PortBusy},
		"CoAP on all addresses":  {coap: "0.0.0.0:0", code: interact.WildcardBind, hint: "[coap.listen 127.0.0.1:0]"},
		"CoAP at a name":         {coap: "localhost:0", code: interact.WildcardBind, hint: "[coap.listen 127.0.0.1:0]"},
		"MQTT on all addresses without a token": {mqtt: "0.0.0.0:0", http: &HTTP{Listen: "127.0.0.1:0", NoAuth: true},
			code: interact.WildcardBind, hint: "[mqtt.listen"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quiet()
			o.MQTT, o.CoAP, o.HTTP = c.mqtt, c.coap, c.http
			if c.code == 0 {
				n := start(t, o)
				if (n.MQTT() == "") != (c.mqtt == "") || (n.CoAP() == "") != (c.coap == "") || strings.HasSuffix(n.MQTT()+n.CoAP(), ":0") {
					t.Errorf("opened are %q and %q", n.MQTT(), n.CoAP())
				}
				return
			}
			n, err := New(o)
			if err == nil {
				n.Close()
			}
			if e := interact.AsError(err); e == nil || e.Code != c.code || e.Hint == "" && e.Next == nil || !strings.Contains(fmt.Sprint(e.Next), c.hint) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// The drain of a node waits until its listeners have sent their responses, also after the interaction has left the mesh.
func TestListenersHoldTheGate(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"ws", "mqtt", "coap"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			n, err := New(quiet())
			if err != nil {
				t.Fatal(err)
			}
			// This mesh has no middleware that holds the gate.
			asked, answer, reply := make(chan struct{}), make(chan struct{}), says("late")
			n.exported.Thing = interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				close(asked)
				<-answer
				return reply.Do(ctx, m)
			})
			n.opts.MQTT, n.opts.CoAP = "127.0.0.1:0", "127.0.0.1:0"
			if err := n.openListeners(); err != nil {
				t.Fatal(err)
			}
			r := run(t, n)
			sockets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.listeners.sockets.Serve(w, r, false) }))
			t.Cleanup(sockets.Close)
			ref := publish(t, r, tool("Late", "urn:x:late"))
			base := map[string]string{"ws": "ws" + strings.TrimPrefix(sockets.URL, "http"), "mqtt": "mqtt://" + n.MQTT() + "/urn:x:late/actions",
				"coap": "coap://" + n.CoAP() + "/things/urn:x:late/actions"}[protocol]
			d, err := n.view.Get(did.AsProcess(t.Context()), ref)
			if err != nil {
				t.Fatal(err)
			}
			far := *d
			if far.Thing, err = td.Parse(toolAt("Late", "urn:x:late", base)); err != nil {
				t.Fatal(err)
			}
			clients := n.servient.Connect(new(net.Dialer).DialContext, false)
			t.Cleanup(func() { clients.Close() })
			done := make(chan error, 1)
			go func() {
				_, err := interact.Call(t.Context(), clients.Agent(&far), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo",
					Data: []byte(`"x"`), From: did.Consumer(did.Process, "")})
				done <- err
			}()
			select {
			case <-asked:
			case err := <-done:
				t.Fatal(err)
			}
			idle := n.gate.Close()
			select {
			case <-idle:
				t.Error("the gate is idle before the response")
			default:
			}
			close(answer)
			if err := <-done; err != nil {
				t.Error(err)
			}
			<-idle
		})
	}
}

// MQTT clients on other hosts need a token; on loopback one gives them its rights only.
func TestMQTTPasswordIsAToken(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]*did.Principal{"127.0.0.1:1": did.Consumer(did.Loopback, ""), "192.0.2.1:1883": nil} {
		o := Options{MQTT: listen}
		if anonymous, err := o.anonymous(); anonymous != want || err != nil {
			t.Errorf("%s: %v, %v", listen, anonymous, err)
		}
	}
	n, store := start(t, Options{MQTT: "127.0.0.1:0"}), (*tokens.Store)(nil)
	if store = n.stores.Tokens; store == nil {
		t.Fatal("a node with a broker has no tokens")
	}
	if p, _ := store.Login(nil)("anybody", store.Secret()); p == nil || p.Via != did.Token || p.Scoped() {
		t.Errorf("the operator is %+v", p)
	}
}
