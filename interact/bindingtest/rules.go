package bindingtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmosd/lmosd/interact"
)

var rules = []rule{
	{"readproperty: the value of the agent", "", func(b *fixture) {
		r := b.must(b.start(), message(interact.ReadProperty, "level", ""))
		if r.Type != interact.PropertyReading || string(r.Data) != "0" || r.Media() != interact.JSON || r.Name != "level" {
			b.Errorf("got %+v %s, want a PropertyReading of 0", r, r.Data)
		}
	}},
	{"writeproperty: the agent has the value", "", func(b *fixture) {
		t := b.start()
		b.must(t, message(interact.WriteProperty, "level", "7"))
		if r := b.must(t, message(interact.ReadProperty, "level", "")); string(r.Data) != "7" {
			b.Errorf("read %s after writing 7", r.Data)
		}
	}},
	{"invokeaction: input and output", "", func(b *fixture) {
		r := b.must(b.start(), message(interact.InvokeAction, "echo", `{"a":[1,"ü"]}`))
		if r.Type != interact.ActionStatus || r.Status != interact.StatusCompleted || string(r.Data) != `{"a":[1,"ü"]}` {
			b.Errorf("got %+v %s, want completed with the input", r, r.Data)
		}
	}},
	{"concurrent calls: each gets its own reply", "", func(b *fixture) {
		t := b.start()
		var work sync.WaitGroup
		for i := range 20 {
			work.Go(func() {
				want := fmt.Sprintf(`{"n":%d}`, i)
				if r, err := b.call(t, message(interact.InvokeAction, "echo", want)); err != nil || string(r.Data) != want {
					b.Errorf("got %v, %v, want %s", r, err, want)
				}
			})
		}
		work.Wait()
	}},
	{"observeproperty: the newest value, and the agent is released", "", func(b *fixture) {
		b.series(message(interact.ObserveProperty, "level", ""), interact.PropertyReading, func(got []string) bool {
			return got[len(got)-1] == "3" && slices.IsSorted(got)
		})
	}},
	{"subscribeevent: every event in order, and the agent is released", "", func(b *fixture) {
		b.series(message(interact.SubscribeEvent, "alarm", ""), interact.Event, func(got []string) bool {
			return slices.Equal(got, []string{"1", "2", "3"})
		})
	}},
	{"readmultipleproperties: one reading of each", "", func(b *fixture) {
		r := b.must(b.start(), message(interact.ReadMultipleProperties, "", `["power","level"]`))
		if r.Type != interact.PropertyReadings || string(r.Data) != `{"level":0,"power":true}` {
			b.Errorf("got %+v %s", r, r.Data)
		}
	}},
	{"writemultipleproperties: one writing of each", "", func(b *fixture) {
		t := b.start()
		b.must(t, message(interact.WriteMultipleProperties, "", `{"level":1,"power":false}`))
		r := b.must(t, message(interact.ReadAllProperties, "", ""))
		if !strings.HasSuffix(string(r.Data), `,"level":1,"power":false}`) {
			b.Errorf("read %.40s… after writing", r.Data)
		}
	}},
	{"errors: the failure of the agent, its text and its origin", "", func(b *fixture) {
		_, err := b.call(b.start(), message(interact.InvokeAction, "fail", `{}`))
		e := b.want("the agent failed", err, interact.AgentFailed)
		if !e.Remote || !strings.Contains(e.Error(), "the wick is wet") {
			b.Errorf("got %v, remote %v, want the text of the agent, remote", e, e.Remote)
		}
	}},
	{"unknown affordance: nothing is sent", "", func(b *fixture) {
		t := b.start()
		for _, m := range []*interact.Message{message(interact.ReadProperty, "nope", ""), message(interact.InvokeAction, "nope", "{}"),
			message(interact.SubscribeEvent, "nope", "")} {
			_, err := b.call(t, m)
			b.want(m.Type.Op(), err, interact.NoAffordance)
		}
		b.untouched("an unknown affordance")
	}},
	{"unknown form: nothing is sent", "", func(b *fixture) {
		thing := b.describe(`{"scheme": "nosec"}`, func(string, string) string { return `"href": "nope+tcp://127.0.0.1:9/x"` })
		for i := range thing.Actions["echo"].Forms {
			if b.kit.Supports(&thing.Actions["echo"].Forms[i]) {
				b.Error("the binding supports the scheme nope+tcp")
			}
		}
		t := b.client(Options{}).Thing(thing)
		for _, m := range []*interact.Message{message(interact.ReadProperty, "level", ""), message(interact.InvokeAction, "echo", "{}"),
			message(interact.SubscribeEvent, "alarm", ""), message(interact.ObserveProperty, "level", "")} {
			_, err := b.call(t, m)
			b.want(m.Type.Op(), err, interact.NotAllowed)
		}
		b.untouched("an unknown form")
	}},
	{"no request: nothing is sent", "", func(b *fixture) {
		t := b.start()
		for _, m := range []*interact.Message{message(interact.UnsubscribeEvent, "alarm", ""), message(interact.PropertyReading, "level", "1")} {
			_, err := b.call(t, m)
			b.want(fmt.Sprintf("message type %d", m.Type), err, interact.NotAllowed)
		}
		b.untouched("a message that is not a request")
	}},
	{"media types: what the form does not take is not sent", Conversion, func(b *fixture) {
		t := b.start()
		picture := message(interact.InvokeAction, "echo", "\x89PNG")
		picture.ContentType = "image/png"
		_, err := b.call(t, picture)
		b.want("a picture for a form of JSON", err, interact.UnsupportedType)
		b.untouched("a picture")
		binary := message(interact.InvokeAction, "echo", "\xa1\x61a\x01")
		binary.ContentType = interact.CBOR
		if r := b.must(t, binary); string(r.Data) != `{"a":1}` {
			b.Errorf("CBOR for a form of JSON: got %q", r.Data)
		}
	}},
	{"hops: the limit, and one more at each node", "", func(b *fixture) {
		t := b.start()
		m := message(interact.InvokeAction, "echo", `{}`)
		m.Hops = interact.MaxHops
		_, err := b.call(t, m)
		b.want("too many hops", err, interact.Loop)
		b.untouched("too many hops")
	}},
	{"hops: the agent receives the number", Hops, func(b *fixture) {
		t := b.start()
		m := message(interact.InvokeAction, "echo", `{}`)
		m.Hops = 3
		b.must(t, m)
		if seen := b.agent.Seen(); len(seen) != 1 || seen[0].Hops != 4 {
			b.Errorf("the agent received %+v, want 4 hops", seen)
		}
	}},
	{"deadline: the interaction ends with Timeout", "", func(b *fixture) {
		t := b.start()
		b.must(t, message(interact.ReadProperty, "level", "")) // the connection is open
		for wait, arrived := max(10*time.Millisecond, b.kit.Silence), false; !arrived; wait *= 2 {
			m := message(interact.InvokeAction, "stuck", fmt.Sprintf("%q", wait))
			m.Deadline = time.Now().Add(wait)
			_, err := b.call(t, m)
			arrived = slices.ContainsFunc(b.agent.Seen(), func(seen interact.Message) bool { return string(seen.Data) == string(m.Data) })
			if e := b.want("a stuck agent", err, interact.Timeout); arrived && !e.Started {
				b.Error("the agent has started, and the error denies it")
			}
		}
	}},
	{"cancel: the interaction ends", "", func(b *fixture) { b.cancel() }},
	{"cancel: the agent is released", Cancellation, func(b *fixture) {
		b.cancel()
		b.await("the end of the action at the agent", b.agent.ended)
	}},
	{"gate: it is idle after the response, not after the agent", Gate, func(b *fixture) {
		t := b.start()
		responded := make(chan error, 1)
		go func() {
			_, err := b.call(t, message(interact.InvokeAction, "late", "{}"))
			responded <- err
		}()
		b.await("the action", b.agent.ended)
		idle := b.agent.Gate.Close()
		select {
		case <-idle:
			b.Error("the gate is idle before the response was sent")
		default:
		}
		close(b.agent.respond)
		if err := <-responded; err != nil {
			b.Errorf("the response: %v", err)
		}
		select {
		case <-idle:
		case <-b.ctx.Done():
			b.Error("the gate is not idle after the response")
		}
	}},
	{"unreachable: nothing has started", "", func(b *fixture) {
		thing := b.serve()
		b.dials.fails = errors.New("no route to host")
		_, err := b.call(b.client(Options{}).Thing(thing), message(interact.ReadProperty, "level", ""))
		if e := b.want("no connection", err, interact.Unreachable); e.Remote || e.Started {
			b.Errorf("remote %v, started %v, want neither", e.Remote, e.Started)
		}
	}},
	{"large reply: refused", "", func(b *fixture) {
		thing := b.serve()
		t := b.client(Options{Limit: bigReply / 8}).Thing(thing)
		code := cmp.Or(b.kit.TooLarge, interact.TooLarge)
		_, err := b.call(t, message(interact.ReadProperty, "big", ""))
		b.want("a reply over the limit", err, code)
		if r := b.must(t, message(interact.ReadProperty, "level", "")); string(r.Data) != "0" {
			b.Errorf("the next reply: got %s", r.Data)
		}
	}},
	{"credentials: sent only to the origin that they name", "", func(b *fixture) {
		form := b.kit.SecureForm
		if form == nil {
			form = b.kit.Form
		}
		for _, c := range []struct {
			what, origin string
			code         interact.Code
			dials        int
		}{{"no credentials", "", interact.Unauthenticated, 0}, {"those of another port", "127.0.0.1:7", interact.Unauthenticated, 0},
			{"those of the form", "127.0.0.1:9", interact.Unreachable, 1}} {
			b.dials = dials{fails: errors.New("no route to host")}
			thing := b.describe(b.kit.Security, func(op, name string) string { return form("127.0.0.1:9", op, name) })
			o := Options{}
			if scheme := thing.Actions["echo"].Forms[0].Scheme(); c.origin != "" {
				o.Credentials = b.credentials(scheme + "://" + c.origin)
			}
			_, err := b.call(b.client(o).Thing(thing), message(interact.InvokeAction, "echo", "{}"))
			b.want(c.what, err, c.code)
			if got := b.dials.addresses; len(got) < c.dials || c.dials == 0 && len(got) > 0 ||
				slices.ContainsFunc(got, func(a string) bool { return a != "127.0.0.1:9" }) {
				b.Errorf("%s: dialed %v", c.what, got)
			}
			for _, secret := range strings.Split(b.kit.Secret, `"`) {
				if len(secret) > 8 && strings.Contains(err.Error(), secret) {
					b.Errorf("%s: the error has the secret: %v", c.what, err)
				}
			}
		}
	}},
}

