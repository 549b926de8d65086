package coap

import (
	"testing"

	"github.com/lmosd/lmosd/interact/bindingtest"
)

// TestContract runs the contract of bindings with the client and the server of this package.
func TestContract(t *testing.T) {
	const ackDelay = defaultAckDelay / 20
	href := func(scheme, address, op, name string) string {
		kind := map[string]string{"invokeaction": "actions", "subscribeevent": "events"}[op]
		if kind == "" {
			kind = "properties"
		}
		return `"href": "` + scheme + "://" + address + "/things/urn:example:lamp/" + kind + "/" + name + `"`
	}
	bindingtest.Run(t, bindingtest.Kit{
		Supports: Supports,
		Client: func(o bindingtest.Options) bindingtest.Client {
			return NewClient(Options{Credentials: o.Credentials, Dial: o.Dial, MaxBody: o.Limit})
		},
		Serve: func(t testing.TB, a *bindingtest.Agent) string {
			return startServerWith(t, ServerOptions{Mesh: a, Gate: a.Gate}, ackDelay, a.About).String()
		},
		Form:       func(address, op, name string) string { return href("coap", address, op, name) },
		SecureForm: func(address, op, name string) string { return href("coaps", address, op, name) },
		Security:   `{"scheme": "psk"}`, Secret: `"username": "me", "key": "s3cret-word"`,
		Silence: 10 * ackDelay,
		Lacks:   map[bindingtest.Part]string{bindingtest.Cancellation: "a request cannot be withdrawn"},
	})
}
