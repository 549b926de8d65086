package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lmosd/lmosd/bridge/mcp/features"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

const (
	// liveTTL is the time for which the live tools are cached.
	liveTTL = 30 * time.Second
	// listTimeout bounds the request for the live tools.
	listTimeout = 10 * time.Second
	// maxLivePages and maxLiveBytes bound the live tools.
	maxLivePages = 64
	maxLiveBytes = 8 << 20
)

// A liveFeatures value combines the features of a TD with the tools that the server lists.
type liveFeatures struct {
	described *features.Features // of the TD
	all       *features.Features
	when      time.Time
}

// allFeatures returns the features of a Thing. If the TD omits some, it requests the list of tools from the server. With an error it
// returns the features of the TD.
func (h *Handler) allFeatures(ctx context.Context, d *td.Description) (*features.Features, error) {
	e, leave, err := h.use(d)
	if err != nil {
		return features.Of(d), err
	}
	defer leave()
	f := e.features.Load()
	if f.Omitted == 0 || e.tunnel == "" {
		return f, nil
	}
	if have := e.live.Load(); have != nil && have.described == f && time.Since(have.when) < liveTTL {
		return have.all, nil
	}
	// All callers see this list, so the request has the principal of the node: a server may have tools for single callers.
	ctx, cancel := context.WithTimeout(did.WithPrincipal(protocol.WithCaller(ctx, ""), did.PrincipalOf(h.ctx)), listTimeout)
	defer cancel()
	tools, err := list(ctx, e.server)
	if err != nil {
		return f, err
	}
	now := &liveFeatures{f, f.With(tools), time.Now()}
	e.live.Store(now)
	return now.all, nil
}

// list requests all tools of a server, without a caller.
func list(ctx context.Context, s protocol.Server) (all []json.RawMessage, err error) {
	params := map[string]any{"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}}
	size := 0
	for range maxLivePages {
		r, err := s.Call(ctx, protocol.Request(`"lmosd-list"`, protocol.ListTools, params), protocol.Ignore)
		if err != nil {
			return nil, err
		}
		if e := r.Error(); e != nil {
			return nil, e
		}
		if raw, _ := r.InResult("_meta", metaStale); raw != nil {
			why := protocol.InteractError(&protocol.Error{Data: raw})
			if why == nil {
				why = interact.Errorf(interact.Unreachable, "try again later", "host unreachable")
			}
			return nil, why
		}
		raw, _ := r.InResult("tools")
		var page []json.RawMessage
		if size += len(raw); size > maxLiveBytes || json.Unmarshal(raw, &page) != nil {
			return nil, errors.New("the tool list of the server is malformed or too large")
		}
		all = append(all, page...)
		cursor, _ := r.InResult("nextCursor")
		if cursor == nil || string(cursor) == "null" {
			return all, nil
		}
		params["cursor"] = cursor
	}
	return all, nil
}
