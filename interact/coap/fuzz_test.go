package coap

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/credentials"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

func TestTerms(t *testing.T) {
	t.Parallel()
	n := func(v uint32) *uint32 { return &v }
	s := func(v uint8) *uint8 { return &v }
	tests := []struct {
		name, op, raw string
		want          terms
	}{
		{"nothing", "readproperty", ``, terms{method: codes.GET, poll: time.Second}},
		{"nothing to write", "writemultipleproperties", `{}`, terms{method: codes.PUT, poll: time.Second}},
		{"nothing to invoke", "invokeaction", `{}`, terms{method: codes.POST, poll: time.Second}},
		{"nothing to subscribe", "subscribeevent", `{}`, terms{method: codes.GET, poll: time.Second}},
		{"all", "invokeaction",
			`{"cov:method": "iPATCH", "cov:contentFormat": 60, "cov:accept": 50, "cov:confirmable": false, "cov:hopLimit": 5,
			"cov:minPollingInterval": 2.5, "cov:blockwise": {"cov:block1Size": 64, "cov:block2Size": 1024},
			"response": {"contentType": "x", "cov:contentFormat": 42}}`,
			terms{method: messaging.IPatch, format: n(60), accept: n(50), answered: n(42), unconfirmed: true, hops: n(5),
				poll: 2500 * time.Millisecond, szx1: s(2), szx2: s(6)}},
		{"Q-Block", "readproperty", `{"cov:qblockwise": {"cov:block1Size": 16, "cov:block2Size": 32}}`, terms{method: codes.GET,
			poll: time.Second, szx1: s(0), szx2: s(1)}},
		{"Q-Block in another spelling", "readproperty", `{"cov:quickblockwise": {"cov:block2Size": 512}}`, terms{method: codes.GET,
			poll: time.Second, szx2: s(5)}},
		{"a method of an early draft", "readproperty", `{"cov:methodName": "post"}`, terms{method: codes.POST, poll: time.Second}},
		{"what cannot be meant", "readproperty",
			`{"cov:method": "BREW", "cov:contentFormat": 70000, "cov:accept": -1, "cov:confirmable": "no", "cov:hopLimit": 0,
			"cov:minPollingInterval": -3, "cov:blockwise": {"cov:block1Size": 100, "cov:block2Size": 2048}, "response": []}`,
			terms{method: codes.GET, poll: time.Second}},
		{"a pause too long", "readproperty", `{"cov:minPollingInterval": 1e300}`, terms{method: codes.GET, poll: maxPoll}},
		{"no object", "readproperty", `[]`, terms{method: codes.GET, poll: time.Second}},
	}
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	for _, tt := range tests {
		got := termsOf(&td.Form{Raw: []byte(tt.raw)}, tt.op)
		w := tt.want
		if got.method != w.method || got.poll != w.poll || got.unconfirmed != w.unconfirmed || !same(got.format, w.format) ||
			!same(got.accept, w.accept) ||
			!same(got.answered, w.answered) || !same(got.hops, w.hops) || (got.szx1 == nil) != (w.szx1 == nil) ||
			(got.szx2 == nil) != (w.szx2 == nil) ||
			w.szx1 != nil && *got.szx1 != *w.szx1 || w.szx2 != nil && *got.szx2 != *w.szx2 {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, w)
		}
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for href, want := range map[string]address{
		"coap://h":             {scheme: "coap", host: "h", port: "5683"},
		"COAPS://Host/":        {scheme: "coaps", host: "host", port: "5684"},
		"coap+tcp://[::1]:1/a": {scheme: "coap+tcp", host: "::1", port: "1", path: []string{"a"}},
		"coaps+tcp://h//a/":    {scheme: "coaps+tcp", host: "h", port: "5684", path: []string{"", "a", ""}},
		"coap://h/%7Eme/a%2Fb?x=%26&y=+": {scheme: "coap", host: "h", port: "5683", path: []string{"~me", "a/b"},
			query: []string{"x=&", "y=+"}},
	} {
		a, err := expand(href, nil)
		if err != nil || a.scheme != want.scheme || a.host != want.host || a.port != want.port || !slices.Equal(a.path, want.path) ||
			!slices.Equal(a.query, want.query) {
			t.Errorf("%s: got %+v, %v", href, a, err)
		}
	}
	for href, named := range map[string]bool{"coap://h/a": true, "coap://10.0.0.1/a": false, "coap://[::1]/a": false} {
		a, _ := expand(href, nil)
		p := &messaging.Packet{}
		a.options(p)
		if _, ok := p.Option(message.URIHost); ok != named {
			t.Errorf("%s: Uri-Host %v", href, ok)
		}
	}
}

