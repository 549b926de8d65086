package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/internal/netguard"
)

// A posting is a delivery to a consumer.
type posting struct {
	header http.Header
	body   string
}

// consumer starts a consumer that answers with the status that answer gives.
func consumer(t *testing.T, answer func(n int) int) (url string, got chan posting) {
	t.Helper()
	got = make(chan posting, 1000)
	var n atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		note(got, posting{r.Header.Clone(), string(body)})
		w.WriteHeader(answer(int(n.Add(1))))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/notify", got
}

func always(status int) func(int) int { return func(int) int { return status } }

// hasty is a pace for webhooks with very short pauses.
func hasty() pace {
	p := defaultPace
	p.retry, p.back = time.Millisecond, time.Millisecond
	return p
}

// callTo is the body of a request for a webhook.
func callTo(url string) string { return `{"callbackURL":"` + url + `"}` }

// hooked requests a webhook and returns its URL.
func (w *world) hooked(path, body string) string {
	w.t.Helper()
	resp, text := send(w.t, "POST", w.url+path, body, "Content-Type", jsonType)
	at := resp.Header.Get("Location")
	if resp.StatusCode != 201 || !strings.HasPrefix(at, "/things/house/subscriptions/") {
		w.t.Fatalf("got %d %v %s", resp.StatusCode, resp.Header, text)
	}
	return strings.TrimSuffix(w.url, "/things/house") + at
}

// state returns the response to GET for a webhook; empty if it is unknown.
func (w *world) state(url string) (s hookState) {
	w.t.Helper()
	resp, body := send(w.t, "GET", url, "")
	if resp.StatusCode == 200 && json.Unmarshal([]byte(body), &s) != nil {
		w.t.Errorf("got %s", body)
	}
	return s
}

// ended returns the state of a webhook when it has ended by itself.
func (w *world) ended(url string) hookState {
	w.t.Helper()
	for {
		if s := w.state(url); s.Ended != "" || s.CallbackURL == "" {
			return s
		}
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path  string
		typ         interact.Type
		affordance  string
		self, state string
	}{
		{"event", "/events/hot", interact.SubscribeEvent, "hot", "/events/hot", `"operation":"subscribeevent","name":"hot"`},
		{"all events", "/events", interact.SubscribeAllEvents, "", "/events/hot", `"operation":"subscribeallevents"`},
		{"property", "/properties/units", interact.ObserveProperty, "units", "/properties/hot", `"operation":"observeproperty","name":"units"`},
		{"all properties", "/properties", interact.ObserveAllProperties, "", "/properties/hot", `"operation":"observeallproperties"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, got := consumer(t, always(200))
			w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft("hot=20.5", "hot=21"))
			at := w.hooked(tt.path, callTo(url))
			for i, want := range []string{"20.5", "21"} {
				d := receive(t, got)
				if d.body != want || d.header.Get("Content-Type") != jsonType || d.header.Get("Lmos-Event-Id") != fmt.Sprint("e", i+1) ||
					d.header.Get("Link") != "<"+w.url+tt.self+`>; rel="self"` {
					t.Errorf("posted %s with %v", d.body, d.header)
				}
				if when, err := http.ParseTime(d.header.Get("Date")); err != nil || time.Since(when) > time.Minute {
					t.Errorf("Date %s", d.header.Get("Date"))
				}
			}
			if m := receive(t, w.asked); m.Type != tt.typ || m.Name != tt.affordance || !m.Deadline.IsZero() || m.Accept != interact.JSON {
				t.Errorf("received %+v", m)
			}
			for w.state(at).Delivered != 2 { // it is counted after the answer
			}
			want := `{"callbackURL":"` + url + `",` + tt.state + `,"delivered":2,"failed":0,"expires":"`
			if _, body := send(t, "GET", at, ""); !strings.HasPrefix(body, want) {
				t.Errorf("state %s, want %s", body, want)
			}
			if resp, body := send(t, "HEAD", at, ""); resp.StatusCode != 200 || body != "" {
				t.Errorf("HEAD: got %d", resp.StatusCode)
			}
			if resp, _ := send(t, "DELETE", at, ""); resp.StatusCode != 204 {
				t.Errorf("DELETE: got %d", resp.StatusCode)
			}
			if err := receive(t, w.left); err != context.Canceled {
				t.Errorf("left with %v", err)
			}
			for _, method := range []string{"GET", "DELETE"} {
				resp, body := send(t, method, at, "")
				wantProblem(t, resp, body, 404, interact.NoTask)
			}
		})
	}
}

