package node

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	libp2p "github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multistream"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/mcp"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/did/didtest"
	"github.com/lmosd/lmosd/internal/testhost"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy/access"
	"github.com/lmosd/lmosd/trust"
)

// everything returns the options of a node with all its features.
func everything(t *testing.T) Options {
	o := quiet()
	o.Dir, o.Engine, o.Index, o.MQTT, o.CoAP = t.TempDir(), EngineMemory, true, "127.0.0.1:0", "127.0.0.1:0"
	o.NAT = p2p.NAT{Relay: true, Serve: true, PrivateRelays: true, AutoNAT: true}
	o.HTTP = &HTTP{Listen: "127.0.0.1:0", NoAuth: true}
	o.Bridges = []bridge.Bridge{mcp.New(mcp.Options{}), a2a.New(a2a.Options{})}
	return o
}

// oldProtocols are ids of former versions, which let in peers of all networks.
var oldProtocols = []protocol.ID{"/lmos/interact/1", "/lmos/sync/1", "/lmos/gone/1", "/lmos/suspicion/1", "/lmos/records/1", "/lmos/kad/1.0.0"}

var unsupported = multistream.ErrNotSupported[protocol.ID]{}

// No stream handler of a node with all its features escapes the gate: each protocol that its host serves is refused to a peer that a rule
// denies, that is barred, and that is not a member where members only may connect. Old protocols have no handler.
func TestNoStreamHandlerEscapesTheGate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*did.Principal){
		"barred":       func(p *did.Principal) { p.Barred = "revoked" },
		"not a member": func(p *did.Principal) {},
		"denied by one": func(p *did.Principal) {
			p.Relation, p.Org, p.Roles = did.Own, "did:web:acme.example", []string{"intern"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := didtest.NewKey()
			standing := func(change func(*did.Principal)) *did.Principal {
				p := did.NodePrincipal(key.DID(), "")
				change(p)
				return p
			}
			var now atomic.Pointer[did.Principal]
			member := standing(func(p *did.Principal) { p.Relation = did.Own })
			now.Store(member)
			o := everything(t)
			o.Policy = withRules("", access.Rule{Deny: []string{"intern"}, To: []string{"connect"}})
			o.Policy.Connect = access.ConnectMembers
			o.Policy.Principal = func(id did.DID) *did.Principal {
				if id == key.DID() {
					return now.Load()
				}
				return did.NodePrincipal(id, "")
			}
			o.Policy.Organization = func(string) (did.DID, bool) { return "did:web:acme.example", true }
			n := start(t, o)
			caller := testhost.Listen(t, key, "/ip4/127.0.0.1/tcp/0")
			hello, err := trust.New(trust.Options{Dir: t.TempDir(), Self: key.DID(), Network: o.Network})
			if err != nil {
				t.Fatal(err)
			}
			hello.Start(caller, func() []string { return nil })
			t.Cleanup(func() { _ = hello.Close() })
			// opens opens a stream on a connection that is older than the loss of the right. The connection may end with its hello.
			opens := func(id protocol.ID, as *did.Principal) (err error) {
				t.Helper()
				until(t, "a connection", func() bool {
					now.Store(member)
					if err := caller.Connect(t.Context(), peer.AddrInfo{ID: n.network.ID(), Addrs: n.network.Addrs()}); err != nil {
						return false
					}
					now.Store(as)
					err = testhost.OpenStream(t, caller, n.network.ID(), id)
					reset, isReset := errors.AsType[*libp2p.StreamError](err)
					return err == nil || isReset && reset.Remote || errors.Is(err, unsupported)
				})
				return err
			}
			ids, free := n.network.Mux().Protocols(), p2p.Free("test")
			for _, part := range []string{"/trust/", "/interact/", "/sync/", "/suspicion/", "/records/", "/kad/", "meshsub", "autonat", "/hop", "/stop", "ping"} {
				if !slices.ContainsFunc(ids, func(id protocol.ID) bool { return strings.Contains(string(id), part) }) {
					t.Errorf("the node serves nothing with %s: %s", part, ids)
				}
			}
			if err := opens("/lmos/test/interact/1", member); testhost.IsGated(err) {
				t.Error("a member is refused")
			}
			denied := standing(change)
			for _, id := range ids {
				err := opens(id, denied)
				if isFree := slices.Contains(free, id); testhost.IsGated(err) == isFree {
					t.Errorf("%s: %v, free: %v", id, err, isFree)
				}
			}
			for _, id := range oldProtocols {
				if err := opens(id, denied); !errors.Is(err, unsupported) {
					t.Errorf("%s is served: %v", id, err)
				}
			}
		})
	}
}
