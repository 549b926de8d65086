package configs

import (
	"time"

	"github.com/lmosd/lmosd/node"
)

// APIVersion is the version of the configuration that this program reads.
const APIVersion = "lmosd/v1"

// A Config is the whole configuration of a node. [Default] and [Load] return one; it is plain data, safe for concurrent reads.
type Config struct {
	// The version of this file's keys. Only lmosd/v1 is known.
	APIVersion string `yaml:"apiVersion" values:"lmosd/v1"`
	// A named set of differences to the defaults for one kind of network. Keys that are set anywhere win over it.
	Profile   string    `yaml:"profile" values:"default lan federation public lean test"`
	Node      Node      `yaml:"node"`
	Listen    Listen    `yaml:"listen"`
	Mesh      Mesh      `yaml:"mesh"`
	Directory Directory `yaml:"directory"`
	Search    Search    `yaml:"search"`
	Trust     Trust     `yaml:"trust"`
	HTTP      HTTP      `yaml:"http"`
	Interact  Interact  `yaml:"interact"`
	MQTT      MQTT      `yaml:"mqtt"`
	CoAP      CoAP      `yaml:"coap"`
	MCP       MCP       `yaml:"mcp"`
	A2A       A2A       `yaml:"a2a"`
	// Agents that the node runs itself, each as `lmosd expose` takes it: "exec:./weather.sh --name weather".
	Agents    []string  `yaml:"agents"`
	Telemetry Telemetry `yaml:"telemetry"`
	Storage   Storage   `yaml:"storage"`

	// places holds the origin of each key that is not a default.
	places map[string]place
	// credentials is the directory of systemd credentials; empty without one.
	credentials string
}

// Node sets the identity and the data directory of the node.
type Node struct {
	// A short name for display in status. It has no meaning in the mesh and is not verified. At most 64 characters.
	Name string `yaml:"name"`
	// The directory of the key, the store, the socket and the API token; created with mode 0700. Empty:
	// $XDG_DATA_HOME/lmosd, or ~/.local/share/lmosd. One process at a time may use it.
	DataDir string `yaml:"data_dir"`
	// The location of the Ed25519 key of the node: auto (the systemd credential lmosd-identity if the service has it, else identity.pem
	// in the data directory, created at the first start) or file:PATH (PKCS#8 in PEM, mode 0600, created if missing). The value never
	// contains the key itself.
	Key string `yaml:"key"`
	// The source of the passphrase of an encrypted key: prompt (on the terminal), fd:N (a line of the open file descriptor N) or
	// credential:NAME (a systemd credential). Empty: prompt if there is a terminal. The value never contains the passphrase itself.
	Passphrase string `yaml:"passphrase"`
}

// Listen sets the addresses at which other nodes reach this one.
type Listen struct {
	// The multiaddrs that other nodes connect to. QUIC is faster, TCP works where UDP is blocked, and WebSockets (/ws, or /tls/ws with
	// the certificate of http.tls) where only HTTP passes. TCP, WebSockets and http.listen may have one port. Port 0 selects a free
	// port at each start, so that other nodes cannot store the address.
	P2P []string `yaml:"p2p"`
	// Multiaddrs to announce instead of the listen addresses, for a node behind a port mapping. Empty: the listen addresses.
	Announce []string `yaml:"announce"`
	// Multiaddrs, or prefixes of them, that are never announced: addresses that only this host can use.
	NoAnnounce []string `yaml:"no_announce"`
	// Whether private and loopback addresses are announced. Keep it on if the mesh is inside one network. Off hides the internal
	// addresses of a site from other networks, which cannot use them.
	Private bool `yaml:"private"`
}

