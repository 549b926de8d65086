package coap

import (
	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// split takes the variables of the address out of data, and checks both: [interact.Check] leaves such an input to the binding.
// Without variables the data is the body.
func (r *request) split(data []byte) (vars map[string][]string, body []byte, err error) {
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
	vars, body, issues := form.Split(plain, a.URIVariables, schema)
	if len(body) == 0 && schema.Type() == "object" {
		body = []byte("{}")
	}
	value, err := form.Decode(body)
	switch {
	case err != nil:
		issues = append(issues, td.Issue{Reason: err.Error()})
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
	return form.Convert(body, have, want, r.what())
}