func TestParseResource(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]resource{
		".well-known/core": {kind: wellKnown},
		"things/urn:x":     {kind: theThing, id: "urn:x"},

		"things/http://h/a/properties":       {kind: properties, id: "http://h/a"},
		"things/urn:x/properties/p":          {kind: property, id: "urn:x", name: "p"},
		"things/urn:x/actions":               {kind: actions, id: "urn:x"},
		"things/urn:x/actions/a":             {kind: action, id: "urn:x", name: "a"},
		"things/urn:x/actions/a/7":           {kind: run, id: "urn:x", name: "a", action: "7"},
		"things/urn:x/events":                {kind: events, id: "urn:x"},
		"things/urn:x/events/e":              {kind: event, id: "urn:x", name: "e"},
		"things/urn:x/actions/a/7/more":      {kind: theThing, id: "urn:x/actions/a/7/more"},
		"things/urn:x/properties/properties": {kind: property, id: "urn:x", name: "properties"},
		"things/properties/properties/p":     {kind: property, id: "properties", name: "p"},
		"things/urn:x/properties/":           {kind: theThing, id: "urn:x/properties/"},
		"things/":                            {},
		"things":                             {},
		"":                                   {},
		"other/urn:x":                        {},
		".well-known/wot":                    {},
		"things/" + strings.Repeat("a/", 100) + "events": {kind: events, id: strings.TrimSuffix(strings.Repeat("a/", 100), "/")},
	} {
		if got := resourceAt(strings.Split(path, "/")); got != want {
			t.Errorf("%s: got %+v", path, got)
		}
	}
	if got := (resource{id: "urn%3Ax"}).ids(); !slices.Equal(got, []string{"urn%3Ax", "urn:x"}) {
		t.Errorf("ids %q", got)
	}
	if got := (resource{id: "a%zz"}).ids(); !slices.Equal(got, []string{"a%zz"}) {
		t.Errorf("ids %q", got)
	}
}

func FuzzTerms(f *testing.F) {
	f.Add(`{"cov:method": "FETCH", "cov:contentFormat": 60, "cov:minPollingInterval": 2.5}`)
	f.Add(`{"cov:qblockwise": {"cov:block1Size": 16}, "cov:blockwise": {"cov:block2Size": 1024},
		"response": {"cov:contentFormat": 42}}`)
	f.Add(`{"cov:hopLimit": 1e9, "cov:minPollingInterval": 1e308}`)
	f.Fuzz(func(t *testing.T, raw string) {
		got := termsOf(&td.Form{Raw: []byte(raw)}, "readproperty")
		if got.method == 0 || got.poll <= 0 || got.poll > maxPoll || got.szx1 != nil && *got.szx1 > 6 || got.szx2 != nil &&
			*got.szx2 > 6 || got.hops != nil && (*got.hops == 0 || *got.hops > 255) {
			t.Errorf("%s: %+v", raw, got)
		}
	})
}

func FuzzHref(f *testing.F) {
	f.Add("coap://h/rooms/{room}{?day,hour}", "kitchen")
	f.Add("coap://h:1/{a}/{b}?x=1{&c}", "../..")
	f.Add("coap://{a}.h/x", "evil@")
	f.Add("coaps+tcp://[::1]/%2F//?", "")
	f.Add("coap://h{?a}", "x#y")
	f.Fuzz(func(t *testing.T, href, value string) {
		vars, others := map[string][]string{}, map[string][]string{}
		for _, name := range []string{"room", "day", "hour", "a", "b", "c"} {
			vars[name], others[name] = []string{value}, []string{"x"}
		}
		a, err := expand(href, vars)
		if err != nil {
			return
		}
		// The value of a variable cannot change the server of the request.
		bare, err := expand(href, others)
		samePath := err == nil && (strings.Contains(href, "{+") || len(a.path) == len(bare.path)) // {+name} may hold slashes
		if err != nil || a.host != bare.host || a.port != bare.port || a.scheme != bare.scheme || !samePath {
			t.Errorf("%q with %q goes to %+v, and with x to %+v, %v", href, value, a, bare, err)
		}
		if origin := credentials.OriginOf(href); origin == "" {
			t.Errorf("%q has no origin, and goes to %+v", href, a)
		}
		p := &messaging.Packet{}
		a.options(p)
		if id, bad := p.Faulty(); bad {
			t.Errorf("%q makes a bad option %d", href, id)
		}
	})
}

