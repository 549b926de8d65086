package mqtt

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
	paho3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/td"
)

func newState() *state.State { return state.NewInMemory() }

// kotlin has forms as kotlin-wot writes them: the topic in the path (spec lmos §7.6).
const kotlin = `
	"properties": {
		"level": {"type": "integer", "observable": true, "forms": [
			{"href": "BASE/urn:example:lamp/properties/level", "op": ["readproperty", "writeproperty"]},
			{"href": "BASE/urn:example:lamp/properties/level/observable", "op": ["observeproperty", "unobserveproperty"]}]},
		"color": {"type": "string", "observable": true, "forms": [
			{"href": "BASE/urn:example:lamp/properties/color", "op": ["readproperty", "writeproperty"]},
			{"href": "BASE/urn:example:lamp/properties/color/observable", "op": ["observeproperty", "unobserveproperty"]}]}
	},
	"actions": {
		"fade":  {"input": {"type": "object"}, "output": {"type": "string"},
			"forms": [{"href": "BASE/urn:example:lamp/actions/fade"}]},
		"reset": {"forms": [{"href": "BASE/urn:example:lamp/actions/reset"}]}
	},
	"events": {"broken": {"data": {"type": "string"}, "forms": [{"href": "BASE/urn:example:lamp/events/broken",
		"optionalProperties": {"mqtt:qos": 0, "mqtt:retain": false}}]}}`

// w3c has forms of the W3C's MQTT binding: the broker in the href, the topic in terms.
const w3c = `
	"properties": {
		"level": {"type": "integer", "observable": true, "forms": [
			{"href": "BASE", "op": ["readproperty", "observeproperty"], "mqv:filter": "lamp/level", "mqv:retain": true, "mqv:qos": "1"},
			{"href": "BASE", "op": "writeproperty", "mqv:topic": "lamp/level/set", "mqv:qos": "0", "mqv:controlPacket": "publish"}]},
		"note": {"type": "string", "forms": [
			{"href": "BASE", "op": "writeproperty", "mqv:topic": "lamp/note", "mqv:qos": 2, "mqv:retain": true,
				"contentType": "text/plain"}]}
	},
	"actions": {"fade": {"input": {"type": "object"}, "output": {"type": "string"}, "forms": [{"href": "BASE",
		"mqv:topic": "lamp/fade", "mqv:qos": 1}]}},
	"events": {"broken": {"data": {"type": "string"}, "forms": [{"href": "BASE", "mqv:filter": ["lamp/broken", "lamp/burnt/+"]}]}},
	"forms": [{"href": "BASE", "op": ["observeallproperties", "unobserveallproperties"], "mqv:filter": "lamp/all/#"},
		{"href": "BASE", "op": ["subscribeallevents"], "mqv:filter": "lamp/told/+"}]`

// lampAgent answers as an agent of kotlin-wot.
func lampAgent(t testing.TB, addr string) *peer {
	t.Helper()
	p := newPeer(t, addr, func(p *peer, m *paho.Publish) {
		switch what := m.Topic[strings.LastIndexByte(m.Topic, '/')+1:]; {
		case what == "level" && len(m.Payload) == 0:
			p.answer(m, "application/json", "42")
		case what == "level" || what == "reset":
			p.answer(m, "", "")
		case what == "color":
			p.answer(m, "text/plain", "red "+string(m.Payload))
		case what == "fade":
			p.answer(m, "application/json", `"faded by `+strings.ReplaceAll(string(m.Payload), `"`, `'`)+`"`)
			p.answer(m, "application/json", `"again"`) // one that answers twice
		}
	})
	p.sub(t, "$share/server-group/urn:example:lamp/properties/+", "$share/server-group/urn:example:lamp/actions/+")
	return p
}

func TestRequestAndReply(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	lampAgent(t, b.addr)
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	tests := []struct {
		name  string
		m     *interact.Message
		typ   interact.Type
		media string
		data  string
	}{
		{"read is a request without payload", read("level"), interact.PropertyReading, "application/json", "42"},
		{"write with an empty answer", write("level", "7"), interact.Acknowledgement, "", ""},
		{"write that is answered with the value", write("color", `"blue"`), interact.PropertyReading, "text/plain", `red "blue"`},
		{"the answer's own content type", read("color"), interact.PropertyReading, "text/plain", "red "},
		{"invoke", invoke("fade", `{"to":1}`), interact.ActionStatus, "application/json", `"faded by {'to':1}"`},
		{"invoke without output", invoke("reset", ""), interact.ActionStatus, "", ""},
	}
	for range 2 { // the second response of fade does not affect later requests
		for _, tt := range tests {
			got, err := ask(t, c, thing, tt.m)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if got.Type != tt.typ || got.ContentType != tt.media || string(got.Data) != tt.data || got.Correlation != "1" ||
				got.Name != tt.m.Name {
				t.Errorf("%s: got %+v with %q", tt.name, got, got.Data)
			}
			if tt.typ == interact.ActionStatus && got.Status != interact.StatusCompleted {
				t.Errorf("%s: status %s", tt.name, got.Status)
			}
			if tt.typ == interact.PropertyReading && got.Time.IsZero() {
				t.Errorf("%s: no time", tt.name)
			}
		}
	}
	if n := b.connects(); n != 2 { // the agent and the client
		t.Errorf("%d connections, want one for all requests", n-1)
	}
	until(t, "response topics are left", func() bool { return b.filters() == 0 })
}

