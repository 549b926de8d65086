package api

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// Origins of a [ConfigItem].
const (
	OriginDefault = "default"
	OriginFile    = "file"
	OriginEnv     = "env"
	OriginFlag    = "flag"
	OriginProfile = "profile"
)

// Config is GET /v1/config: the configuration of the running node.
type Config struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`  // Config
	Items      []ConfigItem `json:"items"` // every key, in the order of the file
}

// ConfigItem is one key. Secrets are left out of its value.
type ConfigItem struct {
	Key    string `json:"key"`             // "http.listen"
	Value  any    `json:"value"`           // a string, bool, number or list; durations, sizes and rates as in the file
	Origin string `json:"origin"`          // one of the Origin constants
	Where  string `json:"where,omitempty"` // FILE:LINE, the variable, the flag, or the profile
	// Reloadable is whether a running node applies a change of the key; others need a restart. Waiting is the value that a restart would apply, if it
	// is another one.
	Reloadable bool `json:"reloadable,omitempty"`
	Waiting    any  `json:"waiting,omitempty"`
}

// ConfigReload is POST /v1/config/reload: the configuration was read again, and its changes are in force as far as the node can apply them while
// it runs.
type ConfigReload struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`           // ConfigReload
	File       string `json:"file,omitempty"` // that was read; empty: there is none
	// Applied are the changed keys that are in force, and Restart those that wait for a restart, in the order of the file.
	Applied []string        `json:"applied"`
	Restart []string        `json:"restart"`
	Agents  []ReloadedAgent `json:"agents"`
	Took    float64         `json:"took_ms"`
}

// ReloadedAgent is a line of the key agents that was added, changed or removed.
type ReloadedAgent struct {
	Name  string `json:"name"`  // of the agent; its command without arguments if it did not start
	State string `json:"state"` // started, stopped, failed or kept
	Error string `json:"error,omitempty"`
}

// States of a [ReloadedAgent].
const (
	AgentStarted = "started"
	AgentStopped = "stopped"
	AgentFailed  = "failed"
	AgentKept    = "kept" // the agent of a changed line did not start, with Error: the one before continues
)

// LogList is GET /v1/logs: the newest records, the oldest first.
type LogList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"` // LogList
	Items      []LogRecord `json:"items"`
	// Latest is the number of the newest record of the node, whether it is in Items or not.
	Latest uint64 `json:"latest"`
	// Next is the cursor of the page with older records; empty: there are none.
	Next string `json:"next,omitempty"`
	LogLevels
}

// LogRecord is one record of the log of a node.
type LogRecord struct {
	Seq    uint64    `json:"seq"` // grows, also from one run of the node to the next
	At     time.Time `json:"at"`
	Level  string    `json:"level"` // debug, info, warn or error; with an offset such as "info+2" for levels in between
	Logger string    `json:"logger"`
	Text   string    `json:"text"`
	// Fields are strings, numbers and bools.
	Fields map[string]any `json:"fields,omitempty"`
}

// LogGap stands for records that the node does not keep any longer, in a stream of GET /v1/logs: the event gap.
type LogGap struct {
	Kind string `json:"kind"` // gap
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// LogLevels are the levels of the loggers of a node, and those that have logged.
type LogLevels struct {
	// Levels has the levels by logger; "*" has that of all others. The level of a logger is also that of those below its path.
	Levels map[string]string `json:"levels"`
	// Loggers are those that have logged since the start, sorted.
	Loggers []string `json:"loggers"`
}

// LogLevelsDocument is the response of PUT and DELETE /v1/logs/{logger}.
type LogLevelsDocument struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // LogLevels
	LogLevels
}

// LogLevelRequest is the body of PUT /v1/logs/{logger}.
type LogLevelRequest struct {
	Level string `json:"level"` // debug, info, warn or error
}

// The states of a [DoctorCheck].
const (
	CheckPass = "pass"
	CheckSkip = "skip" // another check failed on which it depends
	CheckWarn = "warn"
	CheckFail = "fail"
)

// Doctor is the response of POST /v1/doctor: the checks of the node, in the order in which they should be read.
type Doctor struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"` // Doctor
	OK         bool          `json:"ok"`   // no check failed
	Items      []DoctorCheck `json:"items"`
	Took       float64       `json:"took_ms"`
}

// DoctorCheck is one check.
type DoctorCheck struct {
	Name   string         `json:"name"`
	Status string         `json:"status"` // pass, warn or fail
	Text   string         `json:"text"`
	Hint   string         `json:"hint,omitempty"`
	Next   interact.Steps `json:"next,omitempty"`
}

// BridgeList is GET /v1/bridges: the bridges that serve clients of other protocols.
type BridgeList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"` // BridgeList
	Items      []BridgeInfo `json:"items"`
}

