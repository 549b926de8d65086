package testnet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/td"
)

// A Revocation has, for each other node, the time from the revocation of a member at its issuer until the node let its last call through
// (zero if it let none through), and until the member received the last event of its subscription (zero: none).
type Revocation struct{ Calls, Streams []time.Duration }

// Revoke starts n nodes with data directories in dir: half of them are of one organization, half of a partner. A member of the partner calls
// an agent of each other node again and again, and subscribes to its events. Then an issuer revokes the member, and Revoke returns when all
// other nodes have ended its subscription, and have rejected its calls for as long as it took before, at least for a second. Simulated nodes
// connect with the latencies of o, others over loopback.
func Revoke(ctx context.Context, n int, dir string, o Options, simulated bool) (_ *Revocation, err error) {
	t, err := openOrganizations(ctx, n, dir, o, simulated)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	r := &revocation{net: t, traitor: t.Members[n-1]}
	if err := r.offer(ctx); err != nil {
		return nil, err
	}
	return r.measure(ctx)
}

// openOrganizations starts the nodes. The first half has the first node as issuer, the second half the node in the middle; both are partners.
// The last node is connected with all others, and these at random.
func openOrganizations(ctx context.Context, n int, dir string, o Options, simulated bool) (_ *Net, err error) {
	o = o.withDefaults()
	sim := newSimulation(o)
	t, err := startInside(ctx, n, Options{Network: o.Network, Seed: o.Seed, Topology: "line", Log: o.Log}, func(i int, no *node.Options) (func() error, error) {
		no.Dir, no.Engine = filepath.Join(dir, fmt.Sprint(i)), node.EngineMemory
		no.Policy = policy.Rules{Untrusted: access.UntrustedFind, More: []func(*access.Builder) error{func(b *access.Builder) error {
			return b.AddRule("testnet", access.Rule{Allow: []string{"own", "partners"}, To: []string{"call"}})
		}}}
		if !simulated {
			no.Listen, no.ListenExplicit = []string{"/ip4/127.0.0.1/tcp/0"}, true
			return func() error { return nil }, nil
		}
		err := sim.add()
		if err == nil {
			no.Host = sim.hosts[i]
		}
		return func() error { return nil }, err
	})
	if err != nil {
		return nil, errors.Join(err, sim.close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	for i, domain := range map[int]string{0: "acme.example", n / 2: "globex.example"} {
		issuer := t.Members[i]
		if _, err := issuer.InitOrganization(ctx, api.OrganizationInit{Domain: domain, RecoveryFile: filepath.Join(dir, domain+".recovery")}); err != nil {
			return nil, err
		}
		invitation, err := issuer.Invite(ctx, api.InvitationRequest{Kind: api.InviteNode, Uses: n})
		if err != nil {
			return nil, err
		}
		for _, m := range t.Members[i+1 : i+n/2] {
			if _, err := m.JoinOrganization(ctx, api.Acceptance{Invitation: invitation.Text}); err != nil {
				return nil, fmt.Errorf("node %d: %w", m.N, err)
			}
		}
	}
	invitation, err := t.Members[0].Invite(ctx, api.InvitationRequest{Kind: api.InvitePartner})
	if err != nil {
		return nil, err
	}
	if _, err := t.Members[n/2].AcceptInvitation(ctx, api.Acceptance{Invitation: invitation.Text}); err != nil {
		return nil, err
	}
	if err := t.connect(ctx, "random:6"); err != nil {
		return nil, err
	}
	for _, m := range t.Members[:n-1] {
		if err := t.Members[n-1].Connect(ctx, m.Addrs[0]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// A revocation is one measurement.
type revocation struct {
	net     *Net
	traitor *Member
	agents  []*watchedAgent // of the other nodes
}

// A watchedAgent notes when it was called last, and its subscriber when it received the last event. Its events are frequent.
type watchedAgent struct {
	ref     string
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
			rest(ctx)
		}
	}
}

func (a *watchedAgent) note(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// offer publishes an agent at each node except the last.
func (r *revocation) offer(ctx context.Context) error {
	for _, m := range r.net.Members[:len(r.net.Members)-1] {
		draft, err := td.Draft(fmt.Appendf(nil, `{"id":"urn:x:agent-%d","title":"agent-%d","actions":{"echo":{}},"events":{"tick":{}}}`, m.N, m.N))
		if err != nil {
			return err
		}
		a := &watchedAgent{}
		p, err := m.node.Offer(ctx, draft, a)
		if err != nil {
			return err
		}
		a.ref = p.Ref
		r.agents = append(r.agents, a)
	}
	return nil
}

// pause is the time between two calls of one agent, and between its events.
const pause = 50 * time.Millisecond

// measure lets the last node call and subscribe, revokes it, and waits until no other node serves it.
func (r *revocation) measure(ctx context.Context) (*Revocation, error) {
	calls, stop := context.WithCancel(did.AsProcess(ctx))
	defer stop()
	var g errgroup.Group
	var revoked atomic.Bool
	mesh := interact.Chain(r.traitor.node.Mesh(), interact.As(did.Consumer(did.Process, "")))
	for _, a := range r.agents {
		g.Go(func() error { // again until it has begun: the membership may not be known yet
			for calls.Err() == nil && !revoked.Load() {
				for _, err := range mesh.Do(calls, &interact.Message{Type: interact.SubscribeEvent, Thing: a.ref, Name: "tick"}) {
					if err == nil {
						a.note(func() { a.event = time.Now() })
					}
				}
				rest(calls)
			}
			a.note(func() { a.ended = true })
			return nil
		})
		g.Go(func() error {
			for calls.Err() == nil {
				_, err := interact.Call(calls, mesh, &interact.Message{Type: interact.InvokeAction, Thing: a.ref, Name: "echo", Deadline: time.Now().Add(5 * time.Second)})
				if err != nil && revoked.Load() {
					a.note(func() {
						if a.refused.IsZero() {
							a.refused = time.Now()
						}
					})
				}
				rest(calls)
			}
			return nil
		})
	}
	all := func(f func(a *watchedAgent) bool) func() bool {
		return func() bool {
			for _, a := range r.agents {
				ok := false
				a.note(func() { ok = f(a) })
				if !ok {
					return false
				}
			}
			return true
		}
	}
	err := Until(ctx, "the member is served by all", all(func(a *watchedAgent) bool { return !a.event.IsZero() && !a.called.IsZero() }))
	if err != nil {
		return nil, errors.Join(err, g.Wait())
	}
	began := time.Now()
	revoked.Store(true)
	err = r.net.Members[len(r.net.Members)/2].Revoke(ctx, r.traitor.DID)
	if err == nil {
		err = Until(ctx, "all nodes reject the member", all(func(a *watchedAgent) bool {
			return a.ended && !a.refused.IsZero() && time.Since(a.refused) > max(time.Second, a.refused.Sub(began))
		}))
	}
	stop()
	if err = errors.Join(err, g.Wait()); err != nil {
		return nil, err
	}
	result := &Revocation{}
	for _, a := range r.agents {
		result.Calls = append(result.Calls, max(0, a.called.Sub(began)))
		result.Streams = append(result.Streams, max(0, a.event.Sub(began)))
	}
	return result, nil
}

// rest waits for a pause, or until ctx ends.
func rest(ctx context.Context) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
