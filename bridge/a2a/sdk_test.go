package a2a

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
)

// Decision 34: the types of a2a-go change or reject valid A2A 1.0 values, and a relay passes the same values byte for byte.
func TestRelayedResultsAreVerbatim(t *testing.T) {
	t.Parallel()
	for name, task := range map[string]string{
		"an unknown member": `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"x-new":1}`,
		"a large number":    `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{"n":12345678901234567890}}`,
		"a decimal":         `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{"price":1.10}}`,
		"an enum number":    `{"id":"t","contextId":"c","status":{"state":3}}`,
		"a proto name":      `{"id":"t","context_id":"c","status":{"state":"TASK_STATE_COMPLETED"}}`,
		"base64url":         `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"raw":"-_-_"}]}]}`,
	} {
		var typed sdk.Task
		err := json.Unmarshal([]byte(task), &typed)
		again, _ := json.Marshal(&typed) // a task can always be encoded
		if compact := protocol.Encode(json.RawMessage(again)); err == nil && sameMembers(t, string(compact), task) {
			t.Errorf("%s: a2a-go keeps the value: see decision 34", name)
		}
		f := newForeign(t, "")
		f.card = fmt.Sprintf(`{"name":"F","description":"d","version":"1","supportedInterfaces":[{"url":"%s/rpc","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],
			"capabilities":{"streaming":false},"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],"skills":[{"id":"s","name":"s","description":"s","tags":["t"]}]}`, f.URL)
		f.answer = func(w http.ResponseWriter, id, _ string) {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"task":%s}}`, id, task)
		}
		m := bridgetest.NewMesh(t)
		imports(t, m, f.URL, "far", Options{})
		at := exports(t, m, Options{}) + "/far"
		for over, call := range bindings {
			if a := call(t, at, protocol.SendMessage, messageParams(text("hello")), nil); string(a.result) != `{"task":`+task+`}` {
				t.Errorf("%s over %s: got %s", name, over, a.raw)
			}
		}
	}
}

// sameMembers reports whether two JSON objects have equal members; numbers are equal only as text.
func sameMembers(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y map[string]json.RawMessage
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		t.Fatalf("%s or %s is not an object", a, b)
	}
	for name, v := range y {
		if string(x[name]) != string(v) {
			return false
		}
	}
	return len(x) == len(y)
}
