package mqtt

import (
	"cmp"
	"encoding/json"
	"net"
	"net/url"
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
	"github.com/lmosd/lmosd/td/scheme"
)

// A plan is the parsed and checked content of a form.
type plan struct {
	form    *td.Form
	host    string   // the broker, with its port
	secure  bool     // mqtts
	topic   string   // to publish to; empty if the form has none
	filters []string // to subscribe to; empty if the form has none
	qos     byte
	retain  bool
	// hasResponses means that the agent sends responses to a response topic (kotlin-wot), unlike in the style of the W3C.
	hasResponses bool

	login login
}

// terms are the used terms of the MQTT vocabulary (WoT MQTT binding, §Vocabulary).
type terms struct {
	topic, filter, packet json.RawMessage
	qos, retain           json.RawMessage
}

// readTerms finds the terms in a form, with either prefix, in the form itself or in its "optionalProperties" (kotlin-wot).
func readTerms(raw []byte) (terms, error) {
	var t terms
	var form map[string]json.RawMessage
	if len(raw) == 0 {
		return t, nil
	}
	if err := json.Unmarshal(raw, &form); err != nil {
		return t, err
	}
	var nested map[string]json.RawMessage
	_ = json.Unmarshal(form["optionalProperties"], &nested) // a value that is not an object has no terms
	get := func(name string) json.RawMessage {
		for _, m := range []map[string]json.RawMessage{form, nested} {
			for _, prefix := range []string{"mqv:", "mqtt:"} {
				if v, ok := m[prefix+name]; ok && string(v) != "null" {
					return v
				}
			}
		}
		return nil
	}
	t = terms{topic: get("topic"), filter: get("filter"), packet: get("controlPacket"), qos: get("qos"), retain: get("retain")}
	return t, nil
}

// readForm makes a plan of f. The error is an [*interact.Error] of code BadTD, or NotAllowed for unsupported features.
func readForm(f *td.Form) (*plan, error) {
	if strings.ContainsAny(f.Href, "{}") {
		return nil, interact.Errorf(interact.NotAllowed, "add a form without variables",
			"the address %s has variables, which lmosd does not support over MQTT", form.Plain(f.Href))
	}
	if f.ContentCoding != "" && !strings.EqualFold(f.ContentCoding, "identity") {
		return nil, interact.Errorf(interact.NotAllowed, "add a form without contentCoding", "the coding %q is not supported over MQTT",
			interact.Excerpt(f.ContentCoding, 40))
	}
	p := &plan{form: f}
	path, err := p.readHref()
	if err != nil {
		return nil, err
	}
	t, err := readTerms(f.Raw)
	if err != nil {
		return nil, form.Bad(f.Href, "cannot be read")
	}
	if err := p.readTopics(t, path); err != nil {
		return nil, err
	}
	if p.qos, err = readQoS(t.qos); err != nil {
		return nil, form.Bad(f.Href, err.Error())
	}
	if t.retain != nil && json.Unmarshal(t.retain, &p.retain) != nil && string(t.retain) != `"true"` &&
		string(t.retain) != `"false"` {
		return nil, form.Bad(f.Href, "has an mqv:retain that is neither true nor false")
	}
	p.retain = p.retain || string(t.retain) == `"true"`
	// A retained message is not a request: later consumers would receive responses to earlier requests.
	p.hasResponses = t.topic == nil && t.filter == nil && t.packet == nil && !p.retain
	return p, nil
}

// readHref reads the address of the broker and returns the path after it.
func (p *plan) readHref() (path string, err error) {
	_, rest, ok := strings.Cut(p.form.Href, "://")
	s := scheme.Lookup(p.form.Scheme())
	p.secure = s.IsSecure
	authority, path, _ := strings.Cut(rest, "/")
	// Not u.Path: the topic is the path byte for byte, and "#" at its end is a wildcard, not an empty fragment.
	if !strings.HasSuffix(path, "/#") && path != "#" {
		path, _, _ = strings.Cut(path, "#")
	}
	path, _, _ = strings.Cut(path, "?")
	authority = authority[strings.LastIndex(authority, "@")+1:] // secrets come from the credentials file, never from a description
	u, err := url.Parse("mqtt://" + authority)
	if !ok || err != nil || u.Hostname() == "" || u.Path+u.RawQuery+u.Fragment != "" {
		return "", form.Bad(p.form.Href, "is not the address of a broker")
	}
	p.host = net.JoinHostPort(strings.ToLower(u.Hostname()), cmp.Or(u.Port(), s.Port))
	return path, nil
}

// readTopics takes the topic to publish to and the filters to subscribe to from the terms, else from the path.
func (p *plan) readTopics(t terms, path string) error {
	topic, err := oneText(t.topic)
	if err != nil {
		return form.Bad(p.form.Href, "has an mqv:topic that is not a string")
	}
	filters, err := manyTexts(t.filter)
	if err != nil {
		return form.Bad(p.form.Href, "has an mqv:filter that is neither a text nor an array of texts")
	}
	topic = cmp.Or(topic, path)
	if len(filters) == 0 && topic != "" {
		filters = []string{topic}
	}
	if len(filters) > 64 {
		return form.Bad(p.form.Href, "has more than 64 filters")
	}
	for _, f := range filters {
		if !packet.IsFilter(f) {
			return form.Bad(p.form.Href, "has the filter "+quoted(f)+", which MQTT does not allow")
		}
	}
	if t.topic != nil && !packet.IsTopic(topic) {
		return form.Bad(p.form.Href, "has the topic "+quoted(topic)+", which MQTT does not allow")
	}
	if packet.IsTopic(topic) {
		p.topic = topic
	}
	if p.filters = packet.Covered(filters); len(p.filters) == 0 {
		return form.Bad(p.form.Href, "has no topic")
	}
	return nil
}

func oneText(raw json.RawMessage) (s string, err error) {
	if raw != nil {
		err = json.Unmarshal(raw, &s)
	}
	return s, err
}

func manyTexts(raw json.RawMessage) (list []string, err error) {
	if raw == nil {
		return nil, nil
	}
	if one, err := oneText(raw); err == nil {
		return []string{one}, nil
	}
	err = json.Unmarshal(raw, &list)
	return list, err
}

// readQoS reads 0, 1, 2, as a number or a string: the examples of the binding write "0". Without it the QoS is 1.
func readQoS(raw json.RawMessage) (byte, error) {
	switch strings.Trim(string(raw), `"`) {
	case "":
		return 1, nil
	case "0":
		return 0, nil
	case "1":
		return 1, nil
	case "2":
		return 2, nil
	}
	return 0, errQoS
}

type formError string

func (e formError) Error() string { return string(e) }

const errQoS = formError("has an mqv:qos other than 0, 1 and 2")
