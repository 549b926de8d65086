package protocol

import (
	"cmp"
	"encoding/json"
	"strings"
)

// Revisions of MCP. They are dates and sort as text.
const (
	Modern = "2026-07-28"
	Legacy = "2025-11-25"
	// DefaultRevision applies to an HTTP client that sends no revision (2025-11-25, "Protocol version header").
	DefaultRevision = "2025-03-26"
)

// LegacyRevisions are the revisions before [Modern], newest first.
var LegacyRevisions = []string{Legacy, "2025-06-18", DefaultRevision, "2024-11-05"}

// Members of _meta (2026-07-28, "_meta").
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClient       = "io.modelcontextprotocol/clientInfo"
	MetaServer       = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
	MetaCaller       = "io.lmosd/caller" // to a server process: the principal of the caller (did.Principal)
	MetaUser         = "dev.lmosd/user"  // between a relay and the host of a server: the user of the relay ([WithUser])
)

// Tasks is the identifier of the Tasks extension.
const Tasks = "io.modelcontextprotocol/tasks"

// Methods.
const (
	Discover     = "server/discover"
	Listen       = "subscriptions/listen"
	Initialize   = "initialize"
	Initialized  = "notifications/initialized"
	Cancelled    = "notifications/cancelled"
	Progress     = "notifications/progress"
	LogMessage   = "notifications/message"
	CallTool     = "tools/call"
	GetPrompt    = "prompts/get"
	ReadResource = "resources/read"
	Complete     = "completion/complete"

	ListTools     = "tools/list"
	ListPrompts   = "prompts/list"
	ListResources = "resources/list"
	ListTemplates = "resources/templates/list"

	GetTask    = "tasks/get"
	UpdateTask = "tasks/update"
	CancelTask = "tasks/cancel"

	Acknowledged     = "notifications/subscriptions/acknowledged"
	ToolsChanged     = "notifications/tools/list_changed"
	PromptsChanged   = "notifications/prompts/list_changed"
	ResourcesChanged = "notifications/resources/list_changed"
	ResourceUpdated  = "notifications/resources/updated"
	TaskUpdated      = "notifications/tasks"

	// Input requests of servers.
	Elicit    = "elicitation/create"
	Sample    = "sampling/createMessage"
	ListRoots = "roots/list"

	// Methods of sessions only (2025-11-25).
	Ping        = "ping"
	SetLevel    = "logging/setLevel"
	Subscribe   = "resources/subscribe"
	Unsubscribe = "resources/unsubscribe"
)

// An Implementation is the self-reported name of a client or server (2026-07-28 and 2025-11-25, "Implementation"). It is for display
// only.
type Implementation struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}

// Self returns the Implementation of lmosd; an empty version becomes "dev".
func Self(version string) Implementation {
	return Implementation{Name: "lmosd", Version: cmp.Or(version, "dev")}
}

// IsModern reports whether m has a protocol revision in its _meta, which only clients of 2026-07-28 and later send. It ignores the
// transport's header.
func (m *Message) IsModern() bool {
	raw, err := m.Param("_meta", MetaVersion)
	return err == nil && raw != nil
}

// Version returns the revision of a modern request.
func (m *Message) Version() string { return m.Text("_meta", MetaVersion) }

// CheckMeta checks the required _meta members of a modern request. The error has the code [InvalidParams].
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
		return Errorf(InvalidParams, "missing %s in params._meta", MetaVersion)
	case caps == nil || caps[0] != '{':
		return Errorf(InvalidParams, "expected an object as %s in params._meta", MetaCapabilities)
	}
	return nil
}

// CheckVersion checks the revision of a modern request. The error has the code [UnsupportedVersion].
func (m *Message) CheckVersion() *Error {
	if m.Version() == Modern {
		return nil
	}
	return Errorf(UnsupportedVersion, "unsupported revision %s", m.Version()).With(map[string]any{
		"supported": []string{Modern}, "requested": m.Version()})
}

// ProgressToken returns the progress token of a request or a progress notification, as JSON; nil if there is none.
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

// TargetName returns the value that the header Mcp-Name must repeat: the name of a tool or prompt, the URI of a resource, or the id of a
// task. The second result is false for other methods.
func (m *Message) TargetName() (name string, named bool) {
	switch {
	case m.method == CallTool, m.method == GetPrompt:
		return m.Text("name"), true
	case m.method == ReadResource:
		return m.Text("uri"), true
	case strings.HasPrefix(m.method, "tasks/"):
		return m.Text("taskId"), true
	}
	return "", false
}
