package testnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/interact"
)

// A ledger is what a node has acknowledged: the last seq of each thing, and whether it was withdrawn.
type ledger struct {
	mu sync.Mutex
	// acked and open are owned by mu. open are things with a request that was not answered: either outcome is right.
	acked map[string]acked
	open  map[string]bool
}

type acked struct {
	seq       uint64
	withdrawn bool
}

func (l *ledger) begin(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[id] = true
}

func (l *ledger) end(id string, a acked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, id)
	l.acked[id] = a
}

func (l *ledger) drop(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, id)
}

// work publishes, publishes again and withdraws things of its own until the node is gone.
func (l *ledger) work(ctx context.Context, m *Member, name string, r *rand.Rand) {
	for ctx.Err() == nil {
		id := fmt.Sprintf("urn:x:%s-%d", name, r.IntN(30))
		l.begin(id)
		withdraw := r.IntN(4) == 0
		var seq uint64
		if withdraw {
			p, err := m.Unpublish(ctx, id)
			if code(err) == interact.NotFound || code(err) == interact.Withdrawn {
				l.drop(id)
				continue
			}
			if err != nil {
				return
			}
			seq = p.Seq
		} else {
			p, err := m.Publish(ctx, withID(id))
			if err != nil {
				return
			}
			seq = p.Seq
		}
		l.end(id, acked{seq, withdraw})
	}
}

// withID is the weather agent under an id.
func withID(id string) []byte {
	return []byte(strings.Replace(string(weatherTD(1)), `"title"`, fmt.Sprintf(`"id": %q, "title"`, id), 1))
}

// check compares the state of a node with the ledger, waits until its records are new ones with its addresses, and records the results of unanswered requests.
func (l *ledger) check(t *testing.T, m *Member) {
	t.Helper()
	for id, a := range l.acked {
		d, err := m.Agent(t.Context(), id)
		switch {
		case l.open[id]:
			l.acked[id] = acked{max(a.seq, seqOf(d)), code(err) == interact.Withdrawn}
		case a.withdrawn && code(err) != interact.Withdrawn:
			t.Errorf("%s was withdrawn, and asking for it gives %+v, %v", id, d, err)
		case !a.withdrawn && (err != nil || !d.Agent.Local || d.Signature.Seq < a.seq):
			t.Errorf("%s was published with seq %d, and asking for it gives %+v, %v", id, a.seq, d, err)
		case !a.withdrawn:
			err := Until(t.Context(), id+" names the addresses of this process", func() bool {
				d, err := m.Agent(t.Context(), id)
				return err == nil && d.Signature.Seq > a.seq
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	l.open = map[string]bool{}
}

func seqOf(d *api.AgentDetail) uint64 {
	if d == nil {
		return 0
	}
	return d.Signature.Seq
}

// TestAcknowledgedChangesSurviveKill9 kills a node in the middle of its work, again and again.
func TestAcknowledgedChangesSurviveKill9(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := shortDir(t)
	l := &ledger{acked: map[string]acked{}, open: map[string]bool{}}
	for round := range 4 {
		net := processes(t, 1, Options{Dir: dir, Seed: 9})
		m := net.Members[0]
		l.check(t, m)
		if round == 3 {
			break
		}
		var g sync.WaitGroup
		for w := range 4 {
			own := rand.New(rand.NewPCG(seed, uint64(10*round+w+1)))
			g.Go(func() { l.work(t.Context(), m, fmt.Sprintf("w%d", w), own) })
		}
		timer := time.NewTimer(time.Duration(50+r.IntN(200)) * time.Millisecond)
		<-timer.C
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
		g.Wait()
	}
	published := 0
	for _, a := range l.acked {
		if !a.withdrawn {
			published++
		}
	}
	if published == 0 {
		t.Error("nothing was published before the node was killed")
	}
	t.Logf("%d things were acknowledged, %d of them published", len(l.acked), published)
}
