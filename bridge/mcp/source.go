package mcp

import (
	"context"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/lmosd/lmosd/bridge/mcp/client"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// A source opens connections to a server.
type source struct {
	dial       func(context.Context) (protocol.Conn, error)
	close      func()
	persistent bool // the server is not a process of this node, so a subscription may stay open while there are no calls
	// headers are the arguments of tools that headers repeat, from the last list.
	headers atomic.Pointer[map[string][]protocol.Param]
}

// maxIdle is the number of idle connections that are kept per server. The default of two would cause new connections under concurrent
// load.
const maxIdle = 64

// remote returns the source of a Streamable HTTP server. The operator chose the address, so it is not filtered.
func (b *Bridge) remote(target string) (*source, error) {
	at, err := url.Parse(target)
	if err != nil || at.Host == "" {
		return nil, interact.Errorf(interact.Usage, "for example mcp:https://mcp.example/mcp", "expected the URL of a web server, got %s",
			interact.Clip(target, maxTitle))
	}
	if at.User != nil {
		return nil, interact.Errorf(interact.Usage, "put them into credentials.json: docs/agents.md", "unexpected user name or password in the URL")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdle
	login := client.NewLogin(client.LoginOptions{Server: target, Credentials: b.o.Credentials, Transport: transport, Show: b.o.Show,
		ClientID: b.o.ClientID, Log: b.o.Log})
	s := &source{close: login.Close, persistent: true}
	s.dial = func(ctx context.Context) (protocol.Conn, error) {
		return client.Dial(ctx, client.Options{URL: target, Login: login, Transport: transport, Log: b.o.Log, Params: s.params}), nil
	}
	return s, nil
}

// params returns the arguments of a tool that headers repeat.
func (s *source) params(tool string) []protocol.Param {
	if all := s.headers.Load(); all != nil {
		return (*all)[tool]
	}
	return nil
}

// note records the arguments that headers repeat.
func (s *source) note(tools []tool) {
	all := map[string][]protocol.Param{}
	for _, t := range tools {
		if params, err := protocol.Params(t.Input); err == nil && len(params) > 0 {
			all[t.Name] = params
		}
	}
	s.headers.Store(&all)
}
