// Package configs loads the configuration of a node from defaults, profile, YAML file, environment and flags, in rising precedence.
//
// Every key is a field of [Config], and the comment of the field is its documentation: `lmosd config describe` and the
// help of `lmosd run` print it. A later layer wins over an earlier one: default, profile, file, conf.d/*.yaml,
// environment, flags. [Load] remembers where each value came from.
package configs

import (
	"time"
)

// APIVersion is the version of the configuration that this program reads.
const APIVersion = "lmosd/v1"

// A Config is the whole configuration of a node. [Default] and [Load] make one; it is plain data and safe to read from
// many goroutines.
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

	// places holds where each key that is not a default was set.
	places map[string]place
}

// Node says who the node is and where it keeps what it must not lose.
type Node struct {
	// A short name for people, shown in status. It has no meaning in the mesh, and nobody vouches for it. At most 64
	// characters.
	Name string `yaml:"name"`
	// The folder of the key, the store, the socket and the API token; made with mode 0700. Empty means
	// $XDG_DATA_HOME/lmosd, else ~/.local/share/lmosd. One process at a time may use it.
	DataDir string `yaml:"data_dir"`
	// Where the Ed25519 key of the node is: auto (identity.pem in the data folder, made at the first start) or
	// file:PATH (PKCS#8 in PEM, mode 0600). The key itself never stands here.
	Key string `yaml:"key"`
}

// Listen says where other nodes reach this one.
type Listen struct {
	// The multiaddrs that other nodes connect to. QUIC is the faster one, TCP passes where UDP is blocked. Port 0 takes a
	// free port at each start, so that others cannot remember the address.
	P2P []string `yaml:"p2p"`
	// The multiaddrs that are told to others in place of those listened on, for a node behind a port mapping. Empty
	// tells what is listened on.
	Announce []string `yaml:"announce"`
	// Multiaddrs, or prefixes of them, that are never told to others: an address that only this host can use.
	NoAnnounce []string `yaml:"no_announce"`
	// Whether private and loopback addresses are told to others. On is needed where the mesh lives in one network; off
	// keeps the inner addresses of a site from strangers, who could not use them anyway.
	Private bool `yaml:"private"`
}

// Mesh says which network the node joins, and how.
type Mesh struct {
	// The name of the network. It is part of every protocol id, so that nodes of two networks never meet. Lower case
	// letters, digits and hyphens, at most 32.
	Network string `yaml:"network"`
	// The multiaddrs, with /p2p/ and a peer id, of nodes to join through. One that answers is enough; more help when
	// some are down. Empty joins what mDNS finds and who connects to us.
	Bootstrap []string `yaml:"bootstrap"`
	// Whether nodes on the same local network are found by multicast DNS, and the things that others introduce there. On costs a
	// few packets a minute and tells the local network that the node is there.
	MDNS bool `yaml:"mdns"`
	// Where things outside of the mesh are found that this node shall know: a did:web, whose document names things and directories,
	// or the https URL of a Thing Description or of a directory's. They are looked at every ten minutes, and told to nobody else.
	Introductions []string `yaml:"introductions"`
	DHT           DHT      `yaml:"dht"`
	Limits        Limits   `yaml:"limits"`
}

// DHT sets the distributed hash table that keeps the records.
type DHT struct {
	// Whether the node keeps records for others: server does, client only asks, auto serves unless it is certain that
	// others cannot reach it.
	Mode string `yaml:"mode" values:"auto server client"`
	// How long a record that we publish stays without a refresh. Longer survives a longer absence of this node and
	// costs fewer writes; shorter forgets a dead node sooner. From 10m to 24h.
	TTL Duration `yaml:"ttl" min:"10m" max:"24h"`
}

// Limits keeps one peer, and all of them together, from exhausting the node.
type Limits struct {
	Peers Peers `yaml:"peers"`
	// The streams that one peer may have open here at once, each way. More lets a busy peer run more calls at a time;
	// fewer keeps a hostile one smaller. From 8 to 65536; above 256 only TCP can use them.
	StreamsPerPeer int `yaml:"streams_per_peer" min:"8" max:"65536"`
	// The memory that connections and streams may reserve. More serves more peers; less refuses them earlier. From
	// 32MiB.
	Memory Size `yaml:"memory" min:"32MiB"`
}

