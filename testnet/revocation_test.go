package testnet

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
	"github.com/lmosd/lmosd/td"
)

// Nodes of two organizations, which are partners, serve a member of one of them until its issuer revokes it: then none lets a call through, and
// none sends an event of a running subscription, after a second of simulated time (p99; the slowest of few nodes may take two). Messages take
// 5 to 60 ms one way. With LMOSD_LONG=1 there are 100 nodes, too; their figures are in docs/benchmarks.md. With LMOSD_CLOCK=real the time is that
// of the machine, which all nodes share, so that what they compute counts; the member then calls less often, and nothing is asserted about times.
func TestRevocationReachesAllNodes(t *testing.T) {
	for _, n := range []int{20, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n == 100 && os.Getenv("LMOSD_LONG") != "1" {
				t.Skip("LMOSD_LONG=1 runs it")
			}
			seed := int64(rand.Uint32())
			t.Logf("seed %d", seed)
			run, often, real := synctest.Test, pause, os.Getenv("LMOSD_CLOCK") == "real"
			if real {
				run, often = func(t *testing.T, f func(*testing.T)) { f(t) }, 4*pause
			}
			run(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				net := openOrganizations(t, ctx, n, Options{Seed: seed, Topology: "line", Latency: 5 * time.Millisecond, Farthest: 60 * time.Millisecond}, nil)
				defer func() {
					if err := net.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}()
				r := &revocation{T: t, net: net, traitor: net.Members[n-1], pause: often}
				r.offer(ctx)
				calls, events := r.measure(ctx)
				for what, took := range map[string][]float64{"last call": calls, "last event": events} {
					t.Logf("%s after the revocation, in ms: %s", what, spread(took))
					if len(took) != n-1 || !real && (at(took, 0.99) > 1000 && n > 20 || at(took, 1) > 2000) {
						t.Errorf("%s of %d nodes: %.0f", what, len(took), took)
					}
				}
			})
		})
	}
}

// openOrganizations starts the nodes. The first half has the first node as issuer, the second half the node in the middle; both are partners.
// The last node is connected with all others, and these with some. A member whose organization is not confirmed has the rights stale(i) at node i.
func openOrganizations(t *testing.T, ctx context.Context, n int, o Options, stale func(i int) string) *Net {
	t.Helper()
	o = o.withDefaults()
	sim, dir := newSimulation(o), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	net, err := startInside(ctx, n, o, func(i int, no *node.Options) (func() error, error) {
		no.Dir, no.Engine = filepath.Join(dir, fmt.Sprint(i)), node.EngineMemory
		no.Policy = policy.Rules{Options: rules.Options{Untrusted: access.UntrustedFind, More: []func(*access.Builder) error{func(b *access.Builder) error {
			return b.AddRule("testnet", access.Rule{Allow: []string{"own", "partners"}, To: []string{"call"}})
		}}}}
		if stale != nil {
			no.Policy.Stale = stale(i)
		}
		if err := sim.add(); err != nil {
			return nil, err
		}
		no.Host = sim.hosts[i]
		return sim.cut(i), nil
	})
	must(err)
	for i, domain := range map[int]string{0: "acme.example", n / 2: "globex.example"} {
		issuer := net.Members[i]
		_, err := issuer.InitOrganization(ctx, api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(dir, domain+".recovery")})
		must(err)
		invitation, err := issuer.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode, Uses: n})
		must(err)
		for _, m := range net.Members[i+1 : min(i+n/2, n)] {
			_, err := m.JoinOrganization(ctx, api.Acceptance{Invitation: invitation.Text})
			must(err)
		}
	}
	invitation, err := net.Members[0].Invite(ctx, api.InvitationRequest{Kind: api.InvitePartner})
	must(err)
	_, err = net.Members[n/2].AcceptInvitation(ctx, api.Acceptance{Invitation: invitation.Text})
	must(err)
	must(net.connect(ctx, Options{Topology: "random:6"}))
	for _, m := range net.Members[:n-1] {
		must(net.Members[n-1].Connect(ctx, m.Addrs[0]))
	}
	return net
}

// A revocation is one measurement.
type revocation struct {
	*testing.T
	net     *Net
	traitor *Member
	pause   time.Duration   // between two calls of one agent, and between its events
	agents  []*watchedAgent // of the other nodes
}

