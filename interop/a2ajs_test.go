package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"os"
	"os/exec"
	"strings"
	"testing"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/lmosd/lmosd/bridge"
	"github.com/lmosd/lmosd/bridge/a2a"
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/testprogram"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// talker is a Thing that echoes, counts, requires a day, and waits without end.
const talkerTD = `{"title":"Talker","description":"Talks.","actions":{
	"echo":{"synchronous":true,"input":{"type":"string"},"output":{"type":"string"}},
	"count":{"synchronous":true,"input":{"type":"integer"}},
	"book":{"synchronous":true,"input":{"type":"object"}},
	"slow":{"synchronous":true,"input":{"type":"object"}}}}`

type talker struct{ parking interact.InputWaiter }

func (k *talker) Do(ctx context.Context, m *interact.Message) iter.Seq2[*interact.Message, error] {
	return func(yield func(*interact.Message, error) bool) {
		say := func(s interact.Status, data []byte) bool {
			r := m.Reply(interact.ActionStatus, interact.JSON, data)
			r.Status = s
			return yield(r, nil)
		}
		switch {
		case m.Type == interact.ContinueAction:
			yield(k.parking.Continue(m))
		case m.Name == "echo":
			say(interact.StatusCompleted, m.Data)
		case m.Name == "count":
			for _, n := range []string{"0", "1", "2"} {
				if !say(interact.StatusRunning, []byte(n)) {
					return
				}
			}
			say(interact.StatusCompleted, nil)
		case m.Name == "book":
			answers, left, err := k.parking.Ask(ctx, m, interact.Inputs{"when": {Kind: interact.InputForm, Message: "When?"}}, yield)
			if err != nil {
				yield(nil, err)
			} else if !left {
				say(interact.StatusCompleted, answers["when"].Content)
			}
		default:
			<-ctx.Done()
			yield(nil, ctx.Err())
		}
	}
}

// The client of the JavaScript library calls a Thing at another node, and verifies its card.
func TestA2AJavaScriptClient(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := a2aMesh(t)
	m.Offer(t, []byte(talkerTD), &talker{})
	m.Known(t, "talker")
	token, err := os.ReadFile(m.Consumer.Status().DataDir + "/api.token")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ binding, version string }{{"JSONRPC", "1.0"}, {"HTTP+JSON", "1.0"}, {"JSONRPC", "0.3"}, {"HTTP+JSON", "0.3"}} {
		t.Run(test.binding+" "+test.version, func(t *testing.T) {
			var saw map[string]any
			run(t, &saw, "a2a-client.mjs", m.API+"/a2a/talker", test.binding, test.version, strings.TrimSpace(string(token)))
			for what, want := range map[string]string{"pure": `"good"`, "union": `"good"`, "pure changed": `"wrong"`, "union changed": `"wrong"`,
				"extended": `"good"`, "extended changed": `"wrong"`,
				"echo": `["TASK_STATE_COMPLETED","hello"]`, "asks": `"TASK_STATE_INPUT_REQUIRED"`, "answered": `["TASK_STATE_COMPLETED",true]`,
				"get": `1`, "cancel": `"TASK_STATE_CANCELED"`, "push": `"https://hook.example/"`} {
				same(t, what, saw[what], want)
			}
			if stream := string(asJSON(saw["stream"])); !strings.HasPrefix(stream, `["task"`) || !strings.HasSuffix(stream, `"+1","+2","TASK_STATE_COMPLETED"]`) && test.version == "1.0" {
				t.Errorf("the stream is %s", stream)
			}
			if unknown, _ := saw["unknown"].(string); !strings.Contains(unknown, "TaskNotFound") {
				t.Errorf("an unknown task is %s", unknown)
			}
			if test.version == "1.0" {
				same(t, "list", saw["list"], `[1,""]`)
			}
		})
	}
}

// The Go library's client calls imported agents of the JavaScript library, of 1.0 and of 0.3.
func TestA2AJavaScriptServer(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	m := a2aMesh(t)
	for name, args := range map[string][]string{"js-rpc": {"JSONRPC", "1.0"}, "js-rest": {"HTTP+JSON", "1.0"}, "js-old": {"JSONRPC", "0.3"},
		"js-old-rest": {"HTTP+JSON", "0.3"}} {
		t.Run(name, func(t *testing.T) {
			importA2A(t, m, nodeServer(t, "a2a-server.mjs", args...), name)
			c := goClient(t, m, name, sdk.TransportProtocolHTTPJSON)
			if got := strings.Join(a2aEvents(t, c.SendStreamingMessage(t.Context(), a2aText("hi"))), "; "); !strings.HasPrefix(got, "task; WORKING; +you said  append=false") ||
				!strings.HasSuffix(got, "+hi append=true last=true; COMPLETED") {
				t.Errorf("the stream is %s", got)
			}
			r, err := c.SendMessage(t.Context(), a2aText("ask"))
			task, ok := r.(*sdk.Task)
			if err != nil || !ok || task.Status.State != sdk.TaskStateInputRequired {
				t.Fatalf("the input request gives %+v, %v", r, err)
			}
			r, err = c.SendMessage(t.Context(), &sdk.SendMessageRequest{Message: sdk.NewMessageForTask(sdk.MessageRoleUser, task, sdk.NewTextPart("Bonn"))})
			if done, ok := r.(*sdk.Task); err != nil || !ok || done.ID != task.ID || done.Status.State != sdk.TaskStateCompleted || done.Artifacts[0].Metadata["unit"] != "words" {
				t.Errorf("the answer gives %+v, %v", r, err)
			}
			if _, err := c.GetTask(t.Context(), &sdk.GetTaskRequest{ID: "none"}); err == nil || !strings.Contains(err.Error(), "not found") {
				t.Errorf("an unknown task is %v", err)
			}
			// Clients without A2A call the skill.
			out, _, err := m.Client.Call(t.Context(), name, "talk", interact.JSON, []byte(`"you"`))
			if err != nil || string(out) != `"you said you"` {
				t.Errorf("the skill gives %s, %v", out, err)
			}
		})
	}
}

// Import of cards that the JavaScript library signed, with ES256 and a key set at the agent's site.
func TestA2AJavaScriptSignature(t *testing.T) {
	t.Parallel()
	testprogram.Modules(t, ".")
	b := a2a.New(a2a.Options{Log: testmesh.Logger()})
	agent, err := b.Import(t.Context(), nodeServer(t, "a2a-server.mjs", "JSONRPC", "1.0", "signed"), bridge.Import{})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	if text := string(agent.TD); len(agent.Warnings) > 0 || !strings.Contains(text, `"verified":true`) || !strings.Contains(text, `/jwks.json#k1"`) {
		t.Errorf("the description is %s, with warnings %v", text, agent.Warnings)
	}
	_, err = b.Import(t.Context(), nodeServer(t, "a2a-server.mjs", "JSONRPC", "1.0", "forged"), bridge.Import{})
	if interact.AsError(err).Code != interact.BadSignature {
		t.Errorf("a card that was changed gives %v", err)
	}
}

// nodeServer runs a script of this folder until the test ends, and returns the first JSON that it prints.
func nodeServer(t *testing.T, script string, args ...string) string {
	t.Helper()
	cmd := exec.Command("node", append([]string{script}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var address string
	if err == nil {
		err = json.Unmarshal(line, &address)
	}
	if err != nil {
		t.Fatalf("%s printed %q: %v", script, line, err)
	}
	return address
}
