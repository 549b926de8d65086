package coap

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/messaging"
	"github.com/lmosd/lmosd/interact/form"
	"github.com/lmosd/lmosd/td"
)

// A hub is a socket of a server in a bubble: datagrams to an address wait until they are read.
type hub struct {
	in   chan letter
	done chan struct{}
	once sync.Once

	mu  sync.Mutex
	out map[netip.AddrPort][]*messaging.Packet
}

type letter struct {
	data []byte
	from messaging.Remote
}

func newHub() *hub {
	return &hub{in: make(chan letter, 10000), done: make(chan struct{}), out: map[netip.AddrPort][]*messaging.Packet{}}
}

func (h *hub) Read(b []byte) (int, messaging.Remote, error) {
	select {
	case l := <-h.in:
		return copy(b, l.data), l.from, nil
	case <-h.done:
		return 0, messaging.Remote{}, net.ErrClosed
	}
}

func (h *hub) Write(b []byte, to messaging.Remote) error {
	p, err := messaging.ParseDatagram(slices.Clone(b))
	if err != nil {
		panic(fmt.Sprintf("the server sent %x", b))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out[to.Addr] = append(h.out[to.Addr], p)
	return nil
}

func (h *hub) Stop()                { h.once.Do(func() { close(h.done) }) }
func (h *hub) Close() error         { h.Stop(); return nil }
func (h *hub) Addr() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:5683") }

// A bench is a server in a bubble and its socket.
type bench struct {
	t *testing.T
	*hub
	server *Server
	done   chan error
	cancel context.CancelFunc
	mid    uint16
}

func newBench(t *testing.T, o ServerOptions, things ...*td.Thing) *bench {
	t.Helper()
	if o.Find == nil {
		o.Find = func(_ context.Context, ref string) (*td.Description, error) {
			for _, thing := range things {
				if thing.ID == ref {
					return described(thing), nil
				}
			}
			return nil, interact.Errorf(interact.NotFound, "see what there is", "no agent matches %q", ref).Then(interact.StepFind)
		}
	}
	b := &bench{t: t, hub: newHub(), done: make(chan error, 1)}
	b.server = newServer(o, b.hub)
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	go func() { b.done <- b.server.Run(ctx) }()
	return b
}

// end stops the server; all of it must be gone then.
func (b *bench) end() {
	b.cancel()
	if err := <-b.done; err != nil {
		b.t.Errorf("Run: %v", err)
	}
	if n := len(b.server.peers.byAddr); n != 0 {
		b.t.Errorf("%d peers are left", n)
	}
	w := &b.server.watches
	if len(w.sources)+len(w.observers) != 0 {
		b.t.Errorf("%d sources, %d observers are left", len(w.sources), len(w.observers))
	}
}

var me = netip.MustParseAddrPort("10.0.0.7:4000")

// post puts a datagram into the server's socket.
func (b *bench) post(from netip.AddrPort, p *messaging.Packet) {
	data, err := p.Datagram()
	if err != nil {
		b.t.Fatal(err)
	}
	b.in <- letter{data, messaging.Remote{Addr: from}}
}

// taken returns the datagrams of the server to an address.
func (b *bench) taken(to netip.AddrPort) []*messaging.Packet {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.out[to]
	delete(b.out, to)
	return all
}

// request makes a confirmable request with the next mid, which is its token too.
func (b *bench) request(code codes.Code, path string, more ...func(*messaging.Packet)) *messaging.Packet {
	b.mid++
	q := &messaging.Packet{Kind: message.Confirmable, Mid: b.mid, Code: code, Token: fmt.Sprintf("t%d", b.mid)}
	path, query, _ := strings.Cut(path, "?")
	for s := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		q.Add(message.URIPath, []byte(s))
	}
	if query != "" {
		for s := range strings.SplitSeq(query, "&") {
			q.Add(message.URIQuery, []byte(s))
		}
	}
	for _, f := range more {
		f(q)
	}
	return q
}

// ask sends a request and returns the only response, when the server is idle.
func (b *bench) ask(q *messaging.Packet) *messaging.Packet {
	b.t.Helper()
	b.post(me, q)
	synctest.Wait()
	all := b.taken(me)
	if len(all) != 1 {
		b.t.Fatalf("%d answers to %s %q", len(all), messaging.Dotted(q.Code), q.Texts(message.URIPath))
	}
	if a := all[0]; a.Token != q.Token || q.Kind == message.Confirmable && (a.Kind != message.Acknowledgement || a.Mid != q.Mid) {
		b.t.Errorf("the answer to %+v is %+v", q, a)
	}
	return all[0]
}

