package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/td"
)

// Ready returns nil when the node serves, else why not. Peers are not needed: a lone node serves its own agents.
func (n *Node) Ready() error {
	if n.gate.Closed() {
		return interact.Errorf(interact.ShuttingDown, "ask again when it is back", "the node is shutting down")
	}
	return nil
}

// Peers returns the connected nodes, by DID.
func (n *Node) Peers() []api.Peer { return n.peers.List() }

// newGateway opens the API.
func (n *Node) newGateway(h *HTTP) (*gateway.Gateway, error) {
	o := gateway.Options{Node: n, Listen: gateway.None, Socket: gateway.None, Metrics: n.metrics, Counters: n.Counters, Log: n.log}
	if h != nil {
		token, err := apiToken(n.opts.Dir)
		if err != nil {
			return nil, err
		}
		o.Listen, o.Explicit, o.Socket = or(h.Listen, gateway.None), h.Explicit, or(h.Socket, gateway.None)
		o.Token, o.TokenFile, o.NoAuth = token, gateway.TokenPath(n.opts.Dir), h.NoAuth
		o.Hosts, o.HideMetrics, o.PublicURL, o.OpenDirectory = n.hostNames(h), h.HideMetrics, h.PublicURL, h.OpenDirectory
		for _, b := range n.opts.Bridges {
			served := b.Export(exported{n})
			n.onClose(func() error { served.Close(); return nil })
			o.Bridges = append(o.Bridges, served)
		}
		o.WS, o.Callbacks, o.PrivateCallbacks = n.sockets, n.callbacks, n.opts.Direct == servient.DirectAny || onLoopback(h.Listen) // who asks is on this host
	}
	return gateway.New(o)
}

// Description is the node's own TD, signed: what GET /.well-known/wot answers (WoT Discovery §6.2).
func (n *Node) Description() []byte { return n.self }

// describe writes and signs the node's own TD. A node without HTTP still has one, without forms that could be asked.
func (n *Node) describe() ([]byte, error) {
	doc := map[string]any{
		"@context":            []any{td.Context10, td.Context11, td.ContextDiscovery, td.ContextProof, map[string]any{"lmos": td.ContextLMOS, "@language": "en"}},
		"@type":               []any{"ThingDirectory", "lmos:Agent"},
		"id":                  string(n.DID()),
		"title":               n.opts.Name,
		"description":         "A node of the " + n.opts.Network + " mesh: a directory of what it offers and knows.",
		"version":             map[string]any{"instance": n.opts.Version},
		"securityDefinitions": map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}},
		"security":            []any{"nosec_sc"},
	}
	if api := n.API(); api != "" {
		maps.Copy(doc, n.affordances(api))
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	t, err := td.Complete(raw, n.DID())
	if err != nil {
		return nil, fmt.Errorf("describe this node: %w", err)
	}
	now := time.Now()
	s, err := td.Sign(t, n.key, td.Lease{Seq: uint64(now.UnixMilli()), Now: now, Lifetime: n.opts.Lifetime, Hosts: n.hosts()})
	if err != nil {
		return nil, fmt.Errorf("sign this node's description: %w", err)
	}
	return s.TD, nil
}

// affordances are what a directory offers at api, and what its readers need (WoT Discovery §7.3.4): on loopback, and with an open
// directory, the token for changes, elsewhere for everything.
func (n *Node) affordances(api string) map[string]any {
	h := n.opts.HTTP
	change := "bearer_sc"
	if h.NoAuth {
		change = ""
	}
	members := tdd.Affordances(strings.TrimSuffix(or(h.PublicURL, n.localURL(api)), "/"), change, true)
	members["securityDefinitions"] = map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}, "bearer_sc": map[string]any{"scheme": "bearer", "in": "header"}}
	if !onLoopback(h.Listen) && !h.OpenDirectory {
		members["security"] = []any{"bearer_sc"}
	}
	return members
}

// inTheClear reports whether the token of the API is sent over plain HTTP by other hosts.
func (h *HTTP) inTheClear() bool {
	return h != nil && h.Listen != "" && h.Listen != gateway.None && !h.NoAuth && !onLoopback(h.Listen) && !strings.HasPrefix(strings.ToLower(h.PublicURL), "https://")
}

// onLoopback reports whether only this host reaches a listener at addr.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return addr == "" || err == nil && ip != nil && ip.IsLoopback()
}

// apiToken returns the token of the API.
func apiToken(dir string) (string, error) {
	token, err := gateway.OpenToken(dir)
	if _, explained := errors.AsType[*interact.Error](err); err != nil && !explained {
		err = dirError(dir, err)
	}
	return token, err
}
