package api

import "github.com/lmosd/lmosd/did"

// Path is one path to a Thing.
type Path struct {
	Name string  `json:"name"` // "mesh", or scheme and subprotocol: "https", "ws lmosprotocol"
	Href string  `json:"href,omitempty"`
	Down bool    `json:"down"`              // it failed recently
	Took float64 `json:"took_ms,omitempty"` // average; 0: unknown
}

// PathList is GET /v1/paths/{ref}: the paths to a Thing, best first.
type PathList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // PathList
	Ref        string `json:"ref"`  // as requested
	Items      []Path `json:"items"`
}

// Ping is POST /v1/ping/{ref}: the round-trip times to the host of a Thing.
type Ping struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // Ping
	Ref        string  `json:"ref"`  // exact
	Node       did.DID `json:"node"` // the host
	Path       string  `json:"path"` // "local", "mesh quic-v1", "mesh relay"
	// Relay is the node through which the host is reached; empty for a direct connection.
	Relay did.DID `json:"relay,omitempty"`
	// Upgrade is how long the host was reached through a relay before the direct connection; 0: it was not, or the relayed connection is closed.
	Upgrade float64   `json:"upgrade_ms,omitempty"`
	RTT     []float64 `json:"rtt_ms"`
}
