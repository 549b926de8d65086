package ws

import (
	"fmt"
	"testing"

	"github.com/lmosd/lmosd/interact"
)

func TestSubscriptionsInEachDialect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, offer                            string
		subscribe, subscribed, event, end, bye string
	}{
		{"kotlin", "",
			`{"messageType":"subscribeevent","thingId":"lab","messageId":"m1","event":"alarm","lastEvent":1767225600.123}`,
			`{"messageType":"acknowledgement","thingId":"lab","correlationId":"m1","message":"subscribeevent"}`,
			`{"messageType":"event","thingId":"lab","messageId":"e1","correlationId":"m1","event":"alarm","data":"fire"}`,
			`{"messageType":"unsubscribeEvent","thingId":"lab","messageId":"m2","event":"alarm"}`,
			`{"messageType":"acknowledgement","correlationId":"m2","message":"unsubscribeEvent"}`},
		{"undecided", "",
			`{"messageType":"subscribeEvent","thingId":"urn:x","messageId":"m1","event":"alarm","correlationId":"c9"}`,
			`{"messageType":"acknowledgement","thingId":"urn:x","correlationId":"c9","message":"subscribeEvent"}`,
			`{"messageType":"event","messageId":"e1","correlationId":"c9","event":"alarm","data":"fire"}`,
			`{"messageType":"unsubscribeEvent","thingId":"urn:x","messageId":"m2","event":"alarm"}`,
			`{"messageType":"acknowledgement","correlationId":"m2"}`},
		{"doc", "lmosprotocol",
			`{"messageType":"subscribeEvent","thingID":"urn:x","messageID":"m1","event":"alarm","correlationID":"c1"}`, ``,
			`{"messageType":"event","thingID":"urn:x","messageID":"e1","correlationID":"c1","event":"alarm","data":"fire"}`,
			`{"messageType":"unsubscribeEvent","thingID":"urn:x","messageID":"m2","event":"alarm"}`, ``},
		{"wtp", "webthingprotocol",
			`{"messageType":"request","operation":"subscribeevent","thingID":"urn:x","messageID":"m1","correlationID":"c1","name":"alarm"}`,
			`{"messageType":"response","operation":"subscribeevent","correlationID":"c1","name":"alarm"}`,
			`{"messageType":"notification","operation":"subscribeevent","messageID":"e1","correlationID":"c1","name":"alarm","data":"fire"}`,
			`{"messageType":"request","operation":"unsubscribeevent","thingID":"urn:x","messageID":"m2","name":"alarm"}`,
			`{"messageType":"response","operation":"unsubscribeevent","correlationID":"m2","name":"alarm"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab()
			_, url := serve(t, l, ServerOptions{})
			w := dial(t, url, c.offer)
			w.say(c.subscribe)
			l.watched(t, 1)
			if c.subscribed != "" {
				w.expect(c.subscribed)
			}
			l.emit(interact.Event, "other", "e0", `"no"`)
			l.emit(interact.Event, "alarm", "e1", `"fire"`)
			w.expect(c.event)
			for range 2 { // a second end is not an error
				w.say(c.end)
				l.watched(t, 0)
				if c.bye != "" {
					w.expect(c.bye)
				}
			}
			w.quiet()
		})
	}
}

// TestObservationStartsWithTheCurrentValue in LMOS; in wtp it is a response without a value.
func TestObservationStartsWithTheCurrentValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, offer, begin, change string
	}{
		{"kotlin", "", `
			> {"messageType":"observeProperty","thingId":"urn:x","messageId":"m1","property":"level"}
			< {"messageType":"propertyReading","correlationId":"m1","property":"level","data":42}`,
			`{"messageType":"propertyReading","correlationId":"m1","messageId":"p1","data":43}`},
		{"doc", "lmos", `
			> {"messageType":"observeProperty","thingID":"urn:x","messageID":"m1","name":"level"}
			< {"messageType":"propertyReading","correlationID":"m1","name":"level","value":42}`,
			`{"messageType":"propertyReading","correlationID":"m1","messageID":"p1","value":43}`},
		{"wtp", "webthingprotocol", `
			> {"messageType":"request","operation":"observeproperty","thingID":"urn:x","messageID":"m1","name":"level"}
			< {"messageType":"response","operation":"observeproperty","correlationID":"m1","name":"level","value":null}`,
			`{"messageType":"notification","operation":"observeproperty","messageID":"p1","name":"level","value":43,"data":43}`},
		{"wtp, all", "webthingprotocol", `
			> {"messageType":"request","operation":"observeallproperties","thingID":"urn:x","messageID":"m1"}
			< {"messageType":"response","operation":"observeallproperties","correlationID":"m1"}`,
			`{"messageType":"notification","operation":"observeallproperties","name":"level","value":43}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab()
			_, url := serve(t, l, ServerOptions{})
			w := dial(t, url, c.offer)
			w.talk(c.begin)
			l.watched(t, 1)
			l.emit(interact.PropertyReading, "level", "p1", "43")
			w.expect(c.change)
		})
	}
}

