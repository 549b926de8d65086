// Package api defines the types of the HTTP API and its Go client.
package api

import (
	"encoding/json"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

// APIVersion is the first member of every JSON document for programs.
const APIVersion = "lmosd/v1"

// Status is GET /v1/status.
type Status struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`  // Status
	State      string   `json:"state"` // starting, ready, degraded or draining
	DID        did.DID  `json:"did"`
	PeerID     string   `json:"peer_id"`
	Name       string   `json:"name,omitempty"`
	Version    string   `json:"version"`
	Uptime     float64  `json:"uptime_s"`
	Profile    string   `json:"profile"`
	Network    string   `json:"network"`
	DataDir    string   `json:"data_dir,omitempty"`
	Addrs      []string `json:"p2p"` // multiaddrs with /p2p
	API        string   `json:"api,omitempty"`
	Callers    string   `json:"callers,omitempty"` // peers that may call its agents: anyone, or permitted (by the organization and the access rules)
	Peers      struct {
		Total   int `json:"total"`
		Direct  int `json:"direct"`
		Relayed int `json:"relayed"`
	} `json:"peers"`
	// Reachability is public, local, private or unknown, as in GET /v1/net; Relays is the number of reservations at relays.
	Reachability string `json:"reachability,omitempty"`
	Relays       int    `json:"relays"`
	DHT          struct {
		Mode  string `json:"mode"`
		Table int    `json:"table"`
	} `json:"dht"`
	Gossip struct {
		Topics int `json:"topics"`
		Peers  int `json:"peers"`
	} `json:"gossip"`
	Agents struct {
		Local int `json:"local"`
		Known int `json:"known"`
		// Fill is the fraction of the directory that records of other nodes occupy.
		Fill float64 `json:"fill"`
	} `json:"agents"`
	Calls struct {
		Total  uint64  `json:"total"`
		Errors uint64  `json:"errors"`
		P50    float64 `json:"p50_ms"`
		P99    float64 `json:"p99_ms"`
		Queue  int     `json:"queue"`
	} `json:"calls"`
	// Equivocations are the latest, at most 16; GET /v1/agents/{ref} has the evidence.
	Equivocations []Equivocation `json:"equivocations,omitempty"`
	Warnings      []Warning      `json:"warnings"`
}

// Equivocation is two different records of one Thing with one sequence number, both signed by its owner.
type Equivocation struct {
	ID    string    `json:"id"`
	Owner did.DID   `json:"owner"`
	Seq   uint64    `json:"seq"`
	Seen  time.Time `json:"seen"`
	// Records are both, base64, the effective one first; in GET /v1/agents/{ref} only.
	Records [][]byte `json:"records,omitempty"`
}

// A Warning is a state of the node that requires attention.
type Warning struct {
	Code     string         `json:"code"` // LMOS-W…
	Title    string         `json:"title"`
	Severity string         `json:"severity"`
	Text     string         `json:"text"`
	Hint     string         `json:"hint,omitempty"`
	Next     interact.Steps `json:"next,omitempty"`
	Since    time.Time      `json:"since"`
}

// Peer is one connected node; PeerList is GET /v1/peers.
type Peer struct {
	DID       did.DID `json:"did"`
	Name      string  `json:"name,omitempty"` // of members of the organization, as they report it
	PeerID    string  `json:"peer_id"`
	Addr      string  `json:"addr"`
	Relay     did.DID `json:"relay,omitempty"` // the node through which the connection is relayed; empty: it is direct
	Transport string  `json:"transport"`       // quic-v1, tcp, …
	Direction string  `json:"direction"`       // inbound or outbound
	Agent     string  `json:"agent"`           // the peer's user agent
	RTT       float64 `json:"rtt_ms"`          // 0: not measured
	Since     float64 `json:"age_s"`

	Opened time.Time `json:"-"` // of the connection; only in the process of the node
}

// PeerList is GET /v1/peers.
type PeerList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // PeerList
	Items      []Peer `json:"items"`
}

// Agent is a Thing in a list.
type Agent struct {
	ID          string  `json:"id"`
	Ref         string  `json:"ref"` // exact: id and owner
	Name        string  `json:"name"`
	Title       string  `json:"title"`
	Description string  `json:"description,omitempty"`
	Type        string  `json:"type,omitempty"`    // the first @type, in lower case and without the prefix of LMOS: agent, tool, …
	Version     string  `json:"version,omitempty"` // version.instance of the TD
	Owner       did.DID `json:"owner"`
	// Organization is the organization of the owner; nil: none is known or claimed.
	Organization *OrganizationClaim `json:"organization,omitempty"`
	Hosts        []did.DID          `json:"hosts"`
	// Grant is set if the owner, who is no node, has granted the Thing to its hosts.
	Grant *Grant `json:"grant,omitempty"`
	// Protocol is how the agent is served: mcp, a2a, http, ws, mqtt, coap, or lmos if its host alone reaches it.
	Protocol     string    `json:"protocol,omitempty"`
	Capabilities []string  `json:"capabilities"`
	Actions      []string  `json:"actions"`
	Properties   []string  `json:"properties"`
	Local        bool      `json:"local"`
	State        State     `json:"state"`     // reachable, unknown, unreachable or refused
	LastSeen     time.Time `json:"last_seen"` // the last contact with a host; if there was none, the issue of its record
	// Resembles is the similar name of another Thing that is trusted more or known for longer (UTS #39).
	Resembles string `json:"resembles,omitempty"`
	// Equivocation is set if the owner has signed two records with one sequence number.
	Equivocation *Equivocation `json:"equivocation,omitempty"`
	Seen         time.Time     `json:"seen"` // the issue of the record; the column SEEN of `lmosd find` is LastSeen
	Expires      time.Time     `json:"expires"`
	Score        float64       `json:"score,omitempty"` // 0 to 1: the match with the query
	// ScoreFactors are the parts of the score, if requested (explain=true).
	ScoreFactors []ScoreFactor `json:"score_factors,omitempty"`
	// Choice is why the Thing has its place in the order of a call (order=call).
	Choice *Choice `json:"choice,omitempty"`
}

// A Choice is what the order of a call follows from, as measured by the node.
type Choice struct {
	Reason     string  `json:"reason"`
	Cost       float64 `json:"cost_ms"`    // the expected time of a call, with the running ones
	Running    int     `json:"running"`    // calls of the node that are not answered
	Repeatable bool    `json:"repeatable"` // the description marks the action as safe or idempotent
}

// A Trust selects Things by their owners.
type Trust string

// The trust in owners; each includes those before it.
const (
	TrustOwn     Trust = "own"     // Things of the node, and of verified members of its organization
	TrustPartner Trust = "partner" // and of verified members of partners
	TrustAny     Trust = "any"     // and all others
)

// LeftOut counts the Things that a search left out because of the trust in their owners, by the trust that includes them.
type LeftOut struct {
	Partner int `json:"partner,omitempty"`
	Any     int `json:"any,omitempty"`
}

// A State is the reachability of an agent.
type State string

// The states of an agent, as observed by the node.
const (
	StateReachable   State = "reachable"
	StateUnknown     State = "unknown"
	StateUnreachable State = "unreachable"
	StateRefused     State = "refused" // its hosts reject this node by policy, or this node rejects them
)

// A ScoreFactor is one part of a score.
type ScoreFactor struct {
	Signal string  `json:"signal"` // word, meaning, query, trust, reach, latency, freshness, or fallback
	Amount float64 `json:"amount"`
	Asked  string  `json:"asked,omitempty"` // the word of the query
	Found  string  `json:"found,omitempty"` // the word of the Thing; for trust and a fallback, the reason
	Field  string  `json:"field,omitempty"` // the field of that word
}

// AgentChange is one event of GET /v1/find. The name of the event is Change.
type AgentChange struct {
	Change string    `json:"change"` // known, ready, added, changed, removed, or overflow: search again
	Reason string    `json:"reason,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	Agent  *Agent    `json:"agent,omitempty"` // its current or last state
	// Coverage is only in the event ready, which ends the known agents.
	Coverage *td.Coverage `json:"coverage,omitempty"`
}

