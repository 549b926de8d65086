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
	// liveFor is how long the list of a server holds whose description has no room for all of its tools.
	liveFor = 30 * time.Second
	// listFor is how long a server may take for it.
	listFor = 10 * time.Second
	// maxLivePages and maxLiveBytes bound that list.
	maxLivePages = 64
	maxLiveBytes = 8 << 20
)

// A listed offer is one with the tools that its server listed.
type listed struct {
	of   *features.Offer // as it is described
	all  *features.Offer
	when time.Time
}

// whole is all that the thing of a description offers. Where the description has no room for all, the server itself is asked; the error
// is why it did not say, and the offer then as it is described.
func (h *Handler) whole(ctx context.Context, d *td.Description) (*features.Offer, error) {
	f, leave, err := h.use(d)
	if err != nil {
		return features.Of(d), err
	}
	defer leave()
	o := f.offer.Load()
	if o.Omitted == 0 || f.tunnel == "" {
		return o, nil
	}
	if have := f.listed.Load(); have != nil && have.of == o && time.Since(have.when) < liveFor {
		return have.all, nil
	}
	// All callers are shown the list, so the node asks for it: a server may have tools for some callers only.
	ctx, cancel := context.WithTimeout(did.WithPrincipal(protocol.WithCaller(ctx, ""), did.PrincipalOf(h.ctx)), listFor)
	defer cancel()
	tools, err := list(ctx, f.server)
	if err != nil {
		return o, err
	}
	now := &listed{o, o.With(tools), time.Now()}
	f.listed.Store(now)
	return now.all, nil
}

// list asks a server for all of its tools, for nobody in particular.
func list(ctx context.Context, s protocol.Server) (all []json.RawMessage, err error) {
	params := map[string]any{"_meta": map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}}
	size := 0
	for range maxLivePages {
		r, err := s.Call(ctx, protocol.Request(`"lmosd-list"`, "tools/list", params), func(*protocol.Message) error { return nil })
		if err != nil {
			return nil, err
		}
		if e := r.Error(); e != nil {
			return nil, e
		}
		if raw, _ := r.InResult("_meta", metaStale); raw != nil {
			why := protocol.InteractError(&protocol.Error{Data: raw})
			if why == nil {
				why = interact.Errorf(interact.Unreachable, "try again later", "its host is away")
			}
			return nil, why
		}
		raw, _ := r.InResult("tools")
		var page []json.RawMessage
		if size += len(raw); size > maxLiveBytes || json.Unmarshal(raw, &page) != nil {
			return nil, errors.New("the server's list of tools is too large, or none")
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
