package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// The systems of web.
const (
	webDirect = "HTTP, direct"
	webNginx  = "HTTP, two nginx between (TLS)"
	webGo     = "HTTP, two Go proxies between (TLS)"
)

var webSystems = []system{
	{webDirect, func(ctx context.Context) (dialer, func(), error) {
		addr, stop, err := child(ctx, "agent")
		return webCaller(addr + "/echo"), stop, err
	}},
	{"HTTP, two lmosd between (TCP)", over("tcp", startWeb)},
	{"HTTP, two lmosd between (QUIC)", over("quic", startWeb)},
	{webGo, startGoProxies},
	{webNginx, startNginx},
}

// web compares calls to an HTTP agent: direct, with a node at each end, with a reverse proxy at each end. Client, nodes or proxies, and
// agent are separate processes; connections are kept.
func web(ctx context.Context, p plan) error {
	all, err := against(ctx, p, webSystems, webDirect, "direct", 64)
	if err != nil {
		return err
	}
	lmosd := webSystems[1].name
	p.atMost("p50 of 1 caller, two lmosd / two Go proxies", all.time(lmosd, webGo), 1.2, "")
	p.atLeast("calls/s of 64 callers, two lmosd / two Go proxies", all.rate(lmosd, webGo, 64), 1.8, "")
	if all[webNginx] != nil {
		p.atMost("p50 of 1 caller, two lmosd / two nginx", all.time(lmosd, webNginx), 1.4, "")
		p.atLeast("calls/s of 64 callers, two lmosd / two nginx", all.rate(lmosd, webNginx, 64), 0.75, "")
	}
	return nil
}

// startWeb runs the agent, its node, and the consumer's node.
func startWeb(ctx context.Context, kind string) (dialer, func(), error) {
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
func serveAgent(ctx context.Context, _ string) error {
	return serveHTTP(ctx, func(string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(b)
		})
	})
}

// webCaller makes callers that post to a URL and check the echo. They share a client, which keeps their connections.
func webCaller(to string) dialer {
	client := webClient()
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
