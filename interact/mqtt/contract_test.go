package mqtt

import (
	"testing"

	"github.com/lmosd/lmosd/interact/bindingtest"
)

// TestContract runs the contract of bindings with the client and the broker of this package.
func TestContract(t *testing.T) {
	bindingtest.Run(t, bindingtest.Kit{
		Supports: Supports,
		Client: func(o bindingtest.Options) bindingtest.Client {
			return NewClient(Options{Credentials: o.Credentials, Dial: o.Dial, MaxPacket: o.Limit})
		},
		Serve: func(t testing.TB, a *bindingtest.Agent) string {
			return runBroker(t, BrokerOptions{Listen: "127.0.0.1:0", Mesh: a, Find: a.Find, Gate: a.Gate}).Addr().String()
		},
		Form: func(address, op, name string) string {
			topic := map[string]string{"invokeaction": "actions/" + name, "subscribeevent": "events/" + name,
				"observeproperty": "properties/" + name + "/observable"}[op]
			if topic == "" {
				topic = "properties/" + name
			}
			form := `"href": "mqtt://` + address + "/urn:example:lamp/" + topic + `"`
			if op == "subscribeevent" || op == "observeproperty" {
				form += `, "mqv:filter": "urn:example:lamp/` + topic + `"`
			}
			return form
		},
		Security: `{"scheme": "basic"}`, Secret: `"username": "me", "password": "s3cret-word"`,
		Lacks: map[bindingtest.Part]string{bindingtest.Cancellation: "a request cannot be withdrawn"},
	})
}
