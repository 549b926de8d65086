package coap

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/coap/coaptest"
	"github.com/lmosd/lmosd/interact/coap/messaging"
)

const watchTD = `"properties": {"p": {"observable": true, "forms": [{"href": "BASE/p", "op": ["readproperty", "observeproperty"],
	"cov:minPollingInterval": 2}]}},
	"events": {"e": {"forms": [{"href": "BASE/e", "cov:minPollingInterval": 0.05}]}},
	"forms": [{"href": "BASE/ps", "op": "observeallproperties"}, {"href": "BASE/es", "op": "subscribeallevents"}]`

func observe(name string) *interact.Message {
	return &interact.Message{Type: interact.ObserveProperty, ID: "1", Name: name}
}

func subscribe(name string) *interact.Message {
	return &interact.Message{Type: interact.SubscribeEvent, ID: "1", Name: name}
}

// first returns the first n replies, as NAME=DATA, and the error, if any.
func first(ctx context.Context, thing interact.Thing, m *interact.Message, n int) (said []string, err error) {
	for r, err := range thing.Do(ctx, m) {
		if err != nil {
			return said, err
		}
		if said = append(said, r.Name+"="+string(r.Data)); len(said) == n {
			break
		}
	}
	return said, nil
}

// TestObserve has an agent of go-coap that notifies each time the value changes.
func TestObserve(t *testing.T) {
	t.Parallel()
	for transport, start := range agents {
		stop := make(chan struct{})
		var work sync.WaitGroup
		t.Cleanup(func() { close(stop); work.Wait() })
		gone := make(chan struct{}, 8)
		base := start(t, func(w mux.ResponseWriter, r *mux.Message) {
			path, _ := r.Path()
			obs, err := r.Observe()
			if err != nil || obs != 0 {
				if err == nil { // go-coap also hands over a Reset
					gone <- struct{}{}
				}
				return
			}
			value := func(n int) string {
				switch path {
				case "/ps":
					return fmt.Sprintf(`{"b":1,"a":%d}`, n)
				case "/es":
					return fmt.Sprintf(`{"x":%d}`, n)
				case "/big":
					return big(3000 + n)
				}
				return fmt.Sprint(n)
			}
			body := value(0)
			if path == "/e" || path == "/es" {
				body = "" // confirms the subscription
			}
			_ = w.SetResponse(codes.Content, message.AppJSON, strings.NewReader(body))
			w.Message().SetObserve(1)
			c, token := w.Conn(), r.Token()
			work.Go(func() {
				for n := 1; n < 5; n++ {
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond): // the answer goes first
					}
					m := c.AcquireMessage(c.Context())
					m.SetCode(codes.Content)
					m.SetContentFormat(message.AppJSON)
					m.SetObserve(uint32(n + 1))
					m.SetToken(token)
					m.SetBody(strings.NewReader(value(n)))
					if err := c.WriteMessage(m); err != nil {
						t.Logf("notify: %v", err)
						return
					}
				}
			})
		})
		thing := newClient(t, Options{}).Thing(describe(t, base, watchTD))
		tests := []struct {
			m    *interact.Message
			want []string
		}{
			{observe("p"), []string{"p=0", "p=1", "p=2"}},
			{subscribe("e"), []string{"e=1", "e=2", "e=3"}},
			{&interact.Message{Type: interact.ObserveAllProperties}, []string{"a=0", "b=1", "a=1", "a=2"}},
			{&interact.Message{Type: interact.SubscribeAllEvents}, []string{"x=1", "x=2"}},
		}
		for _, tt := range tests {
			got, err := first(t.Context(), thing, tt.m, len(tt.want))
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%s: %s: got %q, %v, want %q", transport, tt.m.Type.Op(), got, err, tt.want)
			}
			<-gone // it has no observers any more
		}
	}
}

// An agentPipe is an agent at the other end of a line, for tests in a bubble. It answers on the connection that was made last.
type agentPipe struct {
	t     *testing.T
	react func(a *agentPipe, q *messaging.Packet)
	work  sync.WaitGroup

	mu   sync.Mutex // guards the rest
	ends []*coaptest.Conn
	got  []string // requests: KIND CODE PATH [observe]
	last *messaging.Packet
}