func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	seen := make(chan *paho.Publish, 1)
	p := newPeer(t, b.addr, func(p *peer, m *paho.Publish) {
		seen <- m
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		// A response to another request arrives first.
		for _, correlation := range [][]byte{[]byte("another"), m.Properties.CorrelationData} {
			_, _ = p.Publish(ctx, &paho.Publish{Topic: m.Properties.ResponseTopic, QoS: 1, Payload: correlation,
				Properties: &paho.PublishProperties{CorrelationData: correlation, ContentType: "text/plain"}})
		}
	})
	p.sub(t, "urn:example:lamp/actions/fade")
	m := invoke("fade", `{"to": 5}`)
	m.TraceParent, m.TraceState, m.Key, m.Accept = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "a=b", "once",
		"application/cbor"
	m.Deadline = time.Now().Add(90 * time.Second)
	got, err := ask(t, newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin), m)
	if err != nil {
		t.Fatal(err)
	}
	asked := <-seen
	props := asked.Properties
	if asked.QoS != 1 || asked.Retain || string(asked.Payload) != `{"to": 5}` || props.ContentType != "application/json" {
		t.Errorf("request %v", asked)
	}
	if id, ok := strings.CutPrefix(props.ResponseTopic, "urn:example:lamp/actions/fade/reply/"); !ok || len(id) != 36 {
		t.Errorf("response topic %s", props.ResponseTopic)
	}
	if len(props.CorrelationData) < 16 || string(got.Data) != string(props.CorrelationData) {
		t.Errorf("correlation data %q, answer %q", props.CorrelationData, got.Data)
	}
	if e := props.MessageExpiry; e == nil || *e > 20 || *e < 15 { // ask's own deadline is nearer
		t.Errorf("message expiry %v", e)
	}
	want := map[string]string{"traceparent": m.TraceParent, "tracestate": "a=b", "lmos-key": "once", "accept": "application/cbor",
		"lmos-follow": "true"}
	for name, value := range want {
		if got := props.User.Get(name); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
}

func TestReportedStatesOfAnAction(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	p := newPeer(t, b.addr, func(p *peer, m *paho.Publish) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		for _, s := range []struct{ status, data string }{{"pending", ""}, {"running", `"a"`}, {"running", `"b"`},
			{"completed", ""}} {
			props := &paho.PublishProperties{ContentType: "application/json"}
			props.User.Add("lmos-status", s.status)
			props.User.Add("lmos-action-id", "run-1")
			_, _ = p.Publish(ctx, &paho.Publish{Topic: m.Properties.ResponseTopic, QoS: 1, Payload: []byte(s.data), Properties: props})
		}
	})
	p.sub(t, "urn:example:lamp/actions/fade")
	var got []string
	lamp := newClient(t, Options{}).Thing(describe(t, "mqtt://"+b.addr, kotlin))
	for r, err := range lamp.Do(t.Context(), invoke("fade", "{}")) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Status.String()+string(r.Data)+" "+r.ActionID)
	}
	if want := []string{"pending run-1", `running"a" run-1`, `running"b" run-1`, "completed run-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProblemIsTheAgentsError(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	answers := map[string]string{
		"fade": `{"type":"urn:lmosd:error:invalid-message","code":"LMOS-1400","title":"Invalid message","detail":"too \u0007bright",
			"hint":"less","validationErrors":[{"field":"/to","description":"is needed"}]}`,
		"reset": `{"title":"No","detail":"broken lamp"}`,
		"level": `not even JSON`,
		"color": `{"code":"LMOS-3020","title":"Store corrupt"}`, // a code that is this node's own business
	}
	p := newPeer(t, b.addr, func(p *peer, m *paho.Publish) {
		p.answer(m, "application/problem+json", answers[m.Topic[strings.LastIndexByte(m.Topic, '/')+1:]])
	})
	p.sub(t, "urn:example:lamp/#")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	tests := []struct {
		m    *interact.Message
		code interact.Code
		says string
	}{
		{invoke("fade", "{}"), interact.Invalid, "too bright"},
		{invoke("reset", ""), interact.AgentFailed, "No: broken lamp"},
		{read("level"), interact.AgentFailed, "answered with an error"},
		{read("color"), interact.AgentFailed, "Store corrupt"},
	}
	for _, tt := range tests {
		_, err := ask(t, c, thing, tt.m)
		e := wantError(t, err, tt.code)
		if !e.Remote || !strings.Contains(e.Title, tt.says) || !strings.Contains(e.Title, tt.m.Name) {
			t.Errorf("%s: %+v", tt.m.Name, e)
		}
		if tt.m.Name == "fade" && (len(e.Issues) != 1 || e.Issues[0].Pointer != "/to" || e.Hint != "less") {
			t.Errorf("issues %v, hint %q", e.Issues, e.Hint)
		}
	}
}