// BridgeInfo is one bridge, with its requests since the start of the node.
type BridgeInfo struct {
	Name     string    `json:"name"`  // of its protocol
	Paths    []string  `json:"paths"` // patterns
	Requests uint64    `json:"requests"`
	Errors   uint64    `json:"errors"`         // responses with a status of 400 or more
	Last     time.Time `json:"last,omitzero"`  // of the last request; zero: there was none
	Status   string    `json:"status"`         // of its own check, pass or fail; pass if it has none
	Text     string    `json:"text,omitempty"` // the result of that check
}

// The states of a [Discovery].
const (
	DiscoveryWaiting  = "waiting"  // not explored yet
	DiscoveryExplored = "explored" // its Things can be found
	DiscoveryFailed   = "failed"   // Error has the reason
	DiscoveryMesh     = "mesh"     // a node of the same mesh: its Things are found there
)

// DiscoveryList is GET /v1/discovered: what introductions have brought.
type DiscoveryList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"` // DiscoveryList
	Items      []Discovery `json:"items"`
}

// Discovery is an introduction of the local network, or of the configuration.
type Discovery struct {
	Name    string    `json:"name"`   // that its host gave it, or the entry of the configuration
	Source  string    `json:"source"` // dns-sd or configured
	URL     string    `json:"url"`    // of its description
	Type    string    `json:"type"`   // Thing or Directory, as announced
	Host    string    `json:"host"`
	Addrs   []string  `json:"addrs"`
	Network string    `json:"network,omitempty"` // the mesh of a node
	State   string    `json:"state"`             // one of the Discovery constants
	Things  []string  `json:"things"`            // references of those that were found
	Error   string    `json:"error,omitempty"`   // of the last exploration
	At      time.Time `json:"at"`                // of the last change of State
}

// TrustOverview is GET /v1/trust: what the node knows about organizations and groups, and what waits for its operator.
type TrustOverview struct {
	APIVersion   string              `json:"apiVersion"`
	Kind         string              `json:"kind"`         // Trust
	Organization *Organization       `json:"organization"` // nil: the node has none
	Partners     []Partner           `json:"partners"`
	Issuers      []ForeignIssuer     `json:"issuers"`
	Credentials  []ForeignCredential `json:"credentials"`
	Groups       []Group             `json:"groups"`
	Invitations  []Invitation        `json:"invitations"` // open ones of this node, without their texts
	Waiting      []TrustWaiting      `json:"waiting"`
}

// The kinds of [TrustWaiting].
const (
	WaitingJoinRequest = "join-request" // a node asks to become a member: compare the words, then set its roles
	WaitingPartner     = "partner"      // a partner is not confirmed, or suspended: compare the words
	WaitingGroup       = "group"        // an admin offers the membership of a group
)

// TrustWaiting is an invitation or a request that waits for a person.
type TrustWaiting struct {
	Kind    string         `json:"kind"`
	Name    string         `json:"name"`
	DID     did.DID        `json:"did,omitempty"` // of the node that asks or invites, or of the organization
	SCID    string         `json:"scid,omitempty"`
	Words   []string       `json:"words,omitempty"` // to compare with the other side
	State   string         `json:"state,omitempty"` // of a partner
	Expires time.Time      `json:"expires,omitzero"`
	Next    interact.Steps `json:"next,omitempty"`
}

// AuditList is GET /v1/audit: the newest lines of the audit log that match, the newest last.
type AuditList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"` // AuditList
	Items      []AuditLine `json:"items"`
	Head       string      `json:"head"` // N:HASH of the newest line of the chain audit
	// Verified reports whether the chains and the signatures of the whole log are intact; Problems are the first of what is not.
	Verified   bool     `json:"verified"`
	Problems   []string `json:"problems,omitempty"`
	Unreadable int      `json:"unreadable,omitempty"` // lines that are no lines of a log
}

// AuditLine is one decision or change.
type AuditLine struct {
	ID           string    `json:"id"` // chain and number: "denied/7"
	Seq          uint64    `json:"seq"`
	At           time.Time `json:"at"`
	Event        string    `json:"event,omitempty"` // empty for a decision
	Detail       string    `json:"detail,omitempty"`
	Who          string    `json:"who,omitempty"`
	Organization did.DID   `json:"organization,omitempty"`
	Roles        []string  `json:"roles,omitempty"`
	Via          did.Via   `json:"via,omitempty"`
	Action       string    `json:"action,omitempty"` // the operation
	Thing        string    `json:"thing,omitempty"`
	Name         string    `json:"name,omitempty"`     // of the affordance
	Decision     string    `json:"decision,omitempty"` // allow or deny
	Rule         string    `json:"rule,omitempty"`
	Code         string    `json:"code,omitempty"`
	TraceID      string    `json:"trace_id,omitempty"`
	Times        uint64    `json:"times,omitempty"` // equal decisions of one second
	Hash         string    `json:"hash"`
	Prev         string    `json:"prev"` // the hash of the line before
}

