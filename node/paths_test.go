package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/td"
)

// cut separates two nodes permanently, as a router between them would: their listeners and connections close. Their agents run on.
func cut(t *testing.T, a, b *running) {
	t.Helper()
	for _, n := range []*running{a, b} {
		net := n.network.Network()
		net.(interface{ ListenClose(...ma.Multiaddr) }).ListenClose(net.ListenAddresses()...)
	}
	if err := a.network.Network().ClosePeer(b.network.ID()); err != nil {
		t.Fatal(err)
	}
	until(t, "they are apart", func() bool { return len(b.network.Network().ConnsToPeer(a.network.ID())) == 0 })
}

// pairOf returns a host and a consumer whose option for direct paths is direct.
func pairOf(t *testing.T, direct string) (host, consumer *running) {
	t.Helper()
	host = start(t, quiet())
	o := quiet()
	o.Direct = direct
	consumer = start(t, o)
	connect(t, consumer, host)
	return host, consumer
}

// A read uses the mesh first, and without the mesh the address of the agent, if that is permitted.
func TestDirectPathWithoutTheMesh(t *testing.T) {
	t.Parallel()
	for direct, want := range map[string]string{servient.DirectAny: "http", servient.DirectSecure: "", servient.DirectOff: ""} {
		t.Run(direct, func(t *testing.T) {
			t.Parallel()
			host, consumer := pairOf(t, direct)
			agent := newAgent(t)
			ref := publish(t, host, toolAt("Echo", "", agent.url))
			knows(t, consumer, ref)
			told := func() []string {
				agent.mu.Lock()
				defer agent.mu.Unlock()
				return slices.Clone(agent.callers)
			}
			ask := func(via string) (path string, err error) {
				r, err := interact.Call(t.Context(), asConsumer(consumer), &interact.Message{Type: interact.ReadProperty, Thing: ref, Name: "version",
					Via: via, Timing: &interact.Timing{}})
				if err != nil {
					return "", err
				}
				if string(r.Data) != `"1"` {
					t.Errorf("the answer is %s", r.Data)
				}
				return r.Timing.Path, nil
			}
			if path, err := ask(""); err != nil || !strings.HasPrefix(path, "mesh") {
				t.Errorf("before the cut it went by %q, %v", path, err)
			}
			cut(t, host, consumer)
			asked := len(told())
			switch path, err := ask(""); {
			case want != "" && (err != nil || path != want):
				t.Errorf("it went by %q, %v; want %s", path, err, want)
			case want == "" && codeOf(err) != interact.Unreachable:
				t.Errorf("it went by %q, %v; want %v", path, err, interact.Unreachable)
			}
			all := told()
			if asked == 0 || all[0] != string(consumer.DID())+" peer" {
				t.Errorf("the agent received %q about callers through its node", all[:asked])
			}
			if want != "" && (len(all) == asked || all[asked] != " ") {
				t.Errorf("a node sent the caller to an address of another node: %q", all[asked:])
			}
			if path, err := ask("mesh"); codeOf(err) != interact.Unreachable {
				t.Errorf("forced over the mesh it went by %q, %v", path, err)
			}
		})
	}
}

// The mesh is cut while the agent works. An idempotent call is repeated over the address of the agent; any other ends with an error with
// Started.
func TestStartedCallIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members string
		again   bool
	}{
		"neither safe nor idempotent": {"", false},
		"safe":                        {`"safe": true,`, true},
		"idempotent":                  {`"idempotent": true,`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			asked, over := make(chan struct{}), make(chan struct{})
			agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if calls.Add(1) == 1 {
					close(asked)
					<-over
				}
				answer(w, body, err)
			}))
			t.Cleanup(agent.Close)
			host, consumer := pairOf(t, servient.DirectAny)
			raw := fmt.Appendf(nil, `{"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Once",
				"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n",
				"actions": {"act": {%s "synchronous": true, "forms": [{"href": "%s/act"}]}}}`, c.members, agent.URL)
			ref := publish(t, host, raw)
			knows(t, consumer, ref)
			done := make(chan error, 1)
			go func() {
				_, err := interact.Call(t.Context(), asConsumer(consumer), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "act",
					Data: []byte(`1`)})
				done <- err
			}()
			<-asked
			cut(t, host, consumer)
			err := <-done
			close(over)
			e := interact.AsError(err)
			if c.again && (err != nil || calls.Load() != 2) || !c.again && (err == nil || !e.Started || calls.Load() != 1) {
				t.Errorf("the agent was asked %d times: %v", calls.Load(), err)
			}
		})
	}
}

// A host signs with a wrong clock. The deadline of a call is independent of clocks; only a record more than 5 minutes in the future is refused.
func TestDifferentClocks(t *testing.T) {
	t.Parallel()
	consumer, o := start(t, quiet()), quiet()
	o.Policy = withRules("", allowed(consumer.DID()))
	host := start(t, o)
	connect(t, host, consumer)
	left := interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
		r := m.Reply(interact.ActionStatus, "", fmt.Appendf(nil, "%q", time.Until(m.Deadline)))
		r.Status = interact.StatusCompleted
		return r, nil
	})
	for ahead, want := range map[time.Duration]interact.Code{0: 0, time.Minute: 0, -time.Minute: 0, -time.Hour: 0,
		time.Hour: interact.Expired} {
		raw := tool("Clock", fmt.Sprint("urn:x:", int(ahead.Minutes())))
		if _, err := host.Offer(t.Context(), raw, left); err != nil {
			t.Fatal(err)
		}
		wrong := signed(t, host.key, raw, td.Lease{Now: time.Now().Add(ahead), Lifetime: 24 * time.Hour, Hosts: host.network.records(),
			Seq: uint64(time.Now().Add(24 * time.Hour).UnixMilli())}) // newer than what the host announces
		d, err := wrong.Verify(t.Context(), consumer.mesh.verifier, time.Now())
		if want != 0 {
			if err == nil || interact.AsError(err).Code != want {
				t.Errorf("%v ahead: the record gives %v, want %v", ahead, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%v ahead: %v", ahead, err)
		}
		if _, err := consumer.mesh.directory.Add(d); err != nil {
			t.Fatal(err)
		}
		for _, timeout := range []time.Duration{20 * time.Second, time.Minute} {
			r, err := interact.Call(t.Context(), asConsumer(consumer), &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: "echo",
				Data: []byte(`"x"`), Deadline: time.Now().Add(timeout)})
			if err != nil {
				t.Errorf("%v ahead: %v", ahead, err)
				continue
			}
			got, err := time.ParseDuration(strings.Trim(string(r.Data), `"`))
			if err != nil || got > timeout || got < timeout-10*time.Second {
				t.Errorf("%v ahead: of %v the agent has %s, %v", ahead, timeout, r.Data, err)
			}
		}
	}
}
