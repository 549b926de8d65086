package tdd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/lmosd/lmosd/did"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/internal/sse"
	"github.com/lmosd/lmosd/td"
)

// A Self describes a node in its own TD. All fields are required.
type Self struct {
	Signer                 did.Signer
	Name, Network, Version string
	Lifetime               time.Duration // of the signature
	Hosts                  []td.Host     // how the node is reached
}

// TD returns the signed TD of the node: a ThingDirectory and an lmos:Agent (WoT Discovery §6.2). More are further members: the [Affordances]
// of a node that serves HTTP, and their security.
func (s Self) TD(more map[string]any) ([]byte, error) {
	doc := map[string]any{
		"@context": []any{td.Context10, td.Context11, td.ContextDiscovery, td.ContextProof,
			map[string]any{"lmos": td.ContextLMOS, "@language": "en"}},
		"@type":               []any{"ThingDirectory", "lmos:Agent"},
		"id":                  string(s.Signer.DID()),
		"title":               s.Name,
		"description":         "A node of the " + s.Network + " mesh, with a directory of its Things and those of other nodes.",
		"version":             map[string]any{"instance": s.Version},
		"securityDefinitions": map[string]any{"nosec_sc": map[string]any{"scheme": "nosec"}},
		"security":            []any{"nosec_sc"},
	}
	maps.Copy(doc, more)
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	t, err := td.Complete(raw, s.Signer.DID())
	if err != nil {
		return nil, fmt.Errorf("describe this node: %w", err)
	}
	now := time.Now()
	signed, err := td.Sign(t, s.Signer, td.Lease{Seq: uint64(now.UnixMilli()), Now: now, Lifetime: s.Lifetime, Hosts: s.Hosts})
	if err != nil {
		return nil, fmt.Errorf("sign this node's description: %w", err)
	}
	return signed.TD, nil
}

// Affordances returns the members "properties", "actions" and "events" of the TD of a directory whose API is at api, an absolute URL
// without a trailing slash. They follow the Thing Model of directories (WoT Discovery §7.3.4); their forms are complete: absolute URLs,
// operations, methods and content types of responses, also of empty ones. change is the security definition of actions that change Things,
// if it differs. Without changes, these actions are omitted.
func Affordances(api, change string, changes bool) map[string]any {
	m := model{api: api, change: change}
	whole, list := object{"type": "object"}, object{"type": "array"}
	actions := map[string]any{
		"retrieveThing": m.action("Retrieve a Thing Description", idOf, nil, whole,
			m.form("GET", "/things/{id}", "", 200, typeTD, 404)),
		"searchJSONPath": m.action("JSONPath syntactic search", queryVariable, nil, list,
			m.form("GET", "/search/jsonpath?query={query}", "", 200, typeJSON, 400)),
		"searchXPath": m.action("XPath syntactic search", queryVariable, nil, list,
			m.form("GET", "/search/xpath?query={query}", "", 200, typeJSON, 400)),
	}
	if changes {
		actions["createThing"] = m.action("Create a Thing Description", idOf, whole, nil,
			m.form("PUT", "/things/{id}", typeTD, 201, "", 400))
		actions["createAnonymousThing"] = m.action("Create an anonymous Thing Description", nil, whole, nil,
			m.form("POST", "/things", typeTD, 201, "", 400))
		actions["updateThing"] = m.action("Update a Thing Description", idOf, whole, nil,
			m.form("PUT", "/things/{id}", typeTD, 204, "", 400))
		actions["partiallyUpdateThing"] = m.action("Update parts of a Thing Description", idOf, whole, nil,
			m.form("PATCH", "/things/{id}", typePatch, 204, "", 400, 404))
		actions["deleteThing"] = m.action("Delete a Thing Description", idOf, nil, nil,
			m.form("DELETE", "/things/{id}", "", 204, "", 404))
	}
	return map[string]any{
		"properties": object{"things": m.things()},
		"actions":    actions,
		"events": object{
			"thingCreated": m.event("Registration of Thing Descriptions", created, true),
			"thingUpdated": m.event("Updates of Thing Descriptions", updated, true),
			"thingDeleted": m.event("Deletion of Thing Descriptions", deleted, false),
		},
	}
}

type object = map[string]any

var (
	idOf          = object{"id": object{"@type": "ThingID", "title": "Thing Description ID", "type": "string"}}
	queryVariable = object{"query": object{"title": "The query, percent-encoded", "type": "string"}}
)

// A model has the common values of all forms.
type model struct{ api, change string }

// things returns the property of the list. Its type is not a union, which some consumers cannot read.
func (m model) things() object {
	return object{
		"title": "Things", "description": "Retrieve all Thing Descriptions",
		"type": "array", "items": object{"type": "object"}, "readOnly": true,
		"uriVariables": object{
			"offset": object{"title": "Number of TDs to skip before the page", "type": "integer", "minimum": 0, "default": 0},
			"limit":  object{"title": "Number of TDs in a page", "type": "integer", "minimum": 1},
			"format": object{"title": "Payload format", "type": "string", "enum": []any{"array", "collection"}, "default": "array"},
		},
		"forms": []any{object{"href": m.api + "/things{?offset,limit,format}", "op": []any{"readproperty"}, "htv:methodName": "GET",
			"contentType": typeJSON, "response": object{"contentType": typeJSON, "htv:statusCodeValue": 200}}},
	}
}

func (m model) action(description string, variables, input, output, form object) object {
	method := form["htv:methodName"]
	a := object{"description": description, "synchronous": true, "safe": method == "GET", "forms": []any{form},
		"idempotent": method == "GET" || method == "PUT" || method == "DELETE"}
	if variables != nil {
		a["uriVariables"] = variables
	}
	if input != nil {
		a["input"] = input
	}
	if output != nil {
		a["output"] = output
	}
	return a
}

// form returns the form of an action. request and response are the media types of both bodies, "" without one. A response must have a type
// even without a body (TD 1.1 §5.3.4.2). failures are the statuses of errors.
func (m model) form(method, path, request string, status int, response string, failures ...int) object {
	f := object{"href": m.api + path, "op": []any{"invokeaction"}, "htv:methodName": method,
		"contentType": cmp.Or(request, response, typeJSON),
		"response":    object{"contentType": cmp.Or(response, "application/x-empty"), "htv:statusCodeValue": status}}
	var more []any
	for _, failure := range failures {
		more = append(more, object{"success": false, "contentType": problem.MediaType, "htv:statusCodeValue": failure})
	}
	f["additionalResponses"] = more
	if m.change != "" && method != "GET" {
		f["security"] = []any{m.change}
	}
	return f
}

func (m model) event(description, name string, diff bool) object {
	e := object{"description": description, "data": object{"type": "object", "properties": object{"id": object{"type": "string"}}}}
	path := "/events/" + name
	if diff {
		path += "{?diff}"
		e["uriVariables"] = object{"diff": object{"title": "Receive the whole TD, or what changed in it", "type": "boolean"}}
	}
	e["forms"] = []any{object{"href": m.api + path, "op": []any{"subscribeevent", "unsubscribeevent"}, "subprotocol": "sse",
		"contentType": sse.MediaType, "htv:methodName": "GET"}}
	return e
}
