package node

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/did/keystore"
	"github.com/lmosd/lmosd/discovery/dnssd"
	"github.com/lmosd/lmosd/gateway"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/servient"
	"github.com/lmosd/lmosd/interact/task"
	"github.com/lmosd/lmosd/p2p"
	"github.com/lmosd/lmosd/policy"
	"github.com/lmosd/lmosd/telemetry"
)

// Options of a node. The zero value runs in memory, listens nowhere and serves no HTTP: what a test needs. Package configs
// makes the options of a daemon from its file.
type Options struct {
	// Key is the node's identity. Nil opens Dir/identity.pem, or makes a throw-away key without a Dir.
	Key *keystore.Key
	// Dir is the data directory; empty keeps everything in memory. One process holds it at a time.
	Dir string
	// Engine is the storage engine; empty means pebble.
	Engine string
	free   func() (uint64, error) // of tests: bytes left on the disk; nil asks it
	// Name is what people call the node; empty means the host's name.
	Name             string
	Version, Profile string
	// Network is part of every protocol id: lower-case letters, digits and hyphens, at most 32. Empty means [DefaultNetwork].
	Network string
	// Listen are multiaddrs. If ListenExplicit, a busy port is an error; else a free one is taken.
	Listen         []string
	ListenExplicit bool
	// Announce replaces the addresses that peers learn; NoAnnounce drops those with a prefix.
	Announce, NoAnnounce []string
	// Bootstrap are multiaddrs with /p2p of nodes to join.
	Bootstrap []string
	// MDNS finds nodes of the same network on the local network, and the things that others introduce there by DNS-SD.
	MDNS bool
	// Introductions are did:webs and https URLs of TDs. The Things they lead to are not announced to other nodes.
	Introductions []string
	// Loopback lets the node dial 127.0.0.1: tests and testnets.
	Loopback bool
	// PublicOnly withholds private addresses from peers.
	PublicOnly bool
	// NoNoise leaves out the alternative to TLS over TCP, to save memory. GossipDegree is [pubsub.Options] Degree.
	NoNoise      bool
	GossipDegree int
	// Internet keeps the node from dialling private addresses and gives each dial 5 s in place of 2 s.
	Internet bool
	NAT      p2p.NAT
	// DHTMode is "server", "client" or "auto"; empty means server. Diversity keeps the routing table from being one subnet.
	DHTMode   string
	Diversity bool
	// Lifetime is how long a record of this node is valid without a refresh, at most 24 h; 0 means that.
	Lifetime time.Duration
	Limits   p2p.Limits
	// MaxThings bounds the directory; 0 means its default.
	MaxThings int
	// Ranges are the ranges of public addresses whose untrusted peers have one share of the directory together.
	Ranges p2p.Ranges
	// Index gives the node the role of an index: others ask it for what has no key in the DHT, and it answers from all it knows.
	Index  bool
	Policy policy.Rules
	// Timeout ends an interaction without a deadline of its own. 0 means 30 s.
	Timeout time.Duration
	// NoValidation lets requests to agents of this node, and their replies, pass without a look at their descriptions.
	NoValidation bool
	// Direct says whether agents of other nodes are asked over the addresses in their descriptions, where the mesh does not
	// reach them: servient.DirectOff, DirectSecure or DirectAny; empty means DirectSecure.
	Direct string
	// Search says how questions in words are understood.
	Search Search
	// Tasks bounds the long actions of this node's agents.
	Tasks task.Options
	// MQTT and CoAP are the addresses, host:port, at which clients of these protocols ask; empty opens none.
	MQTT, CoAP string
	// Telemetry sends spans to a collector, if it has an Endpoint.
	Telemetry telemetry.Options
	// Credentials is the file with the secrets that agents ask for; empty means Dir/credentials.json.
	Credentials string
	// Bridges serve the mesh to clients of other protocols, where HTTP is served.
	Bridges []bridge.Bridge
	// HTTP serves the API; nil serves only [Node.Client].
	HTTP *HTTP
	// Metrics counts; nil makes its own. Nodes that share a process need one each.
	Metrics *gateway.Metrics
	// Host is a libp2p host to use instead of making one; simulations set it. Its key is Key. The node closes it.
	Host host.Host
	Log  *slog.Logger

	probePause      time.Duration                           // publication.Options.ProbePause
	introducer      func(dnssd.Options) (introducer, error) // nil is dnssd.New
	now             func() time.Time                        // reconcile.Options.Now
	introducerPause time.Duration                           // explore.Options.Pause
	drainFor        time.Duration                           // limits the wait for running calls when the node stops; 0 is drainFor
}

