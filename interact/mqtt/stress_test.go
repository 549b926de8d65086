package mqtt

import (
	"bytes"
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interact/mqtt/packet"
)

// Consumers send requests and observe, while the connection is lost at random. At the end no goroutine is left.
func TestClientUnderStress(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{5, 4} {
		b := startBroker(t, "127.0.0.1:0")
		if version == 4 {
			b.old()
		}
		if err := b.Publish("lamp/level", []byte("1"), true, 1); err != nil {
			t.Fatal(err)
		}
		c, thing := newClient(t, Options{}), describe(t, "mqtt://"+b.addr, w3c)
		questions := []func() *interact.Message{
			func() *interact.Message { return read("level") },
			func() *interact.Message { return write("level", "2") },
			func() *interact.Message { return invoke("fade", "{}") },
			func() *interact.Message {
				return &interact.Message{Type: interact.ObserveProperty, Name: "level", Deadline: time.Now().Add(5 * time.Millisecond)}
			},
			func() *interact.Message {
				return &interact.Message{Type: interact.SubscribeAllEvents, Deadline: time.Now().Add(5 * time.Millisecond)}
			},
		}
		var work, breaker sync.WaitGroup
		stop := make(chan struct{})
		breaker.Go(func() {
			for {
				select {
				case <-time.After(10 * time.Millisecond):
					b.cut("lmosd")
				case <-stop:
					return
				}
			}
		})
		for i := range 8 {
			work.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(20)+1)*time.Millisecond)
					for _, err := range c.Thing(thing).Do(ctx, questions[r.IntN(len(questions))]()) {
						if err != nil && !allowed(interact.AsError(err).Code) {
							t.Errorf("version %d: %v", version, err)
						}
						if r.IntN(2) == 0 {
							break
						}
					}
					cancel()
				}
			})
		}
		work.Wait()
		close(stop)
		breaker.Wait()
		until(t, "nothing is listened to", func() bool { return subscriptions(c) == 0 })
		if got, err := ask(t, c, thing, read("level")); err != nil || got.Type != interact.PropertyReading {
			t.Errorf("version %d: afterwards: %v, %v", version, got, err)
		}
	}
}

// allowed reports whether an error is one that broken connections and short deadlines give.
func allowed(code interact.Code) bool {
	return code == interact.Unreachable || code == interact.Timeout || code == interact.Cancelled
}

// subscriptions counts the filters of all connections.
func subscriptions(c *Client) (n int) {
	eachSubscription(c, func(*subscription) { n++ })
	return n
}

