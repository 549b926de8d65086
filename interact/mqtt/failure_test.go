package mqtt

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
	"github.com/lmosd/lmosd/interact/problem"
	"github.com/lmosd/lmosd/td"
)

// A gate is the access control of a broker: topics that it refuses.
type gate struct {
	mochi.HookBase
	refused atomic.Pointer[string] // the beginning of topics
}

func (*gate) ID() string           { return "gate" }
func (*gate) Provides(b byte) bool { return b == mochi.OnConnectAuthenticate || b == mochi.OnACLCheck }

func (*gate) OnConnectAuthenticate(*mochi.Client, packets.Packet) bool { return true }

func (g *gate) OnACLCheck(_ *mochi.Client, topic string, _ bool) bool {
	refused := g.refused.Load()
	return refused == nil || !strings.HasPrefix(topic, *refused)
}

func (g *gate) refuse(prefix string) { g.refused.Store(&prefix) }

func TestBrokerThatRefusesTopics(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		g := new(gate)
		g.refuse("lamp/")
		b := startBroker(t, "127.0.0.1:0", g)
		if version == 4 {
			b.old()
		}
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		for _, m := range []*interact.Message{read("level"), {Type: interact.ObserveProperty, Name: "level"},
			{Type: interact.SubscribeEvent, Name: "broken"}} {
			_, err := ask(t, c, thing, m)
			if e := wantError(t, err, interact.NotAllowed); e.Started || !strings.Contains(e.Title, "refused the subscription") {
				t.Errorf("version %d: %+v", version, e)
			}
		}
		_, err := ask(t, c, thing, invoke("fade", "{}"))
		e := interact.AsError(err)
		switch {
		case version == 5 && (e.Code != interact.AgentFailed || !e.Remote || e.Started || !strings.Contains(e.Title, "not authorized")):
			t.Errorf("5: %+v", e)
		case version == 4 && (e.Code != interact.Unreachable || !e.Started): // it can only end the connection, without a reason
			t.Errorf("3.1.1: %+v", e)
		}
	}
}

// A subscription may be refused after a lost connection: the observer receives an error.
func TestSubscriptionThatIsRefusedTheSecondTime(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		g := new(gate)
		b := startBroker(t, "127.0.0.1:0", g)
		if version == 4 {
			b.old()
		}
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		level := observe(t, c.Thing(thing), &interact.Message{Type: interact.ObserveProperty, Name: "level"})
		told := observe(t, c.Thing(thing), &interact.Message{Type: interact.SubscribeAllEvents})
		until(t, "subscribed", func() bool { return listening(c) == 2 })
		g.refuse("lamp/level")
		b.cut("lmosd")
		wantError(t, level.err(t), interact.NotAllowed)
		until(t, "the other is subscribed", func() bool { return b.filters() == 1 })
		if err := b.Publish("lamp/told/out", []byte("1"), false, 1); err != nil {
			t.Fatal(err)
		}
		if err := b.Publish("lamp/told/broken", []byte("2"), false, 1); err != nil {
			t.Fatal(err)
		}
		if got := told.next(t); string(got.Data) != "2" { // the TD has no event "out"
			t.Errorf("version %d: %s", version, got.Data)
		}
	}
}

// A stub is a wire that has ended with its error.
type stub struct {
	wire
	why error
}

func (s stub) cause() error { return s.why }

func TestSentAndUnsentRequests(t *testing.T) {
	t.Parallel()
	running, canceled := context.Background(), ended(context.Canceled)
	late := ended(context.DeadlineExceeded)
	open, closed := &session{key: sessionKey{host: "h:1883"}, life: running}, &session{life: canceled}
	tests := []struct {
		name          string
		s             *session
		ctx           context.Context
		err           error
		code          interact.Code
		remote, begun bool
	}{
		{"not sent", open, running, errUnsent, interact.Unreachable, false, false},
		{"no subscriber", open, running, errNoSubscriber, interact.Unreachable, false, false},
		{"not authorized", open, running, &refusal{code: 0x87}, interact.AgentFailed, true, false},
		{"quota", open, running, &refusal{code: 0x97}, interact.Overloaded, true, false},
		{"too large", open, running, &refusal{code: 0x95}, interact.TooLarge, true, false},
		{"an unknown code", open, running, &refusal{code: 0xee, reason: "moon"}, interact.AgentFailed, true, false},
		{"closed", closed, running, errLost, interact.ShuttingDown, false, true},
		{"cancelled", open, canceled, context.Canceled, interact.Cancelled, false, true},
		{"out of time", open, late, context.DeadlineExceeded, interact.Timeout, false, true},
		{"not acknowledged", open, running, errSlowAck, interact.Timeout, false, true},
		{"lost", open, running, errLost, interact.Unreachable, false, true},
	}
	for _, tt := range tests {
		e := interact.AsError(tt.s.publishError(tt.ctx, stub{why: io.EOF}, "topic", tt.err))
		if e.Code != tt.code || e.Remote != tt.remote || e.Started != tt.begun {
			t.Errorf("%s: %+v", tt.name, e)
		}
	}
	if err := open.publishError(running, stub{}, "topic", nil); err != nil {
		t.Error(err)
	}
	received := []struct {
		name string
		s    *session
		ctx  context.Context
		err  error
		code interact.Code
	}{
		{"refused", open, running, &refusal{code: 0x80}, interact.NotAllowed}, {"closed", closed, running, errLost,
			interact.ShuttingDown},
		{"cancelled", open, canceled, context.Canceled, interact.Cancelled}, {"out of time", open, late, context.DeadlineExceeded,
			interact.Timeout},
		{"lost", open, running, errLost, interact.Unreachable}, {"not acknowledged", open, running, errSlowAck, interact.Unreachable},
	}
	for _, tt := range received {
		e := interact.AsError(tt.s.subscribeError(tt.ctx, stub{}, "a/#", tt.err))
		if e.Code != tt.code || e.Started || e.Remote {
			t.Errorf("%s: %+v", tt.name, e)
		}
	}
	for name, want := range map[error]interact.Code{errLost: interact.Unreachable, shuttingDown(): interact.ShuttingDown} {
		if e := interact.AsError(open.noResponse(running, stub{why: packet.ErrTooLarge}, name, true)); e.Code != want || !e.Started {
			t.Errorf("%v: %+v", name, e)
		}
	}
}

