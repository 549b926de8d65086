package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/bridge/a2a/push"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/a2atest"
	"github.com/lmosd/lmosd/internal/jsonedit"
	"github.com/lmosd/lmosd/interop/testmesh"
	"github.com/lmosd/lmosd/node"
)

// a2aMesh is a mesh whose nodes have the A2A bridge; webhooks may be on loopback.
func a2aMesh(t *testing.T) *testmesh.Mesh {
	t.Helper()
	return testmesh.Start(t, func(o *node.Options) {
		o.Bridges = []bridge.Bridge{a2a.New(a2a.Options{Push: push.Options{Private: true, Wait: 10 * time.Millisecond}, Log: testmesh.Logger()})}
	})
}

// goAgent is an agent of the official Go library. The first word of a message selects its behavior.
type goAgent struct {
	mu       sync.Mutex
	released map[string]chan struct{}
}

func (g *goAgent) gate(word string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released == nil {
		g.released = map[string]chan struct{}{}
	}
	if g.released[word] == nil {
		g.released[word] = make(chan struct{})
	}
	return g.released[word]
}

func (g *goAgent) Execute(ctx context.Context, x *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		text := x.Message.Parts[0].Text()
		status := func(s sdk.TaskState, text string) bool {
			var m *sdk.Message
			if text != "" {
				m = sdk.NewMessageForTask(sdk.MessageRoleAgent, x, sdk.NewTextPart(text))
			}
			return yield(sdk.NewStatusUpdateEvent(x, s, m), nil)
		}
		verb, rest, _ := strings.Cut(text, " ")
		switch {
		case verb == "echo":
			m := sdk.NewMessage(sdk.MessageRoleAgent, sdk.NewTextPart(rest))
			m.Metadata = map[string]any{"https://x.example/ext": map[string]any{"n": 1.5}}
			m.Extensions = []string{"https://x.example/ext"}
			yield(m, nil)
			return
		case x.StoredTask == nil && !yield(sdk.NewSubmittedTask(x, x.Message), nil):
			return
		}
		switch verb {
		case "count":
			a := sdk.NewArtifactEvent(x, sdk.NewTextPart("0"))
			a.Artifact.Metadata = map[string]any{"unit": "<pieces>"}
			if !status(sdk.TaskStateWorking, "counting") || !yield(a, nil) {
				return
			}
			for i := 1; i < 3; i++ {
				more := sdk.NewArtifactUpdateEvent(x, a.Artifact.ID, sdk.NewTextPart(fmt.Sprint(i)))
				more.LastChunk = i == 2
				if !yield(more, nil) {
					return
				}
			}
			status(sdk.TaskStateCompleted, "")
		case "wait":
			if !status(sdk.TaskStateWorking, "") {
				return
			}
			select {
			case <-g.gate(rest):
				status(sdk.TaskStateCompleted, "waited for "+rest)
			case <-ctx.Done():
			}
		case "ask":
			status(sdk.TaskStateInputRequired, "which city?")
		case "fail":
			status(sdk.TaskStateFailed, "it is broken")
		default: // an answer
			if yield(sdk.NewArtifactEvent(x, sdk.NewTextPart("in "+text)), nil) {
				status(sdk.TaskStateCompleted, "")
			}
		}
	}
}

func (g *goAgent) Cancel(_ context.Context, x *a2asrv.ExecutorContext) iter.Seq2[sdk.Event, error] {
	return func(yield func(sdk.Event, error) bool) {
		yield(sdk.NewStatusUpdateEvent(x, sdk.TaskStateCanceled, nil), nil)
	}
}