// The subscription data is next to the callback. An event without data is posted without a body.
func TestWebhookWithData(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(204))
	w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft("="))
	w.hooked("/events/bid", `{"callbackURL":"`+url+`","data":{"item":"tea"}}`)
	if m := receive(t, w.asked); string(m.Data) != `{"item":"tea"}` {
		t.Errorf("asked with %s", m.Data)
	}
	if d := receive(t, got); d.body != "" || d.header.Get("Content-Type") != "" {
		t.Errorf("posted %q with %v", d.body, d.header)
	}
	w.hooked("/events/sold?shop=x", callTo(url))
	if m := receive(t, w.asked); string(m.Data) != `{"shop":"x"}` {
		t.Errorf("asked with %s", m.Data)
	}
	packed, got := consumer(t, always(204))
	cbor := newWorld(t, Options{PrivateCallbacks: true}, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		r := happens(m, "", "", "\x18\x2a")
		r.ContentType = "application/cbor"
		yield(r, nil)
		<-ctx.Done()
	})
	cbor.hooked("/events/hot", callTo(packed))
	if d := receive(t, got); d.body != "42" || d.header.Get("Content-Type") != jsonType {
		t.Errorf("posted %q with %v", d.body, d.header)
	}
}

func TestWebhookRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft())
	const good = `{"callbackURL":"http://127.0.0.1:9/x"}`
	for _, tt := range []struct {
		name, path, media, body string
		status                  int
		code                    interact.Code
	}{
		{"no body", "/events/hot", jsonType, "", 400, interact.Invalid},
		{"no JSON", "/events/hot", jsonType, "{", 400, interact.Invalid},
		{"a name twice", "/events/hot", jsonType, `{"callbackURL":"http://a/","callbackURL":"http://b/"}`, 400, interact.Invalid},
		{"no object", "/events/hot", jsonType, `"http://127.0.0.1:9/x"`, 400, interact.Invalid},
		{"no callback", "/properties", jsonType, `{}`, 400, interact.Invalid},
		{"a number", "/properties/units", jsonType, `{"callbackURL":1}`, 400, interact.Invalid},
		{"another scheme", "/events/hot", jsonType, callTo("ftp://a.example/x"), 400, interact.Invalid},
		{"a file", "/events/hot", jsonType, callTo("file:///etc/passwd"), 400, interact.Invalid},
		{"no host", "/events/hot", jsonType, callTo("http:///x"), 400, interact.Invalid},
		{"relative", "/events/hot", jsonType, callTo("/x"), 400, interact.Invalid},
		{"a user", "/events/hot", jsonType, callTo("http://me:secret@a.example/x"), 400, interact.Invalid},
		{"a fragment", "/events/hot", jsonType, callTo("http://a.example/x#y"), 400, interact.Invalid},
		{"no URL", "/events/hot", jsonType, callTo("http://a b/%zz"), 400, interact.Invalid},
		{"too long", "/events/hot", jsonType, callTo("http://a.example/" + strings.Repeat("x", maxCallback)), 400, interact.Invalid},
		{"a form of a web page", "/events/hot", "text/plain", good, 415, interact.UnsupportedType},
		{"unknown event", "/events/hott", jsonType, good, 404, interact.NoAffordance},
		{"a property that is not observable", "/properties/serial", jsonType, good, 405, interact.NotAllowed},
		{"data that does not fit", "/events/bid", jsonType, `{"callbackURL":"http://127.0.0.1:9/x","data":{}}`, 400, interact.Invalid},
		{"not here", "/properties/units/observable", jsonType, good, 405, interact.NotAllowed},
	} {
		resp, body := send(t, "POST", w.url+tt.path, tt.body, "Content-Type", tt.media)
		if e := wantProblem(t, resp, body, tt.status, tt.code); e.Hint == "" && e.Next == nil {
			t.Errorf("%s: no hint", tt.name)
		}
	}
	if n := len(w.asked); n > 0 {
		t.Errorf("the mesh received %d messages", n)
	}
	for _, path := range []string{"/subscriptions/none", "/subscriptions/" + interact.NewID()} {
		resp, body := send(t, "GET", w.url+path, "")
		wantProblem(t, resp, body, 404, interact.NoTask)
	}
}