// A watchedAgent notes when it was called last, and its subscriber when it received the last event. Its events are frequent.
type watchedAgent struct {
	ref     string
	pause   time.Duration
	mu      sync.Mutex
	called  time.Time // owned by mu, as the rest
	event   time.Time
	refused time.Time // the first refusal after which no call was let through
	ended   bool      // the subscription
}

// Do implements [interact.Thing].
func (a *watchedAgent) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		if m.Type == interact.InvokeAction {
			a.note(func() { a.called, a.refused = time.Now(), time.Time{} })
			yield(m.ReplyStatus(interact.StatusCompleted, interact.JSON, []byte("1")), nil)
			return
		}
		for yield(m.Reply(interact.Event, interact.JSON, []byte("1")), nil) && ctx.Err() == nil {
			rest(ctx, a.pause)
		}
	}
}

func (a *watchedAgent) note(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *watchedAgent) is(f func(a *watchedAgent) bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return f(a)
}

// offer publishes an agent at each node except the last.
func (r *revocation) offer(ctx context.Context) {
	r.Helper()
	for _, m := range r.net.Members[:len(r.net.Members)-1] {
		a := &watchedAgent{pause: r.pause}
		draft, err := td.Draft(fmt.Appendf(nil, `{"id":"urn:x:agent-%d","title":"agent-%d","actions":{"echo":{}},"events":{"tick":{}}}`, m.N, m.N))
		if err == nil {
			var p *api.Publication
			if p, err = m.node.Offer(ctx, draft, a); err == nil {
				a.ref = p.Ref
			}
		}
		if err != nil {
			r.Fatal(err)
		}
		r.agents = append(r.agents, a)
	}
}

// pause is the usual time between two calls of one agent, and between its events.
const pause = 50 * time.Millisecond

// measure lets the last node call and subscribe, revokes it, and waits until no other node serves it. It returns, in milliseconds since
// the revocation, when each of them let its last call through, and when the last event of each arrived; 0 is none.
func (r *revocation) measure(ctx context.Context) (calls, events []float64) {
	r.Helper()
	running, stop := context.WithCancel(did.AsProcess(ctx))
	var g sync.WaitGroup
	defer g.Wait()
	defer stop()
	var revoked atomic.Bool
	mesh := interact.Chain(r.traitor.node.Mesh(), interact.As(did.Consumer(did.Process, "")))
	for _, a := range r.agents {
		g.Go(func() { // again until it has begun: the membership may not be known yet
			for running.Err() == nil && !revoked.Load() {
				for _, err := range mesh.Do(running, &interact.Message{Type: interact.SubscribeEvent, Thing: a.ref, Name: "tick"}) {
					if err == nil {
						a.note(func() { a.event = time.Now() })
					}
				}
				rest(running, r.pause)
			}
			a.note(func() { a.ended = true })
		})
		g.Go(func() {
			for ; running.Err() == nil; rest(running, r.pause) {
				_, err := interact.Call(running, mesh, &interact.Message{Type: interact.InvokeAction, Thing: a.ref, Name: "echo",
					Deadline: time.Now().Add(5 * time.Second)})
				if err != nil && revoked.Load() {
					a.note(func() {
						if a.refused.IsZero() {
							a.refused = time.Now()
						}
					})
				}
			}
		})
	}
	wait := func(what string, f func(a *watchedAgent) bool) {
		r.Helper()
		if err := Until(ctx, what, func() bool { return !slices.ContainsFunc(r.agents, func(a *watchedAgent) bool { return !a.is(f) }) }); err != nil {
			r.Fatal(err)
		}
	}
	wait("the member is served by all", func(a *watchedAgent) bool { return !a.event.IsZero() && !a.called.IsZero() })
	began := time.Now()
	revoked.Store(true)
	if err := r.net.Members[len(r.net.Members)/2].Revoke(ctx, r.traitor.DID); err != nil {
		r.Fatal(err)
	}
	wait("no node serves it for ten seconds", func(a *watchedAgent) bool {
		return a.ended && !a.refused.IsZero() && time.Since(a.refused) > 10*time.Second
	})
	for _, a := range r.agents {
		calls, events = append(calls, millis(max(0, a.called.Sub(began)))), append(events, millis(max(0, a.event.Sub(began))))
	}
	return calls, events
}

// rest waits for a pause, or until ctx ends.
func rest(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