func payload(body string, format ...uint32) func(*messaging.Packet) {
	return func(p *messaging.Packet) {
		p.Payload = []byte(body)
		for _, f := range format {
			p.AddUint(message.ContentFormat, f)
		}
	}
}

func block(id message.OptionID, num uint32, more bool, szx uint8) func(*messaging.Packet) {
	return option(id, messaging.Block{Num: num, More: more, SZX: szx}.Value())
}

// told returns a message as text: "CODE [format] body".
func told(p *messaging.Packet) string {
	said := messaging.Dotted(p.Code)
	if f, ok := p.Uint(message.ContentFormat); ok {
		said += fmt.Sprintf(" [%d]", f)
	}
	if len(p.Payload) > 0 {
		said += " " + string(p.Payload)
	}
	return said
}

const serveTD = `"properties": {"p": {"type": "integer", "observable": true, "forms": [{"href": "coap://h/p"}]},
		"still": {"forms": [{"href": "coap://h/s"}]},
		"room": {"uriVariables": {"room": {"type": "string"}, "day": {"type": "integer"}}, "forms": [{"href": "coap://h/{room}"}]}},
	"actions": {"go": {"input": {}, "forms": [{"href": "coap://h/go"}]},
		"slow": {"synchronous": false, "forms": [{"href": "coap://h/slow"}]},
		"fly": {"input": {"type": "integer"}, "uriVariables": {"to": {"type": "string"}}, "forms": [{"href": "coap://h/{to}"}]}},
	"events": {"e": {"forms": [{"href": "coap://h/e"}]}}`

const at = "/things/urn:example:thing"

