package stream

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// A group is a caller and the hosts of one Thing, to which it is connected.
type group struct {
	caller  *Binding
	hosts   []host.Host
	servers []*Binding
	thing   *Thing
}

// newGroup returns a group whose hosts serve the agents.
func newGroup(t testing.TB, transport string, agents ...interact.Thing) *group {
	t.Helper()
	near := newHost(t, transport)
	g := &group{caller: newBinding(t, near, Options{})}
	var all []td.Host
	for _, agent := range agents {
		h := newHost(t, transport)
		b := newBinding(t, h, Options{})
		b.Serve(agent)
		connect(t, near, h)
		g.hosts, g.servers, all = append(g.hosts, h), append(g.servers, b), append(all, at(t, h))
	}
	g.thing = g.caller.at(all)
	return g
}

// first lets the caller measure that the i-th host is faster than the others.
func (g *group) first(i int) {
	g.thing.measure()
	for n, h := range g.thing.hosts {
		if n != i { // more calls run there
			for range 1000 {
				g.caller.meter.Begin(placeKey{g.thing.ref, h.Node}, &interact.Message{})
			}
		}
	}
}

// measure records a short call of each host.
func (t *Thing) measure() {
	for _, h := range t.hosts {
		c := t.b.meter.Begin(placeKey{t.ref, h.Node}, &interact.Message{})
		c.Reply(&interact.Message{})
		c.End()
	}
}

// A counted is an agent that counts its calls by action, and passes them on.
type counted struct {
	interact.Thing
	calls atomic.Int32
}

func (c *counted) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	c.calls.Add(1)
	return c.Thing.Do(ctx, m)
}

// named is an agent that answers with its name.
func named(name string) interact.Thing {
	return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) { return done(m, name), nil })
}

// A refusal moves the call to the next host if it certainly did not begin; an error of the agent, and one after the begin, does not.
func TestRefusalsMoveACall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   interact.Error
		m     *interact.Message
		moves bool
	}{
		"shutting down":               {interact.Error{Code: interact.ShuttingDown}, ask("a", ""), true},
		"not ready":                   {interact.Error{Code: interact.NotReady}, ask("a", ""), true},
		"overloaded":                  {interact.Error{Code: interact.Overloaded}, ask("a", ""), true},
		"not offered":                 {interact.Error{Code: interact.NotFound}, ask("a", ""), true},
		"withdrawn":                   {interact.Error{Code: interact.Withdrawn}, ask("a", ""), true},
		"its agent is down":           {interact.Error{Code: interact.Unreachable}, ask("a", ""), true},
		"its agent was lost":          {interact.Error{Code: interact.Unreachable, Started: true}, ask("a", ""), false},
		"the same of an idempotent":   {interact.Error{Code: interact.Unreachable, Started: true}, ask("idempotent", ""), true},
		"the same of a read":          {interact.Error{Code: interact.Unreachable, Started: true}, &interact.Message{Type: interact.ReadProperty, Name: "p"}, true},
		"an error of the agent":       {interact.Error{Code: interact.AgentFailed}, ask("idempotent", ""), false},
		"a bad input":                 {interact.Error{Code: interact.Invalid}, ask("a", ""), false},
		"access rules":                {interact.Error{Code: interact.Forbidden}, ask("a", ""), false},
		"a time-out":                  {interact.Error{Code: interact.Timeout}, ask("idempotent", ""), false},
		"no such run":                 {interact.Error{Code: interact.NoTask}, &interact.Message{Type: interact.CancelAction, Name: "a", ActionID: "1"}, true},
		"an action without such run":  {interact.Error{Code: interact.NoTask}, ask("idempotent", ""), false},
		"a request stream that began": {interact.Error{Code: interact.Overloaded}, &interact.Message{Type: interact.InvokeAction, Name: "a", Chunks: nothing}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := &counted{Thing: named("second")}
			g := newGroup(t, "tcp", failing(&c.err), second)
			g.first(0)
			r, err := interact.Call(t.Context(), g.thing, c.m)
			if c.moves && (err != nil || string(r.Data) != "second") || !c.moves && code(err) != c.err.Code {
				t.Errorf("got %v, %v", r, err)
			}
			if n := second.calls.Load(); (n == 1) != c.moves {
				t.Errorf("%d calls of the second host", n)
			}
		})
	}
}