// ended returns a context that has ended in a way.
func ended(why error) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	if why == context.DeadlineExceeded {
		ctx, cancel = context.WithDeadline(context.Background(), time.Unix(0, 0))
	}
	cancel()
	return ctx
}

func TestWhyABrokerIsNotReached(t *testing.T) {
	t.Parallel()
	s := &session{key: sessionKey{host: "h:1883"}, life: context.Background()}
	own := interact.Errorf(interact.Forbidden, "x", "10.0.0.1 is a private address")
	for says, err := range map[string]error{
		"is unknown": &net.DNSError{Name: "h\x1b[31m"}, "10.0.0.1 is a private address": own,
		"no response in time": context.DeadlineExceeded,
		"odd":                 errors.New("odd\nthing"),
		"not an MQTT broker":  packet.ErrProtocol, "banned (moon)": &refusal{code: 0x8a, reason: "moon"},
	} {
		e := interact.AsError(s.connectError(err))
		if e.Code != interact.Unreachable || e.Started || !strings.Contains(e.Title, says) || strings.ContainsAny(e.Title, "\x1b\n") {
			t.Errorf("%v: %q", err, e.Title)
		}
	}
}

func TestEveryRefusalHasWords(t *testing.T) {
	t.Parallel()
	for code, r := range refusals {
		if code < 0x80 || r.text == "" || r.code == 0 {
			t.Errorf("%#x: %+v", code, r)
		}
	}
	for _, code := range connectCodes {
		if refusals[code].text == "" {
			t.Errorf("a CONNACK's code is %#x, which has no words", code)
		}
	}
}

func TestVersionsAreForgotten(t *testing.T) {
	t.Parallel()
	c := newClient(t, Options{})
	now := time.Now()
	for i := range maxVersions + 10 {
		c.learn("h"+strconv.Itoa(i), 4, now)
	}
	if n := len(c.versions); n != maxVersions {
		t.Errorf("%d brokers are remembered", n)
	}
	last := "h" + strconv.Itoa(maxVersions+9)
	if c.version(last, now.Add(versionKnown-1)) != 4 || c.version(last, now.Add(versionKnown)) != 0 {
		t.Error("a version is remembered for an hour")
	}
}

func TestShownTexts(t *testing.T) {
	t.Parallel()
	if got := interact.Clip(strings.Repeat("ü", 10), 5); got != "üü…" {
		t.Errorf("clipped to %q", got)
	}
}

