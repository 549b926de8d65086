package testnet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A counter is the agent behind all hosts: one action doubles a number, the other one must not run twice for a number.
type counter struct {
	*httptest.Server
	mu   sync.Mutex
	runs map[int]int // of the unsafe action, by number; owned by mu
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	c := &counter{runs: map[int]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n int
		if b, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(b, &n) != nil {
			http.Error(w, "expected a number", http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/count" {
			c.mu.Lock()
			c.runs[n]++
			c.mu.Unlock()
		}
		w.Header().Set("Content-Type", interact.JSON)
		_, _ = fmt.Fprint(w, 2*n)
	}))
	t.Cleanup(c.Close)
	return c
}

// td returns the TD of the agent.
func (c *counter) td() []byte {
	action := func(name, members string) string {
		return fmt.Sprintf(`%q:{"synchronous":true,%s"input":{"type":"integer"},"output":{"type":"integer"},
"forms":[{"href":"%s/%s","op":["invokeaction"],"contentType":"application/json"}]}`, name, members, c.URL, name)
	}
	return fmt.Appendf(nil, `{"@context":["https://www.w3.org/2022/wot/td/v1.1",{"lmos":"https://eclipse.dev/lmos/protocol/v1"}],"@type":"lmos:Tool",
"id":"urn:example:counter","title":"Counter","securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"lmos:capabilities":[{"id":"urn:example:counting","name":"counting","version":"1.0.0","description":"Counts."}],
"actions":{%s,%s}}`, action("double", `"safe":true,"idempotent":true,`), action("count", ""))
}

// TestKilledHost calls a Thing with two hosts while one of them is killed and starts again: no answer is wrong, no call that may be repeated fails, and no
// unsafe action runs twice. LMOSD_LONG makes 10,000 calls.
func TestKilledHost(t *testing.T) {
	calls := 1500
	if os.Getenv("LMOSD_LONG") != "" {
		calls = 10_000
	}
	for name, c := range map[string]struct{ listen string }{
		"TCP":  {"/ip4/127.0.0.1/tcp/0"},
		"QUIC": {"/ip4/127.0.0.1/udp/0/quic-v1"},
	} {
		t.Run(name, func(t *testing.T) { killHost(t, calls, c.listen) })
	}
}

func killHost(t *testing.T, calls int, listen string) {
	agent, owner := newCounter(t), didtest.NewKey()
	net := processes(t, 3, Options{Dir: shortDir(t), Seed: rand.Int64N(1 << 40), Flags: []string{"--listen.p2p", listen}})
	hosts, caller := net.Members[:2], net.Members[2]
	thing, err := td.Complete(agent.td(), owner.DID())
	if err != nil {
		t.Fatal(err)
	}
	grant, _, err := api.SignHostingGrant(thing, owner, td.GrantLease{Number: uint64(time.Now().UnixMilli()), Now: time.Now(), Lifetime: time.Hour,
		Nodes: []did.DID{hosts[0].DID, hosts[1].DID}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if _, err := h.Host(t.Context(), grant, nil); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := Until(ctx, "a Thing with two hosts", func() bool {
		d, err := caller.Agent(ctx, "urn:example:counter")
		return err == nil && len(d.Agent.Hosts) == 2
	}); err != nil {
		t.Fatal(err)
	}

	var next, wrong, failed, unknown atomic.Int64
	var killed atomic.Int64 // when a host was killed, in ns; 0: not yet
	var mu sync.Mutex
	var after []time.Duration // of the calls that began within 10 s after that
	acknowledged := map[int]bool{}
	kill := sync.OnceFunc(func() {
		if err := hosts[0].Kill(); err != nil {
			t.Error(err)
		}
		killed.Store(time.Now().UnixNano())
	})
	restart := sync.OnceFunc(func() {
		if err := net.Restart(ctx, hosts[0]); err != nil {
			t.Error(err)
		} else if err := hosts[0].Connect(ctx, caller.Addrs[0]); err != nil {
			t.Error(err)
		}
	})
	var g8 sync.WaitGroup
	for range 8 {
		g8.Go(func() {
			for n := int(next.Add(1)); n <= calls; n = int(next.Add(1)) {
				switch n {
				case calls / 3:
					kill()
				case 2 * calls / 3:
					restart()
				}
				action := "double"
				if n%2 == 0 {
					action = "count"
				}
				began := time.Now()
				out, _, err := caller.Call(ctx, "urn:example:counter", action, interact.JSON, fmt.Append(nil, n))
				took := time.Since(began)
				at := killed.Load()
				mu.Lock()
				if at > 0 && began.UnixNano()-at < int64(10*time.Second) {
					after = append(after, took)
				}
				if err == nil && action == "count" {
					acknowledged[n] = true
				}
				mu.Unlock()
				switch {
				case err == nil && string(out) != fmt.Sprint(2*n):
					wrong.Add(1)
					t.Errorf("call %d of %s: got %s", n, action, out)
				case err != nil && action == "double":
					failed.Add(1)
					t.Errorf("a call that may be repeated failed: %v", err)
				case err != nil:
					unknown.Add(1)
				}
			}
		})
	}
	g8.Wait()
	double := 0
	agent.mu.Lock()
	defer agent.mu.Unlock()
	for n, runs := range agent.runs {
		if runs > 1 {
			double++
			t.Errorf("the unsafe action ran %d times for %d", runs, n)
		}
	}
	for n := range acknowledged {
		if agent.runs[n] != 1 {
			t.Errorf("acknowledged call %d ran %d times", n, agent.runs[n])
		}
	}
	if len(after) == 0 {
		t.Fatal("no call followed the end of the host")
	}
	slices.Sort(after)
	t.Logf("%d calls, %d after kill -9: p50 %v, p99 %v, max %v; %d wrong, %d failed, %d ran twice, %d unsafe ones with an unknown outcome", calls, len(after),
		after[len(after)/2], after[len(after)*99/100], after[len(after)-1], wrong.Load(), failed.Load(), double, unknown.Load())
}