// TestUnreadablePropertyIsObserved: the first change is then the first that is received.
func TestUnreadablePropertyIsObserved(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	w.talk(`
		> {"messageType":"observeProperty","thingId":"urn:x","messageId":"m1","property":"blind"}
		< {"messageType":"acknowledgement","correlationId":"m1","message":"observeProperty"}`)
	l.watched(t, 1)
	l.emit(interact.PropertyReading, "blind", "", "1")
	w.expect(`{"messageType":"propertyReading","correlationId":"m1","data":1}`)
}

// TestSubscriptionsThatCannotBe get an error and no acknowledgement.
func TestSubscriptionsThatCannotBe(t *testing.T) {
	t.Parallel()
	_, url := serve(t, newLab(), ServerOptions{MaxSubscriptions: 1})
	w := dial(t, url)
	w.talk(`
		> {"messageType":"subscribeevent","thingId":"urn:x","messageId":"m1","event":"nothing"}
		< {"messageType":"error","correlationId":"m1","title":"Event Not Found","status":"404"}
		> {"messageType":"observeProperty","thingId":"urn:x","messageId":"m2","property":"serial"}
		< {"messageType":"error","correlationId":"m2","status":"405"}
		> {"messageType":"subscribeevent","thingId":"urn:unknown","messageId":"m3","event":"alarm"}
		< {"messageType":"error","correlationId":"m3","status":"404"}
		> {"messageType":"subscribeevent","thingId":"urn:x","messageId":"m4","event":"alarm"}
		< {"messageType":"acknowledgement","correlationId":"m4"}
		> {"messageType":"subscribeevent","thingId":"urn:x","messageId":"m5","event":"other"}
		< {"messageType":"error","correlationId":"m5","status":"429"}
		> {"messageType":"subscribeevent","thingId":"urn:x","messageId":"m6","event":"alarm"}
		< {"messageType":"acknowledgement","correlationId":"m6"}`)
}

// TestLastSubscriptionWins: Kotlin's way to unsubscribe is to subscribe again.
func TestLastSubscriptionWins(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	for i := range 3 {
		w.talk(fmt.Sprintf(`
			> {"messageType":"subscribeevent","thingId":"urn:x","messageId":"m%d","event":"alarm"}
			< {"messageType":"acknowledgement","correlationId":"m%[1]d"}`, i))
		l.watched(t, 1)
	}
	l.emit(interact.Event, "alarm", "e1", `"fire"`)
	w.expect(`{"messageType":"event","correlationId":"m2"}`)
	w.quiet()
}

// TestSubscriptionsToAll are batches of single ones: each event arrives once, whatever the subscriptions.
func TestSubscriptionsToAll(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url, "webthingprotocol")
	say := func(op, id, name string, watching int) {
		w.say(fmt.Sprintf(`{"messageType":"request","operation":%q,"thingID":"urn:x","messageID":%q,"name":%q}`, op, id, name))
		w.expect(fmt.Sprintf(`{"messageType":"response","operation":%q,"correlationID":%q}`, op, id))
		l.watched(t, watching)
	}
	emit := func(want ...string) {
		t.Helper()
		l.emit(interact.Event, "alarm", "", `"fire"`)
		l.emit(interact.Event, "other", "", `"noise"`)
		got := map[string]bool{}
		for range want {
			m := w.hear()
			got[fmt.Sprint(m["name"], " of ", m["correlationID"])] = true
		}
		for _, one := range want {
			if !got[one] {
				t.Errorf("got %v, want %q", got, want)
			}
		}
		w.quiet()
	}
	say("subscribeevent", "s1", "alarm", 1)
	say("subscribeallevents", "s2", "", 1) // it replaces the single one
	emit("alarm of s2", "other of s2")
	say("subscribeevent", "s3", "alarm", 2)
	emit("alarm of s3", "other of s2")
	say("unsubscribeevent", "s4", "alarm", 1)
	emit("other of s2")
	say("subscribeallevents", "s5", "", 1)
	emit("alarm of s5", "other of s5")
	say("subscribeevent", "s6", "alarm", 2)
	say("unsubscribeallevents", "s7", "", 0)
	emit()
}

// TestAfterIsPassedOn: the Thing sends the missed events again.
func TestAfterIsPassedOn(t *testing.T) {
	t.Parallel()
	l := newLab()
	_, url := serve(t, l, ServerOptions{})
	w := dial(t, url)
	w.say(`{"messageType":"request","operation":"subscribeevent","thingID":"urn:x","messageID":"m1","name":"alarm","lastNotificationID":"e7"}`)
	if m := l.saw(t, interact.SubscribeEvent); m.After != "e7" {
		t.Errorf("After is %q, want e7", m.After)
	}
	w.say(`{"messageType":"observeProperty","thingId":"urn:x","messageId":"m2","property":"level","lastNotificationId":"p7"}`)
	if m := l.saw(t, interact.ObserveProperty); m.After != "p7" {
		t.Errorf("After is %q, want p7", m.After)
	}
}