// Mesh sets the network that the node joins.
type Mesh struct {
	// The name of the network. It is part of every protocol id, so that nodes of two networks never connect. Lower case letters,
	// digits and hyphens, at most 32.
	Network string `yaml:"network"`
	// Multiaddrs, with /p2p/ and a peer id, of nodes to join through; /dnsaddr/ and a domain whose TXT records have them; or the did:web or
	// did:webvh of an organization whose document has them. One reachable node is enough; more help when some are down. Empty: only nodes
	// found by mDNS, and nodes that connect to this one.
	Bootstrap []string `yaml:"bootstrap"`
	// Address ranges, for example 10.8.0.0/16, whose addresses are neither announced nor dialed: networks that other nodes do not reach, or
	// that this node must not reach.
	Filter []string `yaml:"filter"`
	// Whether nodes and introductions of Things on the local network are found by multicast DNS. On costs a few packets a minute
	// and announces the node on the local network.
	MDNS bool `yaml:"mdns"`
	// Sources of Things outside of the mesh: a did:web, whose document lists Things and directories, or the https URL of a Thing
	// Description or a directory. They are read every ten minutes, and are not announced to other nodes.
	Introductions []string `yaml:"introductions"`
	// Whether nodes behind a router are reached through this one, if others can reach it: those of its organization and its partners, untrusted
	// ones where they may call, and in the profile public. It forwards encrypted connections: 30 minutes and 64 MiB each, for untrusted
	// nodes 2 minutes and 128 KiB, 16 GiB in 24 hours together.
	Relay bool `yaml:"relay"`
	// Which nodes get the list of the connections of this one, for their maps of the mesh: organization: members of its organization; mesh: every
	// node, for test networks; none. A map of connections helps attackers, too.
	Topology string `yaml:"topology" values:"organization mesh none"`
	DHT      DHT    `yaml:"dht"`
	Limits   Limits `yaml:"limits"`
}

// DHT sets the distributed hash table that stores the records.
type DHT struct {
	// Whether the node stores records for others: server does, client only queries, auto stores them unless other nodes cannot
	// reach this one.
	Mode string `yaml:"mode" values:"auto server client"`
	// How long a published record is valid without a refresh. A longer value tolerates longer downtime and needs fewer writes; a
	// shorter value removes dead nodes sooner. From 10m to 24h.
	TTL Duration `yaml:"ttl" min:"10m" max:"24h"`
}

// Limits keeps one peer, and all of them together, from exhausting the node.
type Limits struct {
	Peers Peers `yaml:"peers"`
	// The number of streams that one peer may have open here at once, in each direction. A higher value allows a busy peer more
	// concurrent calls; a lower one limits a hostile peer. From 8 to 65536; above 256 only TCP can use them.
	StreamsPerPeer int `yaml:"streams_per_peer" min:"8" max:"65536"`
	// The memory that connections and streams may reserve. A higher value serves more peers; a lower one refuses them earlier. From
	// 32MiB.
	Memory Size `yaml:"memory" min:"32MiB"`
}

// Peers bounds the number of connections.
type Peers struct {
	// When there are more connections than high, they are closed down to this number. Keep it above the size of the routing table
	// (about 90 in a network of 200), otherwise the node dials the same peers repeatedly.
	Low int `yaml:"low" min:"1" max:"100000"`
	// Above this number of connections, the least useful are closed. Each connection costs about 130 kB.
	High int `yaml:"high" min:"1" max:"100000"`
}

// Directory sets the index of descriptions.
type Directory struct {
	// The number of descriptions in memory and on disk. A higher value finds more without queries to the mesh and costs about 10 kB
	// per description. Above it, trusted, used and connected Things stay, the others have shares by owner and by forwarding peer,
	// and the rest is found through the DHT. From 16.
	MaxThings int `yaml:"max_things" min:"16" max:"1000000"`
	// In a full directory, descriptions from untrusted peers whose public IPv4 addresses have this many leading bits in common
	// share one part; 0 gives each peer its own. Private, shared (100.64.0.0/10), loopback and relayed addresses are never grouped.
	// At most 32.
	IPv4Range int `yaml:"ipv4_range" min:"0" max:"32"`
	// The same for IPv6. At most 128.
	IPv6Range int `yaml:"ipv6_range" min:"0" max:"128"`
	// Whether other nodes may search all descriptions of this node, not only its own: the node announces the role of an index.
	// Useful on a node that is always online, in a mesh of more than 10,000 Things; it costs the work of their queries.
	Index bool `yaml:"index"`
}

