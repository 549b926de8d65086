package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/lmosd/lmosd/interact"
)

// SessionHeader has the key of a session in the requests of the console ([Session]). The cookie of the session goes with it.
const SessionHeader = "Lmos-Session"

// ConsoleRequest is the body of POST /v1/console.
type ConsoleRequest struct {
	// Rights of the session: "read", "call" or "admin". Empty means all that the caller has.
	Rights string `json:"rights,omitempty"`
}

// ConsoleLink is the response to POST /v1/console: an address that signs one browser in, once.
type ConsoleLink struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// URL is the address of the console with the secret code in its fragment, which browsers do not send.
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
	Rights  string    `json:"rights"`
}

// SessionRequest is the body of POST /console/session.
type SessionRequest struct {
	// Once is the code of a [ConsoleLink].
	Once string `json:"once"`
}

// Session is GET /console/session, and the response to POST /console/session, which has the key.
type Session struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Key is the secret of the page for [SessionHeader]. Only the response that begins the session has it.
	Key string `json:"key,omitempty"`
	// Rights are "none" without a session, else "read", "call" or "admin".
	Rights string `json:"rights"`
	// Expires is the end of the session at the latest; it ends earlier without requests.
	Expires time.Time `json:"expires,omitzero"`
	// Maker is the id of the caller that made the link ([did.Principal.ID]).
	Maker string `json:"maker,omitempty"`
}

// Index is GET / for programs: the routes of the API, ordered by path.
type Index struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Items      []Route `json:"items"`
}

// Route is a route of the API in [Index].
type Route struct {
	// Method is empty for a route of a bridge, which serves several.
	Method string `json:"method,omitempty"`
	// Path has the names of its parameters in braces, and ends with a slash if longer paths belong to it.
	Path string `json:"path"`
}

// OpenConsole makes a link that signs a browser in at the console of the node, with these rights: "read", "call" or "admin", or "" for all that
// the caller has.
func (c *Client) OpenConsole(ctx context.Context, rights string) (*ConsoleLink, error) {
	body, err := json.Marshal(ConsoleRequest{Rights: rights})
	if err != nil {
		return nil, err
	}
	return request[ConsoleLink](ctx, c, http.MethodPost, "/v1/console", interact.JSON, body)
}

// EndSessions ends all sessions of browsers at the node, and the links that wait.
func (c *Client) EndSessions(ctx context.Context) error {
	_, _, err := c.do(ctx, http.MethodDelete, "/v1/console", "", nil)
	return err
}

// Index returns the routes of the API of the node.
func (c *Client) Index(ctx context.Context) (*Index, error) {
	return get[Index](ctx, c, "/")
}
