package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lmosd/lmosd/did"
)

// Kinds of [NodeEvent]. A filter also accepts the part before the dot, which means all kinds that begin with it.
const (
	EventPeerConnected    = "peer.connected"
	EventPeerDisconnected = "peer.disconnected"
	EventAgentAdded       = "agent.added"
	EventAgentChanged     = "agent.changed"
	EventAgentRemoved     = "agent.removed"
	EventAgentReachable   = "agent.reachable"
	EventAgentUnreachable = "agent.unreachable"
	EventTaskStarted      = "task.started"
	EventTaskChanged      = "task.changed"
	EventTaskEnded        = "task.ended"
	EventCallDone         = "call.done" // needs full rights
	EventWarningRaised    = "warning.raised"
	EventWarningCleared   = "warning.cleared"
	EventTrustChanged     = "trust.changed" // organization, partners, credentials, groups; needs full rights, as the next three
	EventTrustPolicy      = "trust.policy"  // access rules
	EventTrustToken       = "trust.token"   // access tokens
	EventTrustKey         = "trust.key"     // the key of the node
	EventRelayFound       = "relay.found"
	EventRelayLost        = "relay.lost"
	EventBootstrapReached = "bootstrap.reached" // an entry of mesh.bootstrap; needs full rights, as the next one
	EventBootstrapFailed  = "bootstrap.failed"
	EventEquivocation     = "equivocation"
	EventConfigReloaded   = "config.reloaded"
	// EventGap replaces events that the node does not have any more: read everything again. It has From and To, and no Seq.
	EventGap = "gap"
)

// A NodeEvent is one event of a node: GET /v1/events. Members that do not apply to its kind are absent.
type NodeEvent struct {
	// Seq orders the events of a node. It ascends, also over restarts, is a time in microseconds, and is at most 2^53.
	Seq  uint64    `json:"seq,omitempty"`
	At   time.Time `json:"at,omitzero"`
	Kind string    `json:"kind"`
	// DID is the peer, the relay, or the owner of the Thing. Name is the name of a peer, if the node knows it.
	DID did.DID `json:"did,omitempty"`
	// Thing is the exact reference of the Thing, and Name is its name; of bootstrap events Name is the entry.
	Thing string `json:"thing,omitempty"`
	Name  string `json:"name,omitempty"`
	// Code is the code of a warning or of the error of a call, or the state of a task.
	Code string `json:"code,omitempty"`
	Text string `json:"text,omitempty"`
	// ID is the id of the task or of the call.
	ID      string `json:"id,omitempty"`
	TraceID string `json:"trace_id,omitempty"`
	// From and To are the numbers of a gap: events after From, up to To, are missing. A gap with the Name "call" misses only calls.
	From uint64 `json:"from,omitempty"`
	To   uint64 `json:"to,omitempty"`
}

// EventList is GET /v1/events without a stream.
type EventList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`  // EventList
	Items      []NodeEvent `json:"items"` // oldest first
	// Latest is the number after which a stream continues without a gap.
	Latest uint64 `json:"latest"`
	// Next is the cursor of the following events; absent if the list has the last one.
	Next string `json:"next,omitempty"`
}

// An EventQuery selects events. The zero value selects the newest ones of all kinds that the caller may see.
type EventQuery struct {
	// Types are kinds or their first parts; empty means all.
	Types []string
	// Since is the number after which the list begins; 0 means the newest events.
	Since uint64
	// Limit limits the list; 0 means 1000, which is the most.
	Limit int
}

// Events returns events of the node. Those of calls and of trust need full rights; without Types they are left out for others.
func (c *Client) Events(ctx context.Context, q EventQuery) (*EventList, error) {
	v := eventValues(q.Types)
	if q.Since > 0 {
		v.Set("since", strconv.FormatUint(q.Since, 10))
	}
	setLimit(v, q.Limit)
	return get[EventList](ctx, c, "/v1/events?"+v.Encode())
}

func eventValues(types []string) url.Values {
	v := url.Values{}
	if len(types) > 0 {
		v.Set("types", strings.Join(types, ","))
	}
	return v
}

func setLimit(v url.Values, limit int) {
	if limit > 0 {
		v.Set("limit", strconv.Itoa(limit))
	}
}

// WatchEvents yields the events after the number since, or from now on if it is 0, until ctx or the loop ends. The client reconnects for up to
// 1 min and continues after the last event; a [EventGap] replaces events that the node does not have any more, such as after its restart.
func (c *Client) WatchEvents(ctx context.Context, types []string, since uint64) iter.Seq2[NodeEvent, error] {
	return func(yield func(NodeEvent, error) bool) {
		if since == 0 { // otherwise a connection that is lost before the first event misses those in between
			list, err := c.Events(ctx, EventQuery{Types: types, Limit: 1})
			if err != nil {
				yield(NodeEvent{}, err)
				return
			}
			since = list.Latest
		}
		for e, err := range c.watch(ctx, "/v1/events?"+eventValues(types).Encode(), strconv.FormatUint(since, 10)) {
			var event NodeEvent
			if err == nil {
				if err = json.Unmarshal(e.Data, &event); err != nil {
					err = c.notANode(err)
				}
			}
			if err != nil {
				yield(NodeEvent{}, err)
				return
			}
			if !yield(event, nil) {
				return
			}
		}
	}
}

// Series is GET /v1/series: samples of the load of a node.
type Series struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`   // Series
	Step       float64   `json:"step_s"` // between two samples, in seconds
	To         time.Time `json:"to"`     // of the last sample
	Items      Samples   `json:"items"`
}