// HTTP says how the API is served.
type HTTP struct {
	// Listen is host:port; empty serves the socket only. If Explicit, a busy port is an error; else a free one is taken.
	Listen   string
	Explicit bool
	// Socket is the path of the administrator's unix socket; empty means none.
	Socket string
	// NoAuth lets everybody on this machine change the node. It is refused beyond loopback.
	NoAuth bool
	// HideMetrics serves no /metrics.
	HideMetrics bool
	// OpenDirectory lets hosts that reach Listen read the directory without the token. With Options.MDNS it is announced to them.
	OpenDirectory bool
	// Hosts are names besides loopback under which browsers may ask.
	Hosts []string
	// PublicURL is where consumers elsewhere reach the API; empty takes what they asked.
	PublicURL string
}

// DefaultNetwork is the network of a node without [Options.Network].
const DefaultNetwork = "lmos"

// drainFor is the default of Options.drainFor.
const drainFor = 8 * time.Second

var networkName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (o Options) withDefaults() (Options, error) {
	o.Network = or(o.Network, DefaultNetwork)
	o.Profile = or(o.Profile, "default")
	o.Version = or(o.Version, "dev")
	o.Name = or(o.Name, hostname())
	o.Timeout = or(o.Timeout, 30*time.Second)
	o.Lifetime = or(o.Lifetime, 24*time.Hour)
	o.DHTMode = or(o.DHTMode, "server")
	o.Direct = or(o.Direct, servient.DirectSecure)
	o.drainFor = or(o.drainFor, drainFor)
	o.Limits = o.Limits.WithDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Credentials == "" && o.Dir != "" {
		o.Credentials = filepath.Join(o.Dir, "credentials.json")
	}
	return o, o.check()
}

// check refuses what cannot work, before anything is opened. Package configs does so too, and knows the line of the file.
func (o *Options) check() error {
	switch {
	case !networkName.MatchString(o.Network):
		return interact.Errorf(interact.ConfigInvalid, "use lower-case letters, digits and hyphens, at most 32, for example acme",
			"mesh.network %q is no network name", o.Network)
	case !slices.Contains([]string{"server", "client", "auto"}, o.DHTMode):
		return interact.Errorf(interact.ConfigInvalid, "it is server, client or auto", "mesh.dht.mode %q is unknown", o.DHTMode)
	case !slices.Contains([]string{servient.DirectOff, servient.DirectSecure, servient.DirectAny}, o.Direct):
		return interact.Errorf(interact.ConfigInvalid, "it is off, secure or any", "interact.direct %q is unknown", o.Direct)
	case o.Lifetime < time.Second || o.Lifetime > 24*time.Hour:
		return interact.Errorf(interact.ConfigInvalid, "leave it out for 24h, which is the most",
			"mesh.dht.ttl %v is no life of a record", o.Lifetime)
	case !slices.Contains([]string{"", policy.Open, policy.Verified, policy.Allowlist}, o.Policy.Mode):
		return interact.Errorf(interact.ConfigInvalid, "it is open, verified or allowlist", "trust.policy %q is unknown", o.Policy.Mode)
	case !slices.Contains([]string{"", EnginePebble, EngineLevelDB, EngineMemory}, o.Engine):
		return interact.Errorf(interact.ConfigInvalid, "it is pebble, leveldb or memory", "storage.engine %q is unknown", o.Engine)
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

// inTheClear reports whether other hosts send the token of the API over plain HTTP.
func (h *HTTP) inTheClear() bool {
	return h != nil && h.Listen != "" && h.Listen != gateway.None && !h.NoAuth && !onLoopback(h.Listen) && !strings.HasPrefix(strings.ToLower(h.PublicURL), "https://")
}

// onLoopback reports whether only this host reaches a listener at addr.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return addr == "" || err == nil && ip != nil && ip.IsLoopback()
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// hostname is what a node without a name is called.
func hostname() string {
	h, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return h
}
