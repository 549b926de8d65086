// Package nat runs nodes behind routers: processes of lmosd in network namespaces of Linux, routers made of nftables, and a [Cloud] as the
// internet between them.
//
// [Run] measures how nodes behind routers of each kind reach each other. It changes nothing outside of the namespaces that it makes. It needs
// root, or a user namespace, the programs ip and nft, and /dev/net/tun; [Missing] reports what is absent.
package nat

import (
	"slices"
	"strings"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// A Kind is a kind of router, by its mapping and its filtering of UDP (RFC 4787 §4.1, §5) and of TCP.
type Kind string

// The kinds of routers.
const (
	FullCone          Kind = "full-cone"          // endpoint-independent mapping and filtering
	AddressRestricted Kind = "address-restricted" // endpoint-independent mapping, address-dependent filtering
	PortRestricted    Kind = "port-restricted"    // endpoint-independent mapping, address and port-dependent filtering
	Symmetric         Kind = "symmetric"          // address and port-dependent mapping and filtering
	UDPBlocked        Kind = "udp-blocked"        // port-restricted, without UDP
	Only443           Kind = "only-443"           // port-restricted, with connections to TCP port 443 only
)

// Kinds are the kinds of the matrix.
var Kinds = []Kind{FullCone, AddressRestricted, PortRestricted, Symmetric}

// A Transport is that of the connections between nodes.
type Transport string

// The transports of the matrix.
const (
	QUIC Transport = "quic"
	TCP  Transport = "tcp"
)

// A Pair is a node that calls and one that is called.
type Pair struct {
	Caller    Kind      `json:"caller"`
	Called    Kind      `json:"called"`
	Transport Transport `json:"transport"`
}

// Matrix returns all pairs of [Kinds] over the transports.
func Matrix(over ...Transport) []Pair {
	var all []Pair
	for _, t := range over {
		for _, called := range Kinds {
			for _, caller := range Kinds {
				all = append(all, Pair{Caller: caller, Called: called, Transport: t})
			}
		}
	}
	return all
}

// Nothing is the text for no pairs.
const Nothing = "none"

// ParsePair returns the pairs of a text: caller/called over both transports, caller/called/transport, or none.
func ParsePair(text string) ([]Pair, error) {
	if text == Nothing {
		return nil, nil
	}
	caller, rest, _ := strings.Cut(text, "/")
	called, over, one := strings.Cut(rest, "/")
	var pairs []Pair
	for _, p := range Matrix(QUIC, TCP) {
		if p.Caller == Kind(caller) && p.Called == Kind(called) && (!one || p.Transport == Transport(over)) {
			pairs = append(pairs, p)
		}
	}
	if len(pairs) == 0 {
		return nil, interact.Errorf(interact.Usage, "use none, or for example symmetric/full-cone or port-restricted/address-restricted/tcp", "unknown pair %q", text)
	}
	return pairs, nil
}

// A Path is how two nodes are connected.
type Path string

// The paths.
const (
	Direct  Path = "direct"  // the first answer came on a direct connection
	Punched Path = "punched" // the first answer came through a relay, later ones on a direct connection
	Relayed Path = "relayed"
	None    Path = "none" // no answer
)

// A Result is a row of the matrix.
type Result struct {
	Pair
	Path Path `json:"path"`
	// Before is how the two were connected before the call, which then opens no connection; empty if they were not.
	Before Path `json:"before,omitempty"`
	// First is the time from the call to its answer, in milliseconds; Direct until there was a direct connection, 0 if there was none.
	First  float64 `json:"first_ms"`
	Direct float64 `json:"direct_ms,omitempty"`
	// Reserved is the time from the start of the called node, with a new key, until it had joined the organization and had two relays, in milliseconds.
	Reserved float64 `json:"reserved_ms"`
	// Unary, Stream and Events report whether a call, a stream of 1 MB and a subscription succeeded.
	Unary  bool   `json:"unary"`
	Stream bool   `json:"stream"`
	Events bool   `json:"events"`
	Err    string `json:"error,omitempty"`
}

// A Step is a row of a scenario: what was done, and what was measured.
type Step struct {
	Scenario string  `json:"scenario"`
	What     string  `json:"what"`
	OK       bool    `json:"ok"`
	Took     float64 `json:"took_ms"`
	Path     Path    `json:"path,omitempty"`
	// Calls is the number of calls until one succeeded; 0 if the step is none. Err is the error of the last one that failed.
	Calls int    `json:"calls,omitempty"`
	Err   string `json:"error,omitempty"`
}

// A Report is the result of [Run].
type Report struct {
	Seed    int64    `json:"seed"`
	Delay   float64  `json:"delay_ms"` // one way, between two public addresses
	Routers int      `json:"routers"`  // number of verified ones
	Pairs   []Result `json:"pairs"`
	Steps   []Step   `json:"scenarios"`
}

// OK reports whether each pair answered all three kinds of interaction and each step of the scenarios passed.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Pairs, func(p Result) bool { return !p.Unary || !p.Stream || !p.Events }) &&
		!slices.ContainsFunc(r.Steps, func(s Step) bool { return !s.OK })
}

// Scenarios are the names of all scenarios.
var Scenarios = []string{"relay-killed", "udp-blocked", "router-reboots", "private-outside", "double-nat", "only-443", "node-killed", "node-moves", "partition", "ipv6-ipv4"}

// Options are the settings of [Run]. Binary is the lmosd program, Dir a folder for keys, stores and logs; both are required.
type Options struct {
	Binary, Dir string
	Pairs       []Pair
	Scenarios   []string // of the variable of this name
	// Delay is the one-way delay between two public addresses; 0 means 10 ms.
	Delay time.Duration
	Seed  int64 // 0 means 1
	// Jobs is the number of pairs at once; 0 means 1. Times are those of a loaded machine if there are several.
	Jobs int
	// Punch limits the wait for a direct connection; 0 means 20 s.
	Punch time.Duration
	// OnResult and OnStep receive each row when it is there; nil ignores them.
	OnResult func(Result)
	OnStep   func(Step)
}

// missing is an error of a machine on which [Run] is not possible.
func missing(what, hint string) error {
	return interact.Errorf(interact.Internal, hint, "lmosd testnet nat cannot run here: %s", what)
}
