package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lmosd/lmosd/bridge/mcp/protocol"
)

const crowdSize = 300

// crowded is a program: an MCP server with so many tools, tool_0 and so on, with large schemas, that no description has room for them. It lists
// them in pages, and each says its name and argument.
func crowded() {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := protocol.Parse(bytes.TrimSpace(line))
		if err != nil || !m.IsRequest() {
			continue
		}
		var r *protocol.Message
		switch m.Method() {
		case protocol.CallTool:
			r = protocol.Respond(m.ID(), map[string]any{"resultType": "complete", "content": []any{map[string]string{"type": "text",
				"text": m.Text("name") + " says " + m.Text("arguments", "what")}}})
		case "tools/list":
			r = crowdPage(m)
		default:
			r = endlessReplies(m)[0]
		}
		fmt.Println(string(r.Bytes()))
	}
}

// crowdPage is a page of 40 tools.
func crowdPage(m *protocol.Message) *protocol.Message {
	from, _ := strconv.Atoi(m.Text("cursor")) // none is the first
	tools := []any{}
	for i := from; i < min(from+40, crowdSize); i++ {
		properties := map[string]any{"what": map[string]string{"type": "string", "description": "what is said"}}
		for j := range 8 {
			properties["option_"+strconv.Itoa(j)] = map[string]any{"type": "string", "enum": []string{strings.Repeat("a", 30), strings.Repeat("b", 30)}}
		}
		tools = append(tools, map[string]any{"name": "tool_" + strconv.Itoa(i), "description": strings.Repeat("does something ", 20),
			"inputSchema": map[string]any{"type": "object", "properties": properties, "required": []string{"what"}}})
	}
	page := map[string]any{"resultType": "complete", "ttlMs": 0, "cacheScope": "public", "tools": tools}
	if from+40 < crowdSize {
		page["nextCursor"] = strconv.Itoa(from + 40)
	}
	return protocol.Respond(m.ID(), page)
}

// Everybody at another node sees all 300 tools of a server whose description has room for a part of them, and calls the last one; and when
// its host is away, hears that there are more.
func TestAServerWithMoreToolsThanItsDescription(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	a := x.node("a")
	b := x.node("b", "--mesh.bootstrap", a.P2P[0], "--mcp.pin", "crowd")
	x.at(a).exposed("mcp:crowded", "--name", "crowd")
	at := x.at(b)
	eventually(t, "the other node finds it", func() bool { return at.lmosd("show", "crowd").code == 0 })
	ask := func(path, method string, params map[string]any) *protocol.Message {
		t.Helper()
		params["_meta"] = map[string]any{protocol.MetaVersion: protocol.Modern, protocol.MetaCapabilities: struct{}{}}
		name, _ := params["name"].(string)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.API+path, bytes.NewReader(protocol.Request("1", method, params).Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": protocol.Modern, "Mcp-Method": method, "Mcp-Name": name} {
			req.Header.Set(key, value)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for lines := bufio.NewReader(resp.Body); ; {
			line, err := lines.ReadBytes('\n')
			if m, bad := protocol.Parse(bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data: ")))); bad == nil && m.IsResponse() {
				return m
			}
			if err != nil {
				t.Fatalf("%s gives no response: %v", method, err)
			}
		}
	}
	names := func(path string) (all []string) {
		t.Helper()
		params := map[string]any{}
		for range 64 {
			var page struct {
				Tools []struct{ Name string }
				Next  *string `json:"nextCursor"`
			}
			r := ask(path, "tools/list", params)
			if err := json.Unmarshal(r.Result(), &page); err != nil {
				t.Fatalf("%v in %s", err, r.Bytes())
			}
			for _, one := range page.Tools {
				all = append(all, one.Name)
			}
			if page.Next == nil {
				return all
			}
			params = map[string]any{"cursor": *page.Next}
		}
		t.Fatal("there is no end of the pages")
		return nil
	}
	mesh := func(name, arguments string) string {
		t.Helper()
		return string(ask("/mcp", protocol.CallTool, map[string]any{"name": name, "arguments": json.RawMessage(arguments)}).Bytes())
	}
	if all := names("/mcp/things/crowd"); len(all) != crowdSize || !slices.Contains(all, "tool_299") {
		t.Errorf("/mcp/things/crowd lists %d tools", len(all))
	}
	if all := names("/mcp"); len(all) != crowdSize+4 || !slices.Contains(all, "crowd__tool_299") {
		t.Errorf("/mcp lists %d tools", len(all))
	}
	if doc := mesh("mesh_describe", `{"thing":"crowd"}`); strings.Count(doc, `\"name\":\"tool_`) != crowdSize || strings.Contains(doc, "incomplete") {
		t.Errorf("mesh_describe lists %d tools", strings.Count(doc, `\"name\":\"tool_`))
	}
	contains(t, mesh("mesh_describe", `{"thing":"crowd","tool":"tool_299"}`), "option_7")
	contains(t, mesh("mesh_call", `{"thing":"crowd","tool":"tool_299","arguments":{"what":"hi"}}`), "tool_299 says hi")
	contains(t, mesh("crowd__tool_299", `{"what":"hi"}`), "tool_299 says hi")
	show := at.ok("show", "crowd")
	if n := strings.Count(show, "action\ttool_"); n != crowdSize {
		t.Errorf("show lists %d tools", n)
	}
	contains(t, show, "tool_299 what=…")
	if out := at.ok("call", "crowd", "tool_299", "what=hi"); out != "tool_299 says hi\n" {
		t.Errorf("call prints %q", out)
	}
	if out := at.ok("call", "crowd", "tool_0", "what=hi"); out != "tool_0 says hi\n" {
		t.Errorf("call prints %q", out)
	}
	contains(t, at.fails(4, "call", "crowd", "tool_300", "what=hi"), "LMOS-1405")

	a.signal(syscall.SIGKILL)
	a.wait()
	contains(t, at.ok("show", "crowd"), "incomplete\tthe agent has more tools")
}