// serveGo serves an agent over one binding, and returns its URL. seen gets the bodies of its responses.
func serveGo(t *testing.T, g *goAgent, binding sdk.TransportProtocol, tap func([]byte)) string {
	t.Helper()
	mux := http.NewServeMux()
	h := a2asrv.NewHandler(g, a2asrv.WithEventQueueManager(a2atest.Queues()))
	card := &sdk.AgentCard{Name: "Go " + string(binding), Description: "An agent of the Go library.", Version: "3.2.1",
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Capabilities: sdk.AgentCapabilities{Streaming: true},
		Skills:       []sdk.AgentSkill{{ID: "talk", Name: "Talk", Description: "Talks.", Tags: []string{"words"}, Examples: []string{"echo hi"}}}}
	mux.Handle("/.well-known/agent-card.json", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a2asrv.NewStaticAgentCardHandler(card).ServeHTTP(w, r)
	}))
	if binding == sdk.TransportProtocolJSONRPC {
		mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(h))
	} else {
		mux.Handle("/rpc/", http.StripPrefix("/rpc", a2asrv.NewRESTHandler(h)))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tap != nil {
			w = &tapped{w, tap}
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	card.SupportedInterfaces = []*sdk.AgentInterface{sdk.NewAgentInterface(server.URL+"/rpc", binding)}
	return server.URL
}

// tapped copies written data.
type tapped struct {
	http.ResponseWriter
	tap func([]byte)
}

func (w *tapped) Write(b []byte) (int, error) {
	w.tap(b)
	return w.ResponseWriter.Write(b)
}

func (w *tapped) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

// importA2A imports an A2A agent at the host.
func importA2A(t *testing.T, m *testmesh.Mesh, target, name string) interact.Thing {
	t.Helper()
	agent, err := a2a.New(a2a.Options{Log: testmesh.Logger()}).Import(t.Context(), target, bridge.Import{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	m.Offer(t, agent.TD, agent.Thing)
	m.Known(t, name)
	return agent.Thing
}

// goClient returns a client of an agent behind the consumer's node over one binding.
func goClient(t *testing.T, m *testmesh.Mesh, name string, binding sdk.TransportProtocol) *a2aclient.Client {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	card, err := agentcard.NewResolver(hc).Resolve(t.Context(), m.API+"/a2a/"+name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a2aclient.NewFactory(a2aclient.WithDefaultsDisabled(), a2aclient.WithJSONRPCTransport(hc), a2aclient.WithRESTTransport(hc),
		a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []sdk.TransportProtocol{binding}})).CreateFromCard(t.Context(), card)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func a2aText(text string) *sdk.SendMessageRequest {
	return &sdk.SendMessageRequest{Message: sdk.NewMessage(sdk.MessageRoleUser, sdk.NewTextPart(text))}
}

// a2aEvents returns the names of the events of a stream.
func a2aEvents(t *testing.T, seq iter.Seq2[sdk.Event, error]) (all []string) {
	t.Helper()
	for e, err := range seq {
		if err != nil {
			t.Error(err)
			return all
		}
		switch e := e.(type) {
		case *sdk.Task:
			all = append(all, "task")
		case *sdk.Message:
			all = append(all, "message "+e.Parts[0].Text())
		case *sdk.TaskStatusUpdateEvent:
			all = append(all, strings.TrimPrefix(string(e.Status.State), "TASK_STATE_"))
		case *sdk.TaskArtifactUpdateEvent:
			all = append(all, fmt.Sprintf("+%s append=%t last=%t", e.Artifact.Parts[0].Text(), e.Append, e.LastChunk))
		}
	}
	return all
}

// Two nodes between the client and the server of the official Go library, over each pair of bindings.
func TestA2AThroughTwoNodes(t *testing.T) {
	t.Parallel()
	m := a2aMesh(t)
	for _, behind := range []sdk.TransportProtocol{sdk.TransportProtocolJSONRPC, sdk.TransportProtocolHTTPJSON} {
		g := &goAgent{}
		name := "go-" + map[bool]string{true: "rpc", false: "rest"}[behind == sdk.TransportProtocolJSONRPC]
		importA2A(t, m, serveGo(t, g, behind, nil), name)
		for _, before := range []sdk.TransportProtocol{sdk.TransportProtocolJSONRPC, sdk.TransportProtocolHTTPJSON} {
			t.Run(string(before)+" to "+string(behind), func(t *testing.T) { crossA2A(t, m, g, goClient(t, m, name, before)) })
		}
	}
}

func crossA2A(t *testing.T, m *testmesh.Mesh, g *goAgent, c *a2aclient.Client) {
	ctx := t.Context()
	r, err := c.SendMessage(ctx, a2aText("echo hello"))
	if said, ok := r.(*sdk.Message); err != nil || !ok || said.Parts[0].Text() != "hello" || said.Extensions[0] != "https://x.example/ext" ||
		said.Metadata["https://x.example/ext"].(map[string]any)["n"] != 1.5 {
		t.Errorf("send gives %+v, %v", r, err)
	}
	if got, want := strings.Join(a2aEvents(t, c.SendStreamingMessage(ctx, a2aText("count"))), "; "),
		"task; WORKING; +0 append=false last=false; +1 append=true last=false; +2 append=true last=true; COMPLETED"; got != want {
		t.Errorf("the stream is %s, want %s", got, want)
	}
	r, err = c.SendMessage(ctx, a2aText("ask"))
	task, ok := r.(*sdk.Task)
	if err != nil || !ok || task.Status.State != sdk.TaskStateInputRequired || task.Status.Message.Parts[0].Text() != "which city?" {
		t.Fatalf("the input request gives %+v, %v", r, err)
	}
	next := &sdk.SendMessageRequest{Message: sdk.NewMessageForTask(sdk.MessageRoleUser, task, sdk.NewTextPart("Bonn"))}
	r, err = c.SendMessage(ctx, next)
	if done, ok := r.(*sdk.Task); err != nil || !ok || done.ID != task.ID || done.ContextID != task.ContextID || done.Status.State != sdk.TaskStateCompleted ||
		done.Artifacts[0].Parts[0].Text() != "in Bonn" {
		t.Errorf("the answer gives %+v, %v", r, err)
	}
	if got, err := c.GetTask(ctx, &sdk.GetTaskRequest{ID: task.ID}); err != nil || got.Status.State != sdk.TaskStateCompleted {
		t.Errorf("get gives %+v, %v", got, err)
	}
	if _, err := c.GetTask(ctx, &sdk.GetTaskRequest{ID: "none"}); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("an unknown task gives %v", err)
	}
	if _, err := c.CancelTask(ctx, &sdk.CancelTaskRequest{ID: task.ID}); err == nil {
		t.Error("a task that ended was cancelled")
	}
	waiting := sendA2A(t, c, "wait "+string(task.ID))
	got := a2aEvents(t, func(yield func(sdk.Event, error) bool) {
		first := true
		for e, err := range c.SubscribeToTask(ctx, &sdk.SubscribeToTaskRequest{ID: waiting.ID}) {
			if first { // the subscription starts with the task, which goes on then
				close(g.gate(string(task.ID)))
			}
			if first = false; !yield(e, err) {
				return
			}
		}
	})
	if len(got) == 0 || got[len(got)-1] != "COMPLETED" {
		t.Errorf("the subscription is %v", got)
	}
	stuck := sendA2A(t, c, "wait for ever")
	if got, err := c.CancelTask(ctx, &sdk.CancelTaskRequest{ID: stuck.ID}); err != nil || got.Status.State != sdk.TaskStateCanceled {
		t.Errorf("cancel gives %+v, %v", got, err)
	}
	pushed(t, g, c)
}

// sendA2A sends a message whose task continues, and disconnects.
func sendA2A(t *testing.T, c *a2aclient.Client, text string) *sdk.Task {
	t.Helper()
	q := a2aText(text)
	q.Config = &sdk.SendMessageConfig{ReturnImmediately: true}
	r, err := c.SendMessage(t.Context(), q)
	task, ok := r.(*sdk.Task)
	if err != nil || !ok || task.Status.State.Terminal() {
		t.Fatalf("%s gives %+v, %v", text, r, err)
	}
	return task
}

// pushed adds a webhook to a task, and waits until it has received the end.
func pushed(t *testing.T, g *goAgent, c *a2aclient.Client) {
	heard := make(chan string, 16)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			return // the second one, which may receive the task before it is removed
		}
		body, _ := io.ReadAll(r.Body)
		heard <- fmt.Sprint(r.Header.Get("Content-Type"), " ", r.Header.Get("Authorization"), " ", r.Header.Get("X-A2A-Notification-Token"), " ",
			r.Header.Get("A2A-Notification-Token"), " ", string(body))
	}))
	defer hook.Close()
	word := "push-" + interact.NewID()
	q := a2aText("wait " + word)
	q.Config = &sdk.SendMessageConfig{ReturnImmediately: true, PushConfig: &sdk.PushConfig{URL: hook.URL, Token: "tok", Auth: &sdk.PushAuthInfo{Scheme: "Bearer", Credentials: "cred"}}}
	r, err := c.SendMessage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	id := r.(*sdk.Task).ID
	list, err := c.ListTaskPushConfigs(t.Context(), &sdk.ListTaskPushConfigRequest{TaskID: id})
	if err != nil || len(list) != 1 || list[0].URL != hook.URL {
		t.Errorf("the webhooks are %+v, %v", list, err)
	}
	more, err := c.CreateTaskPushConfig(t.Context(), &sdk.PushConfig{TaskID: id, ID: "second", URL: hook.URL + "/second"})
	if err != nil || more.ID != "second" {
		t.Errorf("a second webhook is %+v, %v", more, err)
	}
	for range 2 {
		if err := c.DeleteTaskPushConfig(t.Context(), &sdk.DeleteTaskPushConfigRequest{TaskID: id, ID: "second"}); err != nil {
			t.Error(err)
		}
	}
	close(g.gate(word))
	for {
		select {
		case h := <-heard:
			if !strings.HasPrefix(h, "application/a2a+json Bearer cred tok tok {") {
				t.Errorf("the webhook received %s", h)
			}
			if strings.Contains(h, "TASK_STATE_COMPLETED") {
				return
			}
		case <-time.After(stepTimeout):
			t.Fatal("the webhook did not hear of the end")
		}
	}
}