// piped returns a client whose agent calls react with each message. Both end with the test.
func piped(t *testing.T, react func(a *agentPipe, q *messaging.Packet)) (*Client, *agentPipe) {
	a := &agentPipe{t: t, react: react}
	client := NewClient(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := coaptest.Pipe()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ends = append(a.ends, far)
		a.work.Go(func() { a.listen(far) })
		return near, nil
	}})
	return client, a
}

func (a *agentPipe) listen(far *coaptest.Conn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := far.Read(buf)
		if err != nil {
			return
		}
		q, err := messaging.ParseDatagram(slices.Clone(buf[:n]))
		if err != nil {
			a.t.Errorf("the client sent no message: %x", buf[:n])
			continue
		}
		observe, observing := q.Uint(message.Observe)
		said := fmt.Sprintf("%d %s /%s", q.Kind, messaging.Dotted(q.Code), strings.Join(q.Texts(message.URIPath), "/"))
		if observing {
			said += fmt.Sprintf(" observe=%d", observe)
		}
		a.mu.Lock()
		if a.got = append(a.got, said); q.IsRequest() {
			a.last = q
		}
		a.mu.Unlock()
		a.react(a, q)
	}
}

// end closes the client and the agent.
func (a *agentPipe) end(c *Client) {
	c.Close()
	for _, far := range a.ends {
		_ = far.Close()
	}
	a.work.Wait()
}

// Write sends a datagram to the client.
func (a *agentPipe) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ends[len(a.ends)-1].Write(b)
}

func (a *agentPipe) asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

func (a *agentPipe) send(m *messaging.Packet) {
	if b, err := m.Datagram(); err == nil {
		_, _ = a.Write(b)
	}
}

// says responds to q, piggybacked or with the type of q.
func (a *agentPipe) says(q *messaging.Packet, code codes.Code, body string, more ...func(*messaging.Packet)) {
	m := &messaging.Packet{Kind: message.Acknowledgement, Mid: q.Mid, Code: code, Token: q.Token, Payload: []byte(body)}
	if q.Kind == message.NonConfirmable {
		m.Kind = message.NonConfirmable
	}
	for _, f := range more {
		f(m)
	}
	a.send(m)
}

// notifies sends a notification for the last request.
func (a *agentPipe) notifies(mid uint16, seq uint32, body string, more ...func(*messaging.Packet)) {
	a.mu.Lock()
	q := a.last
	a.mu.Unlock()
	m := &messaging.Packet{Kind: message.Confirmable, Mid: mid, Code: codes.Content, Token: q.Token, Payload: []byte(body)}
	m.AddUint(message.Observe, seq)
	for _, f := range more {
		f(m)
	}
	a.send(m)
}

func option(id message.OptionID, n uint32) func(*messaging.Packet) {
	return func(p *messaging.Packet) { p.AddUint(id, n) }
}

const pipeTD = `"properties": {"p": {"observable": true, "forms": [{"href": "coap://10.0.0.1/p",
	"op": ["readproperty", "observeproperty"],
	"cov:minPollingInterval": 2}]}}, "events": {"e": {"forms": [{"href": "coap://10.0.0.1/e", "cov:minPollingInterval": 3}]}},
	"actions": {"go": {"forms": [{"href": "coap://10.0.0.1/go"}]},
	"non": {"forms": [{"href": "coap://10.0.0.1/non", "cov:confirmable": false}]}}`

// TestPolling reads a resource that is not observable, at most at the rate of its form, and yields only changes.
func TestPolling(t *testing.T) {
	t.Parallel()
	for _, m := range []*interact.Message{observe("p"), subscribe("e")} {
		synctest.Test(t, func(t *testing.T) {
			values := []string{"1", "1", "2", "429", "valid", "2", "3"}
			n := 0
			var at []time.Duration
			begun := time.Now()
			client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
				if !q.IsRequest() {
					return
				}
				at = append(at, time.Since(begun))
				value := values[min(n, len(values)-1)]
				n++
				switch value {
				case "429":
					a.says(q, codes.TooManyRequests, "", option(message.MaxAge, 10))
				case "valid":
					a.says(q, codes.Valid, "", option(message.MaxAge, 0))
				default:
					a.says(q, codes.Content, value)
				}
			})
			want, every := []string{"p=1", "p=2", "p=3"}, 2*time.Second
			if m.Name == "e" {
				want, every = []string{"e=2", "e=3"}, 3*time.Second // an earlier value is not an event
			}
			got, err := first(t.Context(), client.Thing(describe(t, "", pipeTD)), m, len(want))
			a.end(client)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
			for i := 1; i < len(at); i++ {
				pause := every
				if i == 4 {
					pause = 10 * time.Second // as the agent requires
				}
				if at[i]-at[i-1] != pause {
					t.Errorf("question %d came %v after the one before, want %v", i, at[i]-at[i-1], pause)
				}
			}
		})
	}
}

