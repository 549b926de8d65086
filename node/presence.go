package node

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/lmosd/lmosd/dht"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/directory"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// Bounds of looking who is there.
const (
	lookWait   = 400 * time.Millisecond // who wants to know waits no longer; what is heard later is known later
	lookTime   = 3 * time.Second        // of one host
	lookAgain  = 10 * time.Second       // between questions to one host
	lookUrgent = time.Second            // the same after it could not reach an agent
	maxLook    = 32                     // hosts asked at once for one who wants to know
	maxLooked  = 4096                   // hosts that are remembered as asked
)

// looks remembers which hosts were asked lately how their agents are.
type looks struct {
	mu    sync.Mutex
	asked map[did.DID]time.Time // these are owned by mu
	soon  map[did.DID]bool      // will be asked because of a doubt
}

func newLooks() *looks {
	return &looks{asked: map[did.DID]time.Time{}, soon: map[did.DID]bool{}}
}

// doubt returns how long to wait before a host is asked because of a doubt; it is not the first if that is so already.
func (l *looks) doubt(host did.DID, now time.Time) (wait time.Duration, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.soon[host] || len(l.soon) >= maxLooked {
		return 0, false
	}
	l.soon[host] = true
	if at, ok := l.asked[host]; ok {
		wait = lookUrgent - now.Sub(at)
	}
	return max(wait, 0), true
}

// settle notes that a host in doubt is asked now.
func (l *looks) settle(host did.DID, now time.Time) {
	l.due(host, 0, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.soon, host)
}

// due reports whether a host is to be asked, and notes that it is.
func (l *looks) due(host did.DID, pause time.Duration, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.asked[host]; ok && now.Sub(at) < pause {
		return false
	}
	for some := range l.asked {
		if len(l.asked) < maxLooked {
			break
		}
		delete(l.asked, some)
	}
	l.asked[host] = now
	return true
}

// Presence returns the state of a thing as far as it is known; it sends no request. That a record names this node as a host is not
// enough: anybody can write it.
func (n *Node) Presence(d *td.Description) directory.Presence {
	p := n.dir.Presence(d)
	if p.State == directory.StateReachable && !n.offered.Has(d) && !slices.ContainsFunc(d.Record.Hosts, func(h td.Host) bool { return h.Node != n.DID() }) {
		p.State, p.LastSeen = directory.StateUnknown, d.Record.Issued
	}
	if !n.offered.Has(d) && n.refuses(d) {
		p.State = directory.StateRefused
	}
	return p
}

// Resembles returns the name that the name of a thing looks like (directory.Directory.Resembles); what this node offers looks like
// nothing else.
func (n *Node) Resembles(r *td.Record) string { return n.dir.Resembles(r) }

// Look finds out whether things can be reached, so that [Node.Presence] says it: the agents of this node are tried, and hosts are
// asked, which reaches them or not, and how the agents are. A host is asked every ten seconds at most; of hosts that are known to be down nothing
// new is found out, they are probed anyway. It returns after 400 ms at the latest; what comes later is still noted.
func (n *Node) Look(ctx context.Context, things ...*td.Description) {
	done := make(chan struct{})
	if !n.later(func(life context.Context) {
		defer close(done)
		n.lookAt(life, things)
	}) {
		return
	}
	timer := time.NewTimer(lookWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// lookAt returns when all have answered, or lookTime has passed.
func (n *Node) lookAt(ctx context.Context, things []*td.Description) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	at := map[did.DID][]*td.Description{}
	for _, d := range things {
		if of := n.offered.Of(d); of != nil {
			g.Go(func() { n.publisher.IsUp(ctx, of) })
			continue
		}
		for _, h := range d.Record.Hosts {
			if h.Node != n.DID() && len(at[h.Node]) < dht.MaxStates && (at[h.Node] != nil || len(at) < maxLook && !n.dir.IsDown(h.Node)) {
				at[h.Node] = append(at[h.Node], d)
			}
		}
	}
	now := time.Now()
	for host, hosts := range at {
		if n.looks.due(host, lookAgain, now) {
			g.Go(func() { n.askStates(ctx, host, hosts) })
		}
	}
}

// askStates asks a host how the agents of things are.
func (n *Node) askStates(ctx context.Context, host did.DID, things []*td.Description) {
	raw, err := host.Peer()
	if err != nil {
		return
	}
	id := peer.ID(raw)
	if !n.isConnected(id) {
		reached, err := n.try(ctx, host)
		if n.life.Err() != nil || err != nil {
			return
		}
		if n.reached(host, reached); !reached {
			return
		}
	}
	keys := make([][32]byte, len(things))
	for i, d := range things {
		keys[i] = d.Record.Key()
	}
	states, err := n.dht.States(ctx, id, keys)
	if err != nil {
		n.log.Debug("a host does not say how its agents are", "host", host, "err", err)
		return
	}
	n.reached(host, true)
	for i, s := range states {
		n.dir.SetAway(things[i], host, s == dht.AgentAway || s == dht.AgentNotHere)
	}
}

// isConnected reports whether there is a connection to a peer, relayed or not.
func (n *Node) isConnected(p peer.ID) bool {
	c := n.host.Network().Connectedness(p)
	return c == network.Connected || c == network.Limited
}

func (n *Node) connectedTo(node did.DID) bool {
	raw, err := node.Peer()
	return err == nil && n.isConnected(peer.ID(raw))
}

// doubt asks the hosts of a thing how the agent is, each once a second: a question that is waiting already is the one.
func (n *Node) doubt(d *td.Description) {
	if n.dir.Presence(d).State == directory.StateUnreachable {
		return
	}
	for _, h := range d.Record.Hosts {
		wait, first := n.looks.doubt(h.Node, time.Now())
		if !first {
			continue
		}
		n.later(func(life context.Context) {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-life.Done():
			}
			n.looks.settle(h.Node, time.Now())
			ctx, cancel := context.WithTimeout(life, lookTime)
			defer cancel()
			n.askStates(ctx, h.Node, []*td.Description{d})
		})
	}
}

// doubted has the host of a thing asked how the agent is, after an interaction has failed because the host did not reach it. What
// answers is there.
func (n *Node) doubted(d *td.Description) interact.Middleware {
	return func(t interact.Thing) interact.Thing {
		return interact.Func(func(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
			return func(yield func(*interact.Message, error) bool) {
				t.Do(ctx, m)(func(r *interact.Message, err error) bool {
					e, failed := errors.AsType[*interact.Error](err)
					switch {
					case err == nil && len(d.Record.Hosts) == 1:
						n.dir.Answered(d)
					case failed && e.Remote && e.Code == interact.Unreachable:
						n.doubt(d)
					}
					return yield(r, err)
				})
			}
		})
	}
}