// Search sets how queries in natural language are matched. Without endpoints, words are compared, and the node sends no requests.
type Search struct {
	// How lmosd route selects an agent: lexical compares words, vector compares embeddings, llm uses a language model, hybrid uses
	// the model if embeddings do not decide.
	Method     string   `yaml:"method" values:"lexical vector llm hybrid"`
	Embeddings Endpoint `yaml:"embeddings"`
	Model      Endpoint `yaml:"model"`
}

// Endpoint is a service with the API of OpenAI: a hosted one, or a program on this machine.
type Endpoint struct {
	// The base URL of the API, for example http://127.0.0.1:11434/v1. It receives the texts of descriptions and queries. Empty: not
	// used.
	URL string `yaml:"url"`
	// The model, by its name at the service.
	Model string `yaml:"model"`
	// The file with the API key of the service, mode 0600. Empty: no key is sent.
	KeyFile string `yaml:"key_file"`
}

// Trust sets which callers may use this node and its agents.
type Trust struct {
	// What untrusted callers may do without a rule: open (find public agents and call them), find (find public agents), none (not
	// connect). Nodes of the own organization may always call, and access rules permit more or less.
	Untrusted string `yaml:"untrusted" values:"open find none"`
	// The nodes that may connect: anyone, partners (members of the own organization and of its partners), members (of the own
	// organization only, for a private network).
	Connect string `yaml:"connect" values:"anyone partners members"`
	// What members may do whose organization has no current status list, because its issuers are away for hours, or whose membership is
	// not confirmed since the start: deny (what untrusted callers may do) or read (also find agents and read properties). A member that
	// was revoked meanwhile may do that, too.
	Stale string `yaml:"stale" values:"deny read"`
	// The file of the access rules: auto (policy.yaml in the data directory, which may be absent) or a path. Policies in Cedar are in
	// the file with the ending .cedar beside it. A changed file is read again within seconds; if it has an error, the rules
	// before it stay in force.
	PolicyFile string     `yaml:"policy_file"`
	Rate       TrustRate  `yaml:"rate"`
	Audit      TrustAudit `yaml:"audit"`
}

// TrustAudit sets the log of decisions and of changes of trust, policy and tokens, in the folder audit of the data directory.
type TrustAudit struct {
	// Which decisions are recorded: off (none), denied (denied requests), restricted (also allowed requests to agents whose
	// descriptions are not public), all. Changes of trust, policy and tokens are always recorded. Inputs and outputs never are.
	Level string `yaml:"level" values:"off denied restricted all"`
	// The number of files of 64 MiB of each kind, of denied requests and of the others; the oldest are deleted. A higher number
	// keeps evidence for longer. From 1.
	Keep int `yaml:"keep" min:"1" max:"100000"`
	// A receiver of a copy of each line: syslog+udp://HOST:PORT, syslog+tcp://HOST:PORT or syslog+unix:///PATH (RFC 5424), or
	// json+tcp://HOST:PORT or json+unix:///PATH (one line of JSON each). There is no encryption: use a receiver on this host or in
	// a protected network. Empty: none.
	Forward string `yaml:"forward"`
}