// If all hosts fail, the error is the first one. That a host does not have it says less than that another one could not be reached.
func TestErrorOfSeveralHosts(t *testing.T) {
	t.Parallel()
	lacking, busy := failing(interact.NotOffered("x")), failing(interact.Errorf(interact.Overloaded, "", "busy"))
	lost := failing(&interact.Error{Code: interact.Unreachable, Title: "lost", Started: true})
	for name, c := range map[string]struct {
		agents  []interact.Thing
		down    int // of the hosts; 0: none
		want    interact.Code
		started bool
	}{
		"no host has it":               {[]interact.Thing{lacking, lacking}, 0, interact.NotFound, false},
		"one has it and is overloaded": {[]interact.Thing{lacking, busy}, 0, interact.Overloaded, false},
		"one cannot be reached":        {[]interact.Thing{lacking, answering}, 1, interact.Unreachable, false},
		"it may have begun at one":     {[]interact.Thing{lost, busy}, 0, interact.Unreachable, true},
		"and ended with another error": {[]interact.Thing{lost, failing(interact.Errorf(interact.AgentFailed, "", "no"))}, 0, interact.AgentFailed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, "tcp", c.agents...)
			if c.down > 0 {
				_ = g.hosts[c.down].Close()
			}
			g.first(0)
			_, err := interact.Call(t.Context(), g.thing, ask("idempotent", ""))
			if e := interact.AsError(err); e.Code != c.want || e.Started != c.started {
				t.Errorf("got %v, started %t, want %v", err, e.Started, c.want)
			}
		})
	}
}

// Further tries after an overload, or after a begin, have a budget. Without it the first error is that of the call. What a host refused without
// beginning moves always.
func TestBudgetOfFurtherTries(t *testing.T) {
	t.Parallel()
	busy := interact.Errorf(interact.Overloaded, "", "busy")
	busy.RetryAfter = 0
	second := &counted{Thing: answering}
	g := newGroup(t, "tcp", failing(busy), second)
	g.first(0)
	for g.caller.retries.Take(time.Now().Add(time.Hour)) { // no time fills it again
	}
	if _, err := interact.Call(t.Context(), g.thing, ask("a", "")); code(err) != interact.Overloaded || second.calls.Load() != 0 {
		t.Errorf("got %v after %d calls of the second host", err, second.calls.Load())
	}
	g = newGroup(t, "tcp", failing(interact.HostShutdownError("")), second)
	g.first(0)
	for g.caller.retries.Take(time.Now().Add(time.Hour)) {
	}
	if _, err := interact.Call(t.Context(), g.thing, ask("a", "")); err != nil {
		t.Error(err)
	}
}

// A host that answers fast and wrong is not preferred for its speed.
func TestHostThatFailsFast(t *testing.T) {
	t.Parallel()
	wrong := &counted{Thing: failing(interact.Errorf(interact.AgentFailed, "", "wrong"))}
	g := newGroup(t, "tcp", wrong, answering)
	const calls = 500
	for range calls {
		_, _ = interact.Call(t.Context(), g.thing, ask("a", ""))
	}
	// The breaker opens after ten failures, and lets one call pass every ten seconds.
	if n := wrong.calls.Load(); n < 10 || n > calls/10 {
		t.Errorf("%d of %d calls went to the host that fails", n, calls)
	}
}

// Calls move away from a host that drains, and none fails.
func TestDrainedHost(t *testing.T) {
	each(t, func(t *testing.T, transport string) {
		var ran sync.Map
		agent := interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			if _, again := ran.LoadOrStore(string(m.Data), true); again {
				return nil, interact.Errorf(interact.Internal, "", "it ran twice")
			}
			return done(m, string(m.Data)), nil
		})
		g := newGroup(t, transport, agent, agent)
		const calls = 4000
		var next atomic.Int32
		var workers sync.WaitGroup
		for range 16 {
			workers.Go(func() {
				for n := next.Add(1); n <= calls; n = next.Add(1) {
					if n == calls/4 {
						g.servers[0].Drain(t.Context())
						_ = g.servers[0].Close()
					}
					want := strconv.Itoa(int(n))
					if r, err := interact.Call(t.Context(), g.thing, ask("unsafe", want)); err != nil || string(r.Data) != want {
						t.Errorf("call %d: %v", n, err)
					}
				}
			})
		}
		workers.Wait()
	})
}

