// Command taskserver is an MCP server of 2026-07-28 with the extension io.modelcontextprotocol/tasks on standard input and output. It has the tools
// of the scenarios tasks-* of the conformance suite, for which no third-party server exists yet.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"
)

const extension = "io.modelcontextprotocol/tasks"

type object = map[string]any

// A request is a message of a client.
type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string `json:"name"`
		TaskID    string `json:"taskId"`
		Arguments struct {
			Name, Filename, Label string
			Seconds               float64
		} `json:"arguments"`
		Responses map[string]json.RawMessage `json:"inputResponses"`
		State     string                     `json:"requestState"`
		Meta      struct {
			Capabilities struct {
				Extensions map[string]json.RawMessage `json:"extensions"`
			} `json:"io.modelcontextprotocol/clientCapabilities"`
		} `json:"_meta"`
	} `json:"params"`
}

// A fault is the error of a response.
type fault struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    object `json:"data,omitempty"`
}

func (f *fault) Error() string { return f.Message }

var errUndeclared = &fault{-32021, "the client does not declare " + extension,
	object{"requiredCapabilities": object{"extensions": object{extension: object{}}}}}

// A task is a call that continues.
type task struct {
	id, status       string
	created, updated time.Time
	asks             object // the required input, by key
	end              object // result or error, with its name
	answered         chan struct{}
	cancelled        chan struct{}
}

// ttl is the retention of a task.
const ttl = 10 * time.Minute

// A server holds the tasks. Mu owns them, and the output.
type server struct {
	mu    sync.Mutex
	tasks map[string]*task
	out   *json.Encoder
}

func main() {
	s := &server{tasks: map[string]*task{}, out: json.NewEncoder(os.Stdout)}
	if err := s.serve(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "taskserver:", err)
		os.Exit(1)
	}
}

func (s *server) serve(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r request
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.ID == nil {
			continue // a notification, or an invalid message
		}
		go s.answer(&r)
	}
	return lines.Err()
}

