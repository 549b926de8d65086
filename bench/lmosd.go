package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/gcpace"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/policy/rules"
)

// benchTD describes the agent. %s is its HTTP URL, if it has one; an agent in this process is called directly.
const benchTD = `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1"],"@type":"lmos:Tool","title":"%s",
"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"actions":{
"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},"forms":[{"href":"%[2]s/echo","op":["invokeaction"],"contentType":"application/json"}]},
"upload":{"synchronous":true,"output":{"type":"integer"},"forms":[{"href":"%[2]s/upload","op":["invokeaction"],"contentType":"application/octet-stream"}]},
"download":{"synchronous":true,"forms":[{"href":"%[2]s/download","op":["invokeaction"],"contentType":"application/octet-stream"}]},
"publish":{"synchronous":true,"input":{"type":"integer"},"forms":[{"href":"%[2]s/publish","op":["invokeaction"],"contentType":"application/json"}]},
"stats":{"synchronous":true,"output":{"type":"object"},"forms":[{"href":"%[2]s/stats","op":["invokeaction"],"contentType":"application/json"}]}},
"events":{"tick":{"subscription":{"type":"string"},"data":{"type":"string"},"forms":[{"href":"%[2]s/tick","op":["subscribeevent"],"subprotocol":"sse"}]}}}`

// options returns those of a node of the test profile. The middleware is complete: codec, schema validation, trace, policy and rate limit.
func options(kind string) node.Options {
	return node.Options{Name: "bench", Network: "bench", Profile: "test", Loopback: true, ListenExplicit: true,
		Listen: []string{listenOn(kind)}, Policy: policy.Rules{Options: rules.Options{Untrusted: access.UntrustedOpen}, PerPeer: 1e9, Burst: 1e9}}
}

// start runs a node until stop, with the garbage collector set as in `lmosd run`; GOGC=100 in the environment switches that off.
func start(ctx context.Context, o node.Options) (n *node.Node, stop func(), err error) {
	n, err = node.New(o)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	pace := gcpace.Start(256 << 20)
	return n, func() { pace(); cancel(); <-done; _ = n.Close() }, nil
}

// serveHost runs a node that publishes the agent of its process and, if arg has a second part, one at that HTTP URL.
func serveHost(ctx context.Context, arg string) error {
	kind, web, _ := strings.Cut(arg, ",")
	n, stop, err := start(ctx, options(kind))
	if err != nil {
		return err
	}
	defer stop()
	var p *api.Publication
	if web != "" {
		p, err = n.Publish(ctx, fmt.Appendf(nil, benchTD, "web", web))
	} else {
		p, err = n.Offer(ctx, fmt.Appendf(nil, benchTD, "bench", "http://127.0.0.1:1"), &agent{subs: map[*subscription]struct{}{}})
	}
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", n.Addrs()[0], p.Ref)
	<-ctx.Done()
	return nil
}

// A link is a node in this process that knows the agent of another node.
type link struct {
	node *node.Node
	addr string // of the other node
	ref  string // of the agent
	stop func()
}

func newLink(ctx context.Context, kind string) (*link, error) {
	line, stopHost, err := child(ctx, "host="+kind)
	if err != nil {
		return nil, err
	}
	addr, ref, _ := strings.Cut(line, " ")
	n, stopNode, err := start(ctx, options(kind))
	if err != nil {
		stopHost()
		return nil, err
	}
	l := &link{node: n, addr: addr, ref: ref, stop: func() { stopNode(); stopHost() }}
	if err := meet(ctx, n, addr, ref); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

// meet connects a node to another, and waits until it knows the Thing there.
func meet(ctx context.Context, n *node.Node, addr, ref string) error {
	if err := n.Client().Connect(ctx, addr); err != nil {
		return err
	}
	return until(ctx, 10*time.Second, func(ctx context.Context) error {
		_, err := n.Mesh().Get(ctx, ref)
		return err
	})
}

// invoke invokes an action of the agent.
func (l *link) invoke(ctx context.Context, name string, data []byte) (*interact.Message, error) {
	return interact.Call(ctx, l.node.Mesh(), &interact.Message{From: did.Consumer(did.Process, ""), Type: interact.InvokeAction, Thing: l.ref, Name: name, Data: data})
}

// stats returns the usage of the host's process.
func (l *link) stats(ctx context.Context) (stats, error) {
	var s stats
	r, err := l.invoke(ctx, "stats", nil)
	if err == nil {
		err = json.Unmarshal(r.Data, &s)
	}
	return s, err
}

func (l *link) caller() caller {
	return caller{close: func() {}, call: func(ctx context.Context) error {
		r, err := l.invoke(ctx, "echo", payload)
		if err == nil && len(r.Data) != payloadSize {
			err = fmt.Errorf("received %d bytes", len(r.Data))
		}
		return err
	}}
}

func startLMOSD(ctx context.Context, kind string) (dialer, func(), error) {
	l, err := newLink(ctx, kind)
	if err != nil {
		return nil, nil, err
	}
	return func() (caller, error) { return l.caller(), nil }, l.stop, nil
}
