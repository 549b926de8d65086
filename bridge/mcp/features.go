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

// Bounds of each list of a server. What is beyond is left out.
const (
	maxListed = 2000
	maxPages  = 64
	maxList   = 8 << 20 // bytes
)

// A catalogue is what a server offers, as it says it.
type catalogue struct {
	info      *backend.Info
	caps      abilities
	tools     []tool
	resources []resource
	templates []resource
	prompts   []prompt
	warnings  []string // what was left out, and why
	private   bool     // the server says that a list is for nobody else
}

// abilities are the capabilities of a server, as far as they count here.
type abilities struct {
	Tools, Prompts *struct {
		Changes bool `json:"listChanged"`
	}
	Resources *struct {
		Changes   bool `json:"listChanged"`
		Subscribe bool `json:"subscribe"`
	}
	Extensions map[string]json.RawMessage `json:"extensions"`
}

// The parts of a catalogue, as far as a description says them (MCP 2026-07-28, "Tools", "Resources", "Prompts").
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

// read asks a server for all that it offers. A list that it refuses, and an item that cannot be read, are left out.
func read(ctx context.Context, s *server) (*catalogue, error) {
	info, err := s.about(ctx)
	if err != nil {
		return nil, err
	}
	if s.pins.takeInstructions(info.Instructions) {
		without := *info
		without.Instructions, info = "", &without
	}
	c := &catalogue{info: info, caps: abilitiesOf(info)}
	if c.caps.Tools != nil {
		c.tools, err = list[tool](ctx, s, c, "tools/list", "tools")
	}
	if err == nil && c.caps.Resources != nil {
		if c.resources, err = list[resource](ctx, s, c, "resources/list", "resources"); err == nil {
			c.templates, err = list[resource](ctx, s, c, "resources/templates/list", "resourceTemplates")
		}
	}
	if err == nil && c.caps.Prompts != nil {
		c.prompts, err = list[prompt](ctx, s, c, "prompts/list", "prompts")
	}
	return c, err
}

func abilitiesOf(info *backend.Info) abilities {
	var has struct {
		Capabilities abilities `json:"capabilities"`
	}
	_ = json.Unmarshal(info.Discovered, &has) // what cannot be read is not there
	return has.Capabilities
}

func (c *catalogue) warn(format string, args ...any) {
	const most = 100 // of a hostile server
	if len(c.warnings) < most {
		c.warnings = append(c.warnings, interact.Readable(fmt.Sprintf(format, args...)))
	}
}

// list reads all pages of a list. The error says that the server cannot be asked.
func list[T any](ctx context.Context, s *server, c *catalogue, method, member string) (all []T, err error) {
	var cursor json.RawMessage
	size := 0
	for range maxPages {
		params := map[string]any{}
		if cursor != nil {
			params["cursor"] = cursor
		}
		r, err := s.ask(ctx, method, params)
		if refusal := (*protocol.Error)(nil); errors.As(err, &refusal) {
			if refusal.Code != protocol.UnknownMethod {
				c.warn("%s is refused: %v", method, err)
			}
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		c.scope(method, r)
		raw, _ := r.InResult(member)
		if size += len(raw); size > maxList || len(all) > maxListed {
			c.warn("%s: there is more than lmosd looks at", method)
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

// scope notes what a list says of who may see it (2026-07-28, "Caching"). Of a server of the old era it says nothing: what is there was
// put there on the way.
func (c *catalogue) scope(method string, r *protocol.Message) {
	raw, _ := r.InResult("cacheScope")
	if !c.info.Modern || string(raw) != `"private"` || c.private {
		return
	}
	c.private = true
	c.warn("%s is private, says the server: no other node is told of it, unless it is imported as listed", method)
}

// readAll reads one page. What cannot be read is left out.
func readAll[T any](c *catalogue, what string, page json.RawMessage) (all []T) {
	var items []json.RawMessage
	if json.Unmarshal(page, &items) != nil {
		c.warn("%s: the answer is no list", what)
	}
	if len(items) > maxListed {
		c.warn("%s: there is more than lmosd looks at", what)
		items = items[:maxListed]
	}
	for _, raw := range items {
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			c.warn("%s: %s cannot be read: %v", what, interact.Clip(string(raw), 80), err)
			continue
		}
		all = append(all, one)
	}
	return all
}