// Config returns the configuration of the running node. It requires the token or the socket, as all methods of this file do.
func (c *Client) Config(ctx context.Context) (*Config, error) {
	return get[Config](ctx, c, "/v1/config")
}

// ReloadConfig makes the node read its configuration again. With an error in it, nothing changes.
func (c *Client) ReloadConfig(ctx context.Context) (*ConfigReload, error) {
	return request[ConfigReload](ctx, c, http.MethodPost, "/v1/config/reload", "", nil)
}

// LogQuery selects log records. The zero value selects the newest 100 of all loggers and levels.
type LogQuery struct {
	Level  string // the lowest one
	Logger string // with the loggers below its path
	Limit  int
	Cursor string // Next of the list before
}

func (q LogQuery) values() string {
	v := url.Values{}
	for name, value := range map[string]string{"level": q.Level, "logger": q.Logger, "cursor": q.Cursor} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v.Encode()
}

// Logs returns the newest log records of the node, the oldest first.
func (c *Client) Logs(ctx context.Context, q LogQuery) (*LogList, error) {
	return get[LogList](ctx, c, "/v1/logs?"+q.values())
}

// FollowLogs yields the newest records, and then further ones as they are logged, until ctx ends. What the node did not keep until it was read
// is a gap; the record is nil then, otherwise the gap is. It reconnects for up to 1 min.
func (c *Client) FollowLogs(ctx context.Context, q LogQuery) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		for e, err := range c.watch(ctx, "/v1/logs?"+q.values(), "") {
			var one LogEntry
			if err == nil && e.Name == "gap" {
				one.Gap = new(LogGap)
				err = json.Unmarshal(e.Data, one.Gap)
			} else if err == nil {
				one.Record = new(LogRecord)
				err = json.Unmarshal(e.Data, one.Record)
			}
			if !yield(one, err) || err != nil {
				return
			}
		}
	}
}

// LogEntry is a record or a gap of [Client.FollowLogs].
type LogEntry struct {
	Record *LogRecord
	Gap    *LogGap
}

// SetLogLevel sets the level of a logger, or of "*", until the node ends. An empty level removes that of a logger.
func (c *Client) SetLogLevel(ctx context.Context, logger, level string) (*LogLevelsDocument, error) {
	path := "/v1/logs/" + url.PathEscape(logger)
	if level == "" {
		return request[LogLevelsDocument](ctx, c, http.MethodDelete, path, "", nil)
	}
	body, err := json.Marshal(LogLevelRequest{level})
	if err != nil {
		return nil, err
	}
	return request[LogLevelsDocument](ctx, c, http.MethodPut, path, interact.JSON, body)
}

// Doctor lets the node check itself, which takes 5 s at most.
func (c *Client) Doctor(ctx context.Context) (*Doctor, error) {
	return request[Doctor](ctx, c, http.MethodPost, "/v1/doctor", "", nil)
}

// Metrics returns the metrics of the node, in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	text, _, err := c.do(ctx, http.MethodGet, "/metrics", "", nil)
	return text, err
}

// Bridges returns the bridges of the node.
func (c *Client) Bridges(ctx context.Context) (*BridgeList, error) {
	return get[BridgeList](ctx, c, "/v1/bridges")
}

// Discovered returns the introductions of the local network and of the configuration, and what became of them.
func (c *Client) Discovered(ctx context.Context) (*DiscoveryList, error) {
	return get[DiscoveryList](ctx, c, "/v1/discovered")
}

// TrustOverview returns what the node knows about organizations and groups. The error is NotFound if it keeps none.
func (c *Client) TrustOverview(ctx context.Context) (*TrustOverview, error) {
	return get[TrustOverview](ctx, c, "/v1/trust")
}

// AuditQuery selects lines of the audit log. The zero value selects the newest 100.
type AuditQuery struct {
	Who, Thing, Code string        // as audit.Filter has them
	Decision         string        // allow or deny; empty also selects changes
	Since            time.Duration // the age of the oldest line; 0: no limit
	Limit            int
}

// Audit returns the newest lines of the audit log, after a check of the whole log.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (*AuditList, error) {
	v := url.Values{}
	for name, value := range map[string]string{"who": q.Who, "thing": q.Thing, "code": q.Code, "decision": q.Decision} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Since > 0 {
		v.Set("since", q.Since.String())
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return get[AuditList](ctx, c, "/v1/audit?"+v.Encode())
}
