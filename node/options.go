package node

import (
	"cmp"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/audit"
	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/directory/route"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/gateway/oidc"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/internal/lazyregexp"
	"github.com/lmosd/lmosd/internal/storage"
	"github.com/lmosd/lmosd/internal/weblocation"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/telemetry"
)

// Options of a node. The zero value runs in memory, listens nowhere and serves no HTTP, as tests need it. Package configs makes the options of a
// daemon from its configuration.
type Options struct {
	// Key is the node's identity. If it is nil, OpenKey opens it after the data directory is locked; its error is returned as it is. Without
	// both, the key is in Dir/identity.pem, unencrypted; without a Dir it is temporary.
	Key     *keystore.Key
	OpenKey func() (*keystore.Key, error)
	// Dir is the data directory; empty keeps everything in memory. Only one process uses it at a time.
	Dir string
	// Engine is the storage engine; empty means pebble.
	Engine string
	free   func() (uint64, error) // of tests: free bytes on the disk; nil reads them
	// Name is the title of the node; empty means the name of the computer.
	Name             string
	Version, Profile string
	// Network is part of every protocol id: lower-case letters, digits and hyphens, at most 32. Empty means [DefaultNetwork].
	Network string
	// Listen are multiaddrs. If ListenExplicit, a busy port is an error; otherwise a free port is used.
	Listen         []string
	ListenExplicit bool
	// Announce replaces the addresses that peers learn; NoAnnounce removes those with a prefix.
	Announce, NoAnnounce []string
	// Bootstrap are the entries of mesh.bootstrap: see [p2p.CheckBootstrap].
	Bootstrap []string
	// MDNS finds nodes of the same network, and Things that other hosts introduce by DNS-SD, on the local network.
	MDNS bool
	// Introductions are did:webs and https URLs of TDs. The Things they lead to are not announced to other nodes.
	Introductions []string
	// Loopback permits connections to 127.0.0.1, for tests and testnets.
	Loopback bool
	// PublicOnly withholds private addresses from peers.
	PublicOnly bool
	// NoNoise leaves out the alternative to TLS over TCP, to save memory. GossipDegree is [pubsub.Options] Degree.
	NoNoise      bool
	GossipDegree int
	// Internet forbids connections to private addresses, and limits each dial to 5 s instead of 2 s.
	Internet bool
	NAT      p2p.NAT
	// Web and Filter are those of p2p.Options. With Web.Listen, HTTP.Listen is served on a TCP port of Listen.
	Web    p2p.Web
	Filter []string
	// DHTMode is "server", "client" or "auto"; empty means server. Diversity limits the peers of one subnet in the routing table.
	DHTMode   string
	Diversity bool
	// Lifetime is how long a record of this node is valid without a refresh, at most 24 h; 0 means 24 h.
	Lifetime time.Duration
	Limits   p2p.Limits
	// MaxThings is directory.Options.Max.
	MaxThings int
	// Ranges are the ranges of public addresses whose untrusted peers together have one share of the directory.
	Ranges p2p.Ranges
	// Index gives the node the role of an index: it answers the queries of others for what has no key in the DHT, from its whole directory.
	Index  bool
	Policy policy.Rules
	// Audit is the log of decisions and changes; node.New sets its signer. Without a folder nothing is recorded.
	Audit audit.Options
	// Timeout limits an interaction without a deadline. 0 means 30 s.
	Timeout time.Duration
	// NoValidation turns off the checks of requests to agents of this node, and of their replies, against their descriptions.
	NoValidation bool
	// Direct is servient.DirectOff, DirectSecure or DirectAny: whether agents of other nodes are called over the addresses in their
	// descriptions if the mesh does not reach them. Empty means DirectSecure.
	Direct string
	// Search configures the search in natural language.
	Search route.Search
	// Tasks limits the long-running actions of this node's agents.
	Tasks task.Options
	// MQTT and CoAP are the listen addresses, host:port, for clients of these protocols; empty opens none.
	MQTT, CoAP string
	// Telemetry exports spans to a collector, if it has an Endpoint.
	Telemetry telemetry.Options
	// Credentials is the file with the secrets for agents; empty means Dir/credentials.json.
	Credentials string
	// Bridges serve the mesh to clients of other protocols, if HTTP is served.
	Bridges []bridge.Bridge
	// HTTP serves the API; nil serves only [Node.Client].
	HTTP *HTTP
	OIDC []oidc.Provider // whose tokens HTTP and MQTT accept
	// Host is an existing libp2p host, for simulations. Its key is Key. The node closes it.
	Host host.Host
	// Transport replaces the transports of the host, for simulations (p2p.Options).
	Transport p2p.Transport
	Log       *slog.Logger
	Sites     weblocation.Options // of organizations and introductions; if it has a Dial, which refuses in a trial, probes of agents use it
	// Drain limits the time that running calls have to finish when the node stops. 0 is 8 s.
	Drain time.Duration

	probePause      time.Duration                           // publication.Options.ProbePause
	introducer      func(dnssd.Options) (introducer, error) // nil is dnssd.New
	now             func() time.Time                        // reconcile.Options.Now
	introducerPause time.Duration                           // explore.Options.Pause
	alone           time.Duration                           // p2p.BootstrapOptions.Alone
}