// AgentList is GET /v1/find and GET /v1/agents.
type AgentList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"` // AgentList
	Items      []Agent     `json:"items"`
	Coverage   td.Coverage `json:"coverage"`
	// Total is the number of matching Things on all pages; absent if unknown.
	Total *int `json:"total,omitempty"`
	// Next is the cursor of the next page (GET /v1/find?page=, GET /v1/agents?cursor=); absent on the last.
	Next string `json:"next,omitempty"`
	// Latest is the number of the last event before the list, for the events after it (GET /v1/events?since=); only in GET /v1/agents.
	Latest uint64 `json:"latest,omitempty"`
	// LeftOut is set if the order of a call left out Things of owners that are not trusted enough.
	LeftOut *LeftOut `json:"left_out,omitempty"`
	Took    float64  `json:"took_ms"`
	// Warnings are those of the node about results that may be wrong or incomplete.
	Warnings []Warning `json:"warnings,omitempty"`
}

// RouteRequest is the body of POST /v1/route: a task in natural language (lmos-classifier, ClassificationRequest).
type RouteRequest struct {
	Message string `json:"message"`
	History []Turn `json:"history,omitempty"` // earlier messages, oldest first
	Method  string `json:"method,omitempty"`  // empty: the default of the node
	// Among is a query that selects the candidates ([querytext.Parse]), or [AmongAll]; empty: all of type agent.
	Among string `json:"among,omitempty"`
}

// AmongAll includes tools.
const AmongAll = "all"

