package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/bridge/a2a/protocol"
	"github.com/lmosd/lmosd/bridge/bridgetest"
	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact"
)

// inTopologies returns the addresses of one Thing: at the node of its clients, and at another node that has imported it, so that operations
// go through the tunnel.
func inTopologies(t *testing.T, thing string) (s *site, at map[string]string) {
	t.Helper()
	s = newSite(t, Options{})
	far := bridgetest.NewMesh(t)
	imports(t, far, s.url+"/"+thing, "far thing", Options{})
	return s, map[string]string{"direct": guarded(t, s, Options{}) + "/" + thing, "tunnel": guarded(t, far, Options{}) + "/far-thing"}
}

// TestTasksOfOtherPrincipals: a principal with another token, one without a token, and the operator of the node get the same bytes for a task
// of another principal as for an unknown one.
func TestTasksOfOtherPrincipals(t *testing.T) {
	t.Parallel()
	_, urls := inTopologies(t, "desk")
	callers := map[string]map[string]string{"no token": nil, "a token": {"Authorization": "Bearer a"}, "another token": {"Authorization": "Bearer b"},
		"a password": {"Authorization": "Basic YTpi"}, "the operator": operator}
	for topology, url := range urls {
		for over, ask := range bindings {
			for owner, credentials := range callers {
				task := ask(t, url, protocol.SendMessage, configured(messageParams(skill("book", row{"city": "Bonn"})), "returnImmediately", true), credentials).task(t)
				for other, otherCredentials := range callers {
					for what, params := range map[string]func(id string) row{
						protocol.GetTask:              func(id string) row { return row{"id": id} },
						protocol.CancelTask:           func(id string) row { return row{"id": id} },
						protocol.SubscribeToTask:      func(id string) row { return row{"id": id} },
						protocol.SendMessage:          func(id string) row { return with(messageParams(text("x")), "taskId", id) },
						protocol.SendStreamingMessage: func(id string) row { return with(messageParams(text("x")), "taskId", id) },
						protocol.CreatePush:           func(id string) row { return row{"taskId": id, "url": "https://hook.example/"} },
						protocol.GetPush:              func(id string) row { return row{"taskId": id, "id": "p"} },
						protocol.ListPush:             func(id string) row { return row{"taskId": id} },
						protocol.DeletePush:           func(id string) row { return row{"taskId": id, "id": "p"} },
					} {
						if other == owner {
							continue
						}
						said := func(id string) string {
							a := ask(t, url, what, params(id), otherCredentials)
							if a.err == nil || a.err.Code != protocol.TaskNotFound {
								t.Errorf("%s over %s: %s to %s of the task of %s gives %s, %v", topology, over, what, other, owner, a.result, a.err)
								return ""
							}
							return strings.ReplaceAll(fmt.Sprint(a.status, a.media, a.raw, string(protocol.Encode(a.err))), id, "ID")
						}
						if got, want := said(task.ID), said("UNKNOWN-1"); got != want {
							t.Errorf("%s over %s: %s to %s of the task of %s\n gives %s\nnot %s", topology, over, what, other, owner, got, want)
						}
					}
					list := string(ask(t, url, protocol.ListTasks, row{}, otherCredentials).result)
					if own := other == owner; strings.Contains(list, task.ID) != own {
						t.Errorf("%s over %s: the list of %s has the task of %s: %t", topology, over, other, owner, !own)
					}
				}
				if got := ask(t, url, protocol.CancelTask, row{"id": task.ID}, credentials).task(t); got.Status.State != protocol.Canceled {
					t.Errorf("%s over %s: %s cancels: %s", topology, over, owner, got.Status.State)
				}
			}
		}
	}
}