// await receives from a channel within the time of the rule.
func (b *fixture) await(what string, from <-chan string) string {
	b.Helper()
	select {
	case s := <-from:
		return s
	case <-b.ctx.Done():
		b.Fatalf("waited too long for %s", what)
		return ""
	}
}

// cancel cancels a running action.
func (b *fixture) cancel() {
	b.Helper()
	t := b.start()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := interact.Call(ctx, t, message(interact.InvokeAction, "stuck", `{}`))
		done <- err
	}()
	b.await("the start of the action", b.agent.started)
	cancel()
	select {
	case err := <-done:
		b.want("a cancelled action", err, interact.Cancelled)
	case <-b.ctx.Done():
		b.Fatalf("a cancelled action does not end")
	}
}

// series observes until 3 arrives, leaves the loop, and waits until the agent is released.
func (b *fixture) series(m *interact.Message, of interact.Type, isGood func(got []string) bool) {
	b.Helper()
	var got []string
	for r, err := range b.start().Do(b.ctx, m) {
		if err != nil {
			b.Fatalf("after %v: %v", got, err)
		}
		if r.Type != of || r.Name != m.Name {
			b.Errorf("got %+v, want type %d of %s", r, of, m.Name)
		}
		if got = append(got, string(r.Data)); got[len(got)-1] == "3" {
			break
		}
	}
	if len(got) == 0 || !isGood(got) {
		b.Errorf("got %v", got)
	}
	b.await("the end of the observation at the agent", b.agent.ended)
}
