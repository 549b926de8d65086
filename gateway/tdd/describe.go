package tdd

import (
	"github.com/lmosd/lmosd/internal/sse"
)

// Affordances returns the members "properties", "actions" and "events" of the TD of a directory whose API is at api, an
// absolute URL without a slash at its end: those of the Thing Model of directories (WoT Discovery §7.3.4), with what the model
// leaves open. Its forms are usable as they are: absolute addresses, operations, methods and content types of answers, of empty
// ones too. change is the name of the security definition of what changes things; "" makes no difference to the others'.
// Without changes it has no action that changes the directory.
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

// A model is what all forms have in common.
type model struct{ api, change string }

// things is the list. The first form reads it; a property has one type, or some consumers cannot read it.
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

// form is that of an action. Without takes there is no body, without gives none in the answer; fails are statuses of errors.
func (m model) form(method, path, takes string, status int, gives string, fails ...int) object {
	f := object{"href": m.api + path, "op": []any{"invokeaction"}, "htv:methodName": method,
		"response": object{"contentType": orEmpty(gives), "htv:statusCodeValue": status}}
	f["contentType"] = takes
	if takes == "" {
		f["contentType"] = orJSON(gives)
	}
	var more []any
	for _, fail := range fails {
		more = append(more, object{"success": false, "contentType": "application/problem+json", "htv:statusCodeValue": fail})
	}
	f["additionalResponses"] = more
	if m.change != "" && method != "GET" {
		f["security"] = []any{m.change}
	}
	return f
}

// orEmpty is the media type of an answer without a body: a response has to have one (TD 1.1 §5.3.4.2).
func orEmpty(media string) string {
	if media == "" {
		return "application/x-empty"
	}
	return media
}

func orJSON(media string) string {
	if media == "" {
		return typeJSON
	}
	return media
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