// echoMesh replies with the message: OP NAME [action id] type data.
func echoMesh(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
	said := fmt.Sprintf("%s %s %s %s %s detach=%v", m.Type.Op(), m.Name, m.ActionID, m.Media(), m.Data, m.Detach)
	text, _ := json.Marshal(said)
	r := m.Reply(interact.PropertyReading, "", text)
	switch m.Type {
	case interact.InvokeAction:
		r.Type, r.Status = interact.ActionStatus, interact.StatusCompleted
	case interact.QueryAction:
		r.Type, r.Status = interact.ActionStatus, interact.StatusRunning
		r.ActionID, r.Began = m.ActionID, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	yield(r, nil)
}

func TestRequestsBecomeOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ServerOptions{Mesh: fakeMesh(echoMesh)}, describe(t, "", serveTD))
		defer b.end()
		tests := []struct {
			name string
			q    *messaging.Packet
			want string
		}{
			{"read", b.request(codes.GET, at+"/properties/p"), `2.05 [50] "readproperty p  application/json  detach=false"`},
			{"read CBOR", b.request(codes.GET, at+"/properties/p", option(message.Accept, 60)),
				"2.05 [60] \x78.readproperty p  application/json  detach=false"},
			{"an id with escapes", b.request(codes.GET, "/things/urn%3Aexample%3Athing/properties/p"),
				`2.05 [50] "readproperty p  application/json  detach=false"`},
			{"an unconfirmed reading", b.request(codes.GET, at+"/properties/p",
				func(p *messaging.Packet) { p.Kind = message.NonConfirmable }), `2.05 [50] "readproperty p  application/json  detach=false"`},
			{"write", b.request(codes.PUT, at+"/properties/p", payload("21", 50)), `2.04`},
			{"read all", b.request(codes.GET, at+"/properties"), `2.05 [50] "readallproperties   application/json  detach=false"`},
			{"read several", b.request(messaging.Fetch, at+"/properties", payload(`["p"]`, 50)),
				`2.05 [50] "readmultipleproperties   application/json [\"p\"] detach=false"`},
			{"write several", b.request(codes.PUT, at+"/properties", payload(`{}`, 50)), `2.04`},
			{"patch several", b.request(messaging.IPatch, at+"/properties", payload(`{}`, 50)), `2.04`},
			{"invoke", b.request(codes.POST, at+"/actions/go", payload(`1`)),
				`2.05 [50] "invokeaction go  application/json 1 detach=false"`},
			{"invoke with CBOR", b.request(codes.POST, at+"/actions/go", payload("\x01", 60)),
				`2.05 [50] "invokeaction go  application/cbor \u0001 detach=false"`},
			{"invoke in the background", b.request(codes.POST, at+"/actions/go?async"),
				`2.05 [50] "invokeaction go  application/json  detach=true"`},
			{"an action of the background", b.request(codes.POST, at+"/actions/slow"),
				`2.05 [50] "invokeaction slow  application/json  detach=true"`},
			{"the state of a run", b.request(codes.GET, at+"/actions/go/7"),
				`2.05 [50] {"actionID":"7","state":"running","output":"queryaction go 7 application/json  detach=false",` +
					`"timeRequested":"2026-01-02T03:04:05Z"}`},
			{"the latest run", b.request(codes.GET, at+"/actions/go"),
				`2.05 [50] {"actionID":"","state":"running","output":"queryaction go  application/json  detach=false",` +
					`"timeRequested":"2026-01-02T03:04:05Z"}`},
			{"all runs", b.request(codes.GET, at+"/actions"), `2.05 [50] "queryallactions   application/json  detach=false"`},
			{"cancel", b.request(codes.DELETE, at+"/actions/go/7"), `2.02`},
			{"cancel by POST", b.request(codes.POST, at+"/actions/go/7"), `2.04`},
			{"variables in the query", b.request(codes.GET, at+"/properties/room?room=kitchen&day=3&other=x"), ""},
			{"variables and a scalar", b.request(codes.POST, at+"/actions/fly?to=moon", payload("7", 50)),
				`2.05 [50] "invokeaction fly  application/json {\"value\":7,\"to\":\"moon\"} detach=false"`},
			{"variables in body and query", b.request(codes.POST, at+"/actions/fly?to=moon", payload(`{"to":"mars","value":7}`, 50)),
				`2.05 [50] "invokeaction fly  application/json {\"to\":\"mars\",\"value\":7} detach=false"`},
		}
		for _, tt := range tests {
			got := told(b.ask(tt.q))
			if tt.want == "" { // the order of variables is any
				if !strings.Contains(got, `\"room\":\"kitchen\"`) || !strings.Contains(got, `\"day\":3`) || strings.Contains(got, "other") {
					t.Errorf("%s: got %s", tt.name, got)
				}
			} else if got != tt.want {
				t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
			}
		}
	})
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := fakeMesh(func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			switch m.Name {
			case "png":
				yield(m.Reply(interact.PropertyReading, "image/png", []byte("x")), nil)
			case "limited":
				yield(nil, interact.Errorf(interact.RateLimited, "wait", "too often"))
			case "issues":
				yield(nil, &interact.Error{Code: interact.Invalid, Issues: []td.Issue{{Pointer: "/a", Reason: "is missing"}}})
			case "cause":
				yield(nil, &interact.Error{Code: interact.Internal, Err: fmt.Errorf("the secret path")})
			case "noresult":
			case "failed":
				r := m.Reply(interact.ActionStatus, "", nil)
				r.Status = interact.StatusFailed
				yield(r, nil)
			default:
				yield(m.Reply(interact.PropertyReading, "", []byte("1")), nil)
			}
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		tests := []struct {
			name string
			q    *messaging.Packet
			want string
		}{
			{"no path", b.request(codes.GET, "/"), "4.04 LMOS-1404"},
			{"another path", b.request(codes.GET, "/x/y"), "4.04 LMOS-1404"},
			{"no id", b.request(codes.GET, "/things/"), "4.04 LMOS-1404"},
			{"an unknown thing", b.request(codes.GET, "/things/urn:none"), `4.04 LMOS-1404 no agent matches "urn:none" (see what there is)`},
			{"a method of another resource", b.request(codes.DELETE, at+"/properties/p"), "4.05 LMOS-1406"},
			{"an unknown method", b.request(31, at+"/properties/p"), "4.05 LMOS-1406"},
			{"an event without Observe", b.request(codes.GET, at+"/events/e"),
				"4.05 LMOS-1406 events have no current value (send the option Observe: 0)"},
			{"an unknown content format", b.request(codes.PUT, at+"/properties/p", payload("x", 64999)), "4.15 LMOS-1415"},
			{"an unknown type to accept", b.request(codes.GET, at+"/properties/p", option(message.Accept, 64999)), "4.06"},
			{"a type that it has not", b.request(codes.GET, at+"/properties/png", option(message.Accept, 50)), "4.06 it is image/png"},
			{"a TD as CBOR", b.request(codes.GET, at, option(message.Accept, 60)), "4.06"},
			{"links as JSON", b.request(codes.GET, "/.well-known/core", option(message.Accept, 50)), "4.06"},
			{"an unknown critical option", b.request(codes.GET, at, option(65001, 1)), "4.02 unknown option 65001"},
			{"If-None-Match", b.request(codes.PUT, at, option(message.IfNoneMatch, 0)), "4.02 unknown option 5"},
			{"a proxy", b.request(codes.GET, at, func(p *messaging.Packet) { p.Add(message.ProxyURI, []byte("coap://h")) }), "5.05"},
			{"blocks of a reserved size", b.request(codes.GET, at, option(message.Block2, 7)), "4.00"},
			{"a block beyond the end", b.request(codes.GET, at+"/properties/p", block(message.Block2, 9, false, 6)), "4.00"},
			{"a block of nothing", b.request(codes.POST, at+"/actions/go", block(message.Block2, 1, false, 6)), "4.08"},
			{"a block without the first", b.request(codes.PUT, at+"/properties/p", payload("x", 50), block(message.Block1, 1, false,
				6)), "4.08"},
			{"a body too large", b.request(codes.PUT, at+"/properties/p", payload("x", 50), block(message.Block1, 0, false, 6),
				option(message.Size1, 5<<20)), "4.13 LMOS-1413"},
			{"a time that is none", b.request(codes.GET, at+"/properties/p?timeout=soon"), "4.00 LMOS-1400"},
			{"a time too long", b.request(codes.GET, at+"/properties/p?timeout=11m"), "4.00 LMOS-1400"},
			{"JSON that is none, where it has to be read", b.request(codes.POST, at+"/actions/fly?to=x", payload("\xff", 60)),
				"4.00 LMOS-1400"},
			{"too often", b.request(codes.GET, at+"/properties/limited"), "4.29 LMOS-1429 too often (wait)"},
			{"issues", b.request(codes.GET, at+"/properties/issues"), "4.00 LMOS-1400 Invalid message: /a: is missing"},
			{"an internal error", b.request(codes.GET, at+"/properties/cause"), "5.00 LMOS-1500 Internal error"},
			{"an action without a result", b.request(codes.POST, at+"/actions/noresult"), "5.02 LMOS-1502"},
			{"an action that failed", b.request(codes.POST, at+"/actions/failed"), "5.02 LMOS-1502 the action failed"},
		}
		for _, tt := range tests {
			a := b.ask(tt.q)
			if got := told(a); !strings.HasPrefix(got, tt.want) || strings.Contains(got, "secret") {
				t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
			}
			if age, ok := a.Uint(message.MaxAge); ok != (a.Code == codes.TooManyRequests) || ok && age == 0 {
				t.Errorf("%s: Max-Age %d, %v", tt.name, age, ok)
			}
		}
	})
}

