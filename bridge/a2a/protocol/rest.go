package protocol

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Route is an operation as the REST binding writes it (A2A 1.0 §11.3).
type Route struct {
	Verb  string
	Path  string // escaped, from "/"
	Query url.Values
	Body  json.RawMessage // nil: none
}

// queryNames are the members of ListTasks and of the others that stand in the query; numbers, booleans and enums are marked.
var queryNames = map[string]byte{"contextId": 's', "status": 'e', "pageSize": 'n', "pageToken": 's', "historyLength": 'n',
	"statusTimestampAfter": 's', "includeArtifacts": 'b', "tenant": 's'}

// A Place is where an operation is found among the paths of REST.
type Place struct {
	Method     string
	Before     []string // the segments before it, unescaped
	Task, Push string   // ids
	V03        bool     // behind /v1, where 0.3 has its operations
}

// FindREST returns the operation that a verb and an escaped path ask for. Ids may have colons and escaped slashes: the last colon
// is that of the verb of a task. ok is false if the path is none of REST; a known path with a wrong verb has no Method.
func FindREST(verb, escaped string) (p Place, ok bool) {
	raw := strings.Split(strings.Trim(escaped, "/"), "/")
	n := len(raw)
	at := func(i int) string { // from the end
		if i > n {
			return ""
		}
		return raw[n-i]
	}
	used := 0
	is := func(segments int, method string) { used, p.Method, ok = segments, method, true }
	switch last := at(1); {
	case last == "message:send":
		is(1, pick(verb, http.MethodPost, SendMessage))
	case last == "message:stream":
		is(1, pick(verb, http.MethodPost, SendStreamingMessage))
	case last == "extendedAgentCard":
		is(1, pick(verb, http.MethodGet, ExtendedCard))
	case last == "card" && at(2) == "v1":
		is(1, pick(verb, http.MethodGet, ExtendedCard))
	case last == "tasks":
		is(1, pick(verb, http.MethodGet, ListTasks))
	case last == "pushNotificationConfigs" && at(3) == "tasks":
		p.Task = unescape(at(2))
		is(3, pick(verb, http.MethodPost, CreatePush, http.MethodGet, ListPush))
	case at(2) == "pushNotificationConfigs" && at(4) == "tasks":
		p.Task, p.Push = unescape(at(3)), unescape(last)
		is(4, pick(verb, http.MethodGet, GetPush, http.MethodDelete, DeletePush))
	case at(2) == "tasks":
		p.ofTask(verb, last)
		used, ok = 2, true
	}
	if !ok {
		return Place{}, false
	}
	before := raw[:n-used]
	if p.V03 = len(before) > 0 && before[len(before)-1] == "v1"; p.V03 {
		before = before[:len(before)-1]
	}
	for _, s := range before {
		p.Before = append(p.Before, unescape(s))
	}
	return p, true
}

func (p *Place) ofTask(verb, segment string) {
	id, action := segment, ""
	if i := strings.LastIndexByte(segment, ':'); i >= 0 {
		id, action = segment[:i], segment[i+1:]
	}
	switch action {
	case "cancel":
		p.Method = pick(verb, http.MethodPost, CancelTask)
	case "subscribe": // the proto says GET, the prose POST
		p.Method = pick(verb, http.MethodPost, SubscribeToTask, http.MethodGet, SubscribeToTask)
	default:
		id, p.Method = segment, pick(verb, http.MethodGet, GetTask)
	}
	p.Task = unescape(id)
}

// pick returns the method of a verb; pairs are verbs and methods.
func pick(verb string, pairs ...string) string {
	if verb == http.MethodHead {
		verb = http.MethodGet
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == verb {
			return pairs[i+1]
		}
	}
	return ""
}

func unescape(segment string) string {
	if s, err := url.PathUnescape(segment); err == nil {
		return s
	}
	return segment
}