// A webhook belongs to one Thing, and its URL to one reference.
func TestWebhookOfAnotherThing(t *testing.T) {
	t.Parallel()
	url, _ := consumer(t, always(200))
	w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft(), "flat")
	at := w.hooked("/events/hot", callTo(url))
	resp, body := send(t, "DELETE", strings.Replace(at, "/house/", "/flat/", 1), "")
	wantProblem(t, resp, body, 404, interact.NoTask)
	if w.state(at).CallbackURL != url {
		t.Error("it is gone")
	}
}

func TestTooManyWebhooks(t *testing.T) {
	t.Parallel()
	url, _ := consumer(t, always(200))
	w := newWorld(t, Options{PrivateCallbacks: true, MaxCallbacks: 1}, untilLeft())
	at := w.hooked("/events/hot", callTo(url))
	for _, other := range []string{"/events", "/properties/units"} {
		resp, body := send(t, "POST", w.url+other, callTo(url), "Content-Type", jsonType)
		wantProblem(t, resp, body, 503, interact.Overloaded)
	}
	send(t, "DELETE", at, "")
	w.hooked("/events/hot", callTo(url))
	none := newWorld(t, Options{MaxCallbacks: -1}, untilLeft())
	resp, body := send(t, "POST", none.url+"/events/hot", callTo(url), "Content-Type", jsonType)
	wantProblem(t, resp, body, 405, interact.NotAllowed)
}

// A posting is tried again, and the events stay in order.
func TestWebhookTriesAgain(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, func(n int) int {
		if n%tries != 0 {
			return 503
		}
		return 200
	})
	c := make(counts, 1000)
	w := newWorld(t, Options{PrivateCallbacks: true, Count: c.count, pace: hasty()}, untilLeft("=1", "=2"))
	w.hooked("/events/hot", callTo(url))
	for i := range 2 * tries {
		if d := receive(t, got); d.body != fmt.Sprint(1+i/tries) {
			t.Errorf("posting %d is of %s", i, d.body)
		}
	}
	c.wait(t, "webhook false")
	c.wait(t, "webhook false")
}

// A consumer that cannot be reached is given up, but not at the first event.
func TestUnknownWebhook(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(500))
	c := make(counts, 1000)
	w := newWorld(t, Options{PrivateCallbacks: true, Count: c.count, pace: hasty()}, untilLeft("=1", "=2", "=3", "=4", "=5", "=6"))
	s := w.ended(w.hooked("/events/hot", callTo(url)))
	if n := len(got); n != tries*maxMissed {
		t.Errorf("%d deliveries", n)
	}
	if s.Failed != maxMissed || s.LastError != "the consumer answered with status 500" || s.Expires != "" {
		t.Errorf("ended as %+v", s)
	}
	for range maxMissed {
		if what := receive(t, c); what != "webhook true" {
			t.Errorf("counted %s", what)
		}
	}
}

// What went wrong is shown, and forgotten when it goes well again.
func TestWebhookReportsTheError(t *testing.T) {
	t.Parallel()
	url, _ := consumer(t, func(n int) int {
		if n <= tries {
			return 500
		}
		return 200
	})
	next := make(chan struct{})
	w := newWorld(t, Options{PrivateCallbacks: true, pace: hasty()}, func(ctx context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		if yield(happens(m, "", "1", "1"), nil) {
			<-next
			untilLeft("=2")(ctx, m, yield)
		}
	})
	at := w.hooked("/events/hot", callTo(url))
	for w.state(at).Failed == 0 {
	}
	if s := w.state(at); s.LastError != "the consumer answered with status 500" || s.Delivered != 0 {
		t.Errorf("state %+v", s)
	}
	close(next)
	for w.state(at).Delivered == 0 {
	}
	if s := w.state(at); s.LastError != "" || s.Failed != 1 {
		t.Errorf("state %+v", s)
	}
}

