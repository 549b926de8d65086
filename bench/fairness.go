package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// Response times of the agent for honest callers and for attackers.
const (
	fairAnswer = 2 * time.Millisecond
	fairSlow   = 10 * time.Second
)

// A fairBed is an HTTP agent at a node, and nodes that call it.
type fairBed struct {
	ref       string
	slow      atomic.Int64 // slow calls that run
	attackers []*node.Node
	honest    map[string]*node.Node // by kind
	stops
}

// fairness measures an agent that answers in 2 ms, for an untrusted node and for a consumer at its host: without attack, and while one or
// four keys run 64 calls of 10 s each.
func fairness(ctx context.Context, p plan) error {
	b := &fairBed{honest: map[string]*node.Node{}}
	defer b.stop()
	if err := b.open(ctx); err != nil {
		return err
	}
	all := results{}
	for round := range p.rounds {
		for _, keys := range []int{0, 1, 4} {
			stop, slow, err := b.attack(ctx, keys)
			if err != nil {
				return err
			}
			for who, n := range b.honest {
				f, err := measure(ctx, b.caller(n), 1, p.length)
				if err != nil {
					stop()
					return fmt.Errorf("%s, %d attackers: %w", who, keys, err)
				}
				if all[who] == nil {
					all[who] = map[int][]figure{}
				}
				all[who][keys] = append(all[who][keys], f)
				progress("round %d  %-12s %d attackers with %d slow calls  p50 %v  p99 %v", round+1, who, keys, slow, f.p50, f.p99)
			}
			stop()
		}
	}
	p.table("caller | attackers | p50 | p99 | p99 / without attack")
	for _, who := range []string{"untrusted", "at the host"} {
		peace := all.of(who, 0)
		for _, keys := range []int{0, 1, 4} {
			f := all.of(who, keys)
			p.row("%s | %d | %.2f ms | %.2f ms | %.2f", who, keys, ms(f.p50), ms(f.p99), us(f.p99)/us(peace.p99))
			if keys > 0 {
				p.atMost(fmt.Sprintf("p99 of a caller, %s, with %d attackers / without", who, keys), us(f.p99)/us(peace.p99), 5, "")
			}
		}
	}
	return nil
}

func (b *fairBed) open(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(b.answer)}
	go func() { _ = s.Serve(l) }()
	b.add(func() { _ = s.Close() })
	o := options("tcp")
	o.Policy = policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}, Concurrency: 256, CallerConcurrency: 64, ThingConcurrency: 64, UntrustedDeadline: 2 * time.Minute}
	host, err := b.node(ctx, o)
	if err != nil {
		return err
	}
	pub, err := host.Publish(ctx, fmt.Appendf(nil, benchTD, "fair", "http://"+l.Addr().String()))
	if err != nil {
		return err
	}
	b.ref, b.honest["at the host"] = pub.Ref, host
	for i := range 5 {
		n, err := b.node(ctx, options("tcp"))
		if err != nil {
			return err
		}
		if err := meet(ctx, n, host.Addrs()[0], b.ref); err != nil {
			return err
		}
		if i == 0 {
			b.honest["untrusted"] = n
		} else {
			b.attackers = append(b.attackers, n)
		}
	}
	return nil
}

func (b *fairBed) node(ctx context.Context, o node.Options) (*node.Node, error) {
	n, stop, err := start(ctx, o)
	if err == nil {
		b.add(stop)
	}
	return n, err
}

// answer is the agent.
func (b *fairBed) answer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	wait := fairAnswer
	if strings.Contains(string(body), "slow") {
		b.slow.Add(1)
		defer b.slow.Add(-1)
		wait = fairSlow
	}
	select {
	case <-time.After(wait):
	case <-r.Context().Done():
	}
	w.Header().Set("Content-Type", interact.JSON)
	_, _ = w.Write(body)
}

// attack runs 64 slow calls per key until stop. It returns when the permitted number of slow calls runs.
func (b *fairBed) attack(ctx context.Context, keys int) (stop func(), running int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, n := range b.attackers[:keys] {
		for range 64 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _ = interact.Call(ctx, n.Mesh(), &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: b.ref, Name: "echo", Data: []byte(`"slow"`),
						Deadline: time.Now().Add(time.Minute)})
				}
			})
		}
	}
	stop = func() { cancel(); wg.Wait() }
	for keys > 0 {
		before := b.slow.Load()
		time.Sleep(300 * time.Millisecond)
		if running = b.slow.Load(); running > 0 && running == before {
			break
		}
	}
	return stop, running, nil
}

func (b *fairBed) caller(n *node.Node) dialer {
	m := &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: b.ref, Name: "echo", Data: []byte(`"quick"`)}
	return func() (caller, error) {
		return caller{close: func() {}, call: func(ctx context.Context) error {
			_, err := interact.Call(ctx, n.Mesh(), m)
			return err
		}}, nil
	}
}
