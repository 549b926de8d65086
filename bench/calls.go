package main

import (
	"context"
	"fmt"
	"runtime"
)

var callSystems = []system{
	{"lmosd, node to node (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startLMOSD(ctx, "tcp") }},
	{"lmosd, node to node (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startLMOSD(ctx, "quic") }},
	{"NATS request–reply", startNATS},
	{"libp2p echo, bare (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startEcho(ctx, "tcp") }},
	{"libp2p echo, bare (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startEcho(ctx, "quic") }},
}

// calls compares a small call with NATS request–reply (client, server and responder, three processes) and with a bare libp2p
// echo on persistent streams (two processes), and counts the objects that a call allocates at each node.
func calls(ctx context.Context, p plan) error {
	all, err := compare(ctx, p, callSystems)
	if err != nil {
		return err
	}
	nats := callSystems[2].name
	n1, n64 := all.of(nats, 1), all.of(nats, 64)
	fmt.Println("| system | 1 caller p50 | p99 | p50 / NATS | 64 callers calls/s | calls/s / NATS |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, s := range callSystems {
		one, many := all.of(s.name, 1), all.of(s.name, 64)
		fmt.Printf("| %s | %.1f µs | %.1f µs | %.2f | %.0f | %.2f |\n", s.name, us(one.p50), us(one.p99),
			us(one.p50)/us(n1.p50), many.rate, many.rate/n64.rate)
	}
	fmt.Println()
	for _, kind := range []string{"TCP", "QUIC"} {
		l, e := "lmosd, node to node ("+kind+")", "libp2p echo, bare ("+kind+")"
		fmt.Printf("lmosd / bare echo over %s: p50 at 1 caller %.2f, calls/s at 64 callers %.2f\n", kind,
			us(all.of(l, 1).p50)/us(all.of(e, 1).p50), all.of(l, 64).rate/all.of(e, 64).rate)
	}
	return objects(ctx)
}

// objects prints how many objects a call allocates at the caller's node and at the host's.
func objects(ctx context.Context) error {
	for _, kind := range []string{"tcp", "quic"} {
		here, there, err := allocations(ctx, kind, 20_000)
		if err != nil {
			return err
		}
		fmt.Printf("objects that a call allocates over %s: %.1f at the caller's node, %.1f at the host's\n", kind, here, there)
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