// HTTP configures the API.
type HTTP struct {
	// Listen is host:port; empty serves only the socket. If Explicit, a busy port is an error; otherwise a free port is used.
	Listen   string
	Explicit bool
	// Socket is the path of the administrator's unix socket; empty means none.
	Socket string
	// NoAuth lets every caller on this host change the node. It is refused beyond loopback.
	NoAuth bool
	// CertFile and KeyFile are a certificate and its key in PEM: with them Listen serves HTTPS only.
	CertFile, KeyFile string
	gateway.Operation // with Options.MDNS, an open directory is announced on the local network
	// Proxy is gateway.Options.Proxy.
	Proxy bool
}

// Storage engines.
const (
	EnginePebble = storage.Pebble
	EngineMemory = storage.Memory
)

// DefaultNetwork is the network of a node without [Options.Network].
const DefaultNetwork = "lmos"

// drainFor is the default of [Options.Drain].
const drainFor = 8 * time.Second

var networkName = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (o Options) withDefaults() (Options, error) {
	o.Network = cmp.Or(o.Network, DefaultNetwork)
	o.Profile = cmp.Or(o.Profile, "default")
	o.Version = cmp.Or(o.Version, "dev")
	o.Name = cmp.Or(o.Name, hostname())
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Lifetime = cmp.Or(o.Lifetime, 24*time.Hour)
	o.DHTMode = cmp.Or(o.DHTMode, "server")
	o.Direct = cmp.Or(o.Direct, servient.DirectSecure)
	o.Drain = cmp.Or(o.Drain, drainFor)
	o.Limits = o.Limits.WithDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Credentials == "" && o.Dir != "" {
		o.Credentials = filepath.Join(o.Dir, "credentials.json")
	}
	return o, o.check()
}

// check validates the options, before anything is opened. Package configs does so too, and adds the line of the file.
func (o *Options) check() error {
	switch {
	case !networkName().MatchString(o.Network):
		return interact.Errorf(interact.ConfigInvalid, "use lower-case letters, digits and hyphens, at most 32, for example acme",
			"invalid network name in mesh.network: %q", o.Network)
	case !slices.Contains([]string{"server", "client", "auto"}, o.DHTMode):
		return interact.Errorf(interact.ConfigInvalid, "server, client or auto", "unknown mesh.dht.mode %q", o.DHTMode)
	case !slices.Contains([]string{servient.DirectOff, servient.DirectSecure, servient.DirectAny}, o.Direct):
		return interact.Errorf(interact.ConfigInvalid, "off, secure or any", "unknown interact.direct %q", o.Direct)
	case o.Lifetime < time.Second || o.Lifetime > 24*time.Hour:
		return interact.Errorf(interact.ConfigInvalid, "omit it for the maximum of 24h",
			"expected mesh.dht.ttl between 1s and 24h, got %v", o.Lifetime)
	case !slices.Contains([]string{"", EnginePebble, EngineMemory}, o.Engine):
		return interact.Errorf(interact.ConfigInvalid, "pebble or memory", "unknown storage.engine %q", o.Engine)
	}
	return nil
}

// publicURL returns PublicURL, or "" without HTTP.
func (h *HTTP) publicURL() string {
	if h == nil {
		return ""
	}
	return h.PublicURL
}

// onLoopback reports whether only this host reaches a listener at addr.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return addr == "" || err == nil && ip != nil && ip.IsLoopback()
}

// hostname returns the default name of a node.
func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return h
}
