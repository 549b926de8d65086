package coap

import (
	"bytes"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/internal/jcs"
	"github.com/lmosd/lmosd/td"
)

// scalarMember holds an input that is no object beside the variables of its address.
const scalarMember = "value"

// split takes the variables of the address out of data, and checks both: [interact.Check] leaves such an input to the binding.
// Without variables the data is the body.
func (r *request) split(data []byte) (vars map[string]string, body []byte, err error) {
	a := interact.Affordance(r.thing, r.message)
	if a == nil || len(a.URIVariables) == 0 {
		return nil, data, nil
	}
	plain, media, err := interact.Transcode(data, r.message.Media(), interact.JSON)
	if err != nil {
		return nil, nil, err
	}
	if len(plain) > 0 && !td.IsJSON(media) {
		return nil, data, nil // nothing is known of it: an address with a variable will miss it
	}
	schema := interact.InputSchema(r.thing, r.message)
	vars, body, issues := take(plain, a.URIVariables, schema)
	if len(body) == 0 && schema.Type() == "object" {
		body = []byte("{}")
	}
	value, issue := decode(body)
	switch {
	case issue != nil:
		issues = append(issues, *issue)
	case len(body) > 0:
		issues = append(issues, schema.Check(value)...)
	case r.message.Type == interact.WriteProperty, schema.Type() != "":
		issues = append(issues, td.Issue{Reason: "a value is needed"})
	}
	if len(issues) > 0 {
		return nil, nil, &interact.Error{Code: interact.Invalid, Title: "the input does not fit " + r.what(), Issues: issues,
			Hint: "see what it takes: lmosd show " + interact.Quote(r.message.Thing)}
	}
	// Back in the type that the message has, so that convert sees what it says.
	body, _, err = interact.Transcode(body, interact.JSON, r.message.Media())
	return vars, body, err
}

// take splits the object data into the values of variables and the rest, which stays byte for byte as it was written.
func take(data []byte, schemas map[string]*td.Schema, input *td.Schema) (vars map[string]string, rest []byte, issues []td.Issue) {
	fields, err := jcs.Members(data)
	if err != nil {
		return nil, data, nil // what is wrong with it is said when it is decoded
	}
	vars = make(map[string]string, len(schemas))
	var left []jcs.Member
	scalar := input.Type() != "" && input.Type() != "object"
	for _, f := range fields {
		schema, variable := schemas[f.Name]
		if variable {
			text, bad := variableOf(f, schema)
			vars[f.Name], issues = text, append(issues, bad...)
		}
		if scalar && f.Name == scalarMember {
			rest = f.Raw
		}
		if !variable || input.Property(f.Name) != nil {
			left = append(left, f)
		}
	}
	if scalar || len(left) == 0 {
		return vars, rest, issues
	}
	return vars, jcs.Join(left), issues
}

// variableOf returns the text of a variable: a string, a number or a boolean (TD 1.1 §5.3.4.2). A null was not given.
func variableOf(f jcs.Member, schema *td.Schema) (string, []td.Issue) {
	at := "/" + pointer.Replace(f.Name)
	value, _ := decode(f.Raw)
	issues := schema.Check(value)
	for i := range issues {
		issues[i].Pointer = at + issues[i].Pointer
	}
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, issues
	case float64, bool:
		return string(f.Raw), issues
	}
	return "", []td.Issue{{Pointer: at, Reason: "a variable of the address is a string, a number or a boolean"}}
}

func decode(data []byte) (any, *td.Issue) {
	if len(data) == 0 {
		return nil, nil
	}
	v, err := jcs.Decode(data, len(data))
	if err != nil {
		return nil, &td.Issue{Reason: err.Error()}
	}
	return v, nil
}

// convert returns the body as the form wants it: JSON as CBOR and the other way round, and a string, a number or a boolean as
// text.
func (r *request) convert(body []byte) ([]byte, error) {
	want, have := r.form.ContentType, r.message.Media()
	if len(body) == 0 {
		return nil, nil
	}
	if !takesBody(r.terms.method) {
		if string(body) == "{}" {
			return nil, nil
		}
		return nil, interact.Errorf(interact.NotAllowed,
			"declare the members of the input as uriVariables, or set cov:method to one with a body",
			"%s is asked with a method that has no body for the input", r.what())
	}
	if messaging.Alike(want, have) {
		return body, nil
	}
	out, is, err := interact.Transcode(body, have, want)
	if err != nil || messaging.Alike(want, is) {
		return out, err
	}
	if out, is, err = interact.Transcode(body, have, interact.JSON); err != nil {
		return nil, err
	}
	if text, ok := textOf(out); ok && td.IsJSON(is) && strings.HasPrefix(messaging.Base(want), "text/") {
		return text, nil
	}
	return nil, interact.Errorf(interact.UnsupportedType, "send "+messaging.Base(want),
		"%s takes %s, not %s", r.what(), messaging.Base(want), messaging.Base(have))
}

// textOf returns the string, number or boolean that body is as JSON, as text.
func textOf(body []byte) ([]byte, bool) {
	v, issue := decode(body)
	if issue != nil {
		return nil, false
	}
	switch v := v.(type) {
	case string:
		return []byte(v), true
	case float64, bool:
		return bytes.TrimSpace(body), true
	}
	return nil, false
}
