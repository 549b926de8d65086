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

// addSession adds the headers of a session and returns its id.
func (c *conn) addSession(h http.Header) string {
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

// mirror adds the headers that repeat members of the body, for proxies (2026-07-28, "Standard headers").
func (c *conn) mirror(h http.Header, m *protocol.Message) {
	h.Set("MCP-Protocol-Version", m.Version())
	h.Set("Mcp-Method", m.Method())
	name, about := m.TargetName()
	if about {
		h.Set("Mcp-Name", encodeHeader(name))
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
		h.Set("Mcp-Param-"+p.Header, encodeHeader(text))
	}
}

// encodeHeader returns text as a header value: unchanged, or in base64 if it contains characters that a header cannot, or looks like
// base64 (MCP 2026-07-28, "Value encoding").
func encodeHeader(text string) string {
	plain := len(text) == 0 || text[0] != ' ' && text[len(text)-1] != ' '
	for i := range len(text) {
		plain = plain && text[i] >= ' ' && text[i] < 0x7f
	}
	if decoded, err := protocol.DecodeHeader(text); plain && err == nil && decoded == text {
		return text
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
}

// dropInvalidTools removes the tools with invalid header annotations from a list, as HTTP clients must (2026-07-28, "Custom headers from
// tool parameters").
func (c *conn) dropInvalidTools(r *protocol.Message) *protocol.Message {
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
		_ = json.Unmarshal(raw, &tool) // other code reports invalid tools
		if _, err := protocol.Params(tool.Schema); tool.Schema == nil || err == nil {
			rest = append(rest, raw)
		} else if c.o.Log != nil {
			c.o.Log.Warn("tool omitted: invalid x-mcp-header",
				"tool", interact.Clip(tool.Name, 128), "err", err)
		}
	}
	if len(rest) == len(tools) {
		return r
	}
	list := slices.Concat([]byte("["), bytes.Join(rest, []byte(",")), []byte("]"))
	return r.WithResult(list, "tools")
}
