package bridgetest

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
)

// throughRules are the rules of imported agents for clients of their own protocol, with the mesh between them.
var throughRules = []rule{
	{"round trip: a client calls an agent of its own protocol", nil, (*bed).throughServes},
	{"round trip, cancel: a client that leaves, or cancels, ends the agent's run", nil, (*bed).throughCancels},
	{"round trip, stream: all partial outputs arrive at once and in order", []Part{Streams}, (*bed).throughStreams},
	{"round trip, input: the client provides the input that the agent requires", []Part{Inputs}, (*bed).throughAsks},
	{"round trip, limits: an output over the limit is an error, and the next call works", []Part{large}, (*bed).throughLimits},
	{"round trip, policy: an action that the policy refuses does not reach the agent", nil, (*bed).throughRefuses},
	{"round trip, withdrawal: a call of a stopped agent fails", nil, (*bed).throughGone},
	{"round trip: concurrent consumers and clients each get their own answer", nil, (*bed).throughMany},
}

func (b *bed) throughServes() {
	b.joined("probe")
	c := b.serves("probe")
	b.answers(c)
	_, err := c.Call(b.ctx, Call{Name: Fail})
	b.failed("what fails", err, interact.AgentFailed, Trouble)
	b.answers(c)
}

func (b *bed) throughCancels() {
	_, s, _, _ := b.joined("probe")
	b.cancels(s, b.serves("probe"))
}

func (b *bed) throughStreams() {
	_, s, _, _ := b.joined("probe")
	const n = 20
	heard, _ := b.streams(s, b.serves("probe"), n)
	for inOrder(heard.String(), n) != nil && b.ctx.Err() == nil { // on this path steps are neither merged nor dropped
		time.Sleep(time.Millisecond) // a client library may deliver them after the call
	}
	if err := inOrder(heard.String(), n); err != nil {
		b.Error(err)
	}
}

func (b *bed) throughAsks() {
	b.joined("probe")
	b.asks(b.serves("probe"))
}

func (b *bed) throughLimits() {
	b.joined("probe")
	c := b.serves("probe")
	if got, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": b.kit.over()})}); err == nil {
		b.Errorf("an output over the limit has %d bytes", len(got))
	}
	b.answers(c)
}

func (b *bed) throughRefuses() {
	if _, ok := b.bridge.(bridge.Guard); !ok {
		return // its tunnels have no actions to which a policy could apply
	}
	_, s, _, d := b.joined("probe")
	c := b.serves("probe")
	b.forbidden = Fail
	_, err := c.Call(b.ctx, Call{Name: Fail})
	if f := (*Failure)(nil); !errors.As(err, &f) || !strings.Contains(f.Text, "rule 7 says no") {
		b.Errorf("a refused action returns %v", err)
	}
	_, err = b.ask(d, Fail, fields{})
	b.told("an action that the policy refuses a consumer", err, interact.Forbidden)
	if n := s.asked.Load(); n != 0 {
		b.Errorf("the agent was called %d times", n)
	}
	b.answers(c)
}

func (b *bed) throughGone() {
	f, _, _, _ := b.joined("probe")
	_, _, _, other := b.joined("other")
	c := b.serves("probe")
	b.answers(c)
	f.Stop()
	for range 2 {
		if _, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "x"})}); err == nil {
			b.Error("a stopped agent answers")
		}
		b.works(other)
	}
}

func (b *bed) throughMany() {
	_, _, _, d := b.joined("probe")
	url := Serve(b, b.bridge.Export(b.mesh))
	var all sync.WaitGroup
	for range 2 {
		c := b.kit.Connect(b, url, "probe")
		for i := range 6 {
			all.Go(func() { b.oneOfMany(c, i, false) })
			all.Go(func() { b.works(d) })
		}
	}
	all.Wait()
}
