package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lmosd/lmosd/node"
)

var webSystems = []system{
	{"HTTP, direct", func(ctx context.Context) (func() (caller, error), func(), error) {
		addr, stop, err := child(ctx, "agent")
		return webCaller(addr + "/echo"), stop, err
	}},
	{"HTTP, two lmosd between (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startWeb(ctx, "tcp") }},
	{"HTTP, two lmosd between (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startWeb(ctx, "quic") }},
	{"HTTP, two nginx between (TLS)", startNginx},
}

// web compares a call over HTTP to an agent that speaks HTTP: direct, with a node at each end, with a reverse proxy at each end.
// Client, nodes or proxies, and agent are processes of their own; connections are kept.
func web(ctx context.Context, p plan) error {
	all, err := compare(ctx, p, webSystems)
	if err != nil {
		return err
	}
	direct := all.of(webSystems[0].name, 1)
	fmt.Println("| way | 1 caller p50 | p99 | p50 / direct | 64 callers calls/s |")
	fmt.Println("|---|---|---|---|---|")
	for _, s := range webSystems {
		if all[s.name] == nil {
			continue
		}
		one, many := all.of(s.name, 1), all.of(s.name, 64)
		fmt.Printf("| %s | %.0f µs | %.0f µs | %.2f | %.0f |\n", s.name, us(one.p50), us(one.p99), us(one.p50)/us(direct.p50), many.rate)
	}
	return nil
}

// startWeb runs the agent, its node, and the consumer's node.
func startWeb(ctx context.Context, kind string) (func() (caller, error), func(), error) {
	agent, stopAgent, err := child(ctx, "agent")
	if err != nil {
		return nil, nil, err
	}
	line, stopHost, err := child(ctx, "host="+kind+","+agent)
	if err != nil {
		stopAgent()
		return nil, nil, err
	}
	addr, ref, _ := strings.Cut(line, " ")
	api, stopConsumer, err := child(ctx, "consumer="+kind+","+addr+","+ref)
	if err != nil {
		stopHost()
		stopAgent()
		return nil, nil, err
	}
	return webCaller(api + "/things/" + url.PathEscape(ref) + "/actions/echo"), func() { stopConsumer(); stopHost(); stopAgent() }, nil
}

// serveConsumer is a node with an HTTP API that knows the thing of another. arg is the transport, the other's address and the
// thing.
func serveConsumer(ctx context.Context, arg string) error {
	part := strings.SplitN(arg, ",", 3)
	o := options(part[0])
	o.HTTP = &node.HTTP{Listen: "127.0.0.1:0", Explicit: true, NoAuth: true}
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

// serveAgent is an agent that speaks HTTP.
func serveAgent(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(b)
	})}
	go func() { <-ctx.Done(); _ = s.Close() }()
	fmt.Printf("http://%s\n", l.Addr())
	_ = s.Serve(l)
	return nil
}

// webCaller makes callers that post to an address and want the same back. They share a client, which keeps their connections.
func webCaller(to string) func() (caller, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	return func() (caller, error) {
		return caller{close: client.CloseIdleConnections, call: func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(payload))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			res, err := client.Do(r)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err == nil && (res.StatusCode != http.StatusOK || !bytes.Equal(b, payload)) {
				err = fmt.Errorf("%s: %.200s", res.Status, b)
			}
			return err
		}}, nil
	}
}
