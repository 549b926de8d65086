package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/pkg/runner/periodic"
	"github.com/plgd-dev/go-coap/v3/udp"
	"github.com/plgd-dev/go-coap/v3/udp/client"

	"github.com/lmosd/lmosd/interact"
	"github.com/lmosd/lmosd/interop/testmesh"
)

// An mqttTalk is a client of the broker of the consumer's node.
type mqttTalk struct {
	client *paho.Client
	base   string // of topics
	board[*paho.Publish]
	n atomic.Int64 // last id
}

func openMQTT(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	conn, err := net.Dial("tcp", m.MQTT)
	if err != nil {
		t.Fatal(err)
	}
	k := &mqttTalk{base: url.PathEscape(thing)}
	k.client = paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			k.put(p.Packet)
			return true, nil
		}}})
	hello := &paho.Connect{ClientID: interact.NewID(), CleanStart: true, KeepAlive: 30}
	if _, err := k.client.Connect(t.Context(), hello); err != nil {
		t.Fatal(err)
	}
	return &consumer{speaker{t, k.ask}, func() { k.client.Disconnect(&paho.Disconnect{}); <-k.client.Done() }}
}

// topics are the topics of requests and subscriptions below the Thing; % is the affordance.
var topics = map[interact.Type]string{interact.ReadProperty: "properties/%", interact.WriteProperty: "properties/%",
	interact.ReadAllProperties: "properties", interact.ReadMultipleProperties: "properties",
	interact.WriteMultipleProperties: "properties", interact.InvokeAction: "actions/%",
	interact.QueryAction: "actions/%/query", interact.CancelAction: "actions/%/cancel",
	interact.QueryAllActions: "actions", interact.ObserveProperty: "properties/%/observable",
	interact.ObserveAllProperties: "properties/+/observable", interact.SubscribeEvent: "events/%",
	interact.SubscribeAllEvents: "events/+"}

// ask sends a request or subscribes, and yields the replies.
func (k *mqttTalk) ask(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	topic := k.base + "/" + strings.ReplaceAll(topics[m.Type], "%", m.Name)
	if topics[m.Type] == "" || m.Chunks != nil || m.After != "" {
		return errNot
	}
	came, leave := k.read()
	defer leave()
	filter, tag := topic, fmt.Sprint(k.n.Add(1))
	if !m.Type.Long() {
		filter = topic + "/reply/" + tag
	}
	wanted := []paho.SubscribeOptions{{Topic: filter, QoS: 1}}
	if _, err := k.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: wanted}); err != nil {
		return err
	}
	err := k.request(ctx, m, topic, filter, tag)
	for last := false; err == nil && !last; {
		var p *paho.Publish
		if p, err = next(ctx, came); err == nil && matches(filter, p.Topic) {
			var r *interact.Message
			r, last, err = k.reply(m, tag, p)
			last = err == nil && !tell(r) || last
		}
	}
	_, left := k.client.Unsubscribe(context.WithoutCancel(ctx), &paho.Unsubscribe{Topics: []string{filter}})
	return cmp.Or(err, left)
}

// matches reports whether a filter, with at most a "+", covers a topic.
func matches(filter, topic string) bool {
	before, after, any := strings.Cut(filter, "+")
	return filter == topic || any && strings.HasPrefix(topic, before) && strings.HasSuffix(topic, after)
}

// request publishes a request.
func (k *mqttTalk) request(ctx context.Context, m *interact.Message, topic, answerTo, tag string) error {
	if m.Type.Long() {
		return nil
	}
	p := &paho.PublishProperties{ResponseTopic: answerTo, ContentType: m.Media(), CorrelationData: []byte(tag)}
	if m.Detach {
		p.User.Add("lmos-detach", "true")
	}
	switch m.Accept {
	case inParts:
		p.User.Add("lmos-follow", "true")
	case "":
	default:
		p.User.Add("accept", m.Accept)
	}
	if m.TraceParent != "" { // W3C Trace Context, MQTT
		p.User.Add("traceparent", m.TraceParent)
		p.User.Add("tracestate", m.TraceState)
	}
	data := m.Data
	if m.ActionID != "" {
		data = []byte(m.ActionID)
	}
	_, err := k.client.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: data, Properties: p})
	return err
}

// reply reads a response or a notification, and reports whether it is the last.
func (k *mqttTalk) reply(m *interact.Message, tag string, p *paho.Publish) (r *interact.Message, last bool, err error) {
	user := p.Properties.User
	r = completed(m, p.Properties.ContentType, p.Payload)
	r.ID, r.ActionID = user.Get("lmos-id"), user.Get("lmos-action-id")
	status := interact.StatusOf(user.Get("lmos-status"))
	switch {
	case m.Type.Long():
		return r, false, nil
	case r.ContentType == "application/problem+json":
		return nil, true, fmt.Errorf("%s", p.Payload)
	case string(p.Properties.CorrelationData) != tag:
		return nil, true, errors.New("the answer has other correlation data")
	case m.Type == interact.QueryAction || m.Type == interact.InvokeAction && m.Detach:
		r, err = stateIn(m, p.Payload)
		return r, true, err
	case m.Accept == inParts:
		r.Status = status
		return r, status.Final(), nil
	}
	return r, true, nil
}

