package mqtt

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

func ExampleTopic() {
	fmt.Println(packet.Topic("weather", "actions", "forecast"))
	fmt.Println(packet.Topic("https://example.com/lamp", "events", "on/off"))
	// Output:
	// weather/actions/forecast
	// https:%2F%2Fexample.com%2Flamp/events/on%2Foff
}

// Agents respond with any QoS, retained messages and any content type.
func TestUnusualAnswers(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	answers := map[string]*paho.Publish{
		"fade":  {QoS: 0, Payload: []byte(`"zero"`), Properties: &paho.PublishProperties{}},
		"reset": {QoS: 2, Retain: true, Properties: &paho.PublishProperties{ContentType: "no media type at all"}},
		"level": {QoS: 2, Payload: []byte("1"), Properties: &paho.PublishProperties{ContentType: strings.Repeat("a/b;", 300)}},
		"color": {QoS: 1, Payload: []byte("\xff\xfe"), Properties: &paho.PublishProperties{ContentType: "application/octet-stream"}},
	}
	p := newPeer(t, b.addr, func(p *peer, m *paho.Publish) {
		a := *answers[m.Topic[strings.LastIndexByte(m.Topic, '/')+1:]]
		a.Topic = m.Properties.ResponseTopic
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_, _ = p.Publish(ctx, &a)
	})
	p.sub(t, "urn:example:lamp/actions/+", "urn:example:lamp/properties/+")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, kotlin)
	for _, tt := range []struct {
		m           *interact.Message
		data, media string
	}{
		{invoke("fade", "{}"), `"zero"`, "application/json"}, {invoke("reset", ""), "", ""},
		{read("level"), "1", "application/json"}, {read("color"), "\xff\xfe", "application/octet-stream"},
	} {
		got, err := ask(t, c, thing, tt.m)
		if err != nil || string(got.Data) != tt.data || got.ContentType != tt.media {
			t.Errorf("%s: %+v, %v", tt.m.Name, got, err)
		}
	}
}

// A deleted value is not a reading. An event without data is an event.
func TestEmptyMessages(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, `
		"properties": {"level": {"type": "integer", "observable": true, "forms": [{"href": "BASE/level", "op": "observeproperty"}]},
			"note": {"type": "string", "observable": true, "forms": [{"href": "BASE/note", "op": "observeproperty", "contentType": "text/plain"}]}},
		"events": {"broken": {"forms": [{"href": "BASE/broken"}]}}`)
	level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
	note := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "note"})
	broken := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "broken"})
	until(t, "subscribed", func() bool { return listening(c) == 3 })
	for _, topic := range []string{"level", "note", "broken"} {
		for _, data := range []string{"", "1"} {
			if err := b.Publish(topic, []byte(data), true, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := level.next(t); string(got.Data) != "1" {
		t.Errorf("level: %q", got.Data)
	}
	for name, r := range map[string]*reader{"note": note, "broken": broken} {
		if first, second := r.next(t), r.next(t); len(first.Data) != 0 || string(second.Data) != "1" {
			t.Errorf("%s: %q, %q", name, first.Data, second.Data)
		}
	}
}

// A retained event is older than the subscription, unless the form declares retained events.
func TestRetainedEvents(t *testing.T) {
	t.Parallel()
	b := startBroker(t, "127.0.0.1:0")
	for _, topic := range []string{"old", "kept"} {
		if err := b.Publish(topic, []byte(`"before"`), true, 1); err != nil {
			t.Fatal(err)
		}
	}
	c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, `"events": {
		"old":  {"forms": [{"href": "BASE", "mqv:filter": "old"}]},
		"kept": {"forms": [{"href": "BASE", "mqv:filter": "kept", "mqv:retain": true}]}}`)
	old := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "old"})
	kept := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeEvent, Name: "kept"})
	if got := kept.next(t); string(got.Data) != `"before"` || !got.Time.IsZero() {
		t.Errorf("kept: %+v", got)
	}
	until(t, "subscribed", func() bool { return listening(c) == 2 })
	if err := b.Publish("old", []byte(`"now"`), false, 1); err != nil {
		t.Fatal(err)
	}
	if got := old.next(t); string(got.Data) != `"now"` || time.Since(got.Time) > soon {
		t.Errorf("old: %+v", got)
	}
}