func TestPublishAndRetained(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		p := newPeer3(t, b.addr, nil)
		seen := make(chan paho3.Message, 16)
		done(t, p.Subscribe("lamp/#", 2, func(_ paho3.Client, m paho3.Message) { seen <- m }))
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		tests := []struct {
			m     *interact.Message
			topic string
			qos   byte
			data  string
		}{
			{write("level", "7"), "lamp/level/set", 0, "7"},
			{write("note", `"mind the dark"`), "lamp/note", 2, "mind the dark"},
			{invoke("fade", `{"to":1}`), "lamp/fade", 1, `{"to":1}`},
			{invoke("fade", ""), "lamp/fade", 1, ""},
		}
		for _, tt := range tests {
			got, err := ask(t, c, thing, tt.m)
			if err != nil {
				t.Fatalf("version %d, %s: %v", version, tt.m.Name, err)
			}
			if tt.m.Type == interact.WriteProperty && got.Type != interact.Acknowledgement ||
				tt.m.Type == interact.InvokeAction && (got.Status != interact.StatusCompleted || len(got.Data) > 0) {
				t.Errorf("version %d, %s: %+v", version, tt.m.Name, got)
			}
			if m := <-seen; m.Topic() != tt.topic || m.Qos() != tt.qos || string(m.Payload()) != tt.data {
				t.Errorf("version %d, %s: %s QoS %d %q", version, tt.m.Name, m.Topic(), m.Qos(), m.Payload())
			}
		}
		done(t, p.Publish("lamp/level", 1, true, "41"))
		<-seen // the broker acknowledges before it delivers
		for range 2 {
			got, err := ask(t, c, thing, read("level"))
			if err != nil || string(got.Data) != "41" || got.Type != interact.PropertyReading || !got.Time.IsZero() {
				t.Fatalf("version %d: %+v, %v", version, got, err)
			}
		}
		if v := c.version(b.addr, time.Now()); v != version {
			t.Errorf("the broker speaks %d, remembered was %d", version, v)
		}
		if kept := b.Topics.Messages("lamp/note"); len(kept) != 1 {
			t.Errorf("version %d: a form with mqv:retain did not retain", version)
		}
	}
}

func TestReadingAnUnretainedTopicTimesOut(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
	_, err := ask(t, c, thing, within1(read("level"), 100*time.Millisecond))
	if e := wantError(t, err, interact.Timeout); e.Started || !strings.Contains(e.Title, "retained") {
		t.Errorf("got %+v", e)
	}
	until(t, "unsubscribed", func() bool { return b.filters() == 0 })
	// A value that arrives during the wait is a reading, too.
	r := observe(t, c.Thing(thing), read("level"))
	until(t, "subscribed", func() bool { return b.filters() > 0 })
	if err := b.Publish("lamp/level", []byte("5"), false, 1); err != nil {
		t.Fatal(err)
	}
	if got := r.next(t); string(got.Data) != "5" || got.Time.IsZero() {
		t.Errorf("got %+v", got)
	}
}