// Params makes the params of JSON-RPC of a REST request. A body stays as it is, unless the path says more.
func (p Place) Params(query url.Values, body []byte) (json.RawMessage, *Error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		body = nil
	}
	if body != nil && (!json.Valid(body) || body[firstByte(body)] != '{') {
		return nil, Errorf(ParseError, "the body is no JSON object")
	}
	members := map[string]json.RawMessage{}
	for name, values := range query {
		kind, known := queryNames[Camel(name)]
		if !known || len(values) == 0 {
			continue
		}
		v, e := queryValue(Camel(name), kind, values[0])
		if e != nil {
			return nil, e
		}
		members[Camel(name)] = v
	}
	id, task := "id", "taskId"
	switch p.Method {
	case CreatePush, ListPush:
		members[task] = Encode(p.Task)
	case GetPush, DeletePush:
		members[task], members[id] = Encode(p.Task), Encode(p.Push)
	case GetTask, CancelTask, SubscribeToTask:
		members[id] = Encode(p.Task)
	}
	if body == nil {
		return Encode(members), nil
	}
	if len(members) == 0 {
		return body, nil
	}
	var have map[string]json.RawMessage
	if err := json.Unmarshal(body, &have); err != nil {
		return nil, Errorf(ParseError, "the body is no JSON object")
	}
	for name, v := range members {
		delete(have, Snake(name))
		have[name] = v
	}
	return object(have), nil
}

// object writes members as they are.
func object(members map[string]json.RawMessage) json.RawMessage {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	b := []byte{'{'}
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Encode(name)...), ':'), members[name]...)
	}
	return append(b, '}')
}

// firstByte is the place of the first byte that is no space; the length of b if there is none.
func firstByte(b []byte) int {
	for i, c := range b {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return i
		}
	}
	return len(b)
}

func queryValue(name string, kind byte, text string) (json.RawMessage, *Error) {
	switch kind {
	case 'n':
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, Errorf(InvalidParams, "%s is no number", name).At(name)
		}
		return Encode(n), nil
	case 'b':
		if text != "true" && text != "false" {
			return nil, Errorf(InvalidParams, "%s is true or false", name).At(name)
		}
		return json.RawMessage(text), nil
	case 'e': // its name, or its number
		if n, err := strconv.ParseUint(text, 10, 31); err == nil {
			return Encode(n), nil
		}
	}
	return Encode(text), nil
}

// ToREST writes an operation for the REST binding. What the path or the query says is not in the body.
func ToREST(op *Operation) (*Route, *Error) {
	members := map[string]json.RawMessage{}
	if len(op.Params) > 0 && json.Unmarshal(op.Params, &members) != nil {
		return nil, Errorf(InvalidParams, "the params are no object")
	}
	take := func(name string) string {
		var s string
		for _, spelling := range []string{name, Snake(name)} {
			if json.Unmarshal(members[spelling], &s) == nil {
				delete(members, spelling)
				break
			}
		}
		return s
	}
	r := &Route{Verb: http.MethodGet, Query: url.Values{}}
	prefix := ""
	if tenant := take("tenant"); tenant != "" {
		prefix = "/" + url.PathEscape(tenant)
	}
	body := func(verb string) {
		r.Verb, r.Body = verb, object(members)
	}
	task := func(name string) string { return prefix + "/tasks/" + url.PathEscape(take(name)) }
	switch op.Method {
	case SendMessage:
		r.Path = prefix + "/message:send"
		body(http.MethodPost)
	case SendStreamingMessage:
		r.Path = prefix + "/message:stream"
		body(http.MethodPost)
	case GetTask:
		r.Path = task("id")
		r.Query = asQuery(members)
	case ListTasks:
		r.Path = prefix + "/tasks"
		r.Query = asQuery(members)
	case CancelTask:
		r.Path = task("id") + ":cancel"
		body(http.MethodPost)
	case SubscribeToTask:
		r.Path, r.Verb = task("id")+":subscribe", http.MethodPost
	case CreatePush:
		r.Path = task("taskId") + "/pushNotificationConfigs"
		body(http.MethodPost)
	case ListPush:
		r.Path = task("taskId") + "/pushNotificationConfigs"
		r.Query = asQuery(members)
	case GetPush, DeletePush:
		r.Path = task("taskId") + "/pushNotificationConfigs/" + url.PathEscape(take("id"))
		if op.Method == DeletePush {
			r.Verb = http.MethodDelete
		}
	case ExtendedCard:
		r.Path = prefix + "/extendedAgentCard"
	default:
		return nil, Errorf(UnknownMethod, "A2A has no operation %q", op.Method)
	}
	return r, nil
}

// asQuery writes members as a query: texts and enums by their name, the rest as JSON writes it.
func asQuery(members map[string]json.RawMessage) url.Values {
	q := url.Values{}
	for name, v := range members {
		var text string
		if json.Unmarshal(v, &text) != nil {
			text = string(v)
		}
		q.Set(Camel(name), text)
	}
	return q
}
