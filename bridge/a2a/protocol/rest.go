package protocol

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/lmosd/lmosd/internal/jsonedit"
)

// A Route is the request of an operation in the REST binding (A2A 1.0 §11.3).
type Route struct {
	Verb  string
	Path  string // escaped, from "/"
	Query url.Values
	Body  json.RawMessage // nil: none
}

// queryNames are the query parameters with their types: string, enum, number or boolean, by the first letter.
var queryNames = map[string]byte{"contextId": 's', "status": 'e', "pageSize": 'n', "pageToken": 's', "historyLength": 'n',
	"statusTimestampAfter": 's', "includeArtifacts": 'b', "tenant": 's'}

// A RESTMatch is an operation that a path of the REST binding identifies.
type RESTMatch struct {
	Method     string
	Prefix     []string // the preceding segments, unescaped
	Task, Push string   // ids
	V03        bool     // below /v1, the prefix of 0.3
}

// FindREST returns the operation of a verb and an escaped path. Ids may contain colons and escaped slashes: the last colon separates
// the verb of a task. ok is false for an unknown path; a known path with a wrong verb has an empty Method.
func FindREST(verb, escaped string) (p RESTMatch, ok bool) {
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
		return RESTMatch{}, false
	}
	before := raw[:n-used]
	if p.V03 = len(before) > 0 && before[len(before)-1] == "v1"; p.V03 {
		before = before[:len(before)-1]
	}
	for _, s := range before {
		p.Prefix = append(p.Prefix, unescape(s))
	}
	return p, true
}

func (p *RESTMatch) ofTask(verb, segment string) {
	id, action := segment, ""
	if i := strings.LastIndexByte(segment, ':'); i >= 0 {
		id, action = segment[:i], segment[i+1:]
	}
	switch action {
	case "cancel":
		p.Method = pick(verb, http.MethodPost, CancelTask)
	case "subscribe": // a2a.proto has GET, the specification text POST
		p.Method = pick(verb, http.MethodPost, SubscribeToTask, http.MethodGet, SubscribeToTask)
	default:
		id, p.Method = segment, pick(verb, http.MethodGet, GetTask)
	}
	p.Task = unescape(id)
}

// pick returns the method of a verb; pairs alternate verbs and methods.
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

// Params returns the JSON-RPC params of a REST request. The body stays unchanged if path and query add nothing.
func (p RESTMatch) Params(query url.Values, body []byte) (json.RawMessage, *Error) {
	if len(strings.TrimSpace(string(body))) == 0 {
		body = nil
	}
	if body != nil && (!json.Valid(body) || body[jsonedit.SkipSpace(body, 0)] != '{') {
		return nil, Errorf(ParseError, "the body is not a JSON object")
	}
	members := map[string]json.RawMessage{}
	for name, values := range query {
		kind, known := queryNames[camel(name)]
		if !known || len(values) == 0 {
			continue
		}
		v, e := queryValue(camel(name), kind, values[0])
		if e != nil {
			return nil, e
		}
		members[camel(name)] = v
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
		return nil, Errorf(ParseError, "the body is not a JSON object")
	}
	for name, v := range members {
		delete(have, snake(name))
		have[name] = v
	}
	return object(have), nil
}

// object encodes members unchanged, sorted by name.
func object(members map[string]json.RawMessage) json.RawMessage {
	names := slices.Sorted(maps.Keys(members))
	b := []byte{'{'}
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Encode(name)...), ':'), members[name]...)
	}
	return append(b, '}')
}

func queryValue(name string, kind byte, text string) (json.RawMessage, *Error) {
	switch kind {
	case 'n':
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, Errorf(InvalidParams, "%s is not a number", name).At(name)
		}
		return Encode(n), nil
	case 'b':
		if text != "true" && text != "false" {
			return nil, Errorf(InvalidParams, "%s must be true or false", name).At(name)
		}
		return json.RawMessage(text), nil
	case 'e': // a name or a number
		if n, err := strconv.ParseUint(text, 10, 31); err == nil {
			return Encode(n), nil
		}
	}
	return Encode(text), nil
}

// ToREST encodes an operation for the REST binding. Fields in the path or the query are not repeated in the body.
func ToREST(op *Operation) (*Route, *Error) {
	members := map[string]json.RawMessage{}
	if len(op.Params) > 0 && json.Unmarshal(op.Params, &members) != nil {
		return nil, Errorf(InvalidParams, "the params are not an object")
	}
	take := func(name string) string {
		var s string
		for _, spelling := range []string{name, snake(name)} {
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

// asQuery encodes members as a query: strings and enums as text, others as JSON.
func asQuery(members map[string]json.RawMessage) url.Values {
	q := url.Values{}
	for name, v := range members {
		var text string
		if json.Unmarshal(v, &text) != nil {
			text = string(v)
		}
		q.Set(camel(name), text)
	}
	return q
}
