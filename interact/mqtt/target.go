package mqtt

import (
	"strings"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
)

// A target is the resource of a topic of the [Broker].
type target struct {
	thing string // a reference (td.Ref)
	kind  string // "properties", "actions", "events"; "" for the thing itself
	name  string // the affordance; "" for all of the kind
	verb  string // "query" or "cancel" a run of an action; else ""
}

// parseRequest parses the topic of a request:
//
//	{thing}                        the description
//	{thing}/properties             all readable values; with an object they are written; with an array of names these are read
//	{thing}/properties/{p}         the value; with a payload it is written
//	{thing}/actions                the states of all actions
//	{thing}/actions/{a}            the action is invoked
//	{thing}/actions/{a}/query      the state of the run whose id is the payload; without, of the consumer's latest
//	{thing}/actions/{a}/cancel     that run is cancelled
func parseRequest(topic string) (r target, ok bool) {
	levels, ok := splitTopic(topic)
	if !ok || len(levels) > 1 && levels[1] != "properties" && levels[1] != "actions" {
		return target{}, false
	}
	r.thing = levels[0]
	if len(levels) > 1 {
		r.kind = levels[1]
	}
	if len(levels) > 2 {
		r.name = levels[2]
	}
	if len(levels) > 3 {
		r.verb = levels[3]
		return r, len(levels) == 4 && r.kind == "actions" && (r.verb == "query" || r.verb == "cancel")
	}
	return r, true
}

// splitTopic returns the levels of a topic, unescaped; none is empty.
func splitTopic(topic string) (levels []string, ok bool) {
	if !packet.IsTopic(topic) || strings.HasPrefix(topic, "$") {
		return nil, false
	}
	levels = strings.Split(topic, "/")
	for i, level := range levels {
		if levels[i] = packet.UnescapeLevel(level); !packet.IsText(levels[i]) {
			return nil, false
		}
	}
	return levels, len(levels[0]) <= td.MaxID+128 // an id, and its owner behind it
}

// isReply reports whether topic is a response topic: {topic}/reply/{id}.
func isReply(topic string) bool {
	id := strings.LastIndexByte(topic, '/')
	if id < 0 || id == len(topic)-1 {
		return false
	}
	asked, ok := strings.CutSuffix(topic[:id], "/reply")
	if !ok || !packet.IsTopic(topic) {
		return false
	}
	_, ok = parseRequest(asked)
	return ok
}

// A scope is the set of affordances that a filter covers: the changes of one property or all of them, one event or all of them.
type scope struct {
	thing           string // a reference
	level           string // the same as the filter spells it
	property, event string // as the filter spells it; "+" for all, "" for none
}

// parseFilter parses a filter that is not a response topic. Wildcards cover one Thing at most:
//
//	{thing}/properties/{p}/observable      {thing}/properties/+/observable      {thing}/properties/#
//	{thing}/events/{e}                     {thing}/events/+                     {thing}/events/#           {thing}/#
func parseFilter(filter string) (s scope, ok bool) {
	if !packet.IsFilter(filter) || strings.HasPrefix(filter, "$") {
		return scope{}, false
	}
	levels := strings.Split(filter, "/")
	first, ok := splitTopic(levels[0])
	if !ok || len(levels) < 2 {
		return scope{}, false
	}
	s.thing, s.level = first[0], levels[0]
	switch rest := levels[1:]; {
	case len(rest) == 1 && rest[0] == "#":
		s.property, s.event = "+", "+"
	case len(rest) == 2 && rest[0] == "properties" && rest[1] == "#":
		s.property = "+"
	case len(rest) == 2 && rest[0] == "events" && (rest[1] == "#" || rest[1] == "+"):
		s.event = "+"
	case len(rest) == 3 && rest[0] == "properties" && rest[2] == "observable" && rest[1] != "#":
		s.property = rest[1]
	case len(rest) == 2 && rest[0] == "events" && !packet.IsPattern(rest[1]):
		s.event = rest[1]
	default:
		return scope{}, false
	}
	return s, s.property != "" || s.event != ""
}

// A subject is one affordance that a filter covers, and the topic of its messages.
type subject struct {
	topic string
	typ   interact.Type // ObserveProperty or SubscribeEvent
	name  string
}

// subjects returns the affordances of d that the scope covers. Each affordance is observed separately, so that a consumer of one and a
// consumer of all receive each change once.
func (s scope) subjects(d *td.Thing) (all []subject) {
	for name, spelled := range spellings(s.property, d.Properties) {
		if p := d.Properties[name]; p != nil && p.Observable && !p.WriteOnly {
			all = append(all, subject{s.level + "/properties/" + spelled + "/observable", interact.ObserveProperty, name})
		}
	}
	for name, spelled := range spellings(s.event, d.Events) {
		if d.Events[name] != nil {
			all = append(all, subject{s.level + "/events/" + spelled, interact.SubscribeEvent, name})
		}
	}
	return all
}

// spellings returns the names that a level of a filter matches, and their spelling in topics.
func spellings[A any](level string, all map[string]A) map[string]string {
	names := map[string]string{}
	switch level {
	case "":
	case "+":
		for name := range all {
			names[name] = packet.EscapeLevel(name)
		}
	default:
		names[packet.UnescapeLevel(level)] = level
	}
	return names
}
