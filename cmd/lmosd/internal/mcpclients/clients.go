package mcpclients

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/interact"
)

// A Client is a program that uses MCP servers.
type Client struct {
	// Name is its name on the command line, Title that of its vendor.
	Name, Title string
	// section is the path of the member of the file with the servers; of TOML, the table.
	section []string
	toml    bool
	// entry returns the definition of a server.
	entry func(s Server) any
	// before is the form of older versions of the client; nil: unchanged. A file with other servers in that form is of an older version.
	before *Client
	// paths are those of the file by operating system (GOOS); "" is for all others. $NAME is a variable, ~ the home folder.
	paths map[string]string
	// also is another file name ending that the client reads; an existing file is used.
	also string
}

// A Server is a program that a client starts.
type Server struct {
	Name    string // in the client
	Command string
	Args    []string
}

// started is the common form of an entry.
func started(s Server) any {
	return struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}{s.Command, s.Args}
}

// typed also has the type of the server.
func typed(s Server) any {
	return struct {
		Type    string   `json:"type"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}{"stdio", s.Command, s.Args}
}

// withEnv has an empty environment.
func withEnv(s Server) any {
	return struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env"`
	}{s.Command, s.Args, map[string]string{}}
}

// local has one array.
func local(s Server) any {
	return struct {
		Type    string   `json:"type"`
		Command []string `json:"command"`
	}{"local", append([]string{s.Command}, s.Args...)}
}

// enabled is local with the member enabled.
func enabled(s Server) any {
	return struct {
		Type    string   `json:"type"`
		Command []string `json:"command"`
		Enabled bool     `json:"enabled"`
	}{"local", append([]string{s.Command}, s.Args...), true}
}

// all are the known clients by name, each with the documentation of its form and the date of reading, or a page that quotes it.
var all = []*Client{
	// https://code.claude.com/docs/en/mcp (user scope), quoted, 2026-11-22
	{Name: "claude", Title: "Claude Code", section: []string{"mcpServers"}, entry: typed, paths: map[string]string{"": "~/.claude.json"}},
	// https://modelcontextprotocol.io/docs/develop/connect-local-servers, quoted, 2026-11-22
	{Name: "claude-desktop", Title: "Claude Desktop", section: []string{"mcpServers"}, entry: started, paths: map[string]string{
		"": "$XDG_CONFIG_HOME/Claude/claude_desktop_config.json", "darwin": "~/Library/Application Support/Claude/claude_desktop_config.json",
		"windows": "$APPDATA/Claude/claude_desktop_config.json"}},
	// https://developers.openai.com/codex/mcp, quoted, 2026-11-22
	{Name: "codex", Title: "Codex", section: []string{"mcp_servers"}, toml: true, paths: map[string]string{"": "$CODEX_HOME/config.toml"}},
	// https://cursor.com/docs/mcp, quoted, 2026-11-22: its example of a server that Cursor starts has no type
	{Name: "cursor", Title: "Cursor", section: []string{"mcpServers"}, entry: started, paths: map[string]string{"": "~/.cursor/mcp.json"}},
	// https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md, quoted, 2026-11-22
	{Name: "gemini", Title: "Gemini CLI", section: []string{"mcpServers"}, entry: started, paths: map[string]string{"": "~/.gemini/settings.json"}},
	// https://lmstudio.ai/docs/app/mcp, quoted, 2026-11-22: the form of Cursor
	{Name: "lmstudio", Title: "LM Studio", section: []string{"mcpServers"}, entry: started, paths: map[string]string{"": "~/.lmstudio/mcp.json"}},
	// https://opencode.ai/v2/docs/mcp-servers, 2026-11-22; version 2 reads the form of version 1, too (https://opencode.ai/docs/migrate-v1)
	{Name: "opencode", Title: "opencode", section: []string{"mcp", "servers"}, entry: local, also: "c",
		before: &Client{section: []string{"mcp"}, entry: enabled}, paths: map[string]string{"": "$XDG_CONFIG_HOME/opencode/opencode.json"}},
	// https://code.visualstudio.com/docs/agents/reference/mcp-configuration, 2026-11-22: type and command are required
	{Name: "vscode", Title: "Visual Studio Code", section: []string{"servers"}, entry: typed, paths: map[string]string{
		"": "$XDG_CONFIG_HOME/Code/User/mcp.json", "darwin": "~/Library/Application Support/Code/User/mcp.json",
		"windows": "$APPDATA/Code/User/mcp.json"}},
	// https://docs.windsurf.com/windsurf/cascade/mcp, 2026-11-22: the form of Claude Desktop
	{Name: "windsurf", Title: "Windsurf", section: []string{"mcpServers"}, entry: started, paths: map[string]string{
		"": "~/.codeium/windsurf/mcp_config.json"}},
	// https://zed.dev/docs/ai/mcp, 2026-11-22
	{Name: "zed", Title: "Zed", section: []string{"context_servers"}, entry: withEnv, paths: map[string]string{
		"": "$XDG_CONFIG_HOME/zed/settings.json", "darwin": "~/.config/zed/settings.json", "windows": "$APPDATA/Zed/settings.json"}},
}