// TestEveryCodeHasAResponse: an error of the mesh is never a success.
func TestEveryCodeHasAResponse(t *testing.T) {
	t.Parallel()
	for _, c := range interact.Codes() {
		if r := responseOf(c); r>>5 != 4 && r>>5 != 5 {
			t.Errorf("%s is answered %s", c, messaging.Dotted(r))
		}
		if m, ok := meanings[responseOf(c)]; !ok || m.hint == "" {
			t.Errorf("%s is answered %s, which means nothing to the client", c, messaging.Dotted(responseOf(c)))
		}
	}
}

// WoT Discovery §7.1, §6.4: exploration-server-coap-method exploration-server-coap-resp exploration-server-coap-alternate-content
// exploration-server-coap-size2 introduction-core-rd-resource-type-thing
func TestDescriptionsAndLinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		thing := describe(t, "", serveTD+`, "description": "`+strings.Repeat("long ", 500)+`"`)
		odd := &td.Thing{ID: "http://h/a b;c>?d", Title: "Odd"}
		known := func(context.Context) iter.Seq[*td.Description] {
			return func(yield func(*td.Description) bool) { _ = yield(described(thing)) && yield(described(odd)) }
		}
		b := newBench(t, ServerOptions{Mesh: fakeMesh(echoMesh), Known: known}, thing, odd)
		defer b.end()
		for accept, want := range map[uint32]uint32{formatNone: 432, 50: 50, 432: 432} {
			var got []byte
			for num := uint32(0); ; num++ {
				q := b.request(codes.GET, at, block(message.Block2, num, false, 6))
				if accept != formatNone {
					q.AddUint(message.Accept, accept)
				}
				a := b.ask(q)
				is, _ := a.Block(message.Block2)
				size, sized := a.Uint(message.Size2)
				if format, _ := a.Uint(message.ContentFormat); format != want || is.Num != num || sized != (num == 0) || sized &&
					int(size) != len(thing.Raw) {
					t.Fatalf("accept %d: %s, %+v, Size2 %d", accept, clip(told(a), 30), is, size)
				}
				if got = append(got, a.Payload...); !is.More {
					break
				}
			}
			if string(got) != string(thing.Raw) {
				t.Errorf("accept %d: %d bytes of %d", accept, len(got), len(thing.Raw))
			}
		}
		const links = `</things/urn:example:thing>;rt="wot.thing";ct=432,` +
			`</things/http:%2F%2Fh%2Fa%20b%3Bc%3E%3Fd>;rt="wot.thing";ct=432`
		for query, want := range map[string]string{"": links, "?rt=wot.thing": links, "?rt=wot.*": links, "?rt=core.rd": "",
			"?href=/x": links} {
			if got := told(b.ask(b.request(codes.GET,
				"/.well-known/core"+query))); strings.TrimSpace(got) != strings.TrimSpace("2.05 [40] "+want) {
				t.Errorf("%s: got %s", query, got)
			}
		}
		// A consumer that has the current value receives 2.03.
		tag, _ := b.ask(b.request(codes.GET, at)).Option(message.ETag)
		a := b.ask(b.request(codes.GET, at, func(p *messaging.Packet) { p.Add(message.ETag, []byte("old")); p.Add(message.ETag, tag) }))
		if a.Code != codes.Valid || len(a.Payload) != 0 {
			t.Errorf("a consumer that has it got %s", clip(told(a), 50))
		}
	})
}

