package bridgetest

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/interact"
)

// roundtripRules are the rules of imported agents for clients of their own protocol, with the mesh between them.
var roundtripRules = []rule{
	{"round trip: a client calls an agent of its own protocol", nil, (*fixture).roundtripServes},
	{"round trip, cancel: a client that leaves, or cancels, ends the agent's run", nil, (*fixture).roundtripCancels},
	{"round trip, stream: all partial outputs arrive at once and in order", []Part{Streams}, (*fixture).roundtripStreams},
	{"round trip, input: the client provides the input that the agent requires", []Part{Inputs}, (*fixture).roundtripInput},
	{"round trip, limits: an output over the limit is an error, and the next call works", []Part{large}, (*fixture).roundtripLimits},
	{"round trip, policy: an action that the policy refuses does not reach the agent", nil, (*fixture).roundtripRefuses},
	{"round trip, withdrawal: a call of a stopped agent fails", nil, (*fixture).roundtripStopped},
	{"round trip: concurrent consumers and clients each get their own answer", nil, (*fixture).roundtripConcurrent},
}

func (b *fixture) roundtripServes() {
	b.importAgent("probe")
	c := b.connect("probe")
	b.checkClient(c)
	_, err := c.Call(b.ctx, Call{Name: Fail})
	b.checkFailure("what fails", err, interact.AgentFailed, Trouble)
	b.checkClient(c)
}

func (b *fixture) roundtripCancels() {
	_, s, _, _ := b.importAgent("probe")
	b.checkCancel(s, b.connect("probe"))
}

func (b *fixture) roundtripStreams() {
	_, s, _, _ := b.importAgent("probe")
	const n = 20
	received, _ := b.checkStream(s, b.connect("probe"), n)
	for inOrder(received.String(), n) != nil && b.ctx.Err() == nil { // on this path steps are neither merged nor dropped
		time.Sleep(time.Millisecond) // a client library may deliver them after the call
	}
	if err := inOrder(received.String(), n); err != nil {
		b.Error(err)
	}
}

func (b *fixture) roundtripInput() {
	b.importAgent("probe")
	b.checkInput(b.connect("probe"))
}

func (b *fixture) roundtripLimits() {
	b.importAgent("probe")
	c := b.connect("probe")
	if got, err := c.Call(b.ctx, Call{Name: Big, Input: encoded(fields{"bytes": b.kit.over()})}); err == nil {
		b.Errorf("an output over the limit has %d bytes", len(got))
	}
	b.checkClient(c)
}

func (b *fixture) roundtripRefuses() {
	if _, ok := b.bridge.(bridge.TunnelGuard); !ok {
		return // its tunnels have no actions to which a policy could apply
	}
	_, s, _, d := b.importAgent("probe")
	c := b.connect("probe")
	b.forbidden = Fail
	_, err := c.Call(b.ctx, Call{Name: Fail})
	if f := (*Failure)(nil); !errors.As(err, &f) || !strings.Contains(f.Text, "rule 7 forbids it") {
		b.Errorf("a refused action returns %v", err)
	}
	_, err = b.invoke(d, Fail, fields{})
	b.checkError("an action that the policy refuses a consumer", err, interact.Forbidden)
	if n := s.calls.Load(); n != 0 {
		b.Errorf("the agent was called %d times", n)
	}
	b.checkClient(c)
}

func (b *fixture) roundtripStopped() {
	f, _, _, _ := b.importAgent("probe")
	_, _, _, other := b.importAgent("other")
	c := b.connect("probe")
	b.checkClient(c)
	f.Stop()
	for range 2 {
		if _, err := c.Call(b.ctx, Call{Name: Echo, Input: encoded(fields{"text": "x"})}); err == nil {
			b.Error("a stopped agent answers")
		}
		b.checkAgent(other)
	}
}

func (b *fixture) roundtripConcurrent() {
	_, _, _, d := b.importAgent("probe")
	url := Serve(b, b.bridge.Export(b.mesh))
	var all sync.WaitGroup
	for range 2 {
		c := b.kit.Connect(b, url, "probe")
		for i := range 6 {
			all.Go(func() { b.oneOfMany(c, i, false) })
			all.Go(func() { b.checkAgent(d) })
		}
	}
	all.Wait()
}