// 410 and a redirect: the one ends a webhook, the other is not followed.
func TestWebhookAnswers(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(410))
	w := newWorld(t, Options{PrivateCallbacks: true, pace: hasty()}, untilLeft("=1", "=2"))
	at := w.hooked("/events/hot", callTo(url))
	if s := w.ended(at); s.LastError != errGone.Error() || s.Name != "hot" {
		t.Errorf("ended as %+v", s)
	}
	for i, status := range []int{204, 404} { // the response of the consumer removes it
		if resp, body := send(t, "DELETE", at, ""); resp.StatusCode != status {
			t.Errorf("%d: got %d %s", i, resp.StatusCode, body)
		}
	}
	if n := len(got); n != 1 {
		t.Errorf("%d deliveries to a consumer that is gone", n)
	}
	elsewhere, followed := consumer(t, always(200))
	s := httptest.NewServer(http.RedirectHandler(elsewhere, http.StatusTemporaryRedirect))
	defer s.Close()
	again := newWorld(t, Options{PrivateCallbacks: true, pace: hasty()}, untilLeft("=1"))
	at = again.hooked("/events/hot", callTo(s.URL))
	for again.state(at).Failed == 0 {
	}
	if len(followed) > 0 {
		t.Error("a redirect was followed")
	}
}

// Without leave, a callback leads nowhere inside of a network, whatever its name is.
func TestWebhookIntoTheNetwork(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(200))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(strings.TrimSuffix(url, "/notify"), "http://"))
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		w := newWorld(t, Options{pace: hasty()}, untilLeft("=1"))
		if s := w.ended(w.hooked("/events/hot", callTo("http://"+host+":"+port+"/notify"))); s.LastError == "" {
			t.Errorf("%s: ended as %+v", host, s)
		}
	}
	if n := len(got); n > 0 {
		t.Errorf("%d deliveries", n)
	}
	w := newWorld(t, Options{}, nil)
	k := &hook{hooks: &w.hooks, callback: url, message: &interact.Message{}, self: func(string) string { return "x" }}
	var refused *netguard.Error
	if err := k.post(t.Context(), &interact.Message{}); !errors.Is(err, errGone) || !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}

func TestWebhookOverAnotherDial(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(200))
	var dialled atomic.Value
	w := newWorld(t, Options{CallbackDial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Store(addr)
		return new(net.Dialer).DialContext(ctx, network, strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/notify"))
	}}, untilLeft("=1"))
	w.hooked("/events/hot", callTo("http://consumer.example/x"))
	receive(t, got)
	if dialled.Load() != "consumer.example:80" {
		t.Errorf("dialled %v", dialled.Load())
	}
}

