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

// A source is where connections to a server come from.
type source struct {
	dial  func(context.Context) (protocol.Conn, error)
	end   func()
	stays bool // it may be listened to always: it is no program that would have to run for it
	// headers are the arguments that headers repeat, by tool. They are what the server listed last.
	headers atomic.Pointer[map[string][]protocol.Param]
}

// maxIdle is how many connections to a server that nobody uses now are kept for those who call next. With the usual two, most of
// many callers at once would dial for every call.
const maxIdle = 64

// site is a server that speaks Streamable HTTP. The address is the operator's own, so that it may be anywhere.
func (b *Bridge) site(target string) (*source, error) {
	at, err := url.Parse(target)
	if err != nil || at.Host == "" {
		return nil, interact.Errorf(interact.Usage, "for example mcp:https://mcp.example/mcp", "%s is no address of a web server", interact.Clip(target, maxTitle))
	}
	if at.User != nil {
		return nil, interact.Errorf(interact.Usage, "put them into credentials.json: docs/agents.md", "the address has a name or a password in it")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxIdle
	login := client.NewLogin(client.LoginOptions{Server: target, Credentials: b.o.Credentials, Transport: transport, Show: b.o.Show,
		ClientID: b.o.ClientID, Log: b.o.Log})
	s := &source{end: login.Close, stays: true}
	s.dial = func(ctx context.Context) (protocol.Conn, error) {
		return client.Dial(ctx, client.Options{URL: target, Login: login, Transport: transport, Log: b.o.Log, Params: s.params}), nil
	}
	return s, nil
}

// params are the arguments of a tool that headers repeat.
func (s *source) params(tool string) []protocol.Param {
	if all := s.headers.Load(); all != nil {
		return (*all)[tool]
	}
	return nil
}

// note keeps what headers repeat of the arguments of tools.
func (s *source) note(tools []tool) {
	all := map[string][]protocol.Param{}
	for _, t := range tools {
		if params, err := protocol.Params(t.Input); err == nil && len(params) > 0 {
			all[t.Name] = params
		}
	}
	s.headers.Store(&all)
}
