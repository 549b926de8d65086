package bridgetest

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
)

// throughRules are those of foreign agents, for clients of their own protocol, with the mesh between them.
var throughRules = []rule{
	{"through: a client calls an agent of its own protocol", nil, (*bed).throughServes},
	{"through, cancel: a client that leaves, or cancels, ends the agent's run", nil, (*bed).throughCancels},
	{"through, stream: what comes on the way comes at once, in order, and all of it", []Part{Streams}, (*bed).throughStreams},
	{"through, input: the client is asked what the agent wants to know", []Part{Inputs}, (*bed).throughAsks},
	{"through, limits: an output over the limit is an error, and the next call works", []Part{large}, (*bed).throughLimits},
	{"through, policy: what the policy refuses of an agent's actions is refused, and the agent is not asked", nil, (*bed).throughRefuses},
	{"through, withdrawal: a client is told that the agent is gone", nil, (*bed).throughGone},
	{"through: consumers and clients at once get each their own", nil, (*bed).throughMany},
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
	for inOrder(heard.String(), n) != nil && b.ctx.Err() == nil { // here nothing is put together, or left out, on the way
		time.Sleep(time.Millisecond) // a client's library may tell of it after the call
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
		return // its tunnels carry nothing that a policy of actions could tell apart
	}
	_, s, _, d := b.joined("probe")
	c := b.serves("probe")
	b.forbidden = Fail
	_, err := c.Call(b.ctx, Call{Name: Fail})
	if f := (*Failure)(nil); !errors.As(err, &f) || !strings.Contains(f.Text, "rule 7 says no") {
		b.Errorf("what the policy refuses gives %v", err)
	}
	_, err = b.ask(d, Fail, fields{})
	b.told("what the policy refuses a consumer", err, interact.Forbidden)
	if n := s.asked.Load(); n != 0 {
		b.Errorf("the agent was asked %d times", n)
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
			b.Error("an agent that is gone answers")
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
