package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/policy"
)

const echoTD = `{"@context":["https://www.w3.org/2019/wot/td/v1","https://www.w3.org/2022/wot/td/v1.1"],"@type":"lmos:Tool","title":"echo",
"securityDefinitions":{"nosec_sc":{"scheme":"nosec"}},"security":["nosec_sc"],
"actions":{"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"},
"forms":[{"href":"http://127.0.0.1:1/echo","op":["invokeaction"],"contentType":"application/json"}]}}}`

// options are those of a node of the test profile. The chain is whole: codec, schema check, trace, policy and rate limit.
func options(kind string) node.Options {
	return node.Options{Name: "bench", Network: "bench", Profile: "test", Loopback: true, ListenExplicit: true,
		Listen: []string{listenOn(kind)}, Policy: policy.Rules{Mode: "open", PerPeer: 1e9, Burst: 1e9}}
}

// echo is an agent in the process of its node.
var echo = interact.Unary(func(_ context.Context, m *interact.Message) (*interact.Message, error) {
	r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
	r.Status = interact.StatusCompleted
	return r, nil
})

func startLMOSD(ctx context.Context, kind string) (func() (caller, error), func(), error) {
	line, stopHost, err := child(ctx, "lmosd="+kind)
	if err != nil {
		return nil, nil, err
	}
	addr, ref, _ := strings.Cut(line, " ")
	n, stopNode, err := start(ctx, kind)
	if err != nil {
		stopHost()
		return nil, nil, err
	}
	stop := func() { stopNode(); stopHost() }
	if err := n.Connect(ctx, addr); err != nil {
		stop()
		return nil, nil, err
	}
	if err := known(ctx, n, ref); err != nil {
		stop()
		return nil, nil, err
	}
	mesh, data := n.Mesh(), []byte(`"`+string(bytes.Repeat([]byte{'x'}, payloadSize-2))+`"`)
	dial := func() (caller, error) {
		return caller{close: func() {}, call: func(ctx context.Context) error {
			r, err := interact.Ask(ctx, mesh, &interact.Message{Type: interact.InvokeAction, Thing: ref, Name: "echo", Data: data})
			if err == nil && len(r.Data) != payloadSize {
				err = fmt.Errorf("%d bytes came back", len(r.Data))
			}
			return err
		}}, nil
	}
	return dial, stop, nil
}

// known waits until the node has heard of the thing.
func known(ctx context.Context, n *node.Node, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, err := n.Get(ctx, ref)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// start runs a node until stop.
func start(ctx context.Context, kind string) (n *node.Node, stop func(), err error) {
	n, err = node.New(options(kind))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	return n, func() { cancel(); <-done; _ = n.Close() }, nil
}

func serveLMOSD(ctx context.Context, kind string) error {
	n, stop, err := start(ctx, kind)
	if err != nil {
		return err
	}
	defer stop()
	p, err := n.Offer(ctx, []byte(echoTD), echo)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", n.Addrs()[0], p.Ref)
	<-ctx.Done()
	return nil
}
