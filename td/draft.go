package td

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
)

// MeshHref is the prefix of the href of a form without an address of its own: the node that publishes the Thing forwards the interaction.
// The path of the affordance in the TD follows.
const MeshHref = "lmos:"

// Draft completes the description of an agent that its node calls, which needs no address and no security, so that [Complete] accepts it. It
// adds missing members: @context, @type "lmos:Agent", security nosec, and for each affordance without forms a form with [MeshHref], such as
// "lmos:/actions/ask". Existing members are unchanged; the order of members is not defined. The error is a [*ValidationError] if raw is not
// a JSON object.
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

// draftForms adds a form with MeshHref to each affordance without forms.
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
			is := func(name string) bool { return string(a[name]) == "true" }
			form["op"] = accessOps(is("readOnly"), is("writeOnly"), is("observable"))
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
