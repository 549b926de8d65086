package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/wire"
)

// silentFor is how long a server may say nothing to server/discover before it is asked in the old way, too.
const silentFor = 2 * time.Second

// ids of what a probe asks.
const (
	discoverID   wire.ID = `"lmosd-discover"`
	initializeID wire.ID = `"lmosd-initialize"`
)

// self is what relays call themselves.
var self = map[string]any{"name": "lmosd", "version": "1"}

// probe finds out what speaks at the other end of conn: it asks in the new way, and then in the old. The server can be used on conn
// afterwards; an old one waits for notifications/initialized, and knows its client as one that cannot be asked for anything.
func probe(ctx context.Context, conn wire.Conn) (*Info, error) {
	discover := wire.Request(discoverID, wire.Discover, map[string]any{"_meta": ownMeta()})
	if err := conn.Write(ctx, discover); err != nil {
		return nil, fmt.Errorf("ask the server what it is: %w", err)
	}
	initialize := func() error {
		return conn.Write(ctx, wire.Request(initializeID, wire.Initialize, map[string]any{
			"protocolVersion": wire.Legacy, "capabilities": struct{}{}, "clientInfo": self}))
	}
	silent := time.AfterFunc(silentFor, func() { _ = initialize() })
	defer silent.Stop()
	for rubbish := 0; rubbish < maxGreeting; {
		m, err := conn.Read(ctx)
		if _, bad := err.(*wire.Error); bad {
			rubbish++ // a server may greet in words
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask the server what it is: %w", err)
		}
		switch {
		case !m.IsResponse():
		case m.ID() == discoverID && m.Error() == nil:
			return discovered(m.Result())
		case m.ID() == discoverID:
			if !silent.Stop() {
				continue // it was asked in the old way already
			}
			if err := initialize(); err != nil {
				return nil, err
			}
		case m.ID() == initializeID && m.Error() == nil:
			return initialized(m.Result())
		case m.ID() == initializeID:
			return nil, fmt.Errorf("the server takes neither server/discover nor initialize: %w", m.Error())
		}
	}
	return nil, errRubbish
}

var errRubbish = errors.New("the server prints what are no messages of MCP")

// ownMeta is the _meta of requests of lmosd's own.
func ownMeta() map[string]any {
	return map[string]any{wire.MetaVersion: wire.Modern, wire.MetaCapabilities: struct{}{}, wire.MetaClient: self}
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
		if info.Modern = info.Modern || v == wire.Modern; v < wire.Modern {
			info.Legacy = max(info.Legacy, v)
		}
	}
	var meta struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(result, &meta)
	_ = json.Unmarshal(meta.Meta[wire.MetaServer], &info.Server)
	if !info.Modern {
		return nil, errors.New("the server speaks none of the revisions that lmosd does: " + fmt.Sprint(d.Versions))
	}
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
	info.Discovered, err = json.Marshal(map[string]any{"resultType": "complete", "supportedVersions": []string{wire.Modern, i.Version},
		"capabilities": i.Capabilities, "instructions": i.Instructions, "ttlMs": 0, "cacheScope": "private",
		"_meta": map[string]any{wire.MetaServer: i.Server}})
	return info, err
}
