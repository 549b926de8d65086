package td

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
)

// MeshHref is the prefix of the href of a form that leads through the mesh: the affordance has no address of its own and is reached
// through the node that publishes the Thing. The path of the affordance in the TD follows.
const MeshHref = "lmos:"

// Draft completes the description that an agent gives of itself, so that [Complete] accepts it: an agent behind its node needs no address,
// security or boilerplate. It adds missing members: @context, @type "lmos:Agent", security nosec, and for each affordance without forms a
// form such as "lmos:/actions/ask", which leads through the mesh. Existing members are unchanged; the order of added members is not
// defined. The error is a [*ValidationError] if raw is not a JSON object.
func Draft(raw []byte) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(raw, &doc); err != nil || doc == nil {
		return nil, &ValidationError{NotJSON: true, Issues: []Issue{{Reason: "a description is a JSON object with a title"}}}
	}
	used := prefixes[:1]
	if bytes.Contains(raw, []byte(`"lmosd:`)) {
		used = prefixes
	}
	for name, value := range map[string]string{
		"@context": `["` + Context10 + `","` + Context11 + `",{` + declarations(used) + `}]`, "@type": `"lmos:Agent"`,
	} {
		if doc[name] == nil {
			doc[name] = json.RawMessage(value)
		}
	}
	if doc["security"] == nil && doc["securityDefinitions"] == nil {
		doc["security"], doc["securityDefinitions"] = json.RawMessage(`["nosec_sc"]`), json.RawMessage(`{"nosec_sc":{"scheme":"nosec"}}`)
	}
	for _, kind := range []string{"properties", "actions", "events"} {
		if err := draftForms(doc, kind); err != nil {
			return nil, err
		}
	}
	return json.Marshal(doc)
}

// draftForms adds a form of the mesh to each affordance without forms.
func draftForms(doc map[string]json.RawMessage, kind string) error {
	if doc[kind] == nil {
		return nil
	}
	var all map[string]map[string]json.RawMessage
	if err := json.Unmarshal(doc[kind], &all); err != nil {
		return invalid("/"+kind, "is an object of objects")
	}
	for name, a := range all {
		if a == nil {
			a = map[string]json.RawMessage{}
			all[name] = a
		}
		if a["forms"] != nil {
			continue
		}
		form := map[string]any{"href": MeshHref + "/" + kind + "/" + url.PathEscape(name), "contentType": "application/json"}
		if kind == "properties" {
			form["op"] = meshOps(a)
		}
		b, err := json.Marshal([]any{form})
		if err != nil {
			return fmt.Errorf("write a form: %w", err)
		}
		a["forms"] = b
	}
	b, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("write the %s: %w", kind, err)
	}
	doc[kind] = b
	return nil
}

// meshOps returns the operations of a property without an address: the default ones, and those of observation.
func meshOps(property map[string]json.RawMessage) []string {
	is := func(name string) bool { return string(property[name]) == "true" }
	var ops []string
	if !is("writeOnly") {
		ops = append(ops, "readproperty")
	}
	if !is("readOnly") {
		ops = append(ops, "writeproperty")
	}
	if is("observable") {
		ops = append(ops, "observeproperty", "unobserveproperty")
	}
	return ops
}
