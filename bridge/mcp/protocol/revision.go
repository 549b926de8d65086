package protocol

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Revisions of MCP. They are dates, so that a later one is the greater text.
const (
	Modern = "2026-07-28"
	Legacy = "2025-11-25"
	// Unsaid is the revision of a client that names none over HTTP (2025-11-25, "Protocol version header").
	Unsaid = "2025-03-26"
)

// LegacyRevisions are those before [Modern], the newest first.
var LegacyRevisions = []string{Legacy, "2025-06-18", Unsaid, "2024-11-05"}

// Members of _meta (2026-07-28, "_meta").
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClient       = "io.modelcontextprotocol/clientInfo"
	MetaServer       = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
	MetaCaller       = "io.lmosd/caller" // to a server of the host: who asks (did.Principal)
	MetaUser         = "dev.lmosd/user"  // lmosd's own, between a relay and the host of a server: which of its users asks ([WithUser])
)

// Tasks is the name of the extension "Tasks".
const Tasks = "io.modelcontextprotocol/tasks"

// Methods that relays must tell apart.
const (
	Discover    = "server/discover"
	Listen      = "subscriptions/listen"
	Initialize  = "initialize"
	Initialized = "notifications/initialized"
	Cancelled   = "notifications/cancelled"
	Progress    = "notifications/progress"
	LogMessage  = "notifications/message"
	CallTool    = "tools/call"
	GetPrompt   = "prompts/get"
	ReadRes     = "resources/read"

	Acknowledged     = "notifications/subscriptions/acknowledged"
	ToolsChanged     = "notifications/tools/list_changed"
	PromptsChanged   = "notifications/prompts/list_changed"
	ResourcesChanged = "notifications/resources/list_changed"
	ResourceUpdated  = "notifications/resources/updated"
)

// An Implementation is what a client or a server calls itself (2026-07-28 and 2025-11-25, "Implementation"). It is for showing
// only.
type Implementation struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

// Self is what lmosd of a version calls itself; empty means "dev".
func Self(version string) Implementation {
	return Implementation{Name: "lmosd", Version: cmp.Or(version, "dev")}
}

// IsModern reports whether a message was written by a client of 2026-07-28 or later: it says so in its _meta, whatever the header
// of its transport says. What names no revision is legacy.
func (m *Message) IsModern() bool {
	raw, err := m.Param("_meta", MetaVersion)
	return err == nil && raw != nil
}

// Version returns the revision that a modern request names.
func (m *Message) Version() string { return m.Text("_meta", MetaVersion) }

// CheckMeta reports what a modern request lacks: the error is of code [InvalidParams].
func (m *Message) CheckMeta() *Error {
	version, err := m.Param("_meta", MetaVersion)
	if err != nil {
		return err.(*Error)
	}
	caps, err := m.Param("_meta", MetaCapabilities)
	switch {
	case err != nil:
		return err.(*Error)
	case version == nil || m.Version() == "":
		return Errorf(InvalidParams, "params._meta has no %s", MetaVersion)
	case caps == nil || caps[0] != '{':
		return Errorf(InvalidParams, "params._meta has no %s, which is an object", MetaCapabilities)
	}
	return nil
}

// CheckVersion reports that a modern request names a revision that is not served: the error is of code [UnsupportedVersion].
func (m *Message) CheckVersion() *Error {
	if m.Version() == Modern {
		return nil
	}
	return Errorf(UnsupportedVersion, "the revision %s is not served", m.Version()).With(map[string]any{
		"supported": []string{Modern}, "requested": m.Version()})
}

// ProgressToken returns that of a request, or of a notification of progress, as JSON; nil if there is none.
func (m *Message) ProgressToken() json.RawMessage {
	path := []string{"_meta", "progressToken"}
	if m.method == Progress {
		path = path[1:]
	}
	raw, err := m.Param(path...)
	if err != nil || raw == nil || string(raw) == "null" {
		return nil
	}
	return raw
}

// Subject returns what a request is about, which the header Mcp-Name repeats: the name of a tool or prompt, the URI of a resource,
// the id of a task. It is empty for methods that are about nothing.
func (m *Message) Subject() (name string, named bool) {
	switch {
	case m.method == CallTool, m.method == GetPrompt:
		return m.Text("name"), true
	case m.method == ReadRes:
		return m.Text("uri"), true
	case strings.HasPrefix(m.method, "tasks/"):
		return m.Text("taskId"), true
	}
	return "", false
}
