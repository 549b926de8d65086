package main

import (
	"context"
	"fmt"
	"runtime"
)

const natsSystem = "NATS request–reply"

// kinds are the transports of nodes, with their names in tables.
var kinds = []struct{ kind, name string }{{"tcp", "TCP"}, {"quic", "QUIC"}}

// calls compares a small call with NATS request–reply (client, server and responder, three processes) and with a bare libp2p
// echo on persistent streams (two processes), and counts the objects that a call allocates at each node.
func calls(ctx context.Context, p plan) error {
	const lmosd, echo = "lmosd, node to node (%s)", "libp2p echo, bare (%s)"
	systems := []system{{natsSystem, startNATS}}
	for _, k := range kinds {
		systems = append(systems, system{fmt.Sprintf(lmosd, k.name), over(k.kind, startLMOSD)}, system{fmt.Sprintf(echo, k.name), over(k.kind, startEcho)})
	}
	all, err := against(ctx, p, systems, natsSystem, "NATS", 64)
	if err != nil {
		return err
	}
	p.say("The NATS server is of version %s.", natsVersion())
	bounds := map[string]struct{ time, rate float64 }{"tcp": {0.7, 1.3}, "quic": {0.9, 0.95}}
	for _, k := range kinds {
		of, bare, bound := fmt.Sprintf(lmosd, k.name), fmt.Sprintf(echo, k.name), bounds[k.kind]
		p.atMost("p50 of 1 caller over "+k.name+" / NATS", all.time(of, natsSystem), bound.time, "")
		p.atLeast("calls/s of 64 callers over "+k.name+" / NATS", all.rate(of, natsSystem, 64), bound.rate, "")
		p.atMost("p50 of 1 caller over "+k.name+" / libp2p echo", all.time(of, bare), 1.5, "")
		here, there, err := allocations(ctx, k.kind, 20_000)
		if err != nil {
			return err
		}
		p.atMost("objects that a call over "+k.name+" allocates at the caller's node", here, 30, "")
		p.atMost("the same at the host's node", there, 30, "")
	}
	return nil
}

// allocations returns the number of objects that each end allocates per call, over n calls.
func allocations(ctx context.Context, kind string, n int) (here, there float64, err error) {
	l, err := newLink(ctx, kind)
	if err != nil {
		return 0, 0, err
	}
	defer l.stop()
	c := l.caller()
	for range n / 10 { // warm-up
		if err := c.call(ctx); err != nil {
			return 0, 0, err
		}
	}
	far, err := l.stats(ctx)
	if err != nil {
		return 0, 0, err
	}
	near := mallocs()
	for range n {
		if err := c.call(ctx); err != nil {
			return 0, 0, err
		}
	}
	here = float64(mallocs()-near) / float64(n)
	after, err := l.stats(ctx)
	return here, float64(after.Mallocs-far.Mallocs) / float64(n), err
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}