func FuzzPlace(f *testing.F) {
	f.Add("things/urn:x/properties/p")
	f.Add("things/http://h/a%2Fb/actions/a/7")
	f.Add(".well-known/core")
	f.Add("things//events/")
	f.Fuzz(func(t *testing.T, path string) {
		p := resourceAt(strings.Split(path, "/"))
		if (p.kind > wellKnown) != (p.id != "") || (p.kind == property || p.kind == action || p.kind == event ||
			p.kind == run) != (p.name != "") || (p.kind == run) != (p.action != "") {
			t.Errorf("%q: %+v", path, p)
		}
		for _, id := range p.ids() {
			_ = id
		}
	})
}

// FuzzServer makes a server handle two untrusted datagrams. Its responses are CoAP, and not much larger than a block.
func FuzzServer(f *testing.F) {
	seed := func(code codes.Code, path string, more ...func(*messaging.Packet)) {
		q := &messaging.Packet{Kind: message.Confirmable, Mid: 7, Code: code, Token: "t"}
		for s := range strings.SplitSeq(path, "/") {
			q.Add(message.URIPath, []byte(s))
		}
		for _, f := range more {
			f(q)
		}
		b, err := q.Datagram()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	seed(codes.GET, "things/urn:example:thing")
	seed(codes.GET, "things/urn:example:thing/properties/p", option(message.Observe, 0))
	seed(codes.PUT, "things/urn:example:thing/properties/p", payload("1", 50), block(message.Block1, 0, false, 6))
	seed(codes.POST, "things/urn:example:thing/actions/go", payload("1234567890123456", 60), block(message.Block1, 0, true, 0))
	seed(codes.GET, ".well-known/core", func(p *messaging.Packet) { p.Add(message.URIQuery, []byte("rt=wot.*")) })
	seed(codes.GET, "things/urn:example:thing/events", option(message.Observe, 0), option(message.Accept, 60))
	thing := describe(f, "", serveTD)
	f.Fuzz(func(t *testing.T, one, two []byte) {
		h := newHub()
		s := newServer(ServerOptions{Mesh: fakeMesh(echoMesh), Find: func(context.Context, string) (*td.Description,
			error) {
			return described(thing), nil
		}}, h)
		for _, b := range [][]byte{one, two} {
			s.receive(t.Context(), slices.Clone(b), messaging.Remote{Addr: me})
		}
		s.watches.farewell()
		s.halt()
		s.work.Wait()
		for _, p := range h.out[me] {
			if b, err := p.Datagram(); err != nil || len(b) > 1024+2*maxDiagnostic {
				t.Errorf("%d bytes were sent, %v", len(b), err)
			}
		}
	})
}

// FuzzAnswer makes a client check an untrusted response.
func FuzzAnswer(f *testing.F) {
	add := func(code codes.Code, more ...func(*messaging.Packet)) {
		p := &messaging.Packet{Kind: message.Acknowledgement, Code: code}
		for _, f := range more {
			f(p)
		}
		b, err := p.Datagram()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	add(codes.Content, payload(`{"a":1}`, 50))
	add(codes.Content, payload("\xa1\x01\x02", 60))
	add(codes.NotFound, payload("\xa2\x20\x62no\x21\x64gone", 257))
	add(codes.Created, payload(`{"state":"running"}`, 50), func(p *messaging.Packet) { p.Add(message.LocationPath, []byte("x")) })
	add(codes.BadRequest, payload("LMOS-1400 x"))
	thing := describe(f, "", pipeTD)
	client := NewClient(Options{})
	f.Cleanup(client.Close)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := messaging.ParseDatagram(b)
		if err != nil {
			return
		}
		for _, m := range []*interact.Message{invoke("go", ""), observe("p"), read("p")} {
			r, err := client.request(&form.Request{Thing: thing, Message: m, Form: &interact.Forms(thing, m)[0], Media: m.Media()})
			if err != nil {
				t.Fatal(err)
			}
			if e := refused(r.What(), p); len(e.Title) > 1000 || e.Hint == "" && e.Next == nil || !e.Remote {
				t.Errorf("%+v", e)
			}
			if data, is, err := r.settle(p); err == nil && len(data) > 0 && is == "" {
				t.Errorf("%q has no type", data)
			}
			if task := r.task(p); task != nil && task.state.Of() == interact.StatusNone {
				t.Errorf("%+v", task.state)
			}
			w := &watcher{r: r, parts: map[string]string{}, yield: func(*interact.Message) bool { return true }}
			_ = w.yieldValue(p)
		}
	})
}