// formatNone stands for no Accept option.
const formatNone = 1 << 20

// TestBodiesInBlocks goes both ways, with new tokens for each block and another size of blocks half-way, and with copies.
func TestBodiesInBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		mesh := fakeMesh(func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			runs++
			r := m.Reply(interact.ActionStatus, m.ContentType, m.Data)
			r.Status = interact.StatusCompleted
			yield(r, nil)
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		text := big(10000)
		var last *messaging.Packet
		for num := uint32(0); ; num++ {
			part, is, _ := messaging.Block{Num: num, SZX: 4}.Cut([]byte(text))
			q := b.request(codes.POST, at+"/actions/go", payload(string(part), 50), option(message.Block1, is.Value()))
			last = b.ask(q)
			if again := b.ask(q); told(again) != told(last) {
				t.Fatalf("a copy of block %d was answered %s, not %s", num, told(again), told(last))
			}
			ack, _ := last.Block(message.Block1)
			if ack != is {
				t.Fatalf("block %+v was acknowledged as %+v", is, ack)
			}
			if !is.More {
				break
			}
			if last.Code != codes.Continue {
				t.Fatalf("block %d was answered %s", num, told(last))
			}
		}
		is, _ := last.Block(message.Block2)
		if last.Code != codes.Content || !is.More || is.SZX != 6 || runs != 1 {
			t.Fatalf("after the last block: %s, %+v, %d runs", clip(told(last), 40), is, runs)
		}
		got := slices.Clone(last.Payload)
		for szx := uint8(6); is.More; szx = 3 {
			a := b.ask(b.request(codes.POST, at+"/actions/go", block(message.Block2, uint32(len(got)>>(szx+4)), false, szx)))
			is, _ = a.Block(message.Block2)
			got = append(got, a.Payload...)
		}
		if string(got) != text || runs != 1 {
			t.Errorf("%d bytes came back of %d, after %d runs", len(got), len(text), runs)
		}
		time.Sleep(2 * time.Minute)
		if a := b.ask(b.request(codes.POST, at+"/actions/go", block(message.Block2, 1, false,
			6))); a.Code != codes.RequestEntityIncomplete || runs != 1 {
			t.Errorf("much later: %s, %d runs", told(a), runs)
		}
	})
}

