package node

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/policy"
)

// A slowAgent is an HTTP server that answers "slow" when it is released, and anything else at once.
type slowAgent struct {
	url     string
	running atomic.Int64 // slow calls that it has
	release chan struct{}
}

func newSlowAgent(t *testing.T) *slowAgent {
	a := &slowAgent{release: make(chan struct{})}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "slow") {
			a.running.Add(1)
			defer a.running.Add(-1)
			select {
			case <-a.release:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", interact.JSON)
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	a.url = s.URL
	return a
}

// flood has a node call the action of ref 64 times; it ends with ctx.
func flood(ctx context.Context, wg *sync.WaitGroup, n *running, ref string) {
	for range 64 {
		wg.Go(func() {
			_, _ = interact.Ask(ctx, n.Mesh(), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(`"slow"`),
				Deadline: time.Now().Add(10 * time.Minute)})
		})
	}
}

// TestSlowCallsLeavePlaces: one key and then four have 64 slow calls each. An honest newcomer, and who asks on the host itself, are
// answered meanwhile: none of the slow calls ends before. The agent is asked over HTTP, where 64 connections were all that there
// were.
func TestSlowCallsLeavePlaces(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]policy.Rules{
		"of an agent":   {ThingConcurrency: 64, Concurrency: 1024},
		"of the node":   {Concurrency: 64, ThingConcurrency: 1024},
		"as by default": {Concurrency: 256, ConsumerConcurrency: 64, ThingConcurrency: 64, UntrustedDeadline: 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := newSlowAgent(t)
			o := quiet()
			o.Policy = rules
			host := start(t, o)
			ref := publish(t, host, toolAt("Echo", "", agent.url))
			honest := start(t, quiet())
			attackers := make([]*running, 4)
			for i := range attackers {
				attackers[i] = start(t, quiet())
			}
			for _, n := range append(attackers, honest) {
				connect(t, n, host)
				knows(t, n, ref)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			answered := func(most int64) {
				t.Helper()
				until(t, "the slow calls that may run do", func() bool { return agent.running.Load() >= most })
				for n, what := range map[*running]string{honest: "an honest newcomer", host: "the host itself"} {
					if err := ask(t, n, ref); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				if n := agent.running.Load(); n != most {
					t.Errorf("%d slow calls run, want %d", n, most)
				}
			}
			flood(ctx, &wg, attackers[0], ref)
			answered(16)
			for _, a := range attackers[1:] {
				flood(ctx, &wg, a, ref)
			}
			answered(28)
		})
	}
}
