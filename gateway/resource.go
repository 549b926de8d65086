package gateway

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/lmosd/lmosd/gateway/tokens"
	"github.com/lmosd/lmosd/interact"
)

// metadataPath is the path of the metadata of the API as a protected resource (RFC 9728 §3.1). That of a resource with a path has its path
// after it.
const metadataPath = "/.well-known/oauth-protected-resource"

// mcpPath is the path of the MCP endpoint, a resource of its own, because MCP clients compare the resource with their URL (MCP
// "Authorization").
const mcpPath = "/mcp"

// A protectedResource is the metadata of a protected resource (RFC 9728 §2). The authorization servers are the identity providers; without one the
// operator creates tokens.
type protectedResource struct {
	Resource      string   `json:"resource"`
	Servers       []string `json:"authorization_servers,omitempty"`
	BearerMethods []string `json:"bearer_methods_supported"`
	Scopes        []string `json:"scopes_supported"`
	Name          string   `json:"resource_name,omitempty"`
}

// metadataRoutes returns the routes of the metadata, by pattern of the mux.
func (g *Gateway) metadataRoutes() map[string]http.Handler {
	serve := g.protect(open, func(w http.ResponseWriter, r *http.Request) error {
		servers, scopes := g.authorizationServers()
		return writeJSON(w, http.StatusOK, protectedResource{Resource: g.baseURL(r) + strings.TrimPrefix(r.URL.EscapedPath(), metadataPath),
			Servers: servers, BearerMethods: []string{"header"}, Scopes: scopes, Name: g.o.Status.Status(r.Context()).Name})
	})
	routes := map[string]http.Handler{"GET " + metadataPath: serve}
	for _, b := range g.o.Bridges {
		for _, path := range b.Paths() {
			if isMCP(path) {
				routes["GET "+metadataPath+path] = serve
			}
		}
	}
	return routes
}

// authorizationServers returns the issuers whose tokens the API accepts, and the scopes to request: those of OAuth that the configuration knows;
// without an issuer, the scopes of access tokens.
func (g *Gateway) authorizationServers() (servers, scopes []string) {
	if g.o.Tokens != nil {
		for _, i := range g.o.Tokens.Issuers() {
			servers, scopes = append(servers, i.URL), append(scopes, i.Scopes...)
		}
	}
	if servers == nil {
		return nil, tokens.Operations()
	}
	slices.Sort(scopes)
	return servers, slices.Compact(scopes)
}

func isMCP(path string) bool { return path == mcpPath || strings.HasPrefix(path, mcpPath+"/") }

// challenge returns the value of WWW-Authenticate for a request that fails for lack of a right, or "" (RFC 6750 §3, RFC 9728 §5.1).
func (g *Gateway) challenge(r *http.Request, err error, code interact.Code) string {
	var missing *scopeError
	parts := []string{`Bearer realm="lmosd"`}
	switch {
	case code == interact.TokenRejected:
		parts = append(parts, `error="invalid_token"`)
	case errors.As(err, &missing):
		if parts = append(parts, `error="insufficient_scope"`); missing.scope != "" {
			parts = append(parts, `scope="`+missing.scope+`"`)
		}
	case code != interact.Unauthenticated: // RFC 6750 §3.1: no error code without a token
		return ""
	}
	path := ""
	if isMCP(r.URL.Path) && slices.ContainsFunc(g.o.Bridges, func(b Bridge) bool { return slices.ContainsFunc(b.Paths(), isMCP) }) {
		path = r.URL.EscapedPath()
	}
	return strings.Join(append(parts, `resource_metadata="`+g.baseURL(r)+metadataPath+path+`"`), ", ")
}
