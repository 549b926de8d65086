package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/api"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/tdd"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/pubsub"
	"github.com/lmosd/lmosd/td"
)

// Ready returns nil when the node serves, else why not. Peers are not needed: a lone node serves its own agents.
func (n *Node) Ready() error {
	if n.draining.Load() {
		return interact.Errorf(interact.ShuttingDown, "ask again when it is back", "the node is shutting down")
	}
	return nil
}

// Status returns the state of the node.
func (n *Node) Status() *api.Status {
	s := &api.Status{APIVersion: api.APIVersion, Kind: "Status", State: "ready", DID: n.DID(), PeerID: n.host.ID().String(),
		Name: n.opts.Name, Version: n.opts.Version, Uptime: time.Since(n.started).Seconds(), Profile: n.opts.Profile,
		Network: n.opts.Network, DataDir: n.opts.Dir, Addrs: n.Addrs(), API: n.API(), Callers: n.policy.Callers(), Warnings: n.warnings()}
	n.showForks(s)
	if n.draining.Load() {
		s.State = "draining"
	} else if slices.ContainsFunc(s.Warnings, func(w api.Warning) bool { return w.Severity == "high" }) {
		s.State = "degraded"
	}
	s.Peers.Total, s.Peers.Direct, s.Peers.Relayed = n.peers.Count()
	s.DHT.Mode, s.DHT.Table = n.opts.DHTMode, n.dht.Size()
	s.Gossip.Topics, s.Gossip.Peers = pubsub.Shards, n.gossip.Peers()
	_, known := n.dir.Len()
	s.Agents.Local, s.Agents.Known = n.offered.Len(), known
	s.Agents.Fill = math.Round(1000*n.dir.Fill()) / 1000
	n.metrics.FillCalls(s)
	return s
}

// warner returns a function that adds a warning to ws.
func (n *Node) warner(ws *[]api.Warning) func(code, title, severity, hint, format string, args ...any) *api.Warning {
	return func(code, title, severity, hint, format string, args ...any) *api.Warning {
		*ws = append(*ws, api.Warning{Code: "LMOS-" + code, Title: title, Severity: severity, Hint: hint, Text: fmt.Sprintf(format, args...), Since: n.started})
		return &(*ws)[len(*ws)-1]
	}
}

// Doubts returns the warnings for which answers of the directory may be wrong or lack something: a wrong clock. It asks no peer.
func (n *Node) Doubts() (ws []api.Warning) {
	n.warnOfClock(n.warner(&ws))
	return ws
}

// warnings are the states that someone should know about, with when they began where that is known.
func (n *Node) warnings() []api.Warning {
	ws := []api.Warning{}
	add := n.warner(&ws)
	if up := time.Since(n.started); n.peers.IsAlone() && up > 30*time.Second {
		add("W001", "no-peers", "low", "connect to a peer, or name one in mesh.bootstrap", "this node is alone").Next = interact.Next(interact.StepConnect)
	}
	if k := n.publisher.Pending(); k > 0 && time.Since(n.started) > 5*time.Second {
		add("W042", "announce-pending", "low", "they are announced as soon as a peer is there", "%d agents are known to nobody else yet", k)
	}
	if p2p.OnlyLoopback(n.host.Addrs(), n.host.Network().ListenAddresses()) {
		add("W005", "loopback-only", "medium", "see the interfaces of this machine and listen.no_announce, or name an address in listen.announce",
			"peers learn no address of this node but loopback: no other machine reaches it")
	}
	n.warnOfClock(add)
	if n.opts.HTTP.inTheClear() {
		add("W071", "token-in-the-clear", "low", clearHint, "%s", clearText)
	}
	if err := n.stores.Room(); err != nil {
		add("W020", "disk-low", "high", interact.AsError(err).Hint, "%s", err)
	}
	if n.stores.Hurt() {
		add("W021", "store-damaged", "high", storage.HurtHint, "the store is damaged: %s", n.stores.Path())
	}
	for folder, text := range storage.Notes(n.opts.Dir) {
		add("W021", "store-damaged", "low", "publish again what is named; delete the folder when it was seen: rm -r "+interact.Quote(folder), "%s", text)
	}
	if fill, lacks := n.dir.Fill(), n.dir.Lacks(); lacks {
		s := n.dir.Stats()
		add("W050", "directory-full", "medium", "raise directory.max_things, or refuse who publishes so much with trust.deny",
			"the directory is full: %d descriptions of others were not kept since the start; they are asked of the mesh when somebody wants them",
			s.Refused+s.Evicted)
	} else if fill >= nearlyFull {
		add("W051", "directory-nearly-full", "low", "raise directory.max_things",
			"the directory is %.0f%% full; beyond that, what is trusted, used and connected stays", 100*fill)
	}
	return ws
}

// nearlyFull is the part of the directory from which on someone should know.
const nearlyFull = 0.9

// Peers returns the connected nodes, by DID.
func (n *Node) Peers() []api.Peer { return n.peers.List() }

// newGateway opens the API.
func (n *Node) newGateway(h *HTTP) (*gateway.Gateway, error) {
	o := gateway.Options{Node: n, Listen: gateway.None, Socket: gateway.None, Metrics: n.metrics, Counters: n.counters, Log: n.log}
	if h != nil {
		token, err := apiToken(n.opts.Dir)
		if err != nil {
			return nil, err
		}
		o.Listen, o.Explicit, o.Socket = or(h.Listen, gateway.None), h.Explicit, or(h.Socket, gateway.None)
		o.Token, o.TokenFile, o.NoAuth = token, tokenPath(n.opts.Dir), h.NoAuth
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
	members := tdd.Affordances(strings.TrimSuffix(or(h.PublicURL, n.nearby(api)), "/"), change, true)
	members["securityDefinitions"] = map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}, "bearer_sc": map[string]any{"scheme": "bearer", "in": "header"}}
	if !onLoopback(h.Listen) && !h.OpenDirectory {
		members["security"] = []any{"bearer_sc"}
	}
	return members
}

// What is said of a token that others can read.
const (
	clearText = "the API listens beyond loopback over plain HTTP: who is on the way can read its token, and use it"
	clearHint = "let a proxy with TLS stand before it, and name it in http.public_url: https://…; or listen on 127.0.0.1 only"
)

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