// Names returns the names of All.
func Names() []string {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name
	}
	return names
}

// Find returns the client of a name. The error is an [*interact.Error] of code Usage.
func Find(name string) (*Client, error) {
	i := slices.IndexFunc(all, func(c *Client) bool { return c.Name == name })
	if i < 0 {
		return nil, interact.Errorf(interact.Usage, "one of "+strings.Join(Names(), ", ")+"; any other starts the command lmosd mcp",
			"expected the name of an MCP client, got %q", name)
	}
	return all[i], nil
}

// defaults are those of unset variables.
var defaults = map[string]string{"XDG_CONFIG_HOME": "~/.config", "CODEX_HOME": "~/.codex", "APPDATA": "~/AppData/Roaming"}

// File returns the configuration file of the client for a user on a system; there reports whether a file exists.
func (c *Client) File(system, home string, variable func(string) string, there func(string) bool) string {
	file, ok := c.paths[system]
	if !ok {
		file = c.paths[""]
	}
	if name, rest, found := strings.Cut(strings.TrimPrefix(file, "$"), "/"); found && strings.HasPrefix(file, "$") {
		folder := variable(name)
		folder = cmp.Or(folder, defaults[name])
		file = path.Join(folder, rest)
	}
	if rest, ours := strings.CutPrefix(file, "~/"); ours {
		file = path.Join(home, rest)
	}
	if c.also != "" && there(file+c.also) { // such clients read it last, so it takes precedence
		file += c.also
	}
	return file
}

// Add writes a server into the text of a configuration, in place of one of the same name. An equal entry leaves the text unchanged. The
// error is an [*interact.Error] of code ConfigInvalid: the client could not read the text.
func (c *Client) Add(text []byte, s Server) ([]byte, error) {
	if c.toml {
		return addTable(text, c.section[0], s)
	}
	if c.before != nil {
		old, err := c.before.others(text, s.Name, c.section)
		switch {
		case err != nil:
			return nil, err
		case old:
			return c.before.Add(text, s)
		}
		if text, err = c.before.Remove(text, s.Name); err != nil {
			return nil, err
		}
	}
	entry, err := json.Marshal(c.entry(s))
	if err != nil {
		return nil, err
	}
	return setMember(text, c.section, s.Name, entry)
}

// others reports whether a file has further servers in the form of c, without those in the newer form.
func (c *Client) others(text []byte, name string, newer []string) (bool, error) {
	servers, ok, err := sectionOf(text, c.section)
	if err != nil || !ok {
		return false, err
	}
	return slices.ContainsFunc(servers.members, func(m member) bool {
		if m.name == name || m.name == newer[len(newer)-1] || text[m.value] != '{' {
			return false
		}
		one, is, err := sectionOf(text, append(slices.Clone(c.section), m.name))
		return err == nil && is && one.find("type") != nil
	}), nil
}

// Remove removes a server.
func (c *Client) Remove(text []byte, name string) ([]byte, error) {
	if c.toml {
		return removeTable(text, c.section[0], name)
	}
	if c.before != nil {
		var err error
		if text, err = c.before.Remove(text, name); err != nil {
			return nil, err
		}
	}
	return dropMember(text, c.section, name)
}

// Diff returns the changes between two texts, as lines with some context.
func Diff(file string, before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	was, is := lines(before), lines(after)
	head := 0
	for head < len(was) && head < len(is) && was[head] == is[head] {
		head++
	}
	tail := 0
	for tail < len(was)-head && tail < len(is)-head && was[len(was)-1-tail] == is[len(is)-1-tail] {
		tail++
	}
	var out strings.Builder
	out.WriteString("--- " + file + "\n+++ " + file + "\n")
	show := func(mark string, some []string) {
		for _, line := range some {
			out.WriteString(mark + line + "\n")
		}
	}
	show(" ", was[max(0, head-3):head])
	show("-", was[head:len(was)-tail])
	show("+", is[head:len(is)-tail])
	show(" ", was[len(was)-tail:min(len(was), len(was)-tail+3)])
	return out.String()
}

func lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