// Peers bounds the number of connections.
type Peers struct {
	// Connections are closed down to this number when there are more than high. Keep it above the size of the routing
	// table (about 90 in a network of 200), or the node dials the same peers again and again.
	Low int `yaml:"low" min:"1" max:"100000"`
	// Above this number of connections the least useful are closed. A higher one costs about 130 kB for each.
	High int `yaml:"high" min:"1" max:"100000"`
}

// DirectoryAuth sets the index of the things that the node knows.
type Directory struct {
	// The descriptions kept in memory and on disk. More finds more without asking the mesh and costs about 10 kB each. When there are
	// more, trusted, used and connected ones stay, the others have shares by owner and by the peer that brought them, and the rest is
	// found through the DHT. From 16.
	MaxThings int `yaml:"max_things" min:"16" max:"1000000"`
	// In a full directory, what untrusted peers bring from public IPv4 addresses with this many leading bits in common has one share;
	// 0 gives each peer its own. Private, shared (100.64.0.0/10), loopback and relayed addresses never count. To 32.
	IPv4Range int `yaml:"ipv4_range" min:"0" max:"32"`
	// The same of IPv6. To 128.
	IPv6Range int `yaml:"ipv6_range" min:"0" max:"128"`
	// Whether other nodes may search in all that this one knows, beside what it hosts: it announces the role of an index. Worth it
	// on a node that is always there, in a mesh of more than 10,000 things; it costs their questions.
	Index bool `yaml:"index"`
}

// Search sets how questions in words are understood. Without endpoints, words are compared, and nothing leaves the node.
type Search struct {
	// Which agent gets a task (lmosd route): lexical compares words, vector compares meanings, llm asks a language model, hybrid
	// asks it where meanings do not decide.
	Method     string   `yaml:"method" values:"lexical vector llm hybrid"`
	Embeddings Endpoint `yaml:"embeddings"`
	Model      Endpoint `yaml:"model"`
}

// Endpoint is a service that speaks the API of OpenAI: a hosted one, or a program on this machine.
type Endpoint struct {
	// The base of the API, for example http://127.0.0.1:11434/v1. It gets the texts of descriptions and questions. Empty asks
	// nobody.
	URL string `yaml:"url"`
	// The model, as the service calls it.
	Model string `yaml:"model"`
	// The file with the key for the service, mode 0600. Empty sends none.
	KeyFile string `yaml:"key_file"`
}

// Trust says who may ask this node and its agents.
type Trust struct {
	// Who is let in: open (everyone not in deny), verified (whoever proved a DID), allowlist (only those in allow).
	Policy string `yaml:"policy" values:"open verified allowlist"`
	// The DIDs let in by the policy allowlist.
	Allow []string `yaml:"allow"`
	// The DIDs that are refused whatever the policy is.
	Deny []string  `yaml:"deny"`
	Rate TrustRate `yaml:"rate"`
}

// TrustRate bounds how often one caller may ask.
type TrustRate struct {
	// The requests of one caller in the long run, without those that only read. A higher rate serves busy callers; a lower one protects
	// slow agents. Nodes that call faster get a wait time, and wait. The consumers behind a node share its rate, each with a part of
	// its own. 0/s sets no limit.
	PerPeer Rate `yaml:"per_peer"`
	// The same for requests that only read: of properties, and of the states of actions. 0/s sets no limit.
	Reads Rate `yaml:"reads"`
	// How many requests a caller may make at once before the rate holds. Higher forgives bursts. From 1.
	Burst int `yaml:"burst" min:"1" max:"1000000"`
	// The requests that one agent of this node gets in the long run, of all callers; each of trust.allow has a part of its own, and
	// all that are untrusted have one. A lower rate protects agents that cost money. 0/s sets no limit.
	PerThing Rate `yaml:"per_thing"`
}