// Both hosts get calls, and the slower one fewer.
func TestLoadFollowsTheTimes(t *testing.T) {
	t.Parallel()
	slow := &counted{Thing: interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
		return done(m, ""), nil
	})}
	fast := &counted{Thing: interact.Unary(func(ctx context.Context, m *interact.Message) (*interact.Message, error) {
		select {
		case <-time.After(4 * time.Millisecond):
		case <-ctx.Done():
		}
		return done(m, ""), nil
	})}
	g := newGroup(t, "tcp", slow, fast)
	var workers sync.WaitGroup
	for range 12 {
		workers.Go(func() {
			for range 20 {
				if _, err := interact.Call(t.Context(), g.thing, ask("a", "")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if s, f := slow.calls.Load(), fast.calls.Load(); s == 0 || f <= s {
		t.Errorf("%d calls of the slow host, %d of the fast one", s, f)
	}
}

// The other hosts are connected in the background, so that calls can choose them, or move to them at once.
func TestHostsAreConnectedInAdvance(t *testing.T) {
	t.Parallel()
	var hosts []td.Host
	for range 5 {
		h := newHost(t, "tcp")
		newBinding(t, h, Options{}).Serve(answering)
		hosts = append(hosts, at(t, h))
	}
	caller := newBinding(t, newHost(t, "tcp"), Options{})
	thing := caller.at(hosts)
	connected := func() int { return len(caller.host.Network().Peers()) }
	until(t, "a part of the hosts is connected", func() bool {
		if _, err := interact.Call(t.Context(), thing, ask("a", "")); err != nil {
			t.Error(err)
		}
		return connected() >= wantConnected
	})
	for range 20 {
		if _, err := interact.Call(t.Context(), thing, ask("a", "")); err != nil {
			t.Error(err)
		}
	}
	if n := connected(); n != wantConnected {
		t.Errorf("%d of 5 hosts are connected, want %d", n, wantConnected)
	}
}

// keeping is a host with runs and events of its own: each action is a run, which only this host knows.
func keeping(name string) interact.Thing {
	var mu sync.Mutex
	runs := 0
	return interact.Func(func(_ context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
		mu.Lock()
		defer mu.Unlock()
		switch m.Type {
		case interact.InvokeAction:
			runs++
			r := done(m, name)
			r.ActionID = fmt.Sprintf("%s-%d", name, runs)
			return interact.One(r)
		case interact.SubscribeEvent:
			r := m.Reply(interact.Event, "", []byte(name))
			r.ID = name + "-event"
			return interact.One(r)
		}
		if m.ActionID != "" && !strings.HasPrefix(m.ActionID, name) || m.ActionID == "" && runs == 0 {
			return interact.Fail(interact.Errorf(interact.NoTask, "", "no such run"))
		}
		return interact.One(done(m, name))
	})
}

// alice is the caller of messages about what a host has.
func alice() *did.Principal { return did.Consumer(did.Process, "alice") }

func TestMessagesGoWhereTheirStateIs(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "tcp", keeping("one"), keeping("two"), keeping("three"))
	call := func(m interact.Message) (*interact.Message, error) {
		m.ID = interact.NewID()
		return interact.Call(t.Context(), g.thing, &m)
	}
	alice := alice()
	began := map[string]bool{}
	for range 40 {
		r, err := call(interact.Message{Type: interact.InvokeAction, Name: "run", From: alice})
		if err != nil {
			t.Fatal(err)
		}
		where := string(r.Data)
		began[where] = true
		for _, m := range []interact.Message{
			{Type: interact.QueryAction, ActionID: r.ActionID}, {Type: interact.ContinueAction, ActionID: r.ActionID}, {Type: interact.CancelAction, ActionID: r.ActionID},
			{Type: interact.QueryAction, Name: "run", From: alice}, {Type: interact.QueryAllActions, From: alice},
		} {
			if r, err := call(m); err != nil || string(r.Data) != where {
				t.Fatalf("a run of %s, %s: got %v, %v", where, m.Type.Op(), r, err)
			}
		}
		for _, m := range []interact.Message{{Type: interact.InvokeAction, Name: "run", Key: r.ActionID}, {Type: interact.InvokeAction, Name: "run", Correlation: r.ActionID}} {
			first, err := call(m)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if r, err := call(m); err != nil || string(r.Data) != string(first.Data) {
					t.Fatalf("key %q, correlation %q: got %v, %v, want %s", m.Key, m.Correlation, r, err, first.Data)
				}
			}
		}
		e, err := call(interact.Message{Type: interact.SubscribeEvent, Name: "e"})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := call(interact.Message{Type: interact.SubscribeEvent, Name: "e", After: e.ID}); err != nil || string(r.Data) != string(e.Data) {
			t.Fatalf("got %v, %v, want the events of %s", r, err, e.Data)
		}
	}
	if len(began) < 2 {
		t.Errorf("all calls went to %v", began)
	}
	// Without knowledge, the host that has the run is found.
	g.caller.pins = pins{}
	for _, name := range []string{"one", "two", "three"} {
		if !began[name] {
			continue
		}
		if r, err := call(interact.Message{Type: interact.QueryAction, ActionID: name + "-1"}); err != nil || string(r.Data) != name {
			t.Errorf("a run of %s: got %v, %v", name, r, err)
		}
	}
	if _, err := call(interact.Message{Type: interact.QueryAction, ActionID: "four-1"}); code(err) != interact.NoTask {
		t.Errorf("a run of no host: %v", err)
	}
}

// What only a lost host has does not move; a conversation does.
func TestStateOfALostHost(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "tcp", keeping("one"), keeping("two"))
	g.first(0)
	run := &interact.Message{Type: interact.InvokeAction, Name: "run", Key: "k", From: alice()}
	talk := &interact.Message{Type: interact.InvokeAction, Name: "run", Correlation: "c", From: alice()}
	events := &interact.Message{Type: interact.SubscribeEvent, Name: "e"}
	var id string
	for _, m := range []*interact.Message{run, talk, events} {
		r, err := interact.Call(t.Context(), g.thing, m)
		if err != nil || string(r.Data) != "one" {
			t.Fatalf("got %v, %v, want the first host", r, err)
		}
		if m == run {
			id = r.ActionID
		}
	}
	_ = g.hosts[0].Close()
	for name, c := range map[string]struct {
		m       interact.Message
		started bool
	}{
		"a key":        {*run, true},
		"a run":        {interact.Message{Type: interact.QueryAction, ActionID: id}, false},
		"later events": {interact.Message{Type: interact.SubscribeEvent, Name: "e", After: "one-event"}, false},
	} {
		if _, err := interact.Call(t.Context(), g.thing, &c.m); code(err) != interact.Unreachable || interact.AsError(err).Started != c.started {
			t.Errorf("%s: got %v, started %t", name, err, interact.AsError(err).Started)
		}
	}
	for range 2 {
		if r, err := interact.Call(t.Context(), g.thing, talk); err != nil || string(r.Data) != "two" {
			t.Errorf("the conversation: got %v, %v", r, err)
		}
	}
	// A host that left the record is not called.
	left := g.caller.at(slices.Clone(g.thing.hosts[1:]))
	left.hosts = append(left.hosts, at(t, newHost(t, "tcp")))
	left.ids = append(left.ids, "")
	if _, err := interact.Call(t.Context(), left, run); code(err) != interact.Unreachable || !interact.AsError(err).Started {
		t.Errorf("a key at a former host: %v", err)
	}
}

// Concurrent calls with one key go to one host.
func TestConcurrentCallsWithOneKey(t *testing.T) {
	t.Parallel()
	var ran [2]sync.Map
	agent := func(i int) interact.Thing {
		return interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
			ran[i].Store(m.Key, true)
			return done(m, ""), nil
		})
	}
	g := newGroup(t, "tcp", agent(0), agent(1))
	var work sync.WaitGroup
	for n := range 400 {
		work.Go(func() {
			m := &interact.Message{Type: interact.InvokeAction, Name: "a", Key: strconv.Itoa(n / 4), From: alice()}
			if _, err := interact.Call(t.Context(), g.thing, m); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	seen := [2]int{}
	for n := range 100 {
		_, first := ran[0].Load(strconv.Itoa(n))
		_, second := ran[1].Load(strconv.Itoa(n))
		if first == second {
			t.Errorf("key %d: at the first host %t, at the second %t", n, first, second)
		}
		if first {
			seen[0]++
		} else {
			seen[1]++
		}
	}
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("all keys are at one host: %v", seen)
	}
}

// A key that certainly did not begin at a host is free for the next one.
func TestKeyMovesBeforeItsBegin(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "tcp", failing(interact.HostShutdownError("")), named("two"))
	g.first(0)
	m := &interact.Message{Type: interact.InvokeAction, Name: "a", Key: "k", From: alice()}
	for range 3 {
		if r, err := interact.Call(t.Context(), g.thing, m); err != nil || string(r.Data) != "two" {
			t.Errorf("got %v, %v", r, err)
		}
	}
	if !g.thing.HasState(m) || g.thing.HasState(&interact.Message{Type: interact.InvokeAction, Name: "a", Key: "other", From: m.From}) {
		t.Error("HasState is wrong")
	}
}

func TestPinsAreBounded(t *testing.T) {
	t.Parallel()
	var p pins
	for n := range maxPins + 100 {
		p.claim(pinID{pinKeyed, "x", "", strconv.Itoa(n)}, "did:key:a")
		p.set(pinID{pinRun, "x", "", strconv.Itoa(n)}, "did:key:a")
	}
	for kind := range pinKinds {
		if n := len(p.all[kind]); n > maxPins {
			t.Errorf("%d pins of kind %d", n, kind)
		}
	}
}

// The timing says which of several hosts answered.
func TestTimingNamesTheHost(t *testing.T) {
	t.Parallel()
	g := newGroup(t, "tcp", answering, answering)
	m := ask("a", "")
	m.Timing = &interact.Timing{}
	r, err := interact.Call(t.Context(), g.thing, m)
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Timing.Path; p != "mesh tcp at "+g.thing.hosts[0].Node.Short() && p != "mesh tcp at "+g.thing.hosts[1].Node.Short() {
		t.Errorf("got %q", p)
	}
}
