package mqtt

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/td"
)

func TestForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, form string
		host       string
		topic      string
		filters    []string
		qos        byte
		retain     bool
		asks       bool
	}{
		{"kotlin", `{"href":"mqtt://h:1884/urn:x:l/actions/a","optionalProperties":{"mqtt:qos":0,"mqtt:retain":false}}`, "h:1884",
			"urn:x:l/actions/a",
			[]string{"urn:x:l/actions/a"}, 0, false, true},
		{"the path is taken byte for byte", `{"href":"mqtt://h/caf%C3%A9%2Fx/a?query#fragment"}`, "h:1883", "caf%C3%A9%2Fx/a",
			[]string{"caf%C3%A9%2Fx/a"}, 1, false, true},
		{"w3c", `{"href":"mqtts://H","mqv:topic":"a/b","mqv:qos":"2","mqv:retain":true}`, "h:8883", "a/b", []string{"a/b"}, 2, true,
			false},
		{"a filter", `{"href":"mqtt://[::1]:99","mqv:filter":"a/+"}`, "[::1]:99", "", []string{"a/+"}, 1, false, false},
		{"filters that cover each other", `{"href":"mqtt://h","mqv:filter":["a/#","a/b","c"],"mqtt:qos":2}`, "h:1883", "",
			[]string{"a/#", "c"}, 2, false, false},
		{"topic and filter", `{"href":"mqtt://h","mqv:topic":"set","mqv:filter":"get"}`, "h:1883", "set", []string{"get"}, 1, false,
			false},
		{"path and control packet", `{"href":"mqtt://h/a/b","mqv:controlPacket":"publish"}`, "h:1883", "a/b", []string{"a/b"}, 1,
			false, false},
		{"a path that retains is not a request", `{"href":"mqtt://h/a/b","mqv:retain":true}`, "h:1883", "a/b", []string{"a/b"}, 1, true,
			false},
		{"a wildcard at the end of the path", `{"href":"mqtt://h/a/#"}`, "h:1883", "", []string{"a/#"}, 1, false, true},
		{"the user of the address is not used", `{"href":"mqtt://user:secret@h/a"}`, "h:1883", "a", []string{"a"}, 1, false, true},
		{"null is nothing", `{"href":"mqtt://h/a","mqv:topic":null,"mqv:qos":null}`, "h:1883", "a", []string{"a"}, 1, false, true},
	}
	for _, tt := range tests {
		p, err := readForm(formOf(t, tt.form))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if p.host != tt.host || p.topic != tt.topic || !slices.Equal(p.filters, tt.filters) || p.qos != tt.qos ||
			p.retain != tt.retain || p.hasResponses != tt.asks ||
			p.secure != strings.HasPrefix(tt.form, `{"href":"mqtts`) {
			t.Errorf("%s: got %+v", tt.name, p)
		}
	}
}

func formOf(t testing.TB, raw string) *td.Form {
	var f struct{ Href, ContentCoding string }
	if err := json.Unmarshal([]byte(raw), &f); err != nil {
		t.Fatal(err)
	}
	return &td.Form{Href: f.Href, ContentCoding: f.ContentCoding, ContentType: "application/json",
		ResponseType: "application/json", Raw: []byte(raw)}
}

