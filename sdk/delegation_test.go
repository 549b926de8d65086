package sdk

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
)

// Clients use a right of a consumer of another node by a delegation, for each operation. The agent receives who delegated it. Without the delegation,
// or with that of another operation, the host refuses them.
func TestDelegations(t *testing.T) {
	host := newHost(t, "")
	delegate := newHost(t, "", func(o *node.Options) {
		o.Network, o.Bootstrap = host.Status().Network, host.Addrs()
	})
	t.Setenv("LMOSD_NODE", delegate.api) // for agent.Call
	t.Setenv("LMOSD_TOKEN", delegate.token)
	for to, start := range languages {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			name := "lamp-" + to
			start(t, host, host.api, name)
			until(t, "the delegate knows the agent", func() error { _, err := delegate.client.Agent(t.Context(), name); return err })
			tokens := map[string]string{}
			for what, q := range map[string]api.DelegationRequest{"call": {Op: "invoke", Name: "echo"}, "stream": {Op: "invoke", Name: "count"},
				"read": {Op: "read", Name: "visitor"}, "write": {Op: "write", Name: "visitor"}, "watch": {Op: "subscribe", Name: "alarm"},
				"observe": {Op: "read", Name: "level"}} {
				q.Agent, q.To, q.Life = name, delegate.DID(), "10m"
				d, err := host.client.Delegate(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				tokens[what] = d.Token
			}
			for from, open := range clients {
				t.Run("from "+from, func(t *testing.T) { // in sequence: they share the state of the lamp
					c := &caller{t, open(t, delegate, delegate.api), from, name}
					c.fails("call", "echo", `"x"`, interact.Forbidden, "")
					c.fails("read", "visitor", "", interact.Forbidden, "")
					c.fails("write", "visitor", `"x"`, interact.Forbidden, "")
					with := func(what string) *caller {
						return &caller{t, func(r request, item func(json.RawMessage)) (json.RawMessage, error) {
							r.Delegation = tokens[what]
							return c.client(r, item)
						}, from, name}
					}
					with("call").gives("call", "echo", `"x"`, `"x"`)
					with("read").fails("call", "echo", `"x"`, interact.DelegationInvalid, "")
					if from != "go" { // which has no operation stream
						with("stream").gives("stream", "count", `{"to":2}`, `["1 ","2 "]`)
					}
					with("write").gives("write", "visitor", fmt.Sprintf("%q", from), `null`)
					who := string(delegate.DID()) + "#operator for local"
					with("read").gives("read", "visitor", "", fmt.Sprintf("%q", from+" by "+who+", read by "+who))
					with("watch").watches(request{Op: "watch", Event: "alarm"}, "alarm", func(i int) error {
						_, err := host.client.Invoke(t.Context(), name, "ring", api.CallOptions{Body: fmt.Appendf(nil, `{"text":"%d"}`, i)})
						return err
					}, func(i int) string { return fmt.Sprintf(`"%d"`, i) })
					with("observe").watches(request{Op: "watch", Property: "level"}, "level", func(i int) error {
						return host.client.Write(t.Context(), name, "level", interact.JSON, fmt.Append(nil, i%100))
					}, func(i int) string { return fmt.Sprint(i % 100) })
				})
			}
		})
	}
}