// A coapTalk is a client of the endpoint of the consumer's node.
type coapTalk struct {
	conn *client.Conn
	base string
}

func openCoAP(t *testing.T, m *testmesh.Mesh, thing string) *consumer {
	over := make(chan struct{})
	conn, err := udp.Dial(m.CoAP, options.WithPeriodicRunner(periodic.New(over, time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	k := &coapTalk{conn, "/things/" + thing}
	return &consumer{speaker{t, k.ask}, func() { conn.Close(); <-conn.Done(); close(over) }}
}

const fetch codes.Code = 5 // RFC 8132 §2

// asked are the methods of the resources of the Thing.
var asked = map[interact.Type]codes.Code{interact.ReadProperty: codes.GET, interact.WriteProperty: codes.PUT,
	interact.ReadAllProperties: codes.GET, interact.ReadMultipleProperties: fetch, interact.WriteMultipleProperties: codes.PUT,
	interact.InvokeAction: codes.POST, interact.QueryAction: codes.GET, interact.CancelAction: codes.DELETE,
	interact.QueryAllActions: codes.GET}

// ask sends a request or observes, and yields the replies.
func (k *coapTalk) ask(ctx context.Context, m *interact.Message, tell func(*interact.Message) bool) error {
	path := k.base + "/" + kindOf(m.Type)
	if m.Name != "" {
		path += "/" + m.Name
	}
	if m.ActionID != "" {
		path += "/" + m.ActionID
	}
	switch code := asked[m.Type]; {
	case m.Chunks != nil || m.After != "" || code == 0 && !m.Type.Long():
		return errNot
	case code == 0:
		return k.observe(ctx, m, path, tell)
	default:
		r, err := k.exchange(ctx, m, code, path)
		if err == nil {
			tell(r)
		}
		return err
	}
}

// exchange sends a request and returns the response.
func (k *coapTalk) exchange(ctx context.Context, m *interact.Message, code codes.Code, path string) (*interact.Message, error) {
	req := k.conn.AcquireMessage(ctx)
	defer k.conn.ReleaseMessage(req)
	token, err := message.GetToken()
	if err != nil {
		return nil, err
	}
	if code == codes.GET || code == codes.DELETE {
		err = req.SetupGet(path, token)
	} else {
		err = req.SetupPut(path, token, message.AppJSON, bytes.NewReader(m.Data))
	}
	if err != nil {
		return nil, err
	}
	if m.ContentType == interact.CBOR {
		req.SetContentFormat(message.AppCBOR)
	}
	switch m.Accept {
	case interact.CBOR:
		req.SetAccept(message.AppCBOR)
	case interact.JSON:
		req.SetAccept(message.AppJSON)
	}
	if req.SetCode(code); m.Detach {
		req.AddQuery("async")
	}
	resp, err := k.conn.Do(req)
	if err != nil {
		return nil, err
	}
	defer k.conn.ReleaseMessage(resp)
	body, err := bodyIn(resp)
	if err != nil {
		return nil, err
	}
	r := completed(m, "", body)
	if format, err := resp.ContentFormat(); err == nil && format != message.AppJSON {
		r.ContentType = format.String()
	}
	if m.Type == interact.QueryAction || resp.Code() == codes.Created {
		return stateIn(m, body)
	}
	return r, nil
}

// observe observes a resource (RFC 7641). A notification of all properties is an object of the changes.
func (k *coapTalk) observe(ctx context.Context, m *interact.Message, path string, tell func(*interact.Message) bool) error {
	type note struct {
		data []byte
		err  error
	}
	var all board[note]
	came, leave := all.read()
	defer leave()
	o, err := k.conn.Observe(ctx, path, func(r *pool.Message) {
		body, err := bodyIn(r)
		all.put(note{body, err})
	})
	if err == nil && o.Canceled() {
		err = errors.New("the answer has no option Observe: it is not observed (RFC 7641 §2)")
	}
	if err != nil {
		return err
	}
	for {
		n, err := next(ctx, came)
		if err = cmp.Or(err, n.err); err == nil {
			var some map[string]json.RawMessage
			if m.Name == "" && json.Unmarshal(n.data, &some) == nil {
				n.data = append(some["level"], some["alarm"]...)
			}
			if tell(m.Reply(interact.Event, "", n.data)) {
				continue
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		defer cancel()
		return cmp.Or(err, o.Cancel(ctx))
	}
}

// bodyIn returns the body of a response, or its error.
func bodyIn(r *pool.Message) ([]byte, error) {
	body, err := r.ReadBody()
	if err == nil && r.Code() >= codes.BadRequest {
		err = fmt.Errorf("%v %s", r.Code(), body)
	}
	return body, err
}
