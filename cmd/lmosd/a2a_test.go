package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// postA2A sends a JSON-RPC request to an A2A agent of a node, and returns the response.
func postA2A(t *testing.T, at, method, params string) string {
	t.Helper()
	r, err := http.Post(at, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// A webhook on this host is not called, unless the operator permits private addresses.
func TestWebhooksInPrivateNetworks(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	for name, args := range map[string][]string{"closed": nil, "open": {"--interact.direct", "any"}} {
		var called atomic.Int32
		hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
		defer hook.Close()
		n := x.node(name, append(args, "--telemetry.log.level", "warn")...)
		answer := postA2A(t, n.API+"/a2a", "SendMessage", `{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"anything"}]},"configuration":{"taskPushNotificationConfig":{"url":"`+hook.URL+`"}}}`)
		contains(t, answer, "TASK_STATE_COMPLETED")
		if name == "open" {
			eventually(t, "the webhook is called", func() bool { return called.Load() > 0 })
			continue
		}
		eventually(t, "the node says why not", func() bool { return strings.Contains(n.talk.String(), "loopback") })
		if called.Load() > 0 {
			t.Error("a webhook on loopback was called")
		}
	}
}

// The card of an A2A agent changes, and so does the description that everybody sees.
func TestCardsThatChange(t *testing.T) {
	t.Parallel()
	x := newUser(t)
	var skill atomic.Value
	skill.Store("one")
	agent := httptest.NewUnstartedServer(nil)
	agent.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tag := `"` + skill.Load().(string) + `"`
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprintf(w, `{"name":"Changing","description":"d","version":"1","capabilities":{},"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],
			"supportedInterfaces":[{"url":"http://%s/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"skills":[{"id":%q,"name":"S","description":"x","tags":["t"]}]}`, r.Host, skill.Load())
	})
	agent.Start()
	defer agent.Close()
	n := x.node("n", "--agents", "a2a:"+agent.URL+" --name changing", "--a2a.card_refresh", "1s")
	x = x.at(n)
	eventually(t, "the agent is there", func() bool { return strings.Contains(x.lmosd("show", "changing").out, "one") })
	skill.Store("two")
	eventually(t, "it is described anew", func() bool { return strings.Contains(x.lmosd("show", "changing").out, "two") })
	if out := x.ok("show", "changing"); strings.Contains(out, "one\n") {
		t.Errorf("the description is %s", out)
	}
}
