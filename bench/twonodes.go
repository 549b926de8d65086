package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/node"
	"github.com/lmosd/lmosd/td"
)

// between runs a node of the role host with a Thing, and one with an HTTP API at api that knows the Thing by ref. kind is the transport
// between them.
func between(ctx context.Context, kind, host string) (api, ref string, stop func(), err error) {
	line, stopHost, err := child(ctx, host)
	if err != nil {
		return "", "", nil, err
	}
	addr, ref, _ := strings.Cut(line, " ")
	api, stopConsumer, err := child(ctx, "consumer="+kind+","+addr+","+ref)
	if err != nil {
		stopHost()
		return "", "", nil, err
	}
	return api, ref, func() { stopConsumer(); stopHost() }, nil
}

// bridges returns the bridges of a node.
func bridges() []bridge.Bridge {
	return []bridge.Bridge{mcp.New(mcp.Options{}), a2a.New(a2a.Options{})}
}

// serveConsumer runs a node with an HTTP API that knows the Thing of another. arg is the transport, the other's address and the Thing.
func serveConsumer(ctx context.Context, arg string) error {
	part := strings.SplitN(arg, ",", 3)
	o := options(part[0])
	o.HTTP = &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, NoAuth: true}
	o.Bridges = bridges()
	n, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	if err := meet(ctx, n, part[1], part[2]); err != nil {
		return err
	}
	fmt.Println(n.API())
	<-ctx.Done()
	return nil
}

// serveImport runs a node that imports an agent like `lmosd expose`: arg is the transport and the target.
func serveImport(ctx context.Context, arg string) error {
	kind, target, _ := strings.Cut(arg, ",")
	o := options(kind)
	o.Bridges = bridges()
	n, stop, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	x, err := expose.Open(ctx, expose.Spec{Target: target, Name: "bench"}, o.Bridges, nil)
	if err != nil {
		return err
	}
	defer x.Close()
	draft, err := td.Draft(x.TD)
	if err != nil {
		return err
	}
	p, err := n.Offer(ctx, draft, x.Thing)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", n.Addrs()[0], p.Ref)
	<-ctx.Done()
	return nil
}
