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

// silentFor is how long a program may say nothing to server/discover before it is asked in the old way, too.
const silentFor = 2 * time.Second

// ids of what a probe asks.
const (
	discoverID   protocol.ID = `"lmosd-discover"`
	initializeID protocol.ID = `"lmosd-initialize"`
)

// probe finds out what speaks at the other end of conn: it asks in the new way, and then in the old. The server can be used on conn
// afterwards; an old one waits for notifications/initialized, and knows its client as self, who can be asked for what caps says.
func probe(ctx context.Context, conn protocol.Conn, self protocol.Implementation, caps string, patience time.Duration) (*Info, error) {
	discover := protocol.Request(discoverID, protocol.Discover, map[string]any{"_meta": ownMeta(self)})
	if err := conn.Write(ctx, discover); err != nil {
		return nil, fmt.Errorf("ask the server what it is: %w", err)
	}
	initialize := func() error {
		return conn.Write(ctx, protocol.Request(initializeID, protocol.Initialize, map[string]any{
			"protocolVersion": protocol.Legacy, "capabilities": json.RawMessage(caps), "clientInfo": self}))
	}
	silent := time.AfterFunc(patience, func() { _ = initialize() })
	defer silent.Stop()
	var again, unmodern bool // discover was sent twice; it was answered by what is no modern server
	var refusal error        // of initialize
	for rubbish := 0; rubbish < maxGreeting; {
		m, err := conn.Read(ctx)
		if _, bad := err.(*protocol.Error); bad {
			rubbish++ // a server may greet in words
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil, errEnded
		}
		if err != nil {
			return nil, fmt.Errorf("ask the server what it is: %w", err)
		}
		switch {
		case !m.IsResponse():
		case m.ID() == discoverID && isDiscovery(m):
			return discovered(m.Result())
		case m.ID() == discoverID && !again && speaksModern(m):
			again = true
			err = conn.Write(ctx, discover)
		case m.ID() == discoverID:
			unmodern = true
			if silent.Stop() { // it was not yet asked in the old way
				err = initialize()
			}
		case m.ID() == initializeID && m.Error() == nil:
			return initialized(m.Result())
		case m.ID() == initializeID:
			refusal = fmt.Errorf("the server takes neither server/discover nor initialize: %w", m.Error())
		}
		if err != nil {
			return nil, err
		}
		if unmodern && refusal != nil {
			return nil, refusal
		}
	}
	return nil, errRubbish
}

// isDiscovery tells the answer of a modern server from that of an old one, which may know the question, or answer whatever it does not
// know with something.
func isDiscovery(m *protocol.Message) bool {
	raw, _ := m.InResult("supportedVersions")
	var versions []string
	return raw != nil && json.Unmarshal(raw, &versions) == nil && slices.Contains(versions, protocol.Modern)
}

// speaksModern tells whether a server that refuses server/discover speaks this revision all the same: it says so (2026-07-28,
// "Protocol version negotiation").
func speaksModern(m *protocol.Message) bool {
	var data struct {
		Supported []string `json:"supported"`
	}
	e := m.Error()
	return e != nil && e.Code == protocol.UnsupportedVersion && json.Unmarshal(e.Data, &data) == nil && slices.Contains(data.Supported, protocol.Modern)
}

var (
	errRubbish = errors.New("the server prints what are no messages of MCP")
	errEnded   = errors.New("it ended before it answered")
)

// ownMeta is the _meta of requests of lmosd's own.
func ownMeta(self protocol.Implementation) map[string]any {
	return map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}, protocol.MetaClient: self}
}

// maxGreeting is how many lines a server may print before it answers.
const maxGreeting = 1000

// discovered reads the answer of a modern server.
func discovered(result json.RawMessage) (*Info, error) {
	var d struct {
		Versions     []string `json:"supportedVersions"`
		Instructions string   `json:"instructions"`
	}
	if err := json.Unmarshal(result, &d); err != nil {
		return nil, fmt.Errorf("read what the server says of itself: %w", err)
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

// initialized reads the answer of a server of the old era.
func initialized(result json.RawMessage) (*Info, error) {
	var i struct {
		Version      string          `json:"protocolVersion"`
		Capabilities json.RawMessage `json:"capabilities"`
		Instructions string          `json:"instructions"`
		Server       json.RawMessage `json:"serverInfo"`
	}
	if err := json.Unmarshal(result, &i); err != nil || i.Version == "" {
		return nil, errors.New("the server answers initialize with something else")
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