// HTTP sets the local API.
type HTTP struct {
	// The address and port of the API: a literal address, not a name. The port 0 takes a free one. Empty serves the
	// socket only. An address that other hosts reach needs auth.
	Listen string `yaml:"listen"`
	// The unix socket that has all rights: auto (lmosd.sock in the data folder), none, or a path.
	Socket string `yaml:"socket"`
	// What a program must show to change the node over TCP: token (the content of api.token in the data folder, as a
	// Bearer token) or none.
	Auth string `yaml:"auth" values:"token none"`
	// The names, beside literal addresses, under which browsers and programs may address the API. A request with
	// another Host is refused, against DNS rebinding.
	Hosts []string `yaml:"hosts"`
	// Who on other hosts may read the directory, its lists, searches, events and TDs, where listen lets them reach it: token
	// (who has it) or open (everybody). An open directory is announced on the local network if mesh.mdns is on.
	DirectoryAuth string `yaml:"directory_auth" values:"token open"`
	// The URL under which consumers on other hosts reach the API, if a proxy stands before it: it goes into the forms of the
	// TDs that this node hands out. Empty takes what the consumer asked.
	PublicURL string `yaml:"public_url"`
}

// Interact sets how calls are made.
type Interact struct {
	// How long a call may take if the caller sets no time. Longer waits for slow agents; shorter frees places sooner.
	// From 100ms to 24h.
	Timeout Duration `yaml:"timeout" min:"100ms" max:"24h"`
	// The longest time of a call by a node that is untrusted: trust.allow does not list it, and no call of its succeeded before. Longer
	// lets it use slow agents, and hold their places. 0s sets no limit of its own.
	UntrustedDeadline Duration `yaml:"untrusted_deadline" min:"0s" max:"24h"`
	// The calls of other nodes that may run here at once, and again as many of this machine. More wait for their turn, 10 s at most, and
	// are refused with LMOS-1529. Untrusted callers have half of them. A higher number needs more memory. From 1.
	Concurrency int `yaml:"concurrency" min:"1" max:"1000000"`
	// The calls that one caller may have running here at once; more are refused with LMOS-1529. One consumer behind a node leaves a
	// quarter of them to the others. 0 sets no limit of its own.
	PerCaller int `yaml:"per_caller" min:"0" max:"1000000"`
	// The calls that one agent of this node may have running at once, of all callers. More wait for their turn until their deadline.
	// Untrusted callers have half of the places, one of them a sixteenth while others wait. A low number protects agents that do one
	// thing at a time. 0 sets no limit, and keeps no place for anybody.
	PerThing int `yaml:"per_thing" min:"0" max:"1000000"`
	// The subscriptions and observations that one caller may have here at once. Untrusted callers have at most 1,024 together, with the
	// known ones 2,048. 0 sets no limit.
	Subscriptions int `yaml:"subscriptions" min:"0" max:"1000000"`
	// Whether requests to the agents of this node, and what they answer, are checked against their descriptions. Off saves a
	// few microseconds a call, for nets whose agents trust each other.
	Validate bool `yaml:"validate"`
	// Whether agents of other nodes are also asked directly, over the addresses in their descriptions, where the mesh cannot
	// reach them: secure (only with TLS and only public addresses), any (also plain, and in private networks), off. With any,
	// webhooks may be in private networks, too.
	Direct string `yaml:"direct" values:"off secure any"`
	Tasks  Tasks  `yaml:"tasks"`
	// The file of the passwords and tokens for the agents that this node calls itself: auto (credentials.json in the
	// data folder) or a path. Mode 0600; its content never leaves the node.
	Credentials string `yaml:"credentials"`
}

// Tasks sets the long actions of the agents of this node, which go on when their caller leaves.
type Tasks struct {
	// How long such an action may run; then it is cancelled. From 1s to 720h.
	MaxDuration Duration `yaml:"max_duration" min:"1s" max:"720h"`
	// How long such an action of an untrusted caller may run, and a call of its with a request stream. 0s sets no limit of its own.
	UntrustedMaxDuration Duration `yaml:"untrusted_max_duration" min:"0s" max:"720h"`
	// How long its result is kept for whoever asks. Longer needs more memory. From 1s to 720h.
	Retention Duration `yaml:"retention" min:"1s" max:"720h"`
}

// MQTT sets the broker through which MQTT clients reach the things of the mesh.
type MQTT struct {
	// The address and port, for example 127.0.0.1:1883; empty runs no broker. Other hosts need the API's token as password.
	Listen string `yaml:"listen"`
}