// A lost observation is started again after the last event. A rejected observation ends the webhook.
func TestWebhookIsRestarted(t *testing.T) {
	t.Parallel()
	url, got := consumer(t, always(200))
	var times atomic.Int32
	w := newWorld(t, Options{PrivateCallbacks: true, pace: hasty()}, func(_ context.Context, m *interact.Message, yield func(*interact.Message, error) bool) {
		switch times.Add(1) {
		case 1:
			_ = yield(happens(m, "", "e1", "1"), nil) && yield(nil, interact.Errorf(interact.Unreachable, "wait", "the host is gone"))
		case 2:
			yield(nil, interact.Errorf(interact.Overloaded, "wait", "busy"))
		case 3:
			yield(happens(m, "", "e2", "2"), nil) // and it just ends
		default:
			yield(nil, interact.Errorf(interact.Withdrawn, "", "gone for good"))
		}
	})
	if s := w.ended(w.hooked("/events/hot?after=e0", callTo(url))); !strings.Contains(s.LastError, "gone for good") || s.Delivered != 2 {
		t.Errorf("ended as %+v", s)
	}
	for _, want := range []string{"e0", "e1", "e1", "e2"} {
		if m := receive(t, w.asked); m.After != want {
			t.Errorf("begun after %q, want %q", m.After, want)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d deliveries", len(got))
	}
}

// The same subscription renews the lease; without it the webhook ends with a last event.
func TestWebhookLease(t *testing.T) {
	t.Parallel()
	url, _ := consumer(t, always(200))
	p := hasty()
	p.lease = time.Hour
	w := newWorld(t, Options{PrivateCallbacks: true, pace: p}, untilLeft())
	at := w.hooked("/events/hot", callTo(url))
	receive(t, w.asked)
	before := w.state(at).Expires
	if until, err := time.Parse(time.RFC3339, before); err != nil || time.Until(until) > p.lease || time.Until(until) < p.lease-time.Minute {
		t.Errorf("expires %s", before)
	}
	if again := w.hooked("/events/hot", callTo(url)); again != at || w.state(at).Expires <= before {
		t.Errorf("renewed %s as %s until %s, before %s", at, again, w.state(at).Expires, before)
	}
	for name, other := range map[string][2]string{"event": {"/events/bid", `{"callbackURL":"` + url + `","data":{"item":"tea"}}`},
		"data": {"/events/bid", `{"callbackURL":"` + url + `","data":{"item":"milk"}}`}, "address": {"/events/hot", callTo(url + "/2")},
		"way": {"/events/hot?via=mesh", callTo(url)}} {
		if w.hooked(other[0], other[1]) == at {
			t.Errorf("another %s is the same", name)
		}
		receive(t, w.asked)
	}
	// A consumer that continues after an event receives the later events once.
	again := w.hooked("/events/hot?after=e7", callTo(url))
	if m := receive(t, w.asked); again == at || m.After != "e7" || w.state(at).CallbackURL != "" {
		t.Errorf("continues after %q as %s, the old one is %+v", m.After, again, w.state(at))
	}
	receive(t, w.left)
	k := w.hooks.all[again[strings.LastIndexByte(again, '/')+1:]]
	k.expire() // too early: it was renewed at the last moment
	if w.state(again).Ended != "" {
		t.Error("it ended before its time")
	}
	k.mu.Lock()
	k.expires = time.Now()
	k.mu.Unlock()
	k.expire()
	if s := w.ended(again); s.LastError != errExpired.Error() {
		t.Errorf("ended as %+v", s)
	}
	receive(t, w.left)
	p.lease = time.Millisecond // the timer ends it, maybe before the agent is asked
	short := newWorld(t, Options{PrivateCallbacks: true, pace: p}, untilLeft())
	if s := short.ended(short.hooked("/events/hot", callTo(url))); s.LastError != errExpired.Error() {
		t.Errorf("ended as %+v", s)
	}
}

// Only some of the ended ones are remembered.
func TestWebhooksAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft())
	for i := range maxEnded + 2 {
		at := w.hooked("/events/hot", callTo(fmt.Sprintf("http://127.0.0.1:9/%d", i)))
		w.hooks.mu.Lock()
		w.hooks.all[at[strings.LastIndexByte(at, '/')+1:]].endLocked(errExpired)
		w.hooks.mu.Unlock()
	}
	if all := w.hooks.past; len(all) != maxEnded || all[maxEnded-1].callback != fmt.Sprintf("http://127.0.0.1:9/%d", maxEnded+1) {
		t.Errorf("%d are remembered", len(all))
	}
}

// Drain and Close end webhooks, also one whose consumer hangs.
func TestWebhookEndsWithTheServer(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	began := make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body) // until then the server does not see that the client went away
		began <- struct{}{}
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(hangs)
	w := newWorld(t, Options{PrivateCallbacks: true}, untilLeft("=1"))
	at := w.hooked("/events/hot", callTo(s.URL))
	receive(t, began)
	w.Close()
	receive(t, w.left)
	if w.state(at).CallbackURL != "" {
		t.Error("it is still there")
	}
	resp, body := send(t, "POST", w.url+"/events/hot", callTo(s.URL), "Content-Type", jsonType)
	wantProblem(t, resp, body, 503, interact.ShuttingDown)
}

func FuzzCallback(f *testing.F) {
	f.Add([]byte(`{"callbackURL":"http://a.example/x","data":1}`), jsonType)
	f.Add([]byte("\xa1kcallbackURLhhttp://a"), "application/cbor")
	f.Fuzz(func(t *testing.T, body []byte, media string) {
		var want struct{ CallbackURL string }
		if decodeBody(body, media, &want) != nil || checkCallback(want.CallbackURL) != nil {
			return
		}
		r, err := http.NewRequest("POST", want.CallbackURL, nil)
		if err != nil || r.URL.Host == "" || r.URL.User != nil || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
			t.Errorf("%q is accepted: %v", want.CallbackURL, err)
		}
	})
}
