package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/did"
)

// A TopologyScope selects the part of the mesh in a [Topology].
type TopologyScope string

// The scopes.
const (
	TopologyMine         TopologyScope = "mine"         // the node with its connections
	TopologyOrganization TopologyScope = "organization" // the members of its organization, and the connections between them
	TopologyMesh         TopologyScope = "mesh"         // all nodes that it knows, and all connections that it and the other members report
)

// Topology is GET /v1/topology: nodes, and the connections between them.
type Topology struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"` // Topology
	At         time.Time        `json:"at"`
	Scope      TopologyScope    `json:"scope"`
	Nodes      []TopologyNode   `json:"nodes"` // sorted by DID
	Links      []TopologyLink   `json:"links"` // one for two nodes, sorted by From and To
	Coverage   TopologyCoverage `json:"coverage"`
}

// A TopologyNode is a node of a [Topology].
type TopologyNode struct {
	DID          did.DID  `json:"did"`
	Name         string   `json:"name,omitempty"`         // of this node, and of members of its organization as they report it
	Organization string   `json:"organization,omitempty"` // its verified organization, as this node calls it
	Roles        []string `json:"roles,omitempty"`        // index, relay
	Version      string   `json:"version,omitempty"`
	Agents       int      `json:"agents"`    // those at the node that the caller may see
	Reachable    bool     `json:"reachable"` // connected with this node or with one that reports it, or reached in the last two minutes
	Self         bool     `json:"self,omitempty"`
	// Source is how this node knows of it: self, connection, report (of a member), or record (of an agent, or its credential).
	Source string `json:"source"`
	// Seen is the last contact of this node; zero: unknown.
	Seen time.Time `json:"seen,omitzero"`
}

// The sources of a [TopologyNode].
const (
	SourceSelf       = "self"
	SourceConnection = "connection"
	SourceReport     = "report"
	SourceRecord     = "record"
)

// A TopologyLink is a connection between two nodes.
type TopologyLink struct {
	From      did.DID `json:"from"` // the node that reports it
	To        did.DID `json:"to"`
	Transport string  `json:"transport"`        // quic-v1, tcp, …
	Relay     did.DID `json:"relay,omitempty"`  // the node through which it is relayed; empty: it is direct
	RTT       float64 `json:"rtt_ms,omitempty"` // 0: not measured
	// Since is when it was opened, in whole seconds, by the clock of SeenBy.
	Since  time.Time `json:"since,omitzero"`
	SeenBy did.DID   `json:"seen_by"`
}

// A TopologyCoverage is how complete a [Topology] is.
type TopologyCoverage struct {
	Asked       int  `json:"asked"`       // members that were asked for their connections
	Answered    int  `json:"answered"`    // of those
	Unreachable int  `json:"unreachable"` // of those; others refused, or their answer is invalid
	Truncated   bool `json:"truncated"`   // there are more nodes, connections or members
}

// Topology returns the nodes and connections of a scope, at most limit of each; 0 is the default of the node.
func (c *Client) Topology(ctx context.Context, scope TopologyScope, limit int) (*Topology, error) {
	v := url.Values{"scope": {string(scope)}}
	if limit != 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
	return request[Topology](ctx, c, http.MethodGet, "/v1/topology?"+v.Encode(), "", nil)
}