// TrustRate limits the requests of one caller.
type TrustRate struct {
	// The sustained rate of requests of one caller, without reads. A higher rate serves busy callers; a lower one protects slow
	// agents. Nodes above the rate receive a wait time and wait. The consumers of a node share its rate, each with a part of its
	// own. 0/s: no limit.
	PerPeer Rate `yaml:"per_peer"`
	// The same for requests that only read: properties, and the states of actions. 0/s: no limit.
	Reads Rate `yaml:"reads"`
	// The number of requests that a caller may send at once before the rate applies. From 1.
	Burst int `yaml:"burst" min:"1" max:"1000000"`
	// The sustained rate of requests to one agent of this node, of all callers. Each node of the own organization and of partners has a part of its own;
	// all untrusted callers share one. A lower rate protects agents that cost money. 0/s: no limit.
	PerThing Rate `yaml:"per_thing"`
}

// HTTP sets the local API.
type HTTP struct {
	// The address and port of the API: a literal address, not a name. Port 0 selects a free one. Empty: only the socket. An address
	// that other hosts reach needs auth. With the address and port of a TCP address in listen.p2p, both use one port.
	Listen string `yaml:"listen"`
	// The Unix socket, which has all rights: auto (lmosd.sock in the data directory), none, or a path.
	Socket string `yaml:"socket"`
	// What a program must present to change the node over TCP: token (the content of api.token in the data directory, as a Bearer
	// token) or none.
	Auth string `yaml:"auth" values:"token none"`
	// The identity providers, at most 4, whose access tokens (JWTs, RFC 9068) programs may present instead of tokens of the node. Each has a
	// name, an issuer (an https URL) and an audience, which its tokens must have; scopes maps OAuth scopes to rights as of access tokens
	// ({"lmos.call": [call]}); claims maps values of claims to roles ({groups: {adjusters: [adjuster]}}). Optional: algorithms (RS256, ES256,
	// EdDSA and PS256), type (at+jwt requires tokens of that type) and ca (a file with the certificates that sign the provider's).
	OIDC Providers `yaml:"oidc"`
	// The names, in addition to literal addresses, that requests to the API may use as Host. Requests with any other Host are
	// refused, against DNS rebinding.
	Hosts []string `yaml:"hosts"`
	// The origins of web pages, for example https://app.example, that may use the API in a browser, in addition to pages of the
	// API itself. A page needs the token for the same requests as a program.
	Origins []string `yaml:"origins"`
	// Which clients on other hosts may read the directory, its lists, searches, events and TDs, if listen is reachable for them:
	// token (holders of the token) or open (all). An open directory is announced on the local network if mesh.mdns is on and there
	// is no certificate.
	DirectoryAuth string `yaml:"directory_auth" values:"token open"`
	// The URL under which consumers on other hosts reach the API, if there is a proxy or a certificate: it is used in the forms of
	// the TDs of this node. Empty: the address of the request.
	PublicURL string `yaml:"public_url"`
	// Whether the console, the page of the node for browsers, is served at /console/. Without a session a browser can only look.
	Console bool `yaml:"console"`
	TLS     TLS  `yaml:"tls"`
}

// TLS sets the encryption of the API over TCP.
type TLS struct {
	// How connections of other hosts are encrypted. auto: by cert and key, or by a proxy that http.public_url names with https://; without
	// them, plain HTTP beyond loopback is refused, except for a directory without tokens (http.directory_auth: open). proxy: a proxy, or a
	// network that only authorized hosts reach, protects plain HTTP; requests without a token have no rights of this machine, on loopback
	// either.
	Mode string `yaml:"mode" values:"auto proxy"`
	// The file with the certificate and its chain, in PEM. With it, the API over TCP is served over HTTPS only; the Unix socket
	// needs no certificate. A changed file is read again at the next full handshake; until both files can be read and fit together,
	// the last certificate stays in use.
	Cert string `yaml:"cert"`
	// The file with the private key of the certificate, in PEM. Its mode must give no rights to others.
	Key string `yaml:"key"`
}

