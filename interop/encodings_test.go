package interop

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/eclipse/paho.golang/paho"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/mux"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// An encoding is the same input and output in one media type.
type encoding struct {
	media   string
	in, out string
	format  message.MediaType // of CoAP
}

var encodings = []encoding{
	{interact.JSON, `{"a":19,"b":23}`, "42", message.AppJSON},
	{interact.CBOR, "\xa2\x61a\x13\x61b\x17", "\x18\x2a", message.AppCBOR},
}

// A strict agent adds two numbers in one encoding only, and counts other inputs.
type strict struct {
	encoding
	strange atomic.Int64
}

func (s *strict) add(in []byte, media string) (out string, ok bool) {
	if media != s.media || string(in) != s.in {
		s.strange.Add(1)
		return "", false
	}
	return s.out, true
}

// serveHTTP, serveMQTT and serveCoAP start the agent and return the URL of its action.
func (s *strict) serveHTTP(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, _ := io.ReadAll(r.Body)
		out, ok := s.add(in, r.Header.Get("Content-Type"))
		if w.Header().Set("Content-Type", s.media); !ok {
			w.WriteHeader(http.StatusUnsupportedMediaType)
		}
		io.WriteString(w, out)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/add"
}

func (s *strict) serveMQTT(t *testing.T) string {
	address := startBroker(t)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var client *paho.Client
	client = paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			of := p.Packet.Properties
			out, _ := s.add(p.Packet.Payload, of.ContentType)
			go client.Publish(context.Background(), &paho.Publish{Topic: of.ResponseTopic, Payload: []byte(out), // QoS 0: it does not wait
				Properties: &paho.PublishProperties{ContentType: s.media, CorrelationData: of.CorrelationData}})
			return true, nil
		}}})
	if _, err := client.Connect(t.Context(), &paho.Connect{ClientID: "agent", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Disconnect(&paho.Disconnect{}); <-client.Done() })
	asked := []paho.SubscribeOptions{{Topic: "calculator/add", QoS: 1}}
	if _, err := client.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: asked}); err != nil {
		t.Fatal(err)
	}
	return "mqtt://" + address + "/calculator/add"
}

func (s *strict) serveCoAP(t *testing.T) string {
	router := mux.NewRouter()
	router.DefaultHandle(mux.HandlerFunc(func(w mux.ResponseWriter, r *mux.Message) {
		in, _ := r.ReadBody()
		format, err := r.ContentFormat()
		media := s.media
		if err != nil || format != s.format {
			media = "another"
		}
		out, ok := s.add(in, media)
		code := codes.Changed
		if !ok {
			code = codes.UnsupportedMediaType
		}
		_ = w.SetResponse(code, s.format, bytes.NewReader([]byte(out))) // the waiting client detects a failure
	}))
	address, stop := serveCoAP(t, router)
	t.Cleanup(stop)
	return "coap://" + address + "/add"
}

// Consumers call agents at another node that support only JSON, or only CBOR, over three protocols, in JSON and in CBOR, and accept either.
func TestEitherEncoding(t *testing.T) {
	t.Parallel()
	m := testmesh.Start(t)
	var agents []*strict
	for _, of := range encodings {
		for _, serve := range []func(*strict, *testing.T) string{(*strict).serveHTTP, (*strict).serveMQTT, (*strict).serveCoAP} {
			s := &strict{encoding: of}
			href := serve(s, t)
			u, err := url.Parse(href)
			if err != nil {
				t.Fatal(err)
			}
			name := "calculator-" + u.Scheme + "-" + of.media[len("application/"):]
			m.Offer(t, simple(name, "add", href, `, "contentType": "`+of.media+`"`), nil)
			m.Known(t, name)
			agents = append(agents, s)
			for _, c := range consumerBindings {
				if c.name != "HTTP" && c.name != "MQTT" && c.name != "CoAP" {
					continue // frames and events are JSON
				}
				k := c.open(t, m, name)
				for _, asked := range encodings {
					for _, wanted := range encodings {
						r, err := send(k, &interact.Message{Type: interact.InvokeAction, Name: "add", Data: []byte(asked.in),
							ContentType: asked.media, Accept: wanted.media})
						if err != nil || string(r.Data) != wanted.out || r.Media() != wanted.media {
							t.Errorf("%s calls %s in %s, accepts %s: got %+v, %v", c.name, name, asked.media, wanted.media, r, err)
						}
					}
				}
				k.hangUp()
			}
		}
	}
	for _, s := range agents {
		if n := s.strange.Load(); n > 0 {
			t.Errorf("an agent of %s received %d other requests", s.media, n)
		}
	}
	startHTTP(t, m, "lamp")
	m.Known(t, "lamp")
	h := newHTTPTalk(m, "lamp")
	defer h.client.CloseIdleConnections()
	_, raw, err := h.do(t.Context(), "GET", h.thing+"/properties/units", nil, "Accept", interact.CBOR)
	if err != nil || string(raw) != "\x67celsius" {
		t.Errorf("a reading in CBOR: %q, %v", raw, err)
	}
}
