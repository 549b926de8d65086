package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
	"github.com/lmosd/lmosd/interact"
)

// mark adds the headers of a session, and returns which it is.
func (c *conn) mark(h http.Header) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version != "" {
		h.Set("MCP-Protocol-Version", c.version)
	}
	if c.session != "" {
		h.Set("Mcp-Session-Id", c.session)
	}
	return c.session
}

// repeat adds the headers that say again what the body does, for proxies to see (2026-07-28, "Standard headers").
func (c *conn) repeat(h http.Header, m *protocol.Message) {
	h.Set("MCP-Protocol-Version", m.Version())
	h.Set("Mcp-Method", m.Method())
	name, about := m.Subject()
	if about {
		h.Set("Mcp-Name", encode(name))
	}
	if m.Method() != protocol.CallTool || c.o.Params == nil {
		return
	}
	for _, p := range c.o.Params(name) {
		raw, err := m.Param(append([]string{"arguments"}, p.Path...)...)
		if err != nil || raw == nil || string(raw) == "null" || raw[0] == '{' || raw[0] == '[' {
			continue
		}
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		h.Set("Mcp-Param-"+p.Header, encode(text))
	}
}

// encode makes a header's value of a text: as it is, or in base64 if a header cannot hold it, or it looks like that (MCP 2026-07-28,
// "Value encoding").
func encode(text string) string {
	plain := len(text) == 0 || text[0] != ' ' && text[len(text)-1] != ' '
	for i := range len(text) {
		plain = plain && text[i] >= ' ' && text[i] < 0x7f
	}
	if decoded, err := protocol.DecodeHeader(text); plain && err == nil && decoded == text {
		return text
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
}

// usable leaves those tools out of a list whose headers nobody could send, as clients over HTTP have to (2026-07-28, "Custom headers from
// tool parameters").
func (c *conn) usable(r *protocol.Message) *protocol.Message {
	raw, _ := r.InResult("tools")
	var tools []json.RawMessage
	if !bytes.Contains(raw, []byte("x-mcp-header")) || json.Unmarshal(raw, &tools) != nil {
		return r
	}
	var rest [][]byte
	for _, raw := range tools {
		var tool struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"inputSchema"`
		}
		_ = json.Unmarshal(raw, &tool) // others say what is wrong with it
		if _, err := protocol.Params(tool.Schema); tool.Schema == nil || err == nil {
			rest = append(rest, raw)
		} else if c.o.Log != nil {
			c.o.Log.Warn("a tool is left out: what its headers are to repeat is said wrongly",
				"tool", interact.Clip(tool.Name, 128), "err", err)
		}
	}
	if len(rest) == len(tools) {
		return r
	}
	list := slices.Concat([]byte("["), bytes.Join(rest, []byte(",")), []byte("]"))
	return r.WithResult(list, "tools")
}