// TestTasksOfA2AClientsAreHidden: other callers through the same node, over its tunnel or as a Thing, do not see the tasks, whatever principal
// they claim. The same client finds them after its node has restarted.
func TestTasksOfA2AClientsAreHidden(t *testing.T) {
	t.Parallel()
	s := newSite(t, Options{})
	m := bridgetest.NewMesh(t)
	_, d := imports(t, m, s.url+"/desk", "far thing", Options{})
	at := guarded(t, m, Options{}) + "/far-thing"
	mine := map[string]string{"Authorization": "Bearer a"}
	task := overRPC(t, at, protocol.SendMessage, configured(messageParams(skill("book", row{"city": "Bonn"})), "returnImmediately", true), mine).task(t)
	verbatim := func(method, params, name string, from did.DID) string {
		t.Helper()
		op := &protocol.Operation{Method: method, Params: json.RawMessage(params), Service: map[string]string{"A2A-Version": "1.0", protocol.PrincipalParam: name}}
		said := ""
		for r, err := range m.Do(t.Context(), &interact.Message{Type: interact.InvokeAction, Thing: d.Ref(), Name: verbatim, ID: interact.NewID(), Data: op.Bytes(), From: did.NodePrincipal(from, "")}) {
			if err != nil {
				t.Fatal(err)
			}
			said += string(r.Data)
		}
		return said
	}
	for name, from := range map[string]did.DID{"": "", "operator": "", "a": "", "0": m.Signer().DID()} {
		if got := verbatim(protocol.ListTasks, `{}`, name, from); !strings.Contains(got, `"tasks":[]`) {
			t.Errorf("%q of %q lists %s", name, from, got)
		}
		for _, method := range []string{protocol.GetTask, protocol.CancelTask, protocol.SubscribeToTask} {
			if got := verbatim(method, `{"id":"`+task.ID+`"}`, name, from); !strings.Contains(got, `"code":-32001`) {
				t.Errorf("%q of %q: %s gives %s", name, from, method, got)
			}
		}
		r, err := interact.Call(t.Context(), m, &interact.Message{Type: interact.ReadProperty, Thing: d.Ref(), Name: tasksProperty, From: did.NodePrincipal(from, "")})
		if err != nil || !strings.Contains(string(r.Data), `"tasks":[]`) {
			t.Errorf("%q reads the tasks %s, %v", from, r.Data, err)
		}
	}
	again := guarded(t, m, Options{}) + "/far-thing"
	if got := overRPC(t, again, protocol.GetTask, row{"id": task.ID}, mine).task(t); got.ID != task.ID {
		t.Errorf("after a restart the task is %+v", got)
	}
	if a := overRPC(t, again, protocol.GetTask, row{"id": task.ID}, otherCaller); a.err == nil || a.err.Code != protocol.TaskNotFound {
		t.Errorf("after a restart another principal gets %s", a.result)
	}
}

// TestNamesOfPrincipals: the name of a principal differs between agents, so that a host cannot use it at another agent. Hosts store at most
// maxPrincipal bytes of a name.
func TestNamesOfPrincipals(t *testing.T) {
	t.Parallel()
	e := &exporter{secret: []byte("secret")}
	names := map[string]bool{}
	for _, principal := range []string{"ada", "eve"} {
		for _, agent := range []string{"urn:a", "urn:b"} {
			if name := e.nameOf(principal, agent); len(name) != 32 || names[name] || name != e.nameOf(principal, agent) {
				t.Errorf("%s is %q at %s", principal, name, agent)
			}
			names[e.nameOf(principal, agent)] = true
		}
	}
	if name := e.nameOf("", "urn:a"); name != "" {
		t.Errorf("a request without a token is %q", name)
	}
	for name, want := range map[string]int{"": len("did:x"), "ada": len("did:x#ada"), strings.Repeat("x", 1<<20): len("did:x#") + 64} {
		op := &protocol.Operation{Service: map[string]string{protocol.PrincipalParam: name}}
		if got := callerOf(&interact.Message{From: did.NodePrincipal("did:x", "")}, op); len(got) != want {
			t.Errorf("a name of %d bytes is kept with %d", len(name), len(got))
		}
	}
}

// TestReferencesToTasksOfOtherPrincipals: references to tasks of others are refused like messages to them.
func TestReferencesToTasksOfOtherPrincipals(t *testing.T) {
	t.Parallel()
	c := newOwners()
	c.tasks.Claim("T", "ada")
	agent := protocol.Func(func(context.Context, *protocol.Operation) iter.Seq2[json.RawMessage, error] {
		return protocol.Once(json.RawMessage(`{"message":{}}`), nil)
	})
	for params, refused := range map[string]bool{
		`{"message":{"referenceTaskIds":["T"]}}`:                            true,
		`{"message":{"reference_task_ids":["U","T"]}}`:                      true,
		`{"message":{"referenceTaskIds":["U"]}}`:                            false,
		`{"message":{"referenceTaskIds":null}}`:                             false,
		`{"message":{"referenceTaskIds":["U"],"referenceTaskIds":["T"]}}`:   true,
		`{"message":{"referenceTaskIds":["U"],"reference_task_ids":["T"]}}`: true,
	} {
		for _, method := range []string{protocol.SendMessage, protocol.SendStreamingMessage} {
			op := &protocol.Operation{Method: method, Params: json.RawMessage(params)}
			if _, err := protocol.Call(t.Context(), c.guard(agent, "ada"), op); err != nil && strings.Count(params, "erence") == 1 {
				t.Errorf("ada sends %s: %v", params, err)
			}
			if _, err := protocol.Call(t.Context(), c.guard(agent, "eve"), op); (err != nil) != refused {
				t.Errorf("eve sends %s: %v", params, err)
			}
		}
	}
}