func TestObservations(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		publish := func(topic, data string, retain bool) {
			t.Helper()
			if err := b.Publish(topic, []byte(data), retain, 1); err != nil {
				t.Fatal(err)
			}
		}
		publish("lamp/level", "1", true)
		publish("lamp/broken", `"long ago"`, true)
		level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level", ID: "o"})
		if got := level.next(t); string(got.Data) != "1" || got.Type != interact.PropertyReading || got.Name != "level" ||
			got.Correlation != "o" {
			t.Errorf("version %d: first value %+v", version, got)
		}
		broken := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "broken"})
		all := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveAllProperties})
		told := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
		until(t, "subscribed", func() bool { return b.filters() == 5 })
		publish("lamp/level", "2", true)
		publish("lamp/burnt/left", `"out"`, false)
		publish("lamp/all/unknown", "9", false)
		publish("lamp/all/x/note", `"dark"`, false)
		publish("lamp/told/broken", `"snap"`, false)
		// A read makes the broker send the retained value again; observers have received it.
		if got, err := ask(t, c, thing, read("level")); err != nil || string(got.Data) != "2" {
			t.Errorf("version %d: read %v %v", version, got, err)
		}
		publish("lamp/level", "3", false)
		for _, want := range []string{"2", "3"} {
			if got := level.next(t); string(got.Data) != want {
				t.Errorf("version %d: observed %s, want %s", version, got.Data, want)
			}
		}
		if got := broken.next(t); string(got.Data) != `"out"` || got.Type != interact.Event || got.Name != "broken" ||
			got.Time.IsZero() {
			t.Errorf("version %d: event %+v", version, got)
		}
		if got := all.next(t); got.Name != "note" || string(got.Data) != `"dark"` {
			t.Errorf("version %d: all properties: %+v", version, got)
		}
		if got := told.next(t); got.Name != "broken" || got.Type != interact.Event {
			t.Errorf("version %d: all events: %+v", version, got)
		}
		for _, r := range []*reader{level, broken, all, told} {
			r.leave()
			wantError(t, r.err(t), interact.Cancelled)
		}
		if version == 5 { // an UNSUBACK of 3.1.1 has no failure code, and this broker may fail (see insist)
			until(t, "unsubscribed", func() bool { return b.filters() == 0 })
		}
	}
}

func TestObservationsInTheStyleOfKotlin(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	p := newPeer(t, b.addr, nil)
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
	broken := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "broken"})
	until(t, "subscribed", func() bool { return b.filters() == 2 })
	// A request on the topic is not a message of the agent.
	p.pub(t, &paho.Publish{Topic: "urn:example:lamp/properties/level/observable", QoS: 1,
		Properties: &paho.PublishProperties{ResponseTopic: "x"}})
	props := &paho.PublishProperties{}
	props.User.Add("lmos-id", "17")
	props.User.Add("lmos-time", "2026-02-03T04:05:06Z")
	p.pub(t, &paho.Publish{Topic: "urn:example:lamp/properties/level/observable", QoS: 1, Payload: []byte("3"), Properties: props})
	if got := level.next(t); string(got.Data) != "3" || got.ID != "17" || got.Time.Format(time.RFC3339) != "2026-02-03T04:05:06Z" {
		t.Errorf("got %+v", got)
	}
	p.pub(t, &paho.Publish{Topic: "urn:example:lamp/events/broken", QoS: 1, Payload: []byte(`"x"`)})
	if got := broken.next(t); string(got.Data) != `"x"` || got.ContentType != "application/json" {
		t.Errorf("got %+v", got)
	}
}

func TestFeaturesOfMQTT5(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0").old()
	seen := make(chan string, 4)
	newPeer3(t, b.addr, func(_ paho3.Client, m paho3.Message) { seen <- m.Topic() + " " + string(m.Payload()) },
		"urn:example:lamp/#")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	for _, m := range []*interact.Message{read("level"), invoke("fade", "{}")} {
		_, err := ask(t, c, thing, m)
		if e := wantError(t, err, interact.NotAllowed); !strings.Contains(e.Title, "requires MQTT 5") {
			t.Errorf("%s: %s", m.Name, e)
		}
	}
	if got, err := ask(t, c, thing, write("level", "3")); err != nil || got.Type != interact.Acknowledgement {
		t.Errorf("write: %+v, %v", got, err)
	}
	if got, err := ask(t, c, thing, invoke("reset", "")); err != nil || got.Status != interact.StatusCompleted {
		t.Errorf("invoke without output: %+v, %v", got, err)
	}
	if a, b := <-seen, <-seen; a != "urn:example:lamp/properties/level 3" || b != "urn:example:lamp/actions/reset " {
		t.Errorf("the agent saw %q, %q", a, b)
	}
}