func TestBadForms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, form string
		code       interact.Code
		says       string
	}{
		{"QoS 3", `{"href":"mqtt://h/a","mqv:qos":3}`, interact.BadTD, "mqv:qos"},
		{"QoS of another kind", `{"href":"mqtt://h/a","mqv:qos":{"a":1}}`, interact.BadTD, "mqv:qos"},
		{"retain of another kind", `{"href":"mqtt://h/a","mqv:retain":"maybe"}`, interact.BadTD, "mqv:retain"},
		{"a topic with a wildcard", `{"href":"mqtt://h","mqv:topic":"a/+"}`, interact.BadTD, "topic"},
		{"a topic that is not a text", `{"href":"mqtt://h","mqv:topic":["a"]}`, interact.BadTD, "topic"},
		{"an empty topic", `{"href":"mqtt://h","mqv:topic":""}`, interact.BadTD, "topic"},
		{"a bad filter", `{"href":"mqtt://h","mqv:filter":"a/#/b"}`, interact.BadTD, "filter"},
		{"a filter with a control character", `{"href":"mqtt://h","mqv:filter":["a","b\u0000"]}`, interact.BadTD, "filter"},
		{"a filter of another kind", `{"href":"mqtt://h","mqv:filter":7}`, interact.BadTD, "filter"},
		{"too many filters", `{"href":"mqtt://h","mqv:filter":["a"` + strings.Repeat(`,"b"`, 64) + `]}`, interact.BadTD, "64"},
		{"without a topic", `{"href":"mqtt://h"}`, interact.BadTD, "topic"},
		{"a long topic", `{"href":"mqtt://h/` + strings.Repeat("a", 5000) + `"}`, interact.BadTD, "MQTT does not allow"},
		{"no host", `{"href":"mqtt:///a"}`, interact.BadTD, "broker"},
		{"no address", `{"href":"mqtt:a"}`, interact.BadTD, "broker"},
		{"a bad port", `{"href":"mqtt://h:port/a"}`, interact.BadTD, "broker"},
		{"variables", `{"href":"mqtt://h/{room}/a"}`, interact.NotAllowed, "variables"},
		{"a coding", `{"href":"mqtt://h/a","contentCoding":"gzip"}`, interact.NotAllowed, "gzip"},
	}
	for _, tt := range tests {
		_, err := readForm(formOf(t, tt.form))
		e := wantError(t, err, tt.code)
		if !strings.Contains(e.Title, tt.says) || len(e.Title) > 700 {
			t.Errorf("%s: %s", tt.name, e)
		}
	}
}

func TestNameInATopic(t *testing.T) {
	t.Parallel()
	names := map[string]bool{"level": true, "a/b": true, "lamp": true}
	tests := []struct {
		topic, want string
		filters     []string
	}{
		{"lamp/properties/level/observable", "level", []string{"lamp/properties/#"}},
		{"lamp/level", "level", []string{"lamp/+"}},
		{"lamp/a%2Fb", "a/b", []string{"lamp/#"}},
		{"lamp", "", []string{"lamp/#"}},
		{"lamp/x", "", []string{"lamp/#"}},
		{"x/level", "level", []string{"x/level", "y/level"}},
		{"z/level", "", []string{"x/level"}},
	}
	for _, tt := range tests {
		if got := nameIn(tt.topic, tt.filters, maps.Keys(names)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.topic, got, tt.want)
		}
	}
}

// Each form is a usable plan or a readable error.
func FuzzForm(f *testing.F) {
	f.Add("mqtt://h:1884/urn:x/actions/a", `{"optionalProperties":{"mqtt:qos":0}}`)
	f.Add("mqtts://h", `{"mqv:topic":"a","mqv:filter":["a/#"],"mqv:qos":"2","mqv:retain":true,"mqv:controlPacket":"subscribe"}`)
	f.Add("mqtt://u:p@[::1]:1/#", `{"mqv:qos":9}`)
	f.Add("mqtt://h/a/#", `[]`)
	f.Add("://", `{"optionalProperties":7,"mqv:filter":[null]}`)
	f.Fuzz(func(t *testing.T, href, raw string) {
		p, err := readForm(&td.Form{Href: href, Raw: []byte(raw)})
		var e *interact.Error
		switch {
		case err != nil && (!errors.As(err, &e) || e.Hint == "" && e.Next == nil || len(e.Error()) > 1000):
			t.Errorf("error %v", err)
		case err != nil:
			return
		case p.host == "" || p.qos > 2 || len(p.filters) == 0 || p.topic != "" && !packet.IsTopic(p.topic):
			t.Errorf("plan %+v", p)
		}
		if p == nil {
			return
		}
		for _, filter := range p.filters {
			if !packet.IsFilter(filter) {
				t.Errorf("filter %q", filter)
			}
		}
	})
}
