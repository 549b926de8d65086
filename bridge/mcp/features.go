package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lmosd/lmosd/bridge/mcp/backend"
	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// Bounds of each list of a server. Items beyond are left out.
const (
	maxListed = 2000
	maxPages  = 64
	maxList   = 8 << 20 // bytes
)

// serverFeatures are the features of a server, as it lists them.
type serverFeatures struct {
	info      *backend.Info
	caps      capabilities
	tools     []tool
	resources []resource
	templates []resource
	prompts   []prompt
	warnings  []string // omissions and their reasons
	private   bool     // the server declares a list private
}

// capabilities are the capabilities of a server that lmosd uses.
type capabilities struct {
	Tools, Prompts *struct {
		Changes bool `json:"listChanged"`
	}
	Resources *struct {
		Changes   bool `json:"listChanged"`
		Subscribe bool `json:"subscribe"`
	}
	Extensions map[string]json.RawMessage `json:"extensions"`
}

// The features that a description contains (MCP 2026-07-28, "Tools", "Resources", "Prompts").
type (
	named struct {
		Name        string          `json:"name"`
		Title       string          `json:"title"`
		Description string          `json:"description"`
		Icons       json.RawMessage `json:"icons"`
		Meta        json.RawMessage `json:"_meta"`
	}
	tool struct {
		named
		Input       json.RawMessage `json:"inputSchema"`
		Output      json.RawMessage `json:"outputSchema"`
		Annotations struct {
			Title       string `json:"title"`
			ReadOnly    bool   `json:"readOnlyHint"`
			Idempotent  bool   `json:"idempotentHint"`
			Destructive *bool  `json:"destructiveHint"`
			OpenWorld   *bool  `json:"openWorldHint"`
		} `json:"annotations"`
	}
	resource struct {
		named
		URI      string `json:"uri"`
		Template string `json:"uriTemplate"`
		Media    string `json:"mimeType"`
	}
	prompt struct {
		named
		Arguments []struct {
			Name        string `json:"name"`
			Title       string `json:"title"`
			Description string `json:"description"`
			Required    bool   `json:"required"`
		} `json:"arguments"`
	}
)

// readFeatures requests all lists of a server. Rejected lists and malformed items are left out.
func readFeatures(ctx context.Context, s *server) (*serverFeatures, error) {
	info, err := s.about(ctx)
	if err != nil {
		return nil, err
	}
	if s.approvals.checkInstructions(info.Instructions) {
		without := *info
		without.Instructions, info = "", &without
	}
	c := &serverFeatures{info: info, caps: capabilitiesOf(info)}
	if c.caps.Tools != nil {
		c.tools, err = list[tool](ctx, s, c, protocol.ListTools, "tools")
	}
	if err == nil && c.caps.Resources != nil {
		if c.resources, err = list[resource](ctx, s, c, protocol.ListResources, "resources"); err == nil {
			c.templates, err = list[resource](ctx, s, c, protocol.ListTemplates, "resourceTemplates")
		}
	}
	if err == nil && c.caps.Prompts != nil {
		c.prompts, err = list[prompt](ctx, s, c, protocol.ListPrompts, "prompts")
	}
	return c, err
}

func capabilitiesOf(info *backend.Info) capabilities {
	var has struct {
		Capabilities capabilities `json:"capabilities"`
	}
	_ = json.Unmarshal(info.Discovered, &has) // malformed capabilities are absent ones
	return has.Capabilities
}

func (c *serverFeatures) warn(format string, args ...any) {
	const most = 100 // bounds the warnings about a hostile server
	if len(c.warnings) < most {
		c.warnings = append(c.warnings, interact.Readable(fmt.Sprintf(format, args...)))
	}
}

// list reads all pages of a list. The error means that the server did not respond.
func list[T any](ctx context.Context, s *server, c *serverFeatures, method, member string) (all []T, err error) {
	var cursor json.RawMessage
	size := 0
	for range maxPages {
		params := map[string]any{}
		if cursor != nil {
			params["cursor"] = cursor
		}
		r, err := s.request(ctx, method, params)
		if refusal := (*protocol.Error)(nil); errors.As(err, &refusal) {
			if refusal.Code != protocol.UnknownMethod {
				c.warn("%s failed: %v", method, err)
			}
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		c.scope(method, r)
		raw, _ := r.InResult(member)
		if size += len(raw); size > maxList || len(all) > maxListed {
			c.warn("%s: too many items, the rest is ignored", method)
			return all, nil
		}
		all = append(all, readAll[T](c, method, raw)...)
		if cursor, _ = r.InResult("nextCursor"); cursor == nil || string(cursor) == "null" {
			return all, nil
		}
	}
	c.warn("%s has more than %d pages", method, maxPages)
	return all, nil
}

// scope records that a list is private (2026-07-28, "Caching"). For legacy servers package backend adds the member, so it is ignored.
func (c *serverFeatures) scope(method string, r *protocol.Message) {
	raw, _ := r.InResult("cacheScope")
	if !c.info.Modern || string(raw) != `"private"` || c.private {
		return
	}
	c.private = true
	c.warn("%s is private: the server is not announced to other nodes, unless it is imported with --publish-private", method)
}

// readAll parses one page. Malformed items are left out.
func readAll[T any](c *serverFeatures, what string, page json.RawMessage) (all []T) {
	var items []json.RawMessage
	if json.Unmarshal(page, &items) != nil {
		c.warn("%s: expected a list", what)
	}
	if len(items) > maxListed {
		c.warn("%s: too many items, the rest is ignored", what)
		items = items[:maxListed]
	}
	for _, raw := range items {
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			c.warn("%s: malformed item %s: %v", what, interact.Clip(string(raw), 80), err)
			continue
		}
		all = append(all, one)
	}
	return all
}
