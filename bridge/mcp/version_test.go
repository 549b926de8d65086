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
	for era, versions := range eras {
		server := newServer(versions, func(s *sdk.Server) {
			s.AddTool(&sdk.Tool{Name: "hello", InputSchema: object}, nil)
		})
		handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: era == "new"})
		var mu sync.Mutex
		var told []string
		site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			for _, said := range clientInfo.FindAllSubmatch(body, -1) {
				told = append(told, string(said[1]))
			}
			mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(body))
			handler.ServeHTTP(w, r)
		}))
		b := New(Options{Version: version})
		a, err := b.Import(t.Context(), site.URL, bridge.Import{})
		if err != nil {
			t.Fatal(era, err)
		}
		a.Close()
		site.CloseClientConnections()
		for one := range server.Sessions() { // those that were forgotten
			one.Close()
		}
		site.Close()
		if all := strings.Join(told, "\n"); len(told) < 2 || strings.Count(all, `{"name":"lmosd","version":"7.8.9"}`) != len(told) {
			t.Errorf("a server of the %s era is told %s", era, all)
		}
		mesh := bridgetest.NewMesh(t)
		mesh.Publish(t, []byte(`{"title":"Plain","actions":{}}`), nil)
		mesh.Publish(t, []byte(`{"title":"Own","version":{"instance":"2.0"},"actions":{}}`), nil)
		url := bridgetest.Serve(t, b.Export(mesh))
		for path, want := range map[string]string{"": version, "/things/plain": version, "/things/own": "2.0"} {
			if got := newCaller(t, url+"/mcp"+path, versions[0]).plain.InitializeResult().ServerInfo.Version; got != want {
				t.Errorf("/mcp%s says to a client of the %s era that it is %q, want %q", path, era, got, want)
			}
		}
	}
}
