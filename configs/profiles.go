package configs

import "slices"

// A Profile is what a profile changes, for documentation.
type Profile struct {
	Name   string
	Keys   [][]string // each a key, then its values
	Traits Traits
}

// Profiles returns every profile, default first.
func Profiles() []Profile {
	var list []Profile
	for _, p := range profiles {
		list = append(list, Profile{p.name, p.keys, (&Config{Profile: p.name}).Traits()})
	}
	return list
}

// A profile is the difference of one kind of network to the default: keys as in a file, and traits.
type profile struct {
	name   string
	keys   [][]string // key, then its values
	traits func(*Traits)
}

// Traits are what a profile decides and no key does; [Config.Traits] returns them.
type Traits struct {
	// Diversity keeps the routing table from holding many peers of one IP group. It needs a network of many
	// operators: on one host, or in one network, it would leave three peers.
	Diversity bool
	// Relay lets the node be reached through relays, and AutoNAT asks peers which of its addresses they reach.
	Relay, AutoNAT bool
	// PortMap asks the router for a port mapping. That changes the router, so only the public profile does it.
	PortMap bool
	// ConnsPerIP is how many connections one IPv4 address or IPv6 /56 may hold, ConnRate how many it may open per second.
	ConnsPerIP int
	ConnRate   float64
	// GossipDegree is how many neighbours a topic's messages go to directly: D of gossipsub.
	GossipDegree int
	// Loopback lets the node dial 127.0.0.1; Internet keeps it from dialling private addresses and gives each dial 5 s in place
	// of 2 s.
	Loopback, Internet bool
	// NoNoise leaves out the security protocol that is the alternative to TLS over TCP.
	NoNoise bool
}

// defaultTraits raises the limits per IP, because those of the library (8 connections, 0.2 new ones a second) break a
// network behind one NAT at its ninth node.
var defaultTraits = Traits{ConnsPerIP: 64, ConnRate: 5, GossipDegree: 5, Loopback: true}

var profiles = []profile{
	{name: "default"},
	{name: "lan", keys: [][]string{
		{"mesh.dht.mode", "server"},
	}},
	{name: "federation", keys: [][]string{
		{"mesh.mdns", "false"},
		{"mesh.dht.mode", "server"},
	}, traits: func(t *Traits) {
		t.Relay, t.Loopback = true, false
	}},
	{name: "public", keys: [][]string{
		{"mesh.mdns", "false"},
		{"listen.private", "false"},
	}, traits: func(t *Traits) {
		t.Diversity, t.Relay, t.AutoNAT, t.PortMap, t.Internet, t.Loopback = true, true, true, true, true, false
		t.ConnsPerIP, t.ConnRate = 8, 0.2
	}},
	{name: "lean", keys: [][]string{
		{"mesh.dht.mode", "client"},
		{"mesh.limits.peers.low", "48"},
		{"mesh.limits.peers.high", "64"},
		{"mesh.limits.memory", "128MiB"},
		{"directory.max_things", "1000"},
		{"storage.engine", "leveldb"},
	}, traits: func(t *Traits) {
		t.GossipDegree, t.NoNoise = 4, true
	}},
	{name: "test", keys: [][]string{
		{"listen.p2p", "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0"},
		{"mesh.mdns", "false"},
		{"mesh.dht.mode", "server"},
		{"http.listen", "127.0.0.1:0"},
	}},
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

// Traits returns what the profile of c decides beyond its keys.
func (c *Config) Traits() Traits {
	t := defaultTraits
	if p, ok := findProfile(c.Profile); ok && p.traits != nil {
		p.traits(&t)
	}
	return t
}