// Interact sets how calls are made.
type Interact struct {
	// The timeout of a call if the caller sets none. A longer one waits for slow agents; a shorter one frees slots sooner. From
	// 100ms to 24h.
	Timeout Duration `yaml:"timeout" min:"100ms" max:"24h"`
	// The longest timeout of a call of an untrusted node: one that is of no partner and has made no successful call. A longer
	// one allows slow agents, and longer use of their slots. 0s: no limit of its own.
	UntrustedDeadline Duration `yaml:"untrusted_deadline" min:"0s" max:"24h"`
	// The number of calls of other nodes that may run at once, and the same number for this machine. Further calls wait for at most
	// 10 s and are then refused with LMOS-1529. Untrusted callers have half of them. A higher number needs more memory. From 1.
	Concurrency int `yaml:"concurrency" min:"1" max:"1000000"`
	// The number of calls that one caller may run at once; more are refused with LMOS-1529. One consumer of a node leaves a quarter
	// of them to the others. 0: no limit of its own.
	PerCaller int `yaml:"per_caller" min:"0" max:"1000000"`
	// The number of calls that one agent of this node may run at once, of all callers. Further calls wait until their deadline.
	// Untrusted callers have half of the slots, one of them a sixteenth while others wait. A low number protects agents that do one
	// thing at a time. 0: no limit, and no reserved slots.
	PerThing int `yaml:"per_thing" min:"0" max:"1000000"`
	// The number of subscriptions and observations of one caller. Untrusted callers have at most 1,024 together, with the known
	// ones 2,048. 0: 1,024.
	Subscriptions int `yaml:"subscriptions" min:"0" max:"1000000"`
	// Whether requests to the agents of this node, and their responses, are validated against the descriptions. Off saves a few
	// microseconds per call, for networks whose agents trust each other.
	Validate bool `yaml:"validate"`
	// Whether agents of other nodes are also called directly, at the addresses in their descriptions, if the mesh cannot reach
	// them: secure (only with TLS and only public addresses), any (also without TLS, and in private networks), off. With any,
	// webhooks may be in private networks as well.
	Direct string `yaml:"direct" values:"off secure any"`
	Tasks  Tasks  `yaml:"tasks"`
	// The file of the passwords and tokens for the agents that this node calls itself: auto (credentials.json in the data
	// directory) or a path. Mode 0600; its content never leaves the node.
	Credentials string `yaml:"credentials"`
}

// Tasks sets the long actions of the agents of this node, which continue when their caller disconnects.
type Tasks struct {
	// The longest duration of such an action; then it is cancelled. From 1s to 720h.
	MaxDuration Duration `yaml:"max_duration" min:"1s" max:"720h"`
	// The longest duration of such an action of an untrusted caller, and of its calls with a request stream. 0s: no limit of its
	// own.
	UntrustedMaxDuration Duration `yaml:"untrusted_max_duration" min:"0s" max:"720h"`
	// How long the result is stored. A longer time needs more memory. From 1s to 720h.
	Retention Duration `yaml:"retention" min:"1s" max:"720h"`
}

// MQTT sets the broker through which MQTT clients reach the things of the mesh.
type MQTT struct {
	// The address and port, for example 127.0.0.1:1883. Empty: no broker. Clients on other hosts use the token of the API as
	// password.
	Listen string `yaml:"listen"`
}

// CoAP sets the endpoint through which CoAP clients reach the things of the mesh.
type CoAP struct {
	// The address and UDP port, for example 127.0.0.1:5683. Empty: no endpoint. CoAP has no authentication here, so it must be on
	// loopback.
	Listen string `yaml:"listen"`
}

// MCP sets what clients of the Model Context Protocol see.
type MCP struct {
	// The tools, resources and prompts that /mcp lists in addition to its four tools for the mesh: "weather" for all of an agent,
	// "weather/getWeather" for one. Models see these at once, all others through mesh_search. At most 256.
	Pin []string `yaml:"pin"`
}

// A2A sets how agents of the Agent2Agent protocol are imported.
type A2A struct {
	// How often the card of an imported agent is read again. A shorter interval finds changes sooner; a card that does not match
	// the behavior of its agent is always read again.
	CardRefresh Duration `yaml:"card_refresh" min:"1s"`
	// The https origins, "https://keys.example", whose keys are accepted for the signature of a card that names them. Keys at the
	// site of the card are always accepted.
	KeyOrigins []string `yaml:"key_origins"`
}