func TestTaskJSON(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		m    interact.Message
		want string
	}{
		{interact.Message{ActionID: "7", Status: interact.StatusRunning, Data: []byte("1"), Began: at},
			`{"actionID":"7","state":"running","timeRequested":"2026-01-02T03:04:05Z"}`},
		{interact.Message{Status: interact.StatusCompleted, Data: []byte("\x81\x01"), ContentType: "application/cbor", Time: at},
			`{"actionID":"","state":"completed","output":[1],"timeEnded":"2026-01-02T03:04:05Z"}`},
		{interact.Message{Status: interact.StatusCompleted, Data: []byte("red"), ContentType: "text/plain"},
			`{"actionID":"","state":"completed","output":"red"}`},
		{interact.Message{Status: interact.StatusCompleted, Data: []byte("{"), ContentType: "application/json"},
			`{"actionID":"","state":"completed","output":"{"}`},
		{interact.Message{Status: interact.StatusFailed, Data: []byte(`{"title":"x"}`), ContentType: problem.MediaType},
			`{"actionID":"","state":"failed","error":{"title":"x"}}`},
	}
	for _, tt := range tests {
		if got := string(taskJSON(&tt.m)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestGatheredParts(t *testing.T) {
	t.Parallel()
	part := func(media, data string) *interact.Message {
		return &interact.Message{Status: interact.StatusRunning, ContentType: media, Data: []byte(data)}
	}
	tests := []struct {
		name        string
		parts       []*interact.Message
		final, want string
	}{
		{"JSON", []*interact.Message{part("", "1"), part("", `"a"`)}, "", `[1,"a"]`},
		{"text", []*interact.Message{part("text/plain", "light "), part("text/plain", "rain")}, "", "light rain"},
		{"nothing", nil, "", ""},
		{"the end has it all", []*interact.Message{part("", "1")}, "2", "2"},
		{"states without data", []*interact.Message{part("", ""), part("", "1")}, "", "1"},
		{"texts of JSON", []*interact.Message{part("", `"one\n"`), part("", `"two\n"`)}, "", `"one\ntwo\n"`},
	}
	for _, tt := range tests {
		var g gathered
		for _, p := range tt.parts {
			if err := g.add(p, 100); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.with(&interact.Message{Data: []byte(tt.final)}); string(got.Data) != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got.Data, tt.want)
		}
	}
	var g gathered
	err := errors.Join(g.add(part("", strings.Repeat("1", 60)), 100), g.add(part("", strings.Repeat("1", 60)), 100))
	wantError(t, err, interact.TooLarge)
}

// What one side writes the other reads.
func TestProblemsGoThrough(t *testing.T) {
	t.Parallel()
	for _, code := range slices.Sorted(slices.Values(interact.Codes())) {
		data, _ := problem.Marshal(interact.Errorf(code, "do this", "that went wrong"))
		e := decodeProblem(data, "")
		want := code
		if code >= 2000 {
			want = interact.AgentFailed // of the node that reports it
		}
		if code == interact.Internal {
			want = interact.AgentFailed
		}
		if e.Code != want || !e.Remote || e.Hint != "do this" || !strings.Contains(e.Title, "that went wrong") {
			t.Errorf("%s became %s: %+v", code, e.Code, e)
		}
	}
	data, _ := problem.Marshal(&interact.Error{Code: interact.Invalid, Issues: issues("/a", "is missing")})
	if e := decodeProblem(data, ""); !strings.Contains(e.Title, "/a: is missing") || len(e.Issues) != 1 {
		t.Errorf("%+v", e)
	}
	for _, odd := range []string{"LMOS-1", "LMOS-1999", "LMOS-01400", "LMOS-14000", "LMOS-1e3", "1400", "LMOS-14 00"} {
		if e := decodeProblem([]byte(`{"title":"x"}`), odd); e.Code != interact.AgentFailed {
			t.Errorf("%q is read as %s", odd, e.Code)
		}
	}
	if e := decodeProblem(make([]byte, packet.MaxControl+1), ""); e.Title == "" {
		t.Error("no title")
	}
}

func TestRoomForRequests(t *testing.T) {
	t.Parallel()
	b, err := NewBroker(BrokerOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	large := &request{broker: b, consumer: &consumer{}, data: make([]byte, maxRequestBytes)}
	small := &request{broker: b, consumer: &consumer{}, data: []byte("x")}
	if !large.reserve() || small.reserve() {
		t.Error("the payloads of all requests are not counted")
	}
	large.leave()
	if !small.reserve() {
		t.Error("room is not given back")
	}
	small.leave()
	// Requests without a waiting client outlive their connections: a client that reconnects often does not fill the room with them.
	for range maxRequests / 2 {
		again := &request{broker: b, consumer: &consumer{}}
		if !again.reserve() {
			t.Fatal("a request without an answer is refused")
		}
		defer again.leave()
	}
	if waits := (&request{broker: b, consumer: &consumer{}, responseTopic: "x"}); small.reserve() || !waits.reserve() {
		t.Error("requests without a waiting client take the room of others")
	} else {
		waits.leave()
	}
	small.responseTopic = "x"
	if !b.room.TryAcquire(maxRequests/2) || small.reserve() {
		t.Error("the requests of all clients are not counted")
	}
	if small.consumer.requests.Load() != 0 || !b.bytes.TryAcquire(maxRequestBytes) {
		t.Error("a refused request keeps room")
	}
}

func TestPropertyTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": true, "a/b; c=d": true, "ü": true, "\x00": false, "a\nb": false, "\xff": false,
		strings.Repeat("a", 2000): false} {
		if isProperty(text) != want {
			t.Errorf("%.20q: %v", text, !want)
		}
	}
	p := &publication{}
	for name, value := range maps.All(map[string]string{"a": "x", "b": "", "c": "\x00"}) {
		p.add(name, value)
	}
	if len(p.props) != 1 || p.props[0] != (prop{"a", "x"}) {
		t.Errorf("%v", p.props)
	}
}

func issues(pointer, reason string) []td.Issue { return []td.Issue{{Pointer: pointer, Reason: reason}} }