// TestAReadingThatChangesBetweenBlocks: a block that follows is of the same value, and one that comes too late has another ETag.
func TestAReadingThatChangesBetweenBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		mesh := fakeMesh(func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			n++
			yield(m.Reply(interact.PropertyReading, "text/plain", []byte(strings.Repeat(fmt.Sprint(n), 3000))), nil)
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		var parts []*messaging.Packet
		for num := range uint32(3) {
			parts = append(parts, b.ask(b.request(codes.GET, at+"/properties/p", block(message.Block2, num, false, 6))))
		}
		time.Sleep(2 * time.Minute)
		parts = append(parts, b.ask(b.request(codes.GET, at+"/properties/p", block(message.Block2, 2, false, 6))))
		tags := make([]string, len(parts))
		for i, p := range parts {
			tag, _ := p.Option(message.ETag)
			tags[i] = string(tag) + string(p.Payload[:1])
		}
		if tags[0] != tags[1] || tags[1] != tags[2] || tags[2] == tags[3] || n != 2 {
			t.Errorf("tags %q after %d readings", tags, n)
		}
	})
}

// TestCopiesOfRequests: an action runs once, whatever the network repeats (RFC 7252 §4.5), and a slow one is acknowledged first.
func TestCopiesOfRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		mesh := fakeMesh(func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			runs++
			time.Sleep(5 * time.Second)
			r := m.Reply(interact.ActionStatus, "", []byte("7"))
			r.Status = interact.StatusCompleted
			yield(r, nil)
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		q := b.request(codes.POST, at+"/actions/go")
		b.post(me, q)
		time.Sleep(500 * time.Millisecond)
		b.post(me, q)
		synctest.Wait()
		if got := b.taken(me); len(got) != 0 {
			t.Errorf("answered %+v at once", got)
		}
		time.Sleep(time.Second)
		for range 2 {
			if got := b.taken(me); len(got) != 1 || got[0].Kind != message.Acknowledgement || got[0].Code != codes.Empty ||
				got[0].Mid != q.Mid {
				t.Fatalf("acknowledged by %+v", got)
			}
			b.post(me, q)
			synctest.Wait()
		}
		b.taken(me)
		time.Sleep(5 * time.Second)
		got := b.taken(me)
		if len(got) != 1 || got[0].Kind != message.Confirmable || told(got[0]) != "2.05 [50] 7" || got[0].Token != q.Token {
			t.Fatalf("answered %+v", got)
		}
		time.Sleep(4 * time.Second) // the answer is repeated
		if again := b.taken(me); len(again) != 1 || again[0].Mid != got[0].Mid {
			t.Errorf("repeated %+v", again)
		}
		b.post(me, &messaging.Packet{Kind: message.Acknowledgement, Mid: got[0].Mid})
		time.Sleep(2 * time.Minute)
		if b.post(me, q); len(b.taken(me)) != 0 || runs != 1 {
			t.Errorf("%d runs", runs)
		}
		time.Sleep(5 * time.Minute) // a mid means another request then
		if b.post(me, q); true {
			time.Sleep(6 * time.Second)
		}
		all := b.taken(me)
		if len(all) == 0 || runs != 2 {
			t.Errorf("%d runs", runs)
		}
		b.post(me, &messaging.Packet{Kind: message.Acknowledgement, Mid: all[len(all)-1].Mid})
	})
}

func TestActionsInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := make(chan bool, 1)
		mesh := fakeMesh(func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			r := m.Reply(interact.ActionStatus, "", nil)
			r.Status, r.ActionID = interact.StatusPending, "run/1"
			left <- !yield(r, nil)
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		a := b.ask(b.request(codes.POST, at+"/actions/slow?x=1"))
		if path := strings.Join(a.Texts(message.LocationPath), "|"); told(a) != `2.01 [50] {"actionID":"run/1","state":"pending"}` ||
			path != "things|urn:example:thing|actions|slow|run/1" || !<-left {
			t.Errorf("got %s at %s", told(a), path)
		}
	})
}