// The first form needs MQTT 5, the second does not: the broker decides.
func TestAnotherFormIsTried(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0").old()
	dead := startBroker(t, "127.0.0.1:0")
	dead.stop()
	thing := describe(t, "mqtt://"+b.addr, `"properties": {"level": {"type": "integer", "forms": [
		{"href": "mqtt://`+dead.addr+`/gone", "op": "readproperty"},
		{"href": "BASE/lamp/level", "op": "readproperty"},
		{"href": "BASE", "mqv:filter": "lamp/level", "op": "readproperty"}]}}`)
	if err := b.Publish("lamp/level", []byte("1"), true, 1); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, newClient(t, Options{}), thing, read("level")); err != nil || string(got.Data) != "1" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestVersionIsRemembered(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(net.Conn){
		"a CONNACK of 3.1.1":         func(c net.Conn) { _, _ = c.Write([]byte{0x20, 2, 0, 1}) },
		"a CONNACK of 5":             func(c net.Conn) { _, _ = c.Write([]byte{0x20, 3, 0, 0x84, 0}) },
		"a connection that is ended": func(net.Conn) {},
	} {
		b := startBroker(t, "127.0.0.1:0")
		tries := 0
		b.mu.Lock()
		b.refuse5 = func(c net.Conn) { tries++; refuse(c) }
		b.mu.Unlock()
		c, thing := newClient(t, Options{Idle: time.Nanosecond}), describe(t, "mqtt://"+b.addr, w3c)
		for range 3 {
			if _, err := ask(t, c, thing, write("level", "1")); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			until(t, "the connection is closed", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return len(c.sessions) == 0
			})
		}
		b.mu.Lock()
		if tries != 1 {
			t.Errorf("%s: MQTT 5 was tried %d times", name, tries)
		}
		b.mu.Unlock()
		c.learn(b.addr, 4, time.Now().Add(-2*versionKnown))
		if v := c.version(b.addr, time.Now()); v != 0 {
			t.Errorf("%s: %d is remembered for ever", name, v)
		}
	}
}

func TestFormsByMediaType(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	seen := make(chan *paho.Publish, 1)
	p := newPeer(t, b.addr, func(_ *peer, m *paho.Publish) { seen <- m })
	p.sub(t, "#")
	thing := describe(t, "mqtt://"+b.addr, `"properties": {"level": {"type": "integer", "forms": [
		{"href": "BASE", "mqv:topic": "cbor", "op": "writeproperty", "contentType": "application/cbor"},
		{"href": "BASE", "mqv:topic": "json", "op": "writeproperty"}]},
		"bin": {"forms": [{"href": "BASE", "mqv:topic": "bin", "op": "writeproperty", "contentType": "application/cbor"}]}}`)
	c := newClient(t, Options{})
	cbor := write("level", "\x18\x2a")
	cbor.ContentType = "application/cbor"
	tests := []struct {
		name               string
		m                  *interact.Message
		topic, data, media string
	}{
		{"JSON goes to the JSON form", write("level", "42"), "json", "42", "application/json"},
		{"CBOR goes to the CBOR form", cbor, "cbor", "\x18\x2a", "application/cbor"},
		{"JSON becomes CBOR where only that is taken", write("bin", "42"), "bin", "\x18\x2a", "application/cbor"},
	}
	for _, tt := range tests {
		if _, err := ask(t, c, thing, tt.m); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if m := <-seen; m.Topic != tt.topic || string(m.Payload) != tt.data || m.Properties.ContentType != tt.media {
			t.Errorf("%s: %s %q %s", tt.name, m.Topic, m.Payload, m.Properties.ContentType)
		}
	}
	png := write("bin", "\x89PNG")
	png.ContentType = "image/png"
	_, err := ask(t, c, thing, png)
	wantError(t, err, interact.UnsupportedType)
}

func TestInvalidMessagesAreNotSent(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c := newClient(t, Options{})
	thing := describe(t, "mqtt://"+b.addr, w3c)
	chunked := invoke("fade", "{}")
	chunked.Chunks = func(func([]byte, error) bool) {}
	for name, m := range map[string]*interact.Message{
		"a stream of chunks": chunked, "a query": {Type: interact.QueryAction, Name: "fade"}, "no such form": read("note"),
		"no such affordance": read("nothing"),
	} {
		_, err := ask(t, c, thing, m)
		code := interact.NotAllowed
		if name == "no such affordance" {
			code = interact.NoAffordance
		}
		if e := wantError(t, err, code); e.Remote || e.Started {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if n := b.connects(); n != 0 {
		t.Errorf("the broker was connected to %d times", n)
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	for href, want := range map[string]bool{"mqtt://h/x": true, "MQTTS://h": true, "http://h": false, "lmos:/actions/x": false,
		"mqtt+x://h": false, "": false} {
		if got := Supports(&td.Form{Href: href}); got != want {
			t.Errorf("%q: %v", href, got)
		}
	}
	if Supports(&td.Form{Href: "mqtt://h", Subprotocol: "sparkplug"}) {
		t.Error("a subprotocol is claimed that is not known")
	}
}