// TestNotificationsInAnyOrder is RFC 7641 §3.4: older notifications are ignored; a copy is acknowledged and not
// delivered again. Each event is delivered.
func TestNotificationsInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		m         *interact.Message
		overtaken bool // the answer, by the first notification
		want      []string
	}{
		"property":                   {observe("p"), false, []string{"p=0", "p=5", "p=7"}},
		"event":                      {subscribe("e"), false, []string{"e=5", "e=4", "e=7", "e=wrapped"}},
		"property that is overtaken": {observe("p"), true, []string{"p=5", "p=7"}},
		"event that is overtaken":    {subscribe("e"), true, []string{"e=5", "e=4", "e=7", "e=wrapped"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
					if obs, ok := q.Uint(message.Observe); !ok || obs != 0 {
						return
					}
					body := "0"
					if tt.m.Name == "e" {
						body = ""
					}
					if tt.overtaken {
						a.notifies(100, 5, "5")
					}
					a.says(q, codes.Content, body, option(message.Observe, 3))
					if !tt.overtaken {
						a.notifies(100, 5, "5")
					}
					a.notifies(101, 4, "4")
					a.notifies(102, 7, "7")
					a.notifies(102, 7, "7")
					a.notifies(103, 7+1<<23, "wrapped") // so far ahead that it is maxBehind
				})
				defer a.end(client)
				got, err := first(t.Context(), client.Thing(describe(t, "", strings.ReplaceAll(pipeTD, `"href": "coap://10.0.0.1/`,
					`"contentType": "text/plain", "href": "coap://10.0.0.1/`))), tt.m, len(tt.want))
				if err != nil || !slices.Equal(got, tt.want) {
					t.Errorf("got %q, %v, want %q", got, err, tt.want)
				}
				synctest.Wait()
				acks := 0
				for _, said := range a.asked() {
					if strings.HasPrefix(said, "2 0.00") || strings.HasPrefix(said, "3 0.00") {
						acks++ // or a reset: notifications after the end of the consumer are rejected
					}
				}
				if acks != 5 {
					t.Errorf("%d acknowledgements and resets of 5 notifications: %q", acks, a.asked())
				}
			})
		})
	}
}

// TestDisconnectCancelsAtTheAgent: the agent gets a deregistration, and a Reset for later notifications.
func TestDisconnectCancelsAtTheAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			if obs, ok := q.Uint(message.Observe); ok && obs == 0 {
				a.says(q, codes.Content, "0", option(message.Observe, 3))
			}
		})
		defer a.end(client)
		if _, err := first(t.Context(), client.Thing(describe(t, "", pipeTD)), observe("p"), 1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.notifies(9, 4, "1")
		synctest.Wait()
		want := []string{"0 0.01 /p observe=0", "1 0.01 /p observe=1", "3 0.00 /"}
		if got := a.asked(); !slices.Equal(got, want) {
			t.Errorf("the agent got %q, want %q", got, want)
		}
	})
}

// TestCrashedAgent: after the Max-Age of the last value without a notification, the client registers again.
func TestCrashedAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			if n++; n > 2 {
				return // it is gone
			}
			a.says(q, codes.Content, `"same"`, option(message.Observe, uint32(n)), option(message.MaxAge, 100))
		})
		defer a.end(client)
		begun := time.Now()
		got, err := first(t.Context(), client.Thing(describe(t, "", pipeTD)), observe("p"), 5)
		e := wantError(t, err, interact.Unreachable)
		if !slices.Equal(got, []string{`p="same"`}) || e.Remote {
			t.Errorf("got %q, %v", got, e)
		}
		// Twice 100 s and 5 to 15 s, and the 30 s of a registration.
		if took := time.Since(begun); took < 240*time.Second || took > 260*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestAnAgentThatForgets: an agent restarts. The registration is repeated, and only changed values are delivered.
func TestAnAgentThatForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		values := []string{"1", "1", "2"}
		n := 0 // the agent's
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			if obs, ok := q.Uint(message.Observe); ok && obs == 0 {
				a.says(q, codes.Content, values[n], option(message.Observe, 1))
				n++
			}
		})
		got, err := first(t.Context(), client.Thing(describe(t, "", pipeTD)), observe("p"), 2)
		a.end(client)
		if err != nil || !slices.Equal(got, []string{"p=1", "p=2"}) || n != 3 {
			t.Errorf("got %q, %v after %d registrations", got, err, n)
		}
	})
}

func TestEndsOfObservations(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		react func(a *agentPipe, q *messaging.Packet)
		m     *interact.Message
		code  interact.Code
	}{
		"refused": {func(a *agentPipe, q *messaging.Packet) { a.says(q, codes.Forbidden, "no") }, observe("p"), interact.Forbidden},
		"ended by the agent": {func(a *agentPipe, q *messaging.Packet) {
			a.says(q, codes.Content, "1", option(message.Observe, 1))
			a.send(&messaging.Packet{Kind: message.NonConfirmable, Mid: 5, Code: codes.NotFound, Token: q.Token})
		}, observe("p"), interact.NoAffordance},
		"a consumer that is slow with events": {func(a *agentPipe, q *messaging.Packet) {
			if obs, ok := q.Uint(message.Observe); !ok || obs != 0 {
				return
			}
			a.says(q, codes.Content, "", option(message.Observe, 1))
			for i := range backlog + 10 {
				a.notifies(uint16(i), uint32(i+2), "1")
			}
		}, subscribe("e"), interact.Overloaded},
		"not JSON": {func(a *agentPipe, q *messaging.Packet) { a.says(q, codes.Content, "{", option(message.Observe, 1)) },
			observe("p"), interact.AgentFailed},
		"never acknowledged": {func(*agentPipe, *messaging.Packet) {}, observe("p"), interact.Unreachable},
		"rejected": {func(a *agentPipe, q *messaging.Packet) { _, _ = a.Write(messaging.Bare(message.Reset, q.Mid)) }, observe("p"),
			interact.AgentFailed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, a := piped(t, tt.react)
				defer a.end(client)
				var err error
				for _, e := range client.Thing(describe(t, "", pipeTD)).Do(t.Context(), tt.m) {
					time.Sleep(time.Second) // of the bubble
					err = e
				}
				wantError(t, err, tt.code)
			})
		})
	}
}

// TestAStormOfReadings: of a property only the newest values count, so a slow consumer loses none that matters.
func TestAStormOfReadings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const storm = 5000
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			if obs, ok := q.Uint(message.Observe); !ok || obs != 0 {
				return
			}
			a.says(q, codes.Content, "0", option(message.Observe, 1))
		})
		defer a.end(client)
		n := 0
		for r, err := range client.Thing(describe(t, "", pipeTD)).Do(t.Context(), observe("p")) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				for i := 1; i <= storm; i++ {
					a.notifies(uint16(i), uint32(i+1), fmt.Sprint(i))
				}
				synctest.Wait()
			}
			if string(r.Data) == fmt.Sprint(storm) {
				break
			}
		}
		if n > backlog+2 {
			t.Errorf("%d readings were kept", n)
		}
	})
}

// TestLargeNotifications have their first block only; the rest is fetched (RFC 7959 §3.4).
func TestLargeNotifications(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		text := big(2500)
		client, a := piped(t, func(a *agentPipe, q *messaging.Packet) {
			if obs, ok := q.Uint(message.Observe); ok && obs == 0 {
				a.says(q, codes.Content, "0", option(message.Observe, 1))
				a.notifies(7, 2, text[:1024], option(message.Block2, 0<<4|8|6))
			} else if b, ok := q.Block(message.Block2); ok && !q.IsRequest() == false && b.Num > 0 {
				part, is, _ := b.Cut([]byte(text))
				a.says(q, codes.Content, string(part), option(message.Block2, is.Value()))
			}
		})
		defer a.end(client)
		got, err := first(t.Context(), client.Thing(describe(t, "", pipeTD)), observe("p"), 2)
		if err != nil || len(got) != 2 || got[1] != "p="+text {
			t.Errorf("got %d readings, %v", len(got), err)
		}
	})
}