// TestPartsOfAnOutput are put together, those of JSON as JSON.
func TestPartsOfAnOutput(t *testing.T) {
	t.Parallel()
	parts := map[string][]string{"text/plain": {"one ", "two ", "three", ""}, "": {`"one\n"`, `"two\n"`, ""}}
	synctest.Test(t, func(t *testing.T) {
		mesh := fakeMesh(func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			media := "text/plain"
			if m.Name == "fly" {
				media = ""
			}
			for _, part := range parts[media] {
				r := m.Reply(interact.ActionStatus, media, []byte(part))
				if r.Status = interact.StatusRunning; part == "" {
					r.Status, r.ContentType = interact.StatusCompleted, ""
				}
				if !yield(r, nil) {
					return
				}
			}
		})
		b := newBench(t, ServerOptions{Mesh: mesh, MaxBody: 12}, describe(t, "", serveTD))
		defer b.end()
		for _, q := range []*messaging.Packet{b.request(codes.POST, at+"/actions/go"), b.request(codes.GET, at)} {
			if a := b.ask(q); !strings.HasPrefix(told(a), "4.13") {
				t.Errorf("beyond the limit: %s", told(a))
			}
		}
		if a := b.ask(b.request(codes.PUT, at+"/properties/p", payload("1234567890123", 50))); !strings.HasPrefix(told(a), "4.13") {
			t.Errorf("an input beyond the limit: %s", told(a))
		}
		b.server.o.MaxBody = maxBody
		if a := b.ask(b.request(codes.POST, at+"/actions/go")); told(a) != "2.05 [0] one two three" {
			t.Errorf("got %s", told(a))
		}
		if a := b.ask(b.request(codes.POST, at+"/actions/fly", payload("7", 50))); told(a) != `2.05 [50] "one\ntwo\n"` {
			t.Errorf("got %s", told(a))
		}
	})
}

// TestPanicEndsOneRequest and neither the server nor the node.
func TestPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := fakeMesh(func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			if m.Name != "p" {
				panic("the agent broke")
			}
			echoMesh(ctx, m, yield)
		})
		b := newBench(t, ServerOptions{Mesh: mesh}, describe(t, "", serveTD))
		defer b.end()
		if a := b.ask(b.request(codes.POST, at+"/actions/go")); !strings.HasPrefix(told(a), "5.00 LMOS-1500 the node failed") {
			t.Errorf("got %s", told(a))
		}
		b.register(me, at+"/events/e")
		if got := b.hear(me, true); len(got) != 2 || !strings.HasPrefix(got[1], "5.00 LMOS-1500") {
			t.Errorf("an observation: %q", got)
		}
		if a := b.ask(b.request(codes.GET, at+"/properties/p")); a.Code != codes.Content {
			t.Errorf("afterwards: %s", told(a))
		}
	})
}

// TestDatagramsThatAreNoRequests: the responses follow RFC 7252 §4.2 and §4.3.
func TestDatagramsThatAreNoRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ServerOptions{Mesh: fakeMesh(echoMesh)}, describe(t, "", serveTD))
		defer b.end()
		for name, tt := range map[string]struct {
			p    *messaging.Packet
			want string
		}{
			"a ping":                       {&messaging.Packet{Kind: message.Confirmable, Mid: 9}, "3 9 0.00"},
			"an answer":                    {&messaging.Packet{Kind: message.Confirmable, Mid: 9, Code: codes.Content}, "3 9 0.00"},
			"an unconfirmed answer":        {&messaging.Packet{Kind: message.NonConfirmable, Mid: 9, Code: codes.Content}, ""},
			"an unconfirmed ping":          {&messaging.Packet{Kind: message.NonConfirmable, Mid: 9}, ""},
			"an acknowledgement":           {&messaging.Packet{Kind: message.Acknowledgement, Mid: 9}, ""},
			"a reset":                      {&messaging.Packet{Kind: message.Reset, Mid: 9}, ""},
			"a request in a reset":         {&messaging.Packet{Kind: message.Reset, Mid: 9, Code: codes.GET}, ""},
			"a reserved class":             {&messaging.Packet{Kind: message.Confirmable, Mid: 9, Code: 1<<5 | 1}, "3 9 0.00"},
			"a signal, which streams have": {&messaging.Packet{Kind: message.NonConfirmable, Mid: 9, Code: codes.CSM}, ""},
		} {
			b.post(me, tt.p)
			synctest.Wait()
			got := ""
			for _, a := range b.taken(me) {
				got += fmt.Sprintf("%d %d %s", a.Kind, a.Mid, messaging.Dotted(a.Code))
			}
			if got != tt.want {
				t.Errorf("%s: got %q, want %q", name, got, tt.want)
			}
		}
		for _, garbage := range []string{"", "\x40", "GET / HTTP/1.1", "\x49\x01\x00\x01123456789", "\x40\x01\x77\x77\xff",
			"\x40\x01\x00\x01\xf0", strings.Repeat("\xff", 60000)} {
			b.in <- letter{[]byte(garbage), messaging.Remote{Addr: me}}
		}
		b.post(me, b.request(codes.GET, at))
		data, _ := b.request(codes.GET, at).Datagram()
		b.in <- letter{data, messaging.Remote{Addr: me, Group: true}}
		synctest.Wait()
		if got := b.taken(me); len(got) != 2 { // the marker of a payload that is not there is passed over: 4.04
			t.Errorf("%d answers to garbage, one request and one to a group", len(got))
		}
	})
}

