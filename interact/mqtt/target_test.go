package mqtt

import (
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

func TestRequestTopics(t *testing.T) {
	t.Parallel()
	tests := []struct {
		topic string
		want  target
		ok    bool
	}{
		{"weather", target{thing: "weather"}, true},
		{"urn:x:y@z6Mk", target{thing: "urn:x:y@z6Mk"}, true},
		{"https:%2F%2Fh%2Fa/actions/b%2Fc", target{thing: "https://h/a", kind: "actions", name: "b/c"}, true},
		{"w/properties", target{thing: "w", kind: "properties"}, true},
		{"w/properties/p", target{thing: "w", kind: "properties", name: "p"}, true},
		{"w/actions", target{thing: "w", kind: "actions"}, true},
		{"w/actions/a/query", target{thing: "w", kind: "actions", name: "a", verb: "query"}, true},
		{"w/actions/a/cancel", target{thing: "w", kind: "actions", name: "a", verb: "cancel"}, true},
		{"100%", target{thing: "100%"}, true},
		{"w/events/e", target{}, false}, {"w/properties/p/observable", target{}, false}, {"w/actions/a/reply/1", target{}, false},
		{"w/actions/a/start", target{}, false}, {"w/properties/p/query", target{}, false}, {"w/other", target{}, false},
		{"w/", target{}, false}, {"/w", target{}, false},
		{"w//a", target{}, false}, {"w/actions/", target{}, false}, {"$SYS/broker", target{}, false}, {"w/+/a", target{}, false},
		{"#", target{}, false}, {"", target{}, false},
		{"w%00/actions/a", target{}, false}, {"w/actions/a/query/1", target{}, false}, {strings.Repeat("w", 2000), target{}, false},
	}
	for _, tt := range tests {
		got, ok := parseRequest(tt.topic)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%.40q: %+v, %v", tt.topic, got, ok)
		}
	}
}

func TestReplyTopics(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]bool{"w/reply/1": true, "w/actions/a/reply/1-2": true, "w/properties/reply/x": true,
		"w/actions/a/query/reply/1": true,
		"w/events/e/reply/1":        false, "w/actions/a/reply/": false, "w/actions/a/reply/+": false, "w/actions/+/reply/1": false,
		"reply/1": false, "w/actions/a": false,
		"$SYS/reply/1": false, "w/actions/a/reply/1/2": false, "": false} {
		if got := isReply(topic); got != want {
			t.Errorf("%q: %v", topic, got)
		}
	}
}

func TestScopesOfFilters(t *testing.T) {
	t.Parallel()
	d := describe(t, "mqtt://h", `
		"properties": {"level": {"type": "integer", "observable": true, "forms": [{"href": "BASE/x"}]}, "a/b": {"type": "integer",
			"observable": true, "forms": [{"href": "BASE/x"}]},
			"still": {"type": "integer", "forms": [{"href": "BASE/x"}]}},
		"events": {"broken": {"forms": [{"href": "BASE/x"}]}, "out": {"forms": [{"href": "BASE/x"}]}}`)
	tests := []struct {
		filter string
		want   []string
	}{
		{"w/properties/level/observable", []string{"w/properties/level/observable"}},
		{"w/properties/a%2Fb/observable", []string{"w/properties/a%2Fb/observable"}},
		{"w/properties/a%2fb/observable", []string{"w/properties/a%2fb/observable"}},
		{"w/properties/still/observable", nil},
		{"w/properties/+/observable", []string{"w/properties/a%2Fb/observable", "w/properties/level/observable"}},
		{"w/properties/#", []string{"w/properties/a%2Fb/observable", "w/properties/level/observable"}},
		{"w/events/broken", []string{"w/events/broken"}},
		{"w/events/none", nil},
		{"w/events/+", []string{"w/events/broken", "w/events/out"}},
		{"w/events/#", []string{"w/events/broken", "w/events/out"}},
		{"w/#", []string{"w/events/broken", "w/events/out", "w/properties/a%2Fb/observable", "w/properties/level/observable"}},
	}
	for _, tt := range tests {
		s, ok := parseFilter(tt.filter)
		var got []string
		for _, subject := range s.subjects(d) {
			got = append(got, subject.topic)
		}
		slices.Sort(got)
		if !ok || s.thing != "w" || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v", tt.filter, got, ok)
		}
		for _, topic := range got {
			if !packet.Matches(tt.filter, topic) {
				t.Errorf("%s is published on %s, which it does not cover", tt.filter, topic)
			}
		}
	}
	for _, filter := range []string{"#", "+", "+/events/e", "w", "w/+", "w/+/e", "w/events", "w/properties/level",
		"w/properties/+", "w/actions/#", "w/events/e/x", "$SYS/#",
		"$share/g/w/events/e", "/events/e", "w/properties/level/+", "", "w/#/x"} {
		if s, ok := parseFilter(filter); ok {
			t.Errorf("%q is allowed: %+v", filter, s)
		}
	}
}

// Topics of requests, of subscriptions and of responses are disjoint.
func FuzzRoutes(f *testing.F) {
	for _, s := range []string{"w", "w/actions/a", "w/actions/reply/query", "w/properties/+/observable", "w/events/e",
		"w/actions/a/reply/1", "$share/a/b", "w/#", "a%2Fb/events/%2B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		r, ok := parseRequest(topic)
		if ok && (!packet.IsTopic(topic) || r.thing == "" || r.kind == "" && r.name != "") {
			t.Errorf("%q is the request %+v", topic, r)
		}
		s, received := parseFilter(topic)
		switch {
		case ok && received:
			t.Errorf("%q is both asked and received", topic)
		case received && (!packet.IsFilter(topic) || strings.ContainsAny(s.level, "+#") || s.thing == ""):
			t.Errorf("%q covers more than one thing: %+v", topic, s)
		case isReply(topic) && packet.IsPattern(topic):
			t.Errorf("%q covers answers to others", topic)
		}
	})
}
