package a2a

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
)

// Errors of a remote agent arrive at its client unchanged: the code, the text and the data.
func TestErrorsOfRemoteAgentsAreUnchanged(t *testing.T) {
	t.Parallel()
	const data = `{"shelf":12345678901234567890,"why":["<&>"]}`
	const details = `[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_CANCELABLE","domain":"a2a-protocol.org","metadata":{"k":"v"}}]`
	for binding, c := range map[string]struct {
		status        int
		body          string
		code          int
		message, data string
	}{
		"JSONRPC": {200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32050,"message":"there is no such shelf","data":` + data + `}}`, -32050,
			"there is no such shelf", data},
		"HTTP+JSON": {400, `{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"it is too late","details":` + details + `}}`, protocol.TaskNotCancelable,
			"it is too late", details},
	} {
		mux := http.NewServeMux()
		agent := httptest.NewServer(mux)
		mux.HandleFunc("/.well-known/agent-card.json", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"name":"Far","description":"d","version":"1","supportedInterfaces":[{"url":"%s/rpc","protocolBinding":%q,"protocolVersion":"1.0"}],
				"capabilities":{"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],
				"skills":[{"id":"x","name":"x","description":"x","tags":["t"]}]}`, agent.URL, binding)
		})
		mux.HandleFunc("/rpc/", func(w http.ResponseWriter, r *http.Request) { refuseAll(w, r, c.status, c.body) })
		mux.HandleFunc("/rpc", func(w http.ResponseWriter, r *http.Request) { refuseAll(w, r, c.status, c.body) })
		t.Cleanup(agent.Close)
		m := bridgetest.NewMesh(t)
		imports(t, m, agent.URL, "far", Options{})
		at := exports(t, m, Options{}) + "/far"
		for over, ask := range bindings {
			for _, method := range []string{protocol.SendMessage, protocol.SendStreamingMessage} {
				a := ask(t, at, method, messageParams(text("hello")), nil)
				switch {
				case a.err == nil || a.err.Message != c.message:
					t.Errorf("%s agent, %s over %s: got %s", binding, method, over, a.raw)
				case over == "JSON-RPC" && (a.err.Code != c.code || string(a.err.Data) != c.data):
					t.Errorf("%s agent, %s over %s: got %d with %s", binding, method, over, a.err.Code, a.err.Data)
				case over == "REST" && !strings.Contains(a.raw, strings.Trim(c.data, "[]")):
					t.Errorf("%s agent, %s over %s: the data are not in %s", binding, method, over, a.raw)
				}
			}
		}
	}
}

func refuseAll(w http.ResponseWriter, r *http.Request, status int, body string) {
	sent, _ := io.ReadAll(r.Body)
	if strings.Contains(body, "%s") {
		id := `"?"`
		if _, rest, ok := strings.Cut(string(sent), `"id":`); ok {
			id = rest[:strings.IndexAny(rest, ",}")]
		}
		body = fmt.Sprintf(body, id)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