// Samples are values of one length, oldest first. A nil value is unknown: the node did not run, or the caller may not know it.
type Samples struct {
	Calls  []*float64 `json:"calls"`  // interactions that ended, per second
	Errors []*float64 `json:"errors"` // those that failed, per second
	// P50 and P99 are percentiles of the durations of the interactions that ended, in milliseconds; nil without any.
	P50    []*float64 `json:"p50_ms"`
	P99    []*float64 `json:"p99_ms"`
	Peers  []*float64 `json:"peers"`
	Agents []*float64 `json:"agents"` // in the index, of all owners, that the caller may see
	RSS    []*float64 `json:"rss_bytes"`
}

// Series returns the samples of a window of at most 15 min; 0 means 15 min.
func (c *Client) Series(ctx context.Context, window time.Duration) (*Series, error) {
	v := url.Values{}
	if window > 0 {
		v.Set("window", window.String())
	}
	return get[Series](ctx, c, "/v1/series?"+v.Encode())
}

// States of a [Call].
const (
	CallRunning   = "running"
	CallCompleted = "completed"
	CallFailed    = "failed"
	CallCanceled  = "canceled" // by its consumer
)

// CallIDHeader is the header of the response to an interaction that names its [Call].
const CallIDHeader = "Lmos-Call-Id"

// A Call is an interaction of a consumer of the node with a Thing: GET /v1/calls/{id}. It has no payloads.
type Call struct {
	APIVersion string    `json:"apiVersion,omitempty"`
	Kind       string    `json:"kind,omitempty"` // Call; lists omit both
	ID         string    `json:"id"`
	At         time.Time `json:"at"` // of the request
	// Thing is the reference that the consumer used, and Name is the name of the Thing, if the node knows it.
	Thing string `json:"thing"`
	Name  string `json:"name,omitempty"`
	// Action is the affordance: an action, a property or an event; and Op is the operation of WoT.
	Action string `json:"action,omitempty"`
	Op     string `json:"op"`
	From   string `json:"from"` // the consumer
	// Via is the path to the Thing: "local", "mesh quic-v1", "https". It, Path and Host are absent if they were not measured.
	Via    string    `json:"via,omitempty"`
	Path   []did.DID `json:"path,omitempty"` // the nodes on it, this one first
	Host   did.DID   `json:"host,omitempty"` // the node that called the agent
	Status string    `json:"status"`
	Code   string    `json:"code,omitempty"` // of the error
	Parts  int       `json:"parts"`          // replies
	// First is the time until the first reply, and Took until the end, or until now for one that runs, in milliseconds.
	First float64 `json:"first_ms"`
	Took  float64 `json:"took_ms"`
	// Stages are absent if they were not measured: a call without a reply, and calls beyond 50 a second.
	Stages   *CallStages `json:"stages,omitempty"`
	BytesIn  int64       `json:"bytes_in"`  // of the request
	BytesOut int64       `json:"bytes_out"` // of the replies
	TraceID  string      `json:"trace_id,omitempty"`
}

// CallStages are the parts of the duration of a call, in milliseconds: finding the Thing, connecting to its host, the host with its agent, and
// the agent.
type CallStages struct {
	Resolve float64 `json:"resolve"`
	Dial    float64 `json:"dial"`
	Host    float64 `json:"host"`
	Agent   float64 `json:"agent"`
}

// CallList is GET /v1/calls.
type CallList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`  // CallList
	Items      []Call `json:"items"` // newest first
}

// A CallQuery selects calls. The zero value selects all.
type CallQuery struct {
	Code  string // of the error
	Thing string // reference or name
	Trace string // id of the trace
	Limit int    // 0 means 500, which is all
}

// Calls returns the last interactions of the consumers of the node, with those that run. It requires full rights, as CallRecord does.
func (c *Client) Calls(ctx context.Context, q CallQuery) (*CallList, error) {
	v := url.Values{}
	for name, value := range map[string]string{"code": q.Code, "thing": q.Thing, "trace": q.Trace} {
		if value != "" {
			v.Set(name, value)
		}
	}
	setLimit(v, q.Limit)
	return get[CallList](ctx, c, "/v1/calls?"+v.Encode())
}

// CallRecord returns an interaction by the id in the header [CallIDHeader] of its response ([CallResult.ID]).
func (c *Client) CallRecord(ctx context.Context, id string) (*Call, error) {
	return get[Call](ctx, c, "/v1/calls/"+url.PathEscape(id))
}
