package api

import (
	"time"

	"github.com/lmosd/lmosd/did"
)

// Reachability of a node.
const (
	ReachablePublic  = "public"  // a public address is proven to work
	ReachableLocal   = "local"   // at private addresses, in a network that has no others
	ReachablePrivate = "private" // through relays only
	ReachableUnknown = "unknown" // no other network is in sight
)

// Kinds of NAT of one transport, by the addresses at which peers see the node.
const (
	NATNone        = "none"                 // an interface has the address that peers see
	NATIndependent = "endpoint-independent" // two peers see the same address: direct connections can be punched
	NATDependent   = "address-dependent"    // each peer sees another port: most connections stay relayed
	NATUnknown     = "unknown"              // too few peers have seen the node
)

// Sources of an address. All but SourceObserved prove it, too.
const (
	SourceInterface  = "interface"  // an interface of the machine has it
	SourceMapping    = "mapping"    // the router has mapped it (UPnP, NAT-PMP)
	SourceConfigured = "configured" // listen.announce
	SourceObserved   = "observed"   // peers see it
	// ProofInbound is a proof only: a connection came from an address that the node had not sent to.
	ProofInbound = "inbound"
)

// Results of AutoNAT for an address.
const (
	CheckedReachable   = "reachable"
	CheckedUnreachable = "unreachable"
)

// States of a port mapping.
const (
	MappingOff    = "off"    // the node does not ask the router
	MappingNone   = "none"   // no router has answered
	MappingMapped = "mapped" // the router has mapped a port
)

// Net is GET /v1/net: how others reach the node, and what it relays for them.
type Net struct {
	APIVersion   string    `json:"apiVersion"`
	Kind         string    `json:"kind"`         // Net
	Reachability string    `json:"reachability"` // public, local, private or unknown
	Since        time.Time `json:"since"`
	NAT          struct {
		UDP string `json:"udp"` // none, endpoint-independent, address-dependent or unknown
		TCP string `json:"tcp"`
	} `json:"nat"`
	Addrs       []NetAddr   `json:"addrs"` // direct ones
	PortMapping PortMapping `json:"port_mapping"`
	// Relays are the reservations of the node, and RelayFailures the relays that did not serve it, the newest first.
	Relays        []NetRelay     `json:"relays"`
	RelayFailures []RelayFailure `json:"relay_failures"`
	Serving       *Serving       `json:"serving,omitempty"` // nil: the node does not relay
	Punches       struct {
		PunchCounts
		Last []Punch `json:"last"` // at most 32, the newest first
	} `json:"punches"`
	Peers struct {
		Total   int `json:"total"`
		Direct  int `json:"direct"`
		Relayed int `json:"relayed"`
	} `json:"peers"`
	// Bootstrap are the entries of mesh.bootstrap, in their order; absent for callers that are not consumers of the node.
	Bootstrap []BootstrapState `json:"bootstrap,omitempty"`
}

// States of an entry of mesh.bootstrap.
const (
	BootstrapWaiting     = "waiting" // not dialed yet
	BootstrapReached     = "reached"
	BootstrapUnreachable = "unreachable"
	BootstrapRefused     = "refused" // the policy of the peer refuses the node
)

// BootstrapState is an entry of mesh.bootstrap, and what became of it.
type BootstrapState struct {
	Addr   string    `json:"addr"`          // as it is configured
	DID    did.DID   `json:"did,omitempty"` // of the peer; empty for a name
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Next   time.Time `json:"next,omitzero"` // of the next attempt; zero: none is due
}

// NetAddr is an address of the node, and what is known about it.
type NetAddr struct {
	Addr      string `json:"addr"`
	Source    string `json:"source"`            // interface, mapping, configured or observed
	Checked   string `json:"checked,omitempty"` // by AutoNAT: reachable or unreachable; empty: not checked
	Proof     string `json:"proof,omitempty"`   // interface, mapping, configured or inbound; empty: none
	Usable    bool   `json:"usable"`            // others can dial it: it is proven, and AutoNAT does not contradict
	Announced bool   `json:"announced"`
}

// PortMapping is what the router has done on request.
type PortMapping struct {
	State    string    `json:"state"` // off, none or mapped
	Mappings []Mapping `json:"mappings"`
}

// Mapping is a port of the router that leads to the node.
type Mapping struct {
	Local    string `json:"local"`
	External string `json:"external"`
}

// NetRelay is a reservation of the node.
type NetRelay struct {
	DID     did.DID   `json:"did"`
	Addr    string    `json:"addr"`   // of the node, through the relay
	RTT     float64   `json:"rtt_ms"` // 0: not measured
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
	Seconds float64   `json:"max_s"`     // of a connection; 0: no limit
	Bytes   uint64    `json:"max_bytes"` // of a connection, in each direction; 0: no limit
}

// RelayFailure is a relay that did not serve the node.
type RelayFailure struct {
	DID    did.DID   `json:"did"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until"` // it is not tried before
}

// Serving is what the node relays for others.
type Serving struct {
	Reservations []Reservation     `json:"reservations"`
	Circuits     []Circuit         `json:"circuits"` // the oldest first
	Bytes        int64             `json:"bytes"`    // since the start, in both directions
	Today        int64             `json:"bytes_today"`
	Limit        int64             `json:"limit_today"`
	Refused      map[string]uint64 `json:"refused"` // requests, by the status of the protocol
}

// Reservation is a node that is reached through this one.
type Reservation struct {
	DID   did.DID `json:"did"`
	Terms string  `json:"terms"` // short or long
}

// Circuit is a connection that the node relays.
type Circuit struct {
	From  did.DID   `json:"from"`
	To    did.DID   `json:"to"`
	Terms string    `json:"terms"`
	Since time.Time `json:"since"`
	Bytes int64     `json:"bytes"`
}

// Results of an attempt to get a direct connection from a relayed one.
const (
	PunchDirect = "direct" // a plain dial worked
	PunchWon    = "won"
	PunchFailed = "failed"
)

// PunchCounts count attempts of hole punching since the start.
type PunchCounts struct {
	Tried  uint64 `json:"tried"` // won and failed
	Won    uint64 `json:"won"`
	Failed uint64 `json:"failed"`
	Direct uint64 `json:"direct"` // a plain dial worked
}

// Punch is one attempt.
type Punch struct {
	DID    did.DID   `json:"did"`
	At     time.Time `json:"at"`
	Result string    `json:"result"` // won, failed or direct
	Took   float64   `json:"took_ms,omitempty"`
	Reason string    `json:"reason,omitempty"` // of a failure
}