// The bytes of the agent arrive at the client unchanged.
func TestA2ABytesAreUnchanged(t *testing.T) {
	t.Parallel()
	m := a2aMesh(t)
	const exact = `{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"data":{"z":1.10,"a":"<&>\u00e9é","big":12345678901234567890123}}],"x-unknown":[ 1 , 2 ],"metadata":{"b":1,"a":2}}}`
	var sent []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".json") {
			fmt.Fprintf(w, `{"name":"exact","description":"x","version":"1","capabilities":{},"supportedInterfaces":[{"url":"http://%s/","protocolBinding":"JSONRPC","protocolVersion":"1.0","tenant":"acme"}],"defaultInputModes":["a/b"],"defaultOutputModes":["a/b"],"skills":[]}`, r.Host)
			return
		}
		body, _ := io.ReadAll(r.Body)
		var q struct{ ID, Params json.RawMessage }
		_ = json.Unmarshal(body, &q)
		sent = q.Params
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, exact)
	}))
	defer server.Close()
	importA2A(t, m, server.URL, "exact")
	const params = `{"message":{"messageId":"q","role":"ROLE_USER","parts":[{"data":{"n":0.30000000000000004000,"s":"<\u003c"}}],"y":[ ]}}`
	r, err := http.Post(m.API+"/a2a/exact/", "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":"x/1","method":"SendMessage","params":`+params+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	got, _ := io.ReadAll(r.Body)
	if want := `{"jsonrpc":"2.0","id":"x/1","result":` + exact + `}`; string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// The tenant is that of the agent's card, and the caller is in the metadata.
	at, err := jsonedit.Find(sent, "metadata")
	if err != nil || at.To == 0 {
		t.Fatalf("the agent got %s", sent)
	}
	sent = bytes.Replace(sent, append([]byte(`,"metadata":`), sent[at.From:at.To]...), nil, 1)
	if want := `{"message":` + params[len(`{"message":`):len(params)-1] + `,"tenant":"acme"}`; !bytes.Equal(sent, []byte(want)) {
		t.Errorf("the agent got %s\nwant %s", sent, want)
	}
}
