package testnet

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// Members whose only issuer is gone serve each other while the newest status list is valid and for its grace. Then each refuses the calls of the
// other with code StatusUnknown; one with "trust.stale: read" still lets the other read, and not invoke.
func TestIsolatedNodesRefuseMembers(t *testing.T) {
	const seed = 7
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		const issuer, strict, lenient = 0, 1, 2 // of one organization
		net := openOrganizations(t, ctx, 6, Options{Seed: seed, Topology: "line", Latency: time.Millisecond}, func(i int) string {
			if i == lenient {
				return access.StaleRead
			}
			return access.StaleDeny
		})
		defer func() {
			if err := net.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		refs := map[int]string{}
		for _, i := range []int{strict, lenient} {
			draft, err := td.Draft(fmt.Appendf(nil, `{"id":"urn:x:agent-%d","title":"agent-%[1]d","lmosd:visibility":"organization","actions":{"echo":{}},"properties":{"level":{}}}`, i))
			if err != nil {
				t.Fatal(err)
			}
			p, err := net.Members[i].node.Offer(ctx, draft, interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
				if m.Type == interact.ReadProperty {
					return interact.One(m.Reply(interact.PropertyReading, interact.JSON, []byte("1")))
				}
				return interact.One(m.ReplyStatus(interact.StatusCompleted, interact.JSON, []byte("1")))
			}))
			if err != nil {
				t.Fatal(err)
			}
			refs[i] = p.Ref
		}
		// asks is the code of a request of one member to the agent of the other one.
		asks := func(host int, kind interact.Type, name string) interact.Code {
			mesh := interact.Chain(net.Members[strict+lenient-host].node.Mesh(), interact.As(did.Consumer(did.Process, "")))
			_, err := interact.Call(ctx, mesh, &interact.Message{Type: kind, Thing: refs[host], Name: name, Deadline: time.Now().Add(time.Minute)})
			if e := interact.AsError(err); e != nil {
				return e.Code
			}
			return 0
		}
		want := func(when string, host int, read, invoke interact.Code) {
			t.Helper()
			if got := asks(host, interact.ReadProperty, "level"); got != read {
				t.Errorf("%s, node %d answers a read with %v, want %v", when, host+1, got, read)
			}
			if got := asks(host, interact.InvokeAction, "echo"); got != invoke {
				t.Errorf("%s, node %d answers a call with %v, want %v", when, host+1, got, invoke)
			}
		}
		for _, host := range []int{strict, lenient} {
			if err := Until(ctx, "the member is served", func() bool { return asks(host, interact.InvokeAction, "echo") == 0 }); err != nil {
				t.Fatal(err)
			}
		}
		if err := net.Members[issuer].kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Minute)
		want("after 50 minutes", strict, 0, 0)
		want("after 50 minutes", lenient, 0, 0)
		time.Sleep(72 * time.Minute) // the list is valid for an hour, and its grace is another one
		want("after two hours", strict, interact.StatusUnknown, interact.StatusUnknown)
		want("after two hours", lenient, 0, interact.StatusUnknown)
	})
}