// Telemetry sets logs, metrics and traces.
type Telemetry struct {
	Log Log `yaml:"log"`
	// Whether /metrics is served, in the Prometheus format. The node sends metrics nowhere.
	Metrics bool   `yaml:"metrics"`
	Traces  Traces `yaml:"traces"`
}

// Traces sets the spans of interactions (OpenTelemetry).
type Traces struct {
	// The URL of a collector for OTLP over HTTP, for example http://127.0.0.1:4318. Empty: no export.
	Endpoint string `yaml:"endpoint"`
	// The percentage of interactions that start here and are recorded. An interaction with a trace uses the flag of that trace.
	Percent int `yaml:"percent" min:"0" max:"100"`
}

// Log sets what is written to standard error.
type Log struct {
	// The least severe level that is logged. debug logs each step and slows the node down.
	Level string `yaml:"level" values:"debug info warn error"`
	// The form of a line: text, json, or auto, which is text on a terminal.
	Format string `yaml:"format" values:"auto text json"`
}

// Storage sets the store.
type Storage struct {
	// The database in the data directory: pebble, memory (no persistence), auto selects pebble.
	// After a change the store is empty.
	Engine string `yaml:"engine" values:"auto pebble memory"`
}

// Default returns the configuration without any source: the profile default.
func Default() *Config {
	return &Config{
		APIVersion: APIVersion,
		Profile:    "default",
		Node:       Node{Key: "auto"},
		Listen: Listen{
			P2P:      []string{"/ip4/0.0.0.0/udp/4667/quic-v1", "/ip4/0.0.0.0/tcp/4667"},
			Announce: []string{}, NoAnnounce: []string{}, Private: true,
		},
		Mesh: Mesh{
			Network: node.DefaultNetwork, Bootstrap: []string{}, Filter: []string{}, MDNS: true, Introductions: []string{}, Relay: true,
			Topology: "organization",
			DHT:      DHT{Mode: "auto", TTL: Duration(24 * time.Hour)},
			Limits:   Limits{Peers: Peers{Low: 96, High: 128}, StreamsPerPeer: 200, Memory: 256 << 20},
		},
		Directory: Directory{MaxThings: 10_000, IPv4Range: 24, IPv6Range: 48},
		Search:    Search{Method: "lexical"},
		Trust: Trust{Untrusted: "find", Connect: "anyone", Stale: "deny", PolicyFile: "auto", Rate: TrustRate{PerPeer: 100, Reads: 1000, Burst: 200},
			Audit: TrustAudit{Level: "denied", Keep: 10}},
		HTTP: HTTP{Listen: "127.0.0.1:4668", Socket: "auto", Auth: "token", OIDC: Providers{}, Hosts: []string{}, Origins: []string{}, DirectoryAuth: "token", Console: true, TLS: TLS{Mode: "auto"}},
		Interact: Interact{Timeout: Duration(30 * time.Second), UntrustedDeadline: Duration(2 * time.Minute), Concurrency: 256, PerCaller: 64, PerThing: 64, Subscriptions: 256, Credentials: "auto", Validate: true, Direct: "secure",
			Tasks: Tasks{MaxDuration: Duration(time.Hour), UntrustedMaxDuration: Duration(10 * time.Minute), Retention: Duration(10 * time.Minute)}},
		MCP:       MCP{Pin: []string{}},
		A2A:       A2A{CardRefresh: Duration(time.Minute), KeyOrigins: []string{}},
		Agents:    []string{},
		Telemetry: Telemetry{Log: Log{Level: "info", Format: "auto"}, Metrics: true, Traces: Traces{Percent: 100}},
		Storage:   Storage{Engine: "auto"},
	}
}