// TestOnePeerDoesNotHoldUpOthers: requests that take long have a limit, for one host and for all.
func TestOnePeerDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := fakeMesh(func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
			if m.Name == "p" {
				<-ctx.Done()
				yield(nil, ctx.Err())
				return
			}
			yield(m.Reply(interact.PropertyReading, "", []byte("1")), nil)
		})
		b := newBench(t, ServerOptions{Mesh: stuck, MaxRequests: 8, Rate: -1}, describe(t, "", serveTD))
		defer b.end()
		other := netip.MustParseAddrPort("10.0.0.8:1")
		for range 1000 {
			b.post(me, b.request(codes.GET, at+"/properties/p"))
		}
		b.post(other, b.request(codes.GET, at+"/properties/still"))
		synctest.Wait()
		if got := b.taken(other); len(got) != 1 || told(got[0]) != "2.05 [50] 1" {
			t.Errorf("another host got %+v", got)
		}
		refused := b.taken(me)
		if len(refused) != 996 || !strings.HasPrefix(told(refused[0]), "4.29 LMOS-1429") {
			t.Errorf("%d requests were refused", len(refused))
		}
		for n := range 4 {
			b.post(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(n)}), 1), b.request(codes.GET, at+"/properties/p"))
		}
		b.post(other, b.request(codes.GET, at+"/properties/still"))
		synctest.Wait()
		if got := b.taken(other); len(got) != 1 || !strings.HasPrefix(told(got[0]), "5.03 LMOS-1529") {
			t.Errorf("with all busy another host got %+v", got)
		}
		time.Sleep(form.DefaultTimeout + 2*time.Minute) // no peer acknowledges the errors
		b.taken(me)
		if got := b.ask(b.request(codes.GET, at+"/properties/still")); told(got) != "2.05 [50] 1" {
			t.Errorf("when all is over: %s", told(got))
		}
	})
}

func TestRatesOfRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, ServerOptions{Mesh: fakeMesh(echoMesh), Rate: 2}, describe(t, "", serveTD))
		defer b.end()
		for n := range 6 {
			a := b.ask(b.request(codes.GET, at+"/properties/p"))
			age, _ := a.Uint(message.MaxAge)
			if limited := a.Code == codes.TooManyRequests; limited != (n >= 4) || limited && age != 1 {
				t.Errorf("request %d: %s, Max-Age %d", n, told(a), age)
			}
		}
		time.Sleep(time.Second)
		if a := b.ask(b.request(codes.GET, at+"/properties/p")); a.Code != codes.Content {
			t.Errorf("a second later: %s", told(a))
		}
	})
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	find := func(context.Context, string) (*td.Description, error) { return nil, nil }
	s, err := NewServer(ServerOptions{Listen: "127.0.0.1:0", Mesh: fakeMesh(echoMesh), Find: find})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = NewServer(ServerOptions{Listen: l.LocalAddr().String(), Mesh: fakeMesh(echoMesh), Find: find})
	wantError(t, err, interact.PortBusy)
	_, err = NewServer(ServerOptions{})
	wantError(t, err, interact.ConfigInvalid)
	for _, listen := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		o := ServerOptions{Listen: listen, Mesh: fakeMesh(echoMesh), Find: find}
		_, err = NewServer(o)
		wantError(t, err, interact.WildcardBind)
		o.Anyone = true
		if s, err = NewServer(o); err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
	}
}
