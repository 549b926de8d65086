package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

var webSystems = []system{
	{"HTTP, direct", func(ctx context.Context) (func() (caller, error), func(), error) {
		addr, stop, err := child(ctx, "agent")
		return webCaller(addr + "/echo"), stop, err
	}},
	{"HTTP, two lmosd between (TCP)", func(ctx context.Context) (func() (caller, error), func(), error) { return startWeb(ctx, "tcp") }},
	{"HTTP, two lmosd between (QUIC)", func(ctx context.Context) (func() (caller, error), func(), error) { return startWeb(ctx, "quic") }},
	{"HTTP, two Go proxies between (TLS)", startGoProxies},
	{"HTTP, two nginx between (TLS)", startNginx},
}

// web compares calls to an HTTP agent: direct, with a node at each end, with a reverse proxy at each end (of Go, and nginx). Client, nodes or proxies, and
// agent are separate processes; connections are kept.
func web(ctx context.Context, p plan) error {
	return against(ctx, p, webSystems, []int{1, 64})
}

// startWeb runs the agent, its node, and the consumer's node.
func startWeb(ctx context.Context, kind string) (func() (caller, error), func(), error) {
	agent, stopAgent, err := child(ctx, "agent")
	if err != nil {
		return nil, nil, err
	}
	api, ref, stopNodes, err := between(ctx, kind, "host="+kind+","+agent)
	if err != nil {
		stopAgent()
		return nil, nil, err
	}
	return webCaller(api + "/things/" + url.PathEscape(ref) + "/actions/echo"), func() { stopNodes(); stopAgent() }, nil
}

// serveAgent runs an HTTP agent.
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

// webCaller makes callers that post to a URL and check the echo. They share a client, which keeps their connections.
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