// RouteAnswer is POST /v1/route: the selected agent, or none, and the reason (lmos-classifier, ClassificationResult).
type RouteAnswer struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`       // Route
	Agent      *Candidate  `json:"agent"`      // nil: no match
	Candidates []Candidate `json:"candidates"` // best first, including the selected one; at most 8
	Method     string      `json:"method"`     // the deciding method
	// TieBreak is the criterion that selected the agent among those with equal matches; empty: no others.
	TieBreak string  `json:"tie_break,omitempty"`
	Reason   string  `json:"reason"` // never empty
	Took     float64 `json:"took_ms"`
}

// A Candidate is an agent that may fit a task.
type Candidate struct {
	ID           string                `json:"id"` // an exact reference
	Name         string                `json:"name"`
	Score        float64               `json:"score"` // 0 to 1: of its best example
	Capabilities []CandidateCapability `json:"capabilities"`
}

// A CandidateCapability is a capability that matched a task.
type CandidateCapability struct {
	ID          string   `json:"id"`
	Description string   `json:"description"`
	Examples    []string `json:"examples"`
}

// A Turn is one message of a conversation.
type Turn struct {
	Role    string `json:"role"` // USER or ASSISTANT, in any case
	Content string `json:"content"`
}

// AgentDetail is GET /v1/agents/{ref}: a Thing with the result of its verification.
type AgentDetail struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // Agent
	Agent      Agent  `json:"agent"`
	MovedFrom  string `json:"moved_from,omitempty"` // the requested reference, if it resolved to the successor
	// Namesakes are other Things of the requested name; this agent is of this node or of a trusted owner.
	Namesakes []string        `json:"namesakes,omitempty"`
	Signature Signature       `json:"signature"`
	TD        json.RawMessage `json:"td"`     // without insignificant space; GET /things/{id} has the signed bytes
	Record    []byte          `json:"record"` // the signed record, base64
	Warnings  []Warning       `json:"warnings,omitempty"`
}

// Signature is the verification result of a description.
type Signature struct {
	Verified bool      `json:"verified"`
	Method   string    `json:"method"` // the key's DID URL
	Suite    string    `json:"cryptosuite"`
	Created  time.Time `json:"created"`
	Seq      uint64    `json:"seq"`
	Hash     string    `json:"sha256"` // of the TD, hex
	Size     int       `json:"size"`
}

// Publication is the response of POST /v1/publish, DELETE /v1/agents/{ref} and POST /v1/move/{ref}, and of changes of /v1/hosting.
type Publication struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"` // Publication
	ID         string  `json:"id"`
	Ref        string  `json:"ref"`
	Name       string  `json:"name"`
	Owner      did.DID `json:"owner"`
	Seq        uint64  `json:"seq"`
	Withdrawn  bool    `json:"withdrawn,omitempty"`
	MovedTo    did.DID `json:"moved_to,omitempty"`   // the DID of the new owner
	Successor  string  `json:"successor,omitempty"`  // the exact reference at the new owner, if it is known
	Created    bool    `json:"created,omitempty"`    // the Thing was not published here before
	Capability string  `json:"capability,omitempty"` // the first one, for hints
	Action     string  `json:"action,omitempty"`     // the first one, for hints
	// Replicas of Wanted DHT servers store the record; GossipPeers received it. Pending: none yet, the announcement is retried.
	Replicas    int      `json:"replicas"`
	Wanted      int      `json:"wanted"`
	GossipPeers int      `json:"gossip_peers"`
	Pending     bool     `json:"pending"`
	RecordSize  int      `json:"record_bytes"`
	TDSize      int      `json:"td_bytes"`
	Took        float64  `json:"took_ms"`
	Callers     string   `json:"callers,omitempty"` // peers that may call it: anyone, or permitted (by the organization and the access rules)
	For         []string `json:"for,omitempty"`     // callers that may find and call it in addition to those
	// Visibility states who may receive the description; public ones have none.
	Visibility td.Visibility `json:"visibility,omitempty"`
	Warnings   []td.Issue    `json:"warnings,omitempty"`
	// CallerSecret is the secret that the agent receives with each request, in the header Lmos-Caller-Secret. Only the request that made it returns it.
	CallerSecret string `json:"caller_secret,omitempty"`
	// Hosted is set for a Thing of another owner; withdrawn then means that this node does not host it any longer.
	Hosted *Hosted `json:"hosted,omitempty"`
}

// Identity is GET /v1/id: the identity of the node.
type Identity struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"` // Identity
	DID        did.DID         `json:"did"`
	PeerID     string          `json:"peer_id"`
	Name       string          `json:"name,omitempty"`
	Document   json.RawMessage `json:"document"` // the DID document
}

// Version is GET /version: the program of the node.
type Version struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // Version
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"` // of the source, if the build recorded it
	Go         string `json:"go"`
	Platform   string `json:"platform"` // for example linux/amd64
}

// MoveRequest is the body of POST /v1/move/{ref}.
type MoveRequest struct {
	To string `json:"to"` // a DID, or the reference of the Thing at its new owner
}

// ConnectRequest is the body of POST /v1/peers.
type ConnectRequest struct {
	Addr string `json:"addr"` // a multiaddr with /p2p
}

// Milliseconds returns d in the unit of documents, with a precision of 1 µs.
func Milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}
