package interop

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"github.com/lmosd/lmosd/expose"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// An A2A client calls agents without A2A, and other clients call an A2A agent, through two nodes.
func TestA2ACrossing(t *testing.T) {
	t.Parallel()
	m := a2aMesh(t)
	x, err := expose.Open(t.Context(), expose.Spec{Target: "exec:tr a-z A-Z", Name: "upper", Actions: []string{"shout"}}, nil, testmesh.Logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	m.Offer(t, x.TD, x.Thing)
	_, raw, lamp := newLamp(t, "lamp")
	m.Offer(t, raw, lamp)
	g := &goAgent{}
	importA2A(t, m, serveGo(t, g, sdk.TransportProtocolJSONRPC, nil), "helper")

	t.Run("a command", func(t *testing.T) {
		m.Known(t, "upper")
		r, err := goClient(t, m, "upper", sdk.TransportProtocolJSONRPC).SendMessage(t.Context(), a2aText("louder"))
		if task, ok := r.(*sdk.Task); err != nil || !ok || task.Status.State != sdk.TaskStateCompleted || task.Artifacts[0].Parts[0].Text() != "LOUDER" {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("a thing of the Web of Things", func(t *testing.T) {
		d := m.Known(t, "lamp")
		c := goClient(t, m, "lamp", sdk.TransportProtocolHTTPJSON)
		r, err := c.SendMessage(t.Context(), a2aText("what can you do?"))
		task, ok := r.(*sdk.Task)
		if err != nil || !ok || task.Status.State != sdk.TaskStateInputRequired {
			t.Fatalf("got %+v, %v", r, err)
		}
		for name := range d.Thing.Actions {
			if !strings.Contains(task.Status.Message.Parts[0].Text(), "- "+name) {
				t.Errorf("%s is not among %s", name, task.Status.Message.Parts[0].Text())
			}
		}
	})
	t.Run("an agent that is asked in the words of the mesh", func(t *testing.T) {
		out, _, err := m.Client.Call(t.Context(), "helper", "talk", interact.JSON, []byte(`"count"`))
		if err != nil || string(out) != `"012"` {
			t.Errorf("count gives %s, %v", out, err)
		}
		_, _, err = m.Client.Call(t.Context(), "helper", "talk", interact.JSON, []byte(`"fail"`))
		if e := interact.AsError(err); e.Code != interact.AgentFailed || !strings.Contains(e.Title, "it is broken") {
			t.Errorf("fail gives %v", err)
		}
	})
	t.Run("an agent that requests input", func(t *testing.T) { answerThroughNodes(t, m) })
}

// answerThroughNodes calls a skill at the other node that requires input, and sends the input.
func answerThroughNodes(t *testing.T, m *testmesh.Mesh) {
	d := m.Known(t, "helper")
	var states []string
	var output string
	var answering sync.WaitGroup
	defer answering.Wait()
	for r, err := range testmesh.InProcess(m.Consumer).Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: "talk", ID: interact.NewID(), Data: []byte(`"ask"`)}) {
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, r.Status.String())
		output += string(r.Data)
		if r.Status != interact.StatusInputRequired {
			continue
		}
		var in interact.Inputs
		if err := json.Unmarshal(r.Data, &in); err != nil || in["message"].Message != "which city?" {
			t.Errorf("it requests %s", r.Data)
		}
		output = ""
		answers, _ := json.Marshal(interact.Answers{"message": {Action: interact.Accept, Content: []byte(`"Bonn"`)}})
		answering.Go(func() {
			if _, err := interact.Call(context.Background(), testmesh.InProcess(m.Consumer), &interact.Message{Type: interact.ContinueAction, Thing: d.Ref(), Name: "talk",
				ActionID: r.ActionID, Data: answers}); err != nil {
				t.Error(err)
			}
		})
	}
	if output != `"in Bonn"` || !slices.Contains(states, "input-required") || states[len(states)-1] != "completed" {
		t.Errorf("the states are %v, the output %s", states, output)
	}
}

// The node of two agents ends while clients follow tasks there. No stream hangs: that of an A2A agent, whose task may continue, ends with
// an error; the task of a Thing has failed and is retryable.
func TestA2ALostNode(t *testing.T) {
	t.Parallel()
	m := a2aMesh(t)
	g := &goAgent{}
	importA2A(t, m, serveGo(t, g, sdk.TransportProtocolJSONRPC, nil), "helper")
	m.Offer(t, []byte(talkerTD), &talker{})
	m.Known(t, "talker")
	t.Cleanup(func() { close(g.gate("for ever")) })
	slow := sdk.NewMessage(sdk.MessageRoleUser, sdk.NewDataPart(map[string]any{}))
	slow.Metadata = map[string]any{"skillId": "slow"}
	type ending struct {
		name string
		last sdk.Event
		err  error
	}
	ended := make(chan ending, 8)
	begin := func(name string, c *a2aclient.Client, q *sdk.SendMessageRequest) sdk.TaskID {
		id := make(chan sdk.TaskID, 1)
		go func() {
			end := ending{name: name}
			for e, err := range c.SendStreamingMessage(context.Background(), q) {
				if task, ok := e.(*sdk.Task); ok {
					id <- task.ID
				}
				if end.err = err; err == nil {
					end.last = e
				}
			}
			ended <- end
		}()
		return <-id
	}
	follow := func(name string, c *a2aclient.Client, id sdk.TaskID) {
		begun := make(chan bool, 8)
		go func() {
			end := ending{name: name}
			for e, err := range c.SubscribeToTask(context.Background(), &sdk.SubscribeToTaskRequest{ID: id}) {
				begun <- true
				if end.err = err; err == nil {
					end.last = e
				}
			}
			ended <- end
		}()
		<-begun
	}
	rest, rpc := goClient(t, m, "helper", sdk.TransportProtocolHTTPJSON), goClient(t, m, "helper", sdk.TransportProtocolJSONRPC)
	talker := goClient(t, m, "talker", sdk.TransportProtocolJSONRPC)
	helped := begin("helper over REST", rest, a2aText("wait for ever"))
	follow("helper over JSON-RPC", rpc, helped)
	talked := begin("talker", talker, &sdk.SendMessageRequest{Message: slow})
	follow("talker, followed", talker, talked)
	go m.StopHost()
	late := time.After(30 * time.Second)
	for range 4 {
		select {
		case end := <-ended:
			update, isUpdate := end.last.(*sdk.TaskStatusUpdateEvent)
			failed := isUpdate && update.Status.State == sdk.TaskStateFailed && update.Status.Message.Parts[0].Metadata["retryable"] == true
			if ofThing := strings.HasPrefix(end.name, "talker"); ofThing != failed || ofThing != (end.err == nil) {
				t.Errorf("%s: the stream ended with %+v, %v", end.name, end.last, end.err)
			}
		case <-late:
			t.Fatal("a stream hangs")
		}
	}
	if task, err := talker.GetTask(t.Context(), &sdk.GetTaskRequest{ID: talked}); err != nil || task.Status.State != sdk.TaskStateFailed {
		t.Errorf("the task of the thing is %+v, %v", task, err)
	}
	if task, err := rest.GetTask(t.Context(), &sdk.GetTaskRequest{ID: helped}); err == nil {
		t.Errorf("the task of the agent is %+v", task)
	}
}
