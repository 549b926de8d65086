package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/stream"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
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
			_, _ = interact.Call(ctx, asConsumer(n), &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: []byte(`"slow"`),
				Deadline: time.Now().Add(10 * time.Minute)})
		})
	}
}

// One key, and then four, have 64 slow calls each. The agent still replies to a new honest caller and to a consumer of the host, before any slow
// call ends. The agent is called over HTTP, which once was limited to 64 connections.
func TestSlowCallsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]policy.Rules{
		"of an agent":   {ThingConcurrency: 64, Concurrency: 1024},
		"of the node":   {Concurrency: 64, ThingConcurrency: 1024},
		"as by default": {Concurrency: 256, CallerConcurrency: 64, ThingConcurrency: 64, UntrustedDeadline: 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := newSlowAgent(t)
			o := quiet()
			o.Policy = anyoneCalls(rules)
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

// A consumer of another node reads 2,000 times in a row, and then calls 50 times a second for 5 minutes, without a refusal; so do 30 concurrent
// readers at a low rate. A caller that does not wait is refused, with the time to wait.
func TestRateLimitsDoNotRefuseHonestCallers(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		caller := s.nodes[0]
		host := run(t, s.open(t, 1, func(o *Options) { o.Policy = anyoneCalls(policy.Rules{PerPeer: 100, Burst: 200, ReadsPerPeer: 20}) }))
		if s.nodes = append(s.nodes, host); s.LinkAll() != nil {
			t.Fatal("the nodes cannot be linked")
		}
		answered := 0
		p, err := host.Offer(t.Context(), tool("Echo", ""), interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			answered++
			if m.Type == interact.ReadProperty {
				return m.Reply(interact.PropertyReading, "", []byte(`"x"`)), nil
			}
			r := m.Reply(interact.ActionStatus, "", m.Data)
			r.Status = interact.StatusCompleted
			return r, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		connect(t, caller, host)
		knows(t, caller, p.Ref)
		ask := func(m interact.Message) error {
			m.Thing = p.Ref
			_, err := interact.Call(t.Context(), asConsumer(caller), &m)
			return err
		}
		read := interact.Message{Type: interact.ReadProperty, Name: "state"}
		for i := range 2000 {
			if err := ask(read); err != nil {
				t.Fatalf("read %d: %v", i, err)
			}
		}
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				for range 5 {
					if err := ask(read); err != nil {
						t.Errorf("one of %d that read at once: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := range 300 * 50 {
			<-tick.C
			if err := ask(interact.Message{Type: interact.InvokeAction, Name: "echo", Data: []byte(`"x"`)}); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		if answered != 2000+150+15000 {
			t.Errorf("the agent was asked %d times", answered)
		}
		var refusal error
		for range 1000 { // more than may come at once
			short := read
			short.Deadline = time.Now().Add(30 * time.Millisecond)
			if refusal = ask(short); refusal != nil {
				break
			}
		}
		if e := wantCode(t, refusal, interact.RateLimited); e.RetryAfter != 50*time.Millisecond || !e.Remote {
			t.Errorf("without time: %+v, want a time to wait", e)
		}
	})
}

// One consumer calls without pause, up to the limit of its node. Another consumer of that node, below its share, gets its reply at once.
func TestConsumersOfANodeDoNotSlowEachOther(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		caller := s.nodes[0]
		host := run(t, s.open(t, 1, func(o *Options) { o.Policy = anyoneCalls(policy.Rules{PerPeer: 10, Burst: 20}) }))
		if s.nodes = append(s.nodes, host); s.LinkAll() != nil {
			t.Fatal("the nodes cannot be linked")
		}
		p, err := host.Offer(t.Context(), tool("Echo", ""), interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			r := m.Reply(interact.ActionStatus, "", m.Data)
			r.Status = interact.StatusCompleted
			return r, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		connect(t, caller, host)
		knows(t, caller, p.Ref)
		ask := func(name string, timeout time.Duration) error {
			_, err := interact.Call(t.Context(), caller.Mesh(), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: []byte(`"x"`),
				From: did.Consumer(did.Socket, name), Deadline: time.Now().Add(timeout)})
			return err
		}
		end := time.Now().Add(20 * time.Second)
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if err := ask("greedy", time.Minute); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(4 * time.Second)
		for time.Now().Before(end) {
			if err := ask("modest", 200*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			time.Sleep(400 * time.Millisecond)
		}
		wg.Wait()
	})
}

// The maximum of waiting calls of untrusted nodes does not use up the concurrent calls of the host: a node of the own organization still gets its reply.
func TestWaitingUntrustedCallersDoNotBlockOthers(t *testing.T) {
	simulate(t, 1, func(t *testing.T, s *sim) {
		friend := s.nodes[0]
		host := run(t, s.open(t, 1, func(o *Options) {
			o.Policy = anyoneCalls(policy.Rules{Options: rules.Options{Principal: members(friend.DID())}, Concurrency: 256, CallerConcurrency: 64})
		}))
		s.nodes = append(s.nodes, host)
		p, err := host.Offer(t.Context(), tool("Echo", ""), interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
			if string(m.Data) == `"slow"` {
				<-ctx.Done()
			}
			r := m.Reply(interact.ActionStatus, "", m.Data)
			r.Status = interact.StatusCompleted
			return r, ctx.Err()
		}))
		if err != nil {
			t.Fatal(err)
		}
		where := td.Host{Node: host.DID(), Addrs: []string{host.network.Addrs()[0].String()}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		for i := range 90 {
			key, err := crypto.UnmarshalPrivateKey(didtest.NewKey().Libp2p())
			if err != nil {
				t.Fatal(err)
			}
			h, err := s.AddPeer(key, addrs(t, fmt.Sprintf("/ip4/10.0.1.%d/tcp/4667", i+1))[0])
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.LinkPeers(h.ID(), host.network.ID()); err != nil {
				t.Fatal(err)
			}
			stranger := stream.New(h, stream.Options{Network: "sim"})
			defer stranger.Close()
			for range 64 {
				wg.Go(func() {
					for ctx.Err() == nil { // refused calls are repeated
						_, _ = interact.Call(ctx, stranger.Thing(hosted([]td.Host{where})), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: []byte(`"slow"`)})
						time.Sleep(100 * time.Millisecond)
					}
				})
			}
		}
		if _, err := s.LinkPeers(friend.network.ID(), host.network.ID()); err != nil {
			t.Fatal(err)
		}
		connect(t, friend, host)
		knows(t, friend, p.Ref)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := host.mesh.streams.Stats().ServingNow; n < 4096 {
			t.Errorf("%d calls run or wait, want more than a few", n)
		}
		if _, err := interact.Call(t.Context(), asConsumer(friend), &interact.Message{Type: interact.InvokeAction, Thing: p.Ref, Name: "echo", Data: []byte(`"x"`),
			Deadline: time.Now().Add(time.Second)}); err != nil {
			t.Error(err)
		}
	})
}
