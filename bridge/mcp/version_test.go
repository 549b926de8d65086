package mcp

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/bridgetest"
)

// clientInfo is the name and version of lmosd in a request.
var clientInfo = regexp.MustCompile(`lientInfo":(\{[^}]*\})`)

// Servers and clients receive the version of this program, for the mesh and for Things without a version.
func TestVersion(t *testing.T) {
	t.Parallel()
	const version = "7.8.9"
	for revision, versions := range revisions {
		server := newServer(versions, func(s *sdk.Server) {
			s.AddTool(&sdk.Tool{Name: "hello", InputSchema: object}, nil)
		})
		handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: revision == "stateless"})
		var mu sync.Mutex
		var received []string
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			for _, match := range clientInfo.FindAllSubmatch(body, -1) {
				received = append(received, string(match[1]))
			}
			mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(body))
			handler.ServeHTTP(w, r)
		}))
		b := New(Options{Version: version})
		a, err := b.Import(t.Context(), site.URL, bridge.Import{})
		if err != nil {
			t.Fatal(revision, err)
		}
		a.Close()
		site.CloseClientConnections()
		for one := range server.Sessions() { // sessions that their clients did not end
			one.Close()
		}
		site.Close()
		if all := strings.Join(received, "\n"); len(received) < 2 || strings.Count(all, `{"name":"lmosd","version":"7.8.9"}`) != len(received) {
			t.Errorf("the %s server receives %s", revision, all)
		}
		mesh := bridgetest.NewMesh(t)
		mesh.Publish(t, []byte(`{"title":"Plain","actions":{}}`), nil)
		mesh.Publish(t, []byte(`{"title":"Own","version":{"instance":"2.0"},"actions":{}}`), nil)
		url := bridgetest.Serve(t, b.Export(mesh))
		for path, want := range map[string]string{"": version, "/things/plain": version, "/things/own": "2.0"} {
			if got := newCaller(t, url+"/mcp"+path, versions[0]).plain.InitializeResult().ServerInfo.Version; got != want {
				t.Errorf("/mcp%s, %s revision: got the version %q, want %q", path, revision, got, want)
			}
		}
	}
}
