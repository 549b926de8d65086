package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

// probeTimeout is the time without a response to server/discover after which initialize is sent, too.
const probeTimeout = 2 * time.Second

// Ids of the requests of a probe.
const (
	discoverID   protocol.ID = `"lmosd-discover"`
	initializeID protocol.ID = `"lmosd-initialize"`
)

// probe detects the revision of the server at conn: it sends server/discover, and then initialize if necessary. The connection remains
// usable; a legacy server then waits for notifications/initialized. self and caps are the clientInfo and the capabilities for initialize.
func probe(ctx context.Context, conn protocol.Conn, self protocol.Implementation, caps string, timeout time.Duration) (*Info, error) {
	discover := protocol.Request(discoverID, protocol.Discover, map[string]any{"_meta": ownMeta(self)})
	if err := conn.Write(ctx, discover); err != nil {
		return nil, fmt.Errorf("probe server: %w", err)
	}
	initialize := func() error {
		return conn.Write(ctx, protocol.Request(initializeID, protocol.Initialize, map[string]any{
			"protocolVersion": protocol.Legacy, "capabilities": json.RawMessage(caps), "clientInfo": self}))
	}
	silent := time.AfterFunc(timeout, func() { _ = initialize() })
	defer silent.Stop()
	var again, notStateless bool // again: server/discover was sent twice
	var refusal error            // error of initialize
	for invalid := 0; invalid < maxInvalid; {
		m, err := conn.Read(ctx)
		if _, bad := err.(*protocol.Error); bad {
			invalid++ // a server may print text at its start
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil, errEnded
		}
		if err != nil {
			return nil, fmt.Errorf("probe server: %w", err)
		}
		switch {
		case !m.IsResponse():
		case m.ID() == discoverID && isDiscovery(m):
			return discovered(m.Result())
		case m.ID() == discoverID && !again && listsModern(m):
			again = true
			err = conn.Write(ctx, discover)
		case m.ID() == discoverID:
			notStateless = true
			if silent.Stop() { // initialize was not sent yet
				err = initialize()
			}
		case m.ID() == initializeID && m.Error() == nil:
			return initialized(m.Result())
		case m.ID() == initializeID:
			refusal = fmt.Errorf("the server rejects server/discover and initialize: %w", m.Error())
		}
		if err != nil {
			return nil, err
		}
		if notStateless && refusal != nil {
			return nil, refusal
		}
	}
	return nil, errNotMCP
}

// isDiscovery reports whether a response is a result of server/discover. Some legacy servers return other results for unknown methods.
func isDiscovery(m *protocol.Message) bool {
	raw, _ := m.InResult("supportedVersions")
	var versions []string
	return raw != nil && json.Unmarshal(raw, &versions) == nil && slices.Contains(versions, protocol.Modern)
}

// listsModern reports whether an error response of server/discover lists this revision as supported (2026-07-28, "Protocol version
// negotiation").
func listsModern(m *protocol.Message) bool {
	var data struct {
		Supported []string `json:"supported"`
	}
	e := m.Error()
	return e != nil && e.Code == protocol.UnsupportedVersion && json.Unmarshal(e.Data, &data) == nil &&
		slices.Contains(data.Supported, protocol.Modern)
}

var (
	errNotMCP = errors.New("the server prints text that is not MCP")
	errEnded  = errors.New("the server ended before the response")
)

// ownMeta returns the _meta of requests of lmosd itself.
func ownMeta(self protocol.Implementation) map[string]any {
	return map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}, protocol.MetaClient: self}
}

// maxInvalid bounds the lines that a server prints before its first message.
const maxInvalid = 1000

// discovered parses the result of server/discover.
func discovered(result json.RawMessage) (*Info, error) {
	var d struct {
		Versions     []string `json:"supportedVersions"`
		Instructions string   `json:"instructions"`
	}
	if err := json.Unmarshal(result, &d); err != nil {
		return nil, fmt.Errorf("parse server/discover result: %w", err)
	}
	info := &Info{Discovered: result, Instructions: d.Instructions}
	for _, v := range d.Versions {
		if info.Modern = info.Modern || v == protocol.Modern; v < protocol.Modern {
			info.Legacy = max(info.Legacy, v)
		}
	}
	var meta struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(result, &meta)
	_ = json.Unmarshal(meta.Meta[protocol.MetaServer], &info.Server)
	return info, nil
}

// initialized parses the result of initialize.
func initialized(result json.RawMessage) (*Info, error) {
	var i struct {
		Version      string          `json:"protocolVersion"`
		Capabilities json.RawMessage `json:"capabilities"`
		Instructions string          `json:"instructions"`
		Server       json.RawMessage `json:"serverInfo"`
	}
	if err := json.Unmarshal(result, &i); err != nil || i.Version == "" {
		return nil, errors.New("invalid result of initialize")
	}
	if i.Capabilities == nil {
		i.Capabilities = json.RawMessage("{}")
	}
	info := &Info{Legacy: i.Version, Instructions: i.Instructions}
	_ = json.Unmarshal(i.Server, &info.Server)
	var err error
	info.Discovered, err = json.Marshal(map[string]any{"resultType": "complete", "supportedVersions": []string{protocol.Modern, i.Version},
		"capabilities": i.Capabilities, "instructions": i.Instructions, "ttlMs": 0, "cacheScope": "private",
		"_meta": map[string]any{protocol.MetaServer: i.Server}})
	return info, err
}