// Clients of the broker subscribe, send requests and disconnect at random. At the end there are no observations.
func TestBrokerUnderStress(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	b := serve(t, m)
	filters := []string{"lamp/#", "lamp/events/+", "lamp/events/broken", "lamp/properties/+/observable",
		"lamp/properties/level/observable", "lamp/events/none", "#"}
	var work sync.WaitGroup
	for i := range 6 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 6 {
				conn, err := net.Dial("tcp", b.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c := paho.NewClient(paho.ClientConfig{Conn: packet.NewConn(conn, packet.FromBroker, 1<<20), Session: &safeSession{State: newState()},
					OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(paho.PublishReceived) (bool, error) {
						return true,
							nil
					}}})
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				if _, err := c.Connect(ctx, &paho.Connect{ClientID: fmt.Sprint("c", i), CleanStart: true, KeepAlive: 30}); err != nil {
					t.Error(err)
				}
				for range 20 {
					filter := filters[r.IntN(len(filters))]
					switch r.IntN(4) {
					case 0, 1:
						_, _ = c.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: byte(r.IntN(3))}}})
					case 2:
						_, _ = c.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{filter}})
					default:
						_, _ = c.Publish(ctx, &paho.Publish{Topic: "lamp/properties/level", QoS: 1, Payload: []byte("1")})
					}
					m.tell("level", "", "1")
					m.tell("broken", "", `"x"`)
				}
				if r.IntN(2) == 0 {
					_ = c.Disconnect(&paho.Disconnect{})
				} else {
					c.TerminateConnectionForTest()
				}
				<-c.Done()
				cancel()
			}
		})
	}
	work.Wait()
	until(t, "all are gone", func() bool { return b.count() == 0 && b.server.Clients.Len() == 0 })
	until(t, "nothing is observed", func() bool {
		return m.observers("level")+m.observers("color")+m.observers("broken")+m.observers("out") == 0
	})
	until(t, "no request runs", func() bool { return b.room.TryAcquire(maxRequests) })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.watches) > 0 {
		t.Errorf("%d watches are left", len(b.watches))
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// The bytes of an interaction, packet by packet, as a broker of MQTT 5 and one of 3.1.1 sees them. The random parts are replaced.
func TestWireFormat(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]struct {
		old   bool
		forms string
		m     *interact.Message
	}{
		"invoke_5":  {false, kotlin, invoke("fade", `{"to":1}`)},
		"write_5":   {false, w3c, write("note", `"dark"`)},
		"observe_5": {false, w3c, &interact.Message{Type: interact.ObserveProperty, Name: "level"}},
		"write_311": {true, w3c, write("note", `"dark"`)},
		"read_311":  {true, w3c, read("level")},
	} {
		var seen recorder
		addr, end := accept(t, func(conn net.Conn) { seen.serve(conn, q.old) })
		c := newClient(t, Options{})
		c.learn(addr, map[bool]byte{false: 5, true: 4}[q.old], time.Now())
		if q.m.Type == interact.InvokeAction {
			q.m.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		for _, err := range c.Thing(describe(t, "mqtt://"+addr, q.forms)).Do(ctx, q.m) {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			break
		}
		cancel()
		until(t, "unsubscribed", func() bool { return subscriptions(c) == 0 })
		c.Close()
		end()
		golden(t, filepath.Join("testdata", name+".txt"), seen.text())
	}
}

// A recorder is a broker that accepts all packets, responds to requests with an empty message, and records the packets.
type recorder struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

var random = []*regexp.Regexp{regexp.MustCompile(`lmosd[0-9a-f]{18}`),
	regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`),
	regexp.MustCompile(`[A-Z2-7]{26}`)}

// note writes a packet as text and hexadecimal bytes, without its random parts.
func (r *recorder) note(first byte, body []byte) {
	for _, re := range random {
		body = re.ReplaceAllFunc(body, func(b []byte) []byte { return bytes.Repeat([]byte("*"), len(b)) })
	}
	if first>>4 == packet.Publish {
		if i := bytes.Index(body, []byte{2, 0, 0, 0}); i > 0 { // the message expiry, which is the remaining time
			body[i+4] = '*'
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.b, "%02x %d\n%s\n", first, len(body), hex.Dump(body))
}

func (r *recorder) serve(conn net.Conn, old bool) {
	eachPacket(conn, func(first byte, body []byte) bool {
		kind := first >> 4
		if kind != packet.Pingreq {
			r.note(first, bytes.Clone(body))
		}
		var props string // of MQTT 5: none
		if !old {
			props = "\x00"
		}
		switch kind {
		case packet.Connect:
			_, _ = conn.Write(packetOf(0x20, "\x00\x00"+props))
		case packet.Subscribe:
			_, _ = conn.Write(packetOf(0x90, string(body[:2])+props+"\x01"))
			if filter := filterOf(body, old); !strings.Contains(filter, "/reply/") {
				_, _ = conn.Write(packetOf(0x31, string([]byte{0, byte(len(filter))})+filter+props+"7"))
			}
		case packet.Unsubscribe:
			if old {
				_, _ = conn.Write(packetOf(0xb0, string(body[:2])))
			} else {
				_, _ = conn.Write(packetOf(0xb0, string(body[:2])+"\x00\x00"))
			}
		case packet.Publish:
			r.acknowledge(conn, first, body)
		case packet.Pubrel:
			_, _ = conn.Write(packetOf(0x70, string(body[:2])))
		case packet.Pingreq:
			_, _ = conn.Write(packetOf(0xd0, ""))
		}
		return true
	})
}

// filterOf returns the filter of a SUBSCRIBE.
func filterOf(body []byte, old bool) string {
	if !old {
		body = body[1:] // no properties
	}
	return string(body[4 : len(body)-1])
}

// acknowledge answers a message, and the request that it is.
func (r *recorder) acknowledge(conn net.Conn, first byte, body []byte) {
	topic := int(body[0])<<8 | int(body[1])
	id := string(body[2+topic : 4+topic])
	_, _ = conn.Write(packetOf(map[byte]byte{1: 0x40, 2: 0x50}[first>>1&3], id))
	if i := bytes.Index(body, []byte("/reply/")); i > 0 {
		responseTopic := string(body[2:2+topic]) + string(body[i:i+len("/reply/")+36])
		_, _ = conn.Write(packetOf(0x30, string([]byte{0, byte(len(responseTopic))})+responseTopic+"\x00"+`"done"`))
	}
}

// golden compares got with a file, or writes it with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// BenchmarkRequest is one action over a broker between client and agent, all on loopback.
func BenchmarkRequest(b *testing.B) {
	broker := startBroker(b, "127.0.0.1:0")
	p := newPeer(b, broker.addr, func(p *peer, m *paho.Publish) { p.answer(m, "application/json", `"done"`) })
	p.sub(b, "urn:example:lamp/actions/+")
	c, thing := newClient(b, Options{}), describe(b, "mqtt://"+broker.addr, kotlin)
	for b.Loop() {
		if _, err := ask(b, c, thing, invoke("fade", "{}")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBroker is one action at the broker of this package.
func BenchmarkBroker(b *testing.B) {
	broker := serve(b, newMesh(b))
	thing := describe(b, "mqtt://"+broker.Addr().String(),
		`"actions": {"echo": {"output": {}, "forms": [{"href": "BASE/lamp/actions/echo"}]}}`)
	c := newClient(b, Options{})
	n := 0
	for b.Loop() {
		n++
		if _, err := ask(b, c, thing, invoke("echo", strconv.Itoa(n))); err != nil {
			b.Fatal(err)
		}
	}
}
