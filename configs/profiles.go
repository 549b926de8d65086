package configs

import "slices"

// A Profile is the difference of a profile to the defaults, for documentation.
type Profile struct {
	Name   string
	Keys   [][]string // a key, then its values
	Traits Traits
}

// Profiles returns all profiles, default first.
func Profiles() []Profile {
	var list []Profile
	for _, p := range profiles {
		list = append(list, Profile{p.name, p.keys, (&Config{Profile: p.name}).Traits()})
	}
	return list
}

// A profile is the difference of one kind of network to the defaults: keys, and traits.
type profile struct {
	name   string
	keys   [][]string // key, then its values
	traits func(*Traits)
}

// Traits are settings of a profile without a key; [Config.Traits] returns them.
type Traits struct {
	// Diversity limits the peers of one IP group in the routing table. It requires a network of many operators: on one host, or in one
	// network, it would leave three peers.
	Diversity bool
	// Relay lets the node be reached through relays. PrivateRelays permits relays with private addresses. AutoNAT lets peers check the public addresses
	// of the node, in private networks too: there it sends no request until peers see the node at a public address.
	Relay, PrivateRelays, AutoNAT bool
	// PortMap requests a port mapping from the router if mesh.bootstrap leads out of the local network; with Internet, always. A node of a local
	// network leaves the router as it is.
	PortMap bool
	// ConnsPerIP limits the connections of one IPv4 address or IPv6 /56, ConnRate its new connections per second.
	ConnsPerIP int
	ConnRate   float64
	// GossipDegree is the number of peers that receive messages of a topic directly: D of gossipsub.
	GossipDegree int
	// Loopback permits dialing 127.0.0.1; Internet forbids dialing private addresses and gives each dial 5 s instead of 2 s.
	Loopback, Internet bool
	// NoNoise omits the alternative security protocol to TLS over TCP.
	NoNoise bool
}

// defaultTraits raises the limits per IP, because those of the library (8 connections, 0.2 new ones per second) are too low for nine nodes
// behind one NAT.
var defaultTraits = Traits{ConnsPerIP: 64, ConnRate: 5, GossipDegree: 5, Loopback: true, Relay: true, AutoNAT: true, PortMap: true}

var profiles = []profile{
	{name: "default"},
	{name: "lan", keys: [][]string{
		{"mesh.dht.mode", "server"},
	}, traits: func(t *Traits) { t.PrivateRelays = true }},
	{name: "federation", keys: [][]string{
		{"mesh.mdns", "false"},
		{"mesh.dht.mode", "server"},
		{"trust.audit.level", "restricted"},
	}, traits: func(t *Traits) {
		t.PrivateRelays, t.PortMap, t.Loopback = true, false, false
	}},
	{name: "public", keys: [][]string{
		{"mesh.mdns", "false"},
		{"listen.private", "false"},
		{"trust.audit.level", "restricted"},
	}, traits: func(t *Traits) {
		t.Diversity, t.Internet, t.Loopback = true, true, false
		t.ConnsPerIP, t.ConnRate = 8, 0.2
	}},
	{name: "lean", keys: [][]string{
		{"mesh.dht.mode", "client"},
		{"mesh.limits.peers.low", "48"},
		{"mesh.limits.peers.high", "64"},
		{"mesh.limits.memory", "128MiB"},
		{"directory.max_things", "1000"},
		{"mesh.relay", "false"},
	}, traits: func(t *Traits) {
		t.GossipDegree, t.NoNoise, t.AutoNAT, t.PortMap = 4, true, false, false
	}},
	{name: "test", keys: [][]string{
		{"listen.p2p", "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"},
		{"mesh.mdns", "false"},
		{"mesh.dht.mode", "server"},
		{"http.listen", "127.0.0.1:0"},
		{"trust.untrusted", "open"},
		{"trust.audit.level", "off"},
		{"mesh.relay", "false"},
		{"mesh.topology", "mesh"},
	}, traits: func(t *Traits) { t.Relay, t.AutoNAT, t.PortMap = false, false, false }},
}

func findProfile(name string) (profile, bool) {
	i := slices.IndexFunc(profiles, func(p profile) bool { return p.name == name })
	if i < 0 {
		return profile{}, false
	}
	return profiles[i], true
}

// settings returns the keys of p as a layer.
func (p profile) settings() []setting {
	var list []setting
	for _, k := range p.keys {
		list = append(list, setting{k[0], k[1:], place{text: "profile " + p.name}})
	}
	return list
}

// Traits returns the traits of the profile of c.
func (c *Config) Traits() Traits {
	t := defaultTraits
	if p, ok := findProfile(c.Profile); ok && p.traits != nil {
		p.traits(&t)
	}
	return t
}