// CoAP sets the endpoint through which CoAP clients reach the things of the mesh.
type CoAP struct {
	// The address and UDP port, for example 127.0.0.1:5683; empty runs none. It has no authentication, so it is on loopback.
	Listen string `yaml:"listen"`
}

// MCP sets what clients of the Model Context Protocol see.
type MCP struct {
	// The tools, resources and prompts that /mcp lists beside its four tools for the whole mesh: "weather" for all of an agent,
	// "weather/getWeather" for one. Models see these at once; all else they find by mesh_search. At most 256.
	Pin []string `yaml:"pin"`
}

// A2A sets how agents of the Agent2Agent protocol are imported.
type A2A struct {
	// How often the card of an imported agent is read again. Less finds changes sooner; a card that an agent does not live up to is
	// read again anyway.
	CardRefresh Duration `yaml:"card_refresh" min:"1s"`
	// The https origins, "https://keys.example", whose keys are believed to be those of whoever signed a card that names them. Those
	// at a card's own site are, too.
	KeyOrigins []string `yaml:"key_origins"`
}

// Telemetry says what the node tells about itself.
type Telemetry struct {
	Log Log `yaml:"log"`
	// Whether /metrics is served, in the Prometheus format. Nothing is sent anywhere.
	Metrics bool   `yaml:"metrics"`
	Traces  Traces `yaml:"traces"`
}

// Traces sets the spans of interactions (OpenTelemetry).
type Traces struct {
	// The URL of a collector that takes OTLP over HTTP, for example http://127.0.0.1:4318. Empty sends none.
	Endpoint string `yaml:"endpoint"`
	// How many of a hundred interactions that begin here are recorded. Those that come with a trace go by its own flag.
	Percent int `yaml:"percent" min:"0" max:"100"`
}

// Log sets what is written to standard error.
type Log struct {
	// The least severe level that is written. debug shows each step and slows the node down.
	Level string `yaml:"level" values:"debug info warn error"`
	// The form of a line: text for people, json for programs, auto takes text on a terminal.
	Format string `yaml:"format" values:"auto text json"`
}

// Storage sets the store.
type Storage struct {
	// The database under the data folder: pebble, leveldb (smaller in memory, slower), memory (nothing survives a
	// restart), auto takes pebble. Changing it starts with an empty store.
	Engine string `yaml:"engine" values:"auto pebble leveldb memory"`
}

// Default returns the configuration of a node that nobody configured: the profile default.
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
			Network: "lmos", Bootstrap: []string{}, MDNS: true, Introductions: []string{},
			DHT:    DHT{Mode: "auto", TTL: Duration(24 * time.Hour)},
			Limits: Limits{Peers: Peers{Low: 96, High: 128}, StreamsPerPeer: 200, Memory: 256 << 20},
		},
		Directory: Directory{MaxThings: 10_000, IPv4Range: 24, IPv6Range: 48},
		Search:    Search{Method: "lexical"},
		Trust:     Trust{Policy: "open", Allow: []string{}, Deny: []string{}, Rate: TrustRate{PerPeer: 100, Reads: 1000, Burst: 200}},
		HTTP:      HTTP{Listen: "127.0.0.1:4668", Socket: "auto", Auth: "token", Hosts: []string{}, DirectoryAuth: "token"},
		Interact: Interact{Timeout: Duration(30 * time.Second), UntrustedDeadline: Duration(2 * time.Minute), Concurrency: 256, PerCaller: 64, PerThing: 64, Subscriptions: 256, Credentials: "auto", Validate: true, Direct: "secure",
			Tasks: Tasks{MaxDuration: Duration(time.Hour), UntrustedMaxDuration: Duration(10 * time.Minute), Retention: Duration(10 * time.Minute)}},
		MCP:       MCP{Pin: []string{}},
		A2A:       A2A{CardRefresh: Duration(time.Minute), KeyOrigins: []string{}},
		Agents:    []string{},
		Telemetry: Telemetry{Log: Log{Level: "info", Format: "auto"}, Metrics: true, Traces: Traces{Percent: 100}},
		Storage:   Storage{Engine: "auto"},
	}
}