// TestContextsOfOtherPrincipals: tasks of a Thing belong to their caller, and two callers may use the same context id. An agent behind the
// node that keeps contexts sees one caller, so there a context belongs to its first user.
func TestContextsOfOtherPrincipals(t *testing.T) {
	t.Parallel()
	_, urls := inTopologies(t, "desk")
	ada, eve := map[string]string{"Authorization": "Bearer a"}, map[string]string{"Authorization": "Bearer e"}
	for topology, at := range urls {
		for over, ask := range bindings {
			send := func(in string, as map[string]string) *answer {
				p := configured(messageParams(skill("book", row{"city": "Bonn"})), "returnImmediately", true)
				if in != "" {
					p = with(p, "contextId", in)
				}
				return ask(t, at, protocol.SendMessage, p, as)
			}
			made := send("", ada).task(t)
			for _, in := range []string{made.ContextID, "chosen over " + over} {
				if own := send(in, ada).task(t); own.ContextID != in {
					t.Errorf("%s over %s: ada continues the context %s and gets the context %s", topology, over, in, own.ContextID)
				}
				others := send(in, eve)
				switch refused := others.err != nil && others.err.Code == protocol.InvalidParams && strings.Contains(string(others.err.Data), "message.contextId"); {
				case topology == "tunnel" && !refused:
					t.Errorf("%s over %s: eve is in the context of ada: %s", topology, over, others.result)
				case topology == "direct" && others.task(t).ContextID != in:
					t.Errorf("%s over %s: eve cannot have a context of her own: %v", topology, over, others.err)
				}
				list := string(ask(t, at, protocol.ListTasks, row{"contextId": in, "pageSize": 1}, eve).result)
				if strings.Contains(list, made.ID) || topology == "tunnel" && (!strings.Contains(list, `"tasks":[]`) || !strings.Contains(list, `"nextPageToken":""`)) {
					t.Errorf("%s over %s: eve lists %s", topology, over, list)
				}
			}
		}
	}
}

// TestContexts: a context belongs to its first user, from the first message on, unless the agent accepts none.
func TestContexts(t *testing.T) {
	t.Parallel()
	c := newOwners()
	answers := map[string]string{"own": `{"task":{"id":"1","contextId":"made"}}`, "talk": `{"message":{"contextId":"talked"}}`, "none": `{"message":{}}`}
	ask := func(method, params, as string) string {
		agent := protocol.Func(func(_ context.Context, op *protocol.Operation) iter.Seq2[json.RawMessage, error] {
			for name, message := range answers {
				if strings.Contains(string(op.Params), name) {
					return protocol.Once(json.RawMessage(message), nil)
				}
			}
			if method == protocol.GetTask {
				return protocol.Once(json.RawMessage(`{"id":"2","contextId":"got"}`), nil)
			}
			switch {
			case strings.Contains(string(op.Params), "breaks"):
				return protocol.Once(nil, &interact.Error{Code: interact.Unreachable, Started: true})
			case strings.Contains(string(op.Params), "away"):
				return protocol.Once(nil, &interact.Error{Code: interact.Unreachable})
			case strings.Contains(string(op.Params), "garbles"):
				return protocol.Once(nil, protocol.Errorf(protocol.InvalidAgentResponse, "no"))
			}
			return protocol.Once(nil, protocol.Errorf(protocol.UnsupportedOperation, "no"))
		})
		if _, err := protocol.Call(t.Context(), c.guard(agent, as), &protocol.Operation{Method: method, Params: json.RawMessage(params)}); err != nil {
			return fmt.Sprint(protocol.AsError(err).Code)
		}
		return "taken"
	}
	send := func(in, text string) string {
		return `{"message":{"contextId":"` + in + `","parts":[{"text":"` + text + `"}]}}`
	}
	for i, row := range []struct{ method, params, as, want string }{
		{protocol.SendMessage, send("", "own"), "ada", "taken"},
		{protocol.SendStreamingMessage, send("made", "none"), "eve", "-32602"},
		{protocol.SendMessage, send("made", "none"), "ada", "taken"},
		{protocol.SendMessage, send("", "talk"), "ada", "taken"},
		{protocol.SendMessage, send("talked", "none"), "eve", "-32602"},
		{protocol.GetTask, `{"id":"2"}`, "ada", "taken"},
		{protocol.SendMessage, send("got", "none"), "eve", "-32602"},
		{protocol.SendMessage, send("chosen", "refused"), "eve", "-32004"},
		{protocol.SendMessage, send("chosen", "none"), "ada", "taken"},
		{protocol.SendMessage, send("chosen", "none"), "eve", "-32602"},
		{protocol.SendMessage, send("begun", "breaks"), "ada", "-32603"},
		{protocol.SendMessage, send("begun", "none"), "eve", "-32602"},
		{protocol.SendMessage, send("odd", "garbles"), "ada", "-32006"},
		{protocol.SendMessage, send("odd", "none"), "eve", "-32602"},
		{protocol.SendMessage, send("quiet", "away"), "ada", "-32603"},
		{protocol.SendMessage, send("quiet", "none"), "eve", "taken"},
		{protocol.SendMessage, `{"message":{"context_id":"made","parts":[{"text":"none"}]}}`, "eve", "-32602"},
		{protocol.SendMessage, `{"message":{"contextId":"mine","context_id":"made","parts":[{"text":"none"}]}}`, "eve", "-32602"},
		{protocol.SendMessage, `{"message":{"contextId":7,"parts":[{"text":"none"}]}}`, "eve", "-32602"},
	} {
		if got := ask(row.method, row.params, row.as); got != row.want {
			t.Errorf("%d: %s sends %s: %s, want %s", i, row.as, row.params, got, row.want)
		}
	}
}