func (s *server) answer(r *request) {
	result, err := s.do(r)
	response := object{"jsonrpc": "2.0", "id": r.ID, "result": result}
	if f := new(fault); errors.As(err, &f) {
		response = object{"jsonrpc": "2.0", "id": r.ID, "error": f}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(response)
}

func (s *server) do(r *request) (object, error) {
	_, declared := r.Params.Meta.Capabilities.Extensions[extension]
	switch r.Method {
	case "server/discover":
		return object{"resultType": "complete", "supportedVersions": []string{"2026-07-28"}, "ttlMs": 0, "cacheScope": "public",
			"capabilities": object{"tools": object{}, "extensions": object{extension: object{}}},
			"_meta":        object{"io.modelcontextprotocol/serverInfo": object{"name": "taskserver", "version": "1"}}}, nil
	case "tools/list":
		return object{"resultType": "complete", "tools": tools(), "ttlMs": 0, "cacheScope": "public"}, nil
	case "tools/call":
		return s.call(r, declared)
	case "tasks/get", "tasks/update", "tasks/cancel":
		if !declared {
			return nil, errUndeclared
		}
		return s.about(r)
	}
	return nil, &fault{Code: -32601, Message: "there is no method " + r.Method}
}

func tools() (all []object) {
	for _, name := range []string{"greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task"} {
		all = append(all, object{"name": name, "inputSchema": object{"type": "object"}})
	}
	return all
}

func says(format string, args ...any) object {
	return object{"resultType": "complete", "content": []object{{"type": "text", "text": fmt.Sprintf(format, args...)}}}
}

// call runs a tool: as a task, if it is one and the client supports that.
func (s *server) call(r *request, declared bool) (object, error) {
	a := r.Params.Arguments
	switch name := r.Params.Name; {
	case name == "greet":
		return says("Hello, %s!", a.Name), nil
	case name == "slow_compute" && (!declared || a.Seconds == 0):
		time.Sleep(min(time.Duration(a.Seconds*float64(time.Second)), time.Minute))
		return says("computed %s", a.Label), nil
	case !declared:
		return nil, errUndeclared
	case name == "slow_compute":
		return s.begin(time.Duration(a.Seconds*float64(time.Second)), nil, object{"result": says("computed %s", a.Label)}), nil
	case name == "failing_job":
		failed := says("the job failed")
		failed["isError"] = true
		return s.begin(time.Second, nil, object{"result": failed}), nil
	case name == "protocol_error_job":
		return s.begin(time.Second/2, nil, object{"error": &fault{Code: -32603, Message: "the job broke"}}), nil
	case name == "confirm_delete":
		return s.begin(0, object{"confirm": elicit("Delete "+a.Filename+"?", "confirm", "boolean")}, object{"result": says("deleted")}), nil
	case name == "multi_input":
		return s.begin(0, object{"one": elicit("One?", "name", "string"), "two": elicit("Two?", "name", "string")}, object{"result": says("both")}), nil
	case name == "test_tool_with_task":
		return s.composed(r)
	}
	return nil, &fault{Code: -32602, Message: "there is no tool " + r.Params.Name}
}

func elicit(message, member, kind string) object {
	return object{"method": "elicitation/create", "params": object{"mode": "form", "message": message, "requestedSchema": object{
		"type": "object", "properties": object{member: object{"type": kind}}, "required": []string{member}}}}
}

// composed requires input before it creates a task.
func (s *server) composed(r *request) (object, error) {
	var answer struct {
		Content struct{ Name string } `json:"content"`
	}
	_ = json.Unmarshal(r.Params.Responses["user_name"], &answer)
	if answer.Content.Name == "" {
		return object{"resultType": "input_required", "inputRequests": object{"user_name": elicit("Who?", "name", "string")}, "requestState": "asked"}, nil
	}
	return s.begin(time.Second/2, nil, object{"result": says("done for %s", answer.Content.Name)}), nil
}

// begin creates a task that takes some time, then waits for its required input, and then ends.
func (s *server) begin(takes time.Duration, asks, end object) object {
	t := &task{id: rand.Text(), status: "working", created: time.Now(), updated: time.Now(), end: end,
		answered: make(chan struct{}), cancelled: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.id] = t
	time.AfterFunc(ttl, func() { s.change(func() { delete(s.tasks, t.id) }) })
	go s.run(t, takes, asks)
	created := t.state()
	created["resultType"] = "task"
	return created
}

func (s *server) run(t *task, takes time.Duration, asks object) {
	if len(asks) > 0 {
		s.change(func() { t.asks, t.status = asks, "input_required" })
		select {
		case <-t.answered:
		case <-t.cancelled:
			return
		}
	}
	select {
	case <-time.After(takes):
	case <-t.cancelled:
		return
	}
	s.change(func() {
		if t.status == "cancelled" {
			return
		}
		t.updated, t.status = time.Now(), "completed"
		if t.end["error"] != nil {
			t.status = "failed"
		}
	})
}

func (s *server) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// state returns the state of a task for a client.
func (t *task) state() object {
	o := object{"resultType": "complete", "taskId": t.id, "status": t.status, "createdAt": stamp(t.created), "lastUpdatedAt": stamp(t.updated),
		"ttlMs": ttl.Milliseconds(), "pollIntervalMs": 100}
	switch t.status {
	case "input_required":
		o["inputRequests"] = maps.Clone(t.asks)
	case "completed", "failed":
		maps.Copy(o, t.end)
	}
	return o
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// about responds for a task.
func (s *server) about(r *request) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[r.Params.TaskID]
	if t == nil {
		return nil, &fault{Code: -32602, Message: "there is no such task"}
	}
	verb := strings.TrimPrefix(r.Method, "tasks/")
	open := t.status == "working" || t.status == "input_required"
	switch {
	case verb == "get":
		return t.state(), nil
	case verb == "cancel" && open:
		t.status, t.updated = "cancelled", time.Now()
		close(t.cancelled)
	case verb == "update" && t.status == "input_required":
		for key := range r.Params.Responses {
			delete(t.asks, key)
		}
		if len(t.asks) == 0 {
			t.status, t.updated = "working", time.Now()
			close(t.answered)
		}
	}
	return object{"resultType": "complete"}, nil
}
